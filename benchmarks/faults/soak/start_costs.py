"""What a start has to do before it is ready, timed in a process of its own that then dies.

`python -m benchmarks.faults.soak.start_costs HOME` opens the log as `agentd` does, folds what runs share and
every run that has not ended, prints the CPU seconds of each as one JSON object, and ends without closing
anything: the home is left as SIGKILL leaves one, so that the next start finds the same work. `fold_s` is the
control: the same once more from a log in memory that holds no more than is needed.
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
from state.home import HomeLayout
from state.log import EventLog
from state.records import EventRow

_TABLES = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name IN ('stream', 'event', 'snapshot')"
_INSERT = f"INSERT OR IGNORE INTO event VALUES ({', '.join('?' * len(EventRow._fields))})"

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 300


class StartCost(NamedTuple):
    """CPU seconds of one start, and how many runs and rows it had to fold."""

    open_s: float
    load_s: float
    fold_s: float
    runs: int
    rows: int


def copy_needed_rows(connection: sqlite3.Connection, runs: Sequence[str]) -> sqlite3.Connection:
    """Return a log in memory with what a start reads of `runs`: newest snapshots, and rows from there on."""
    made = sqlite3.connect(":memory:")
    for (table,) in connection.execute(_TABLES).fetchall():
        made.execute(table)
    made.executemany("INSERT INTO stream VALUES (?, ?, ?, ?)", connection.execute("SELECT * FROM stream"))
    known = snapshots.snapshot_keys(connection)
    for run in runs:
        saved = _find_newest_snapshot(connection, run, known)
        rows = queries.stream_rows(connection, run, after=saved.run_seq - 1 if saved else 0)
        made.executemany(_INSERT, rows)
        if saved is not None:
            snapshots.store_snapshot(made, saved)
    return made


def _find_newest_snapshot(
    connection: sqlite3.Connection, run: str, known: set[tuple[str, int]]
) -> snapshots.StoredSnapshot | None:
    for segment in reversed(queries.lineage(connection, run)):
        at = [seq for stream, seq in known if stream == segment.stream and seq <= segment.upto]
        if at:
            return snapshots.snapshot_at(connection, segment.stream, max(at))
    return None


def time_action(action: Callable[[], object]) -> float:
    """Return the CPU seconds that something takes."""
    begun = time.process_time()
    action()
    return time.process_time() - begun


def start_here(home: Path) -> StartCost:
    """Start on a home, which stays open."""
    begun = time.process_time()
    log = EventLog.open(home)
    log.system_state()
    active = log.active_runs()
    opened = time.process_time()
    with sqlite3.connect(f"{HomeLayout(home).database.as_uri()}?mode=ro", uri=True) as connection:
        short = copy_needed_rows(connection, active)

    def again() -> None:
        for run in active:
            snapshots.load_tip(short, run)

    again()  # what is made once in a process is made
    load_s = time_action(lambda: [log.run_state(run) for run in active])
    (rows,) = short.execute("SELECT count(*) FROM event").fetchone()
    return StartCost(opened - begun, load_s, time_action(again), len(active), rows)


def measure_start(home: Path) -> StartCost:
    """Start on a home in another process.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on stderr.
    """
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults.soak.start_costs", home],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=SECONDS,
        check=True,
        start_new_session=True,  # Ctrl-C is for whoever waits, who then ends it
    )
    return StartCost(**json.loads(told.stdout))


if __name__ == "__main__":
    print(json.dumps(start_here(Path(sys.argv[1]).resolve())._asdict()), flush=True)
    os._exit(0)
