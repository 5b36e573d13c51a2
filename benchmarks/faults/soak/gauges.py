"""What is measured at an interval: of the process and its files here, of starts and queries on a copy."""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.soak.query_costs import measure_queries
from benchmarks.faults.soak.start_costs import measure_start
from state.home import HomeLayout
from state.log import EventLog

STARTS = 3
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval: sizes in bytes, times in seconds of CPU; ratios are to the control at the same moment."""

    events: int
    hours: float
    runs: int
    active: int
    resident_bytes: int
    handles: int
    threads: int
    log_bytes: int
    wal_bytes: int
    start_s: float
    start_ratio: float
    replayed: int
    query_s: dict[str, float]
    query_ratio: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Gauges:
    """Takes samples of a home that this process owns; the first one is kept as the control of the others."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home = home
        self._copy = folder / "copy"
        self._short = folder / "short"
        self._run = ""

    def take_sample(self, log: EventLog, hours: float) -> Sample:
        """Measure. The process must be at rest: nothing may be stored meanwhile."""
        gc.collect()
        layout = HomeLayout(self._home)
        active = log.active_runs()
        here = {
            "events": log.head.seq,
            "hours": hours,
            "runs": len(log.run_ids()),
            "active": len(active),
            "resident_bytes": _measure_resident_bytes(),
            "handles": _count_entries("/proc/self/fd") - 1,
            "threads": _count_entries("/proc/self/task"),
            "log_bytes": layout.database.stat().st_size,
            "wal_bytes": layout.wal.stat().st_size,
        }
        if not self._short.exists():
            _copy_home(layout, self._short)
            ended = [run for run in log.run_ids() if run not in active]
            self._run = (ended or list(active))[0]
        return Sample(**here, **self._measure_copy(layout))

    def _measure_copy(self, layout: HomeLayout) -> dict[str, Any]:
        """Measure what other processes find in this log, as a copy that nobody owns.

        A start is compared with the same folding from a log in memory and the opening of the short log.
        """
        _copy_home(layout, self._copy)
        try:
            starts = [(measure_start(self._copy), measure_start(self._short)) for _ in range(STARTS)]
            queries = measure_queries(self._copy, self._short, self._run)
        finally:
            shutil.rmtree(self._copy)
        start_s = min(here.open_s + here.load_s for here, _ in starts)
        control_s = min(here.fold_s for here, _ in starts) + min(control.open_s for _, control in starts)
        return {
            "start_s": start_s,
            "start_ratio": start_s / control_s,
            "replayed": starts[0][0].rows,
            "query_s": {name: here for name, (here, _) in queries.items()},
            "query_ratio": {name: here / there for name, (here, there) in queries.items()},
        }


def _count_entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _measure_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def _copy_home(layout: HomeLayout, into: Path) -> None:
    into.mkdir(mode=0o700)
    for path in (layout.database, layout.wal, layout.head):
        shutil.copyfile(path, into / path.name)
