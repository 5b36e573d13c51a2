"""A process that writes a scripted run and may be killed at any time.

`python -m tests.state.killed_writer HOME EVENTS` goes on where the log stands. Its first line is the seq that
it found, each further one the last seq that an append acknowledged. Appends hold one to three events, so
that a kill may fall inside one. Without arguments it is a fork server: for each line `CRASH_AT EVENTS HOME`
of its input it forks a child that does the same (CRASH_AT `-`: undisturbed), and then writes the child's
exit status. A fork costs a hundredth of an interpreter's start; the server itself opens no database.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from itertools import islice
from pathlib import Path

from state import crash, snapshots
from state.log import EventLog
from state.records import NewEvent
from tests.support.scripted_runs import ScriptedRun

RUN = "r"


def size_of_append(number: int) -> int:
    """Events in a process's append, counted from 0."""
    return 1 + number % 3


def main(home: Path, events: int) -> None:
    steps = list(ScriptedRun(seed=7, rounds=2).steps())[:events]
    with EventLog.open(home) as log:
        found = log.run_seq(RUN)
        _say(found)
        rest = iter(steps[found:])
        for number in range(events):
            batch = list(islice(rest, size_of_append(number)))
            if not batch:
                break
            blobs = [blob for step in batch for blob in step.blobs]
            _say(log.append_now([NewEvent(RUN, step.event) for step in batch], blobs=blobs)[-1].seq)


def _say(seq: int) -> None:
    os.write(1, f"{seq}\n".encode())  # one write: a line is printed whole or not at all


def serve() -> None:
    importlib.import_module("sqlite_utils.migrations")  # once here, not in every child that makes a log
    for line in sys.stdin:
        at, events, home = line.rstrip("\n").split(" ", 2)
        child = os.fork()
        if child == 0:
            _child(at, Path(home), int(events))
        _, status = os.waitpid(child, 0)
        os.write(1, f"exit {os.waitstatus_to_exitcode(status)}\n".encode())


def _child(at: str, home: Path, events: int) -> None:
    try:
        crash._trigger = crash.parse_trigger(None if at == "-" else at)
        main(home, events)
    except BaseException:  # noqa: BLE001 - the fork must not go on as a second server
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    snapshots.SNAPSHOT_EVERY = 10  # so that even a short history takes some
    if sys.argv[1:]:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        serve()
