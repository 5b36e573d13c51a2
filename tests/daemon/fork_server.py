"""A process that forks one child per job, with everything imported and no database open.

Reads jobs as JSON lines: `home`, `run`, and one of `crash` (a fuse as in the environment, armed in the
child) or `kill_after` (seconds until SIGKILL). Answers each with the child's exit status as waitpid gives
it, negative for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import remote
from daemon.process_logging import configure_logging
from state import crash
from tests.support import fakes

PRELOADED = ("agent_core.roles.scripted", "remote.local", "sqlite_utils.migrations", "watchdog.observers")
"""Imported here so that no child does it again; none of them opens a database."""


def child(job: dict) -> int:
    crash._trigger = crash.parse_trigger(job.get("crash"))
    if "kill_after" in job:
        threading.Timer(job["kill_after"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        with ExitStack() as stack:
            workers = fakes.refuting_workers() if job.get("refuting") else None
            if job.get("simplifying"):
                workers = stack.enter_context(fakes.simplifying())
            at_a_time = job.get("at_a_time", 1)
            fakes.finish_runs(Path(job["home"]), job["run"], workers=workers, at_a_time=at_a_time)
    except BaseException:  # noqa: BLE001 - a child must end here, whatever happened
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    configure_logging("warning")  # to stderr: stdout is for the answers alone
    for module in PRELOADED:
        import_module(module)
    remote.compute_bounds(fakes.seeds.load_problem("silu"), "reduced", "trn2")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(child(json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
