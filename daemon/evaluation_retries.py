"""Repeats a call to an evaluator that the infrastructure failed: how often, with which pauses, and what
counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from daemon.outcomes import InfrastructureFailure, internal_error, machine_failure
from daemon.structured_log import structlog
from remote.errors import InfrastructureError, NoHostError
from state.errors import StateError
from state.model import EffectKey, ErrorInfo
from state.step_keeper import count_done_parts

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger("runner")


@dataclass(frozen=True, slots=True)
class EvaluationRetryPolicy:
    """How often an evaluation is tried when the infrastructure fails, and the pauses between tries
    (seconds).

    A try that takes longer than `deadline_seconds` counts as failed. What the machine lacks for every effect,
    such as space, is waited for longer: `machine_tries`.
    """

    tries: int = 3
    machine_tries: int = 6
    deadline_seconds: float = 600.0
    first_pause: float = 0.5
    factor: float = 4.0

    def is_last(self, tried: int, failure: InfrastructureFailure) -> bool:
        """Return whether no further try follows try number `tried`, which failed."""
        return not failure.retryable or tried >= (self.machine_tries if failure.of_machine else self.tries)

    def pause_seconds(self, tried: int) -> float:
        """Return the pause after try number `tried`, counted from 1."""
        return self.first_pause * self.factor ** (tried - 1)


async def call_with_retries(
    retry: EvaluationRetryPolicy, key: EffectKey, ask: Callable[[], Awaitable[T]]
) -> T | InfrastructureFailure:
    """Call `ask`, and again after failures that may pass; a failure says how often it was tried.

    A try that did a part of the work, which the next one need not do again, is not counted.
    """
    tried, done = 1, count_done_parts()
    while isinstance(answer := await _try_once(retry, key, ask), InfrastructureFailure):
        if count_done_parts() > done:
            tried, done = 1, count_done_parts()
        if retry.is_last(tried, answer):
            return replace(answer, tries=tried)
        log.warning("evaluation_retried", key=str(key), code=answer.error.code, tried=tried)
        await asyncio.sleep(retry.pause_seconds(tried))
        tried += 1
    return answer


async def _try_once(
    retry: EvaluationRetryPolicy, key: EffectKey, ask: Callable[[], Awaitable[T]]
) -> T | InfrastructureFailure:
    try:
        async with asyncio.timeout(retry.deadline_seconds):
            return await ask()
    except TimeoutError:
        text = f"no verdict within {retry.deadline_seconds:g} s"
        return InfrastructureFailure(ErrorInfo(code="evaluation_deadline", message=text), retryable=True)
    except NoHostError:
        raise
    except InfrastructureError as error:
        return InfrastructureFailure(
            ErrorInfo(code=error.code, message=error.message),
            retryable=error.retryable,
            of_machine=error.of_machine,
        )
    except StateError:
        raise
    except (OSError, MemoryError) as error:  # of this process: no space, no file handles, no new process
        return machine_failure(error)
    except Exception as error:
        log.exception("evaluator_failed", key=str(key))
        return InfrastructureFailure(internal_error(error), retryable=False)
