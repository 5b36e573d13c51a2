"""A process for tests to kill: appends a scripted run and says, after each append, what was acknowledged.

`python -m tests.state.killed HOME EVENTS` goes on where the log stands; a line is the last seq that an
append acknowledged. Appends hold one to three events, so that a kill may fall inside one.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

from benchmarks.workload import Script
from state import snapshots
from state.log import EventLog
from state.records import NewEvent

RUN = "r"


def main(home: Path, events: int) -> None:
    steps = list(Script(seed=7, rounds=2).steps())[:events]
    with EventLog.open(home) as log:
        rest = iter(steps[log.run_seq(RUN) :])
        for size in (1 + n % 3 for n in range(events)):
            batch = list(islice(rest, size))
            if not batch:
                break
            blobs = [blob for step in batch for blob in step.blobs]
            stored = log.append_now([NewEvent(RUN, step.event) for step in batch], blobs=blobs)
            sys.stdout.write(f"{stored[-1].seq}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    snapshots.EVERY = 10  # so that even a short history takes some
    main(Path(sys.argv[1]), int(sys.argv[2]))
