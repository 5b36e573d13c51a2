"""Verifies the whole log while its owner works, in a separate process at the lowest priority.

Opening a log is quick because it checks only what is new since the last check. This checks everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from daemon import exits
from daemon.stop_signal import StopSignal, run_alongside, wait_for_first
from daemon.structured_log import structlog
from state.errors import LogDamaged

LOWEST_PRIORITY = 19

_VERIFIER = """import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
from agentctl import main
main()
"""
"""`agentctl` that dies with its parent process, even if the parent is killed."""

_CRASHED = frozenset({exits.FAILURE, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE})
"""Statuses of a verifier that crashed: the log holds something that broke it, so the verification
failed.

`verify` itself never exits with FAILURE. If somebody kills the verifier, that says nothing about the
log.
"""

PATIENCE_SECONDS = 10.0
"""How long the report of a finished run waits for the verification of its log."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("proof")


async def verify_alongside(
    home: Path,
    work: Coroutine[Any, Any, None],
    stop: StopSignal,
    *,
    patience_seconds: Callable[[], float],
    wait_seconds: float = 0.0,
) -> None:
    """Do `work` while the log of `home` is verified. Damage requests a stop, and is raised at the end.

    If the verification outlasts the work, wait for it: for `patience_seconds()`, or until a signal asks
    to stop again. Log a warning if it has not ended by then. The verification begins when the work ends, or
    after `wait_seconds`.

    Raises:
        LogDamaged: it names the first damage found.
    """
    ended, worked = asyncio.Event(), asyncio.Event()

    async def proof() -> None:
        try:
            await wait_for_first(worked, seconds=wait_seconds)
            await verify_log(home)
        finally:
            ended.set()

    async def work_and_wait() -> None:
        await work
        worked.set()
        seconds = patience_seconds()
        if ended.is_set() or seconds <= 0:
            return
        await wait_for_first(ended, stop.immediate, seconds=seconds)
        if not ended.is_set():
            log.warning("log_not_verified", reason="it takes longer; agentctl verify does it all")

    await run_alongside(work_and_wait(), proof(), stop=stop)


async def verify_briefly(home: Path) -> None:
    """Verify the log of `home`, but wait only as long as a report may; log a warning if that is too
    short.

    Raises:
        LogDamaged: it names the first damage found.
    """
    await verify_alongside(home, asyncio.sleep(0), StopSignal(), patience_seconds=lambda: PATIENCE_SECONDS)


async def verify_log(home: Path) -> None:
    """Verify the log of `home` completely while its owner works; cancelling kills the verifier process.

    Raises:
        LogDamaged: it names the first damage found.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", _VERIFIER, "--home", str(home), "verify", "--json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        with suppress(ProcessLookupError):  # it may have ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
        out, err = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == exits.LOG:
        raise LogDamaged(json.loads(out)["findings"][0] if out else err.decode().strip())
    if process.returncode in _CRASHED:
        raise LogDamaged(f"proving it failed with status {process.returncode}: {_last_line(err)}")
    if process.returncode == exits.OK:
        log.info("log_verified", home=str(home), events=json.loads(out)["events"])
    else:  # killed for memory, for example: nothing is known about the log
        log.warning("log_not_verified", status=process.returncode, reason=err.decode().strip())


def _last_line(err: bytes) -> str:
    """Return the last line of the process's output; in a traceback, that is the error."""
    return (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
