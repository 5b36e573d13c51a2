"""Proving the whole log behind the daemon's back: a process of its own, at the lowest priority.

Opening a log checks what is new since the last look, so that it is quick; this checks everything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import structlog

from daemon.ctl import exits
from state.errors import LogDamaged

LOWEST_PRIORITY = 19

log: structlog.stdlib.BoundLogger = structlog.get_logger("proof")


async def prove(home: Path) -> None:
    """Verify the log of `home` deeply while its owner works; cancelling ends the process that does it.

    Raises:
        LogDamaged: naming the first thing that is not as it was written.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "daemon.ctl", "--home", str(home), "verify", "--json",
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
    if process.returncode == exits.OK:
        log.info("log_verified", home=str(home), events=json.loads(out)["events"])
    else:  # killed for memory, say: nothing is known about the log
        log.warning("log_not_verified", status=process.returncode, reason=err.decode().strip())
