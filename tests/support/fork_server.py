"""A process that forks one child per job, with everything imported and no database open.

Reads jobs as JSON lines: `home`, `run`, and `crash` (a fuse as in the environment, armed in the child) or
`kill_after` (seconds until SIGKILL). With `faults` the child has the real workers, on a machine that fails so
(`tests.support.process_worlds`). Answers each with the child's exit status as waitpid gives
it, negative for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
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

PRELOADED = (
    "agent_core.roles.scripted", "remote.local", "sqlite_utils.migrations", "watchdog.observers",
    "tests.support.process_worlds",
)  # fmt: skip
"""Imported here so that no child does it again; none of them opens a database."""


class ForkServer:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, home: Path, run: str, **job) -> int:
        print(json.dumps({"home": str(home), "run": run, **job}), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


def child(job: dict) -> int:
    crash._trigger = crash.parse_trigger(job.get("crash"))
    if "kill_after" in job:
        threading.Timer(job["kill_after"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        if "faults" in job:
            from tests.support.process_worlds import live

            live(Path(job["home"]), job["run"], job)
            return 0
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
