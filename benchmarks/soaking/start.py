"""What a start has to do before it is ready, timed in a process of its own that then dies.

`python -m benchmarks.soaking.start HOME` opens the log as `agentd` does, folds what runs share and every run
that has not ended, prints the CPU seconds of each as one JSON object, and ends without closing anything: the
home is left as SIGKILL leaves one, so that the next start finds the same work. `fold_s` is the control: the
same snapshots and rows once more, from memory.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from state import queries, snapshots
from state.home import Layout
from state.log import EventLog
from state.records import Row

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300


class Started(NamedTuple):
    """CPU seconds of one start, and how many runs and rows it had to fold."""

    open_s: float
    load_s: float
    fold_s: float
    runs: int
    rows: int


class Work(NamedTuple):
    """What a run's state is made of at a start: its newest snapshot, and the rows after it."""

    saved: snapshots.Saved
    rows: list[Row]


def work_of(connection: sqlite3.Connection, run: str) -> Work | None:
    """Return what has to be folded for a run; None when it has no snapshot yet."""
    known = snapshots.keys(connection)
    for segment in reversed(queries.lineage(connection, run)):
        at = [seq for stream, seq in known if stream == segment.stream and seq <= segment.upto]
        saved = snapshots.stored_at(connection, segment.stream, max(at)) if at else None
        if saved is not None:
            return Work(saved, list(queries.stream_rows(connection, run, after=saved.run_seq)))
    return None


def fold_all(connection: sqlite3.Connection, works: Sequence[Work]) -> None:
    """Make states of what was read."""
    for work in works:
        state = snapshots.restore(connection, work.saved).state
        for row in work.rows:
            state = snapshots.replay(state, row)


def timed(action: Callable[[], object]) -> float:
    """Return the CPU seconds that something takes."""
    begun = time.process_time()
    action()
    return time.process_time() - begun


def start(home: Path) -> Started:
    """Start on a home, which stays open."""
    begun = time.process_time()
    log = EventLog.open(home)
    log.system()
    active = log.runs()
    opened = time.process_time()
    with sqlite3.connect(f"{Layout(home).database.as_uri()}?mode=ro", uri=True) as connection:
        works = [found for run in active if (found := work_of(connection, run)) is not None]
        fold_all(connection, works)  # what is made once in a process is made
        load_s = timed(lambda: [log.state(run) for run in active])
        fold_s = timed(lambda: fold_all(connection, works))
    return Started(opened - begun, load_s, fold_s, len(active), sum(len(work.rows) for work in works))


def started(home: Path) -> Started:
    """Start on a home in another process.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on stderr.
    """
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.soaking.start", home],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=SECONDS,
        check=True,
        start_new_session=True,  # Ctrl-C is for whoever waits, who then ends it
    )
    return Started(**json.loads(told.stdout))


if __name__ == "__main__":
    print(json.dumps(start(Path(sys.argv[1]).resolve())._asdict()), flush=True)
    os._exit(0)
