"""Runs several coroutines at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from remote.errors import InfrastructureError

T = TypeVar("T")


async def gather_to_end(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines at a time; if one fails in a way that may pass, raise that when all have ended.

    For work that is kept: a process that was killed must not undo what others do. Any other failure ends them
    all, and whatever happens none is left running.
    """
    tasks = [asyncio.create_task(item) for item in work]
    made: list[T] = []
    failure: InfrastructureError | None = None
    try:
        for task in tasks:
            try:
                made.append(await task)
            except InfrastructureError as error:
                if not error.retryable:
                    raise
                failure = failure or error
        if failure is not None:
            raise failure
        return made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines at a time; raise the first failure in order and leave none running."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
