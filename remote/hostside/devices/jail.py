"""Runs a program in a jail on a host: the walls that home has, as strong as this machine can build them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remote.sandbox import JailResult
    from remote.walls import JailedProgram


def jailed(program: JailedProgram, request: bytes) -> JailResult:
    """Return how a program ended; one that waits for what never comes gets a second try."""
    from remote.sandbox import run_jailed
    from remote.walls import jail_strength

    strength = jail_strength()
    result = asyncio.run(run_jailed(program, request, strength=strength))
    if result.asleep:
        result = asyncio.run(run_jailed(program, request, strength=strength))
    return result


def told(result: JailResult) -> dict[str, Any]:
    """Return how a jailed program ended, as an answer holds it."""
    return {
        "exit_status": result.exit_status,
        "stderr": result.stderr[-4000:],
        "truncated": result.truncated,
        "cpu_exhausted": result.cpu_exhausted,
        "asleep": result.asleep,
        "killed": result.killed,
    }
