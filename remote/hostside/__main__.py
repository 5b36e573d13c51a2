"""The worker's command line: `serve WORKDIR` answers one home.

A process forked for a job's step returns here, out of the stack that served the home, and then runs the step
as a program of its own. All steps are imported beforehand, so that none of them starts an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
from pathlib import Path

from remote.hostside.runner import EnterStep
from remote.hostside.server import WorkerServer
from remote.hostside.steps import STEPS
from remote.hostside.workdir import Workdir

USAGE_STATUS = 64


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    if len(arguments) == 2 and arguments[0] == "serve":
        return _serve_home(Path(arguments[1]))
    sys.stderr.write(f"this is a worker of nki-kernel-agent; it knows no {arguments}\n")
    return USAGE_STATUS


def _serve_home(workdir: Path) -> int:
    hears, says = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # a stray print must not write into the protocol
    place = Workdir(workdir)
    gc.freeze()  # forked processes share what is loaded by now, and their collector skips it
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            WorkerServer(place, os.path.abspath(sys.argv[0]), hears=hears, says=says).serve_home()  # noqa: PTH100
    except EnterStep as begins:
        name, folder = begins.step, begins.folder
    else:
        return 0
    status = _run_step(name, folder)
    _exit_without_teardown(status)
    return status


def _run_step(name: str, folder: Path) -> int:
    if name not in STEPS:
        sys.stderr.write(f"this worker has no step {name!r}, only {', '.join(sorted(STEPS))}\n")
        return USAGE_STATUS
    STEPS[name](folder)
    return 0


def _exit_without_teardown(status: int) -> None:
    """Exit like a program, but leave the interpreter as it is: teardown copies memory shared by forks."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    # Run the exit handlers that libraries registered, but no Python of the remaining threads.
    ctypes.PyDLL(None).exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
