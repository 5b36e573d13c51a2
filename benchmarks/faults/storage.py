"""What the event log does when its disk fails: every fault at every place.

Faults while the log is written are made by `tests.support.failing_disk`, one operation of SQLite after the
other. Faults at rest are made to the files of a log that was closed, or whose owner was killed. After each,
the log is checked, opened and gone on with. `--every 17` takes each 17th place only; all take some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.scenario import Case, Report
from state import snapshots, writer
from state.errors import AppendError, StateError
from state.head import read_head
from state.log import EventLog
from state.records import NewEvent
from state.verify import verify_log
from tests.support import failing_disk as disk
from tests.support.corruptions import (
    PAGE,
    Corruption,
    delete_files,
    flip_bits,
    keep_only,
    leave_intact,
    overwrite_file,
    overwrite_pages,
    swap_pages,
    truncate_file,
)
from tests.support.failing_disk import Fault, failing_disk
from tests.support.scripted_runs import ScriptedRun, Step

ROOT = Path(__file__).resolve().parents[2]
RUN = "r"
TRIES = 3
READONLY = 8

KEPT = "nothing lost"
UNSEEN = "lost unseen"

STEPS: tuple[Step, ...] = tuple(ScriptedRun(seed=7, rounds=1, slots=1, plans=2).steps())


def find_obstacle() -> str | None:
    try:
        disk.library()
    except OSError as error:
        return f"needs an SQLite that is a library of its own: {error}"
    return None


# --- faults while it is written ---


def write_log(home: Path) -> int:
    """Append the whole script, trying again what failed; return how many events were acknowledged."""
    acknowledged = 0
    with contextlib.suppress(StateError, OSError), EventLog.open(home) as log:
        acknowledged = log.run_seq(RUN)
        for step in STEPS[acknowledged:]:
            _append_step(log, step)
            acknowledged += 1
    return acknowledged


def _append_step(log: EventLog, step: Step) -> None:
    for left in reversed(range(TRIES)):
        try:
            log.append_now([NewEvent(RUN, step.event)], blobs=step.blobs)
        except AppendError:
            if not left:
                raise
        else:
            return


def check_log(home: Path, acknowledged: int) -> str:
    """Open, check and finish a log after a fault; say what became of what was acknowledged."""
    try:
        report = verify_log(home) if acknowledged else None  # else there need not even be a log
        if report is not None and report.first_finding is not None:
            return report.first_finding.part
        with EventLog.open(home, full_check=True) as log:
            stored = [item.event for item in log.read(stream=RUN, limit=999)] if log.run_seq(RUN) else []
            if stored != [step.event for step in STEPS[: len(stored)]]:
                return f"{UNSEEN}: other events"
            if len(stored) < acknowledged:
                return f"{UNSEEN}: {acknowledged - len(stored)} of {acknowledged}"
        if write_log(home) != len(STEPS) or not verify_log(home).is_ok:
            return f"{UNSEEN}: it does not go on"
    except StateError as error:
        return error.code
    return KEPT


def write_with_fault(home: Path, fault: Fault) -> str | None:
    """Write with a fault; return what came of it, None when it never happened."""
    with failing_disk(fault) as broken:
        acknowledged = write_log(home)
    return check_log(home, acknowledged) if broken.has_happened else None


def cut_power(home: Path, nth: int, draw: random.Random | None) -> str | None:
    """Cut the power at the nth operation; of what was not synced nothing is left, or what `draw` leaves."""
    anchor = home / "HEAD"
    at_cut: list[bytes | None] = []
    with failing_disk(
        Fault("any", nth, cut=True), lambda: at_cut.append(anchor.read_bytes() if anchor.exists() else None)
    ) as broken:
        acknowledged = write_log(home)
    if not at_cut:
        return None
    broken.lose_unsynced(draw)
    for name in ("events.db-shm", "HEAD"):
        (home / name).unlink(missing_ok=True)
    if at_cut[0] is not None:
        anchor.write_bytes(at_cut[0])
    return check_log(home, acknowledged)


FaultAt = Callable[[Path, int], str | None]
"""Has a fault happen at the nth place of a home's life; None when there is none of that number."""


def _fault_at(kind: str, **how: object) -> FaultAt:
    return lambda home, nth: write_with_fault(home, Fault(kind, nth, **how))  # type: ignore[arg-type]


WHILE_WRITING: dict[str, FaultAt] = {
    "no space at a write, once": _fault_at("write", code=disk.SQLITE_FULL),
    "no space at a write and from then on": _fault_at("write", code=disk.SQLITE_FULL, lasting=True),
    "short write, then no space": _fault_at("write", code=disk.SQLITE_FULL, part=0.5),
    "torn write with an I/O error": _fault_at("write", part=0.5),
    "torn write, and I/O errors from then on": _fault_at("write", part=0.5, lasting=True),
    "I/O error at a write": _fault_at("write"),
    "I/O error at a read": _fault_at("read", code=disk.IOERR_READ),
    "I/O error when a file is cut": _fault_at("truncate", code=disk.IOERR_TRUNCATE),
    "fsync fails": _fault_at("sync", code=disk.IOERR_FSYNC),
    "fsync fails, and what it was to sync is gone": _fault_at("sync", code=disk.IOERR_FSYNC, drops=True),
    "fsync fails from then on": _fault_at("sync", code=disk.IOERR_FSYNC, lasting=True),
    "the file system becomes read-only": _fault_at("any", code=READONLY, lasting=True),
    "power cut, nothing left of what was not synced": lambda home, nth: cut_power(home, nth, None),
    "power cut, any sectors left of what was not synced": lambda home, nth: cut_power(
        home, nth, random.Random(nth)
    ),
}


# --- faults at rest ---


def make_closed_log(home: Path) -> None:
    write_log(home)


def make_killed_log(home: Path) -> None:
    """Leave what a killed owner leaves: the database, its WAL with most of the log, and HEAD."""
    other = home.with_name("alive")
    with EventLog.open(other) as log:
        for step in STEPS:
            _append_step(log, step)
        while (anchor := read_head(other / "HEAD")) is None or anchor.seq < log.head.seq:
            time.sleep(0.01)  # HEAD is written once the events are acknowledged
        home.mkdir()
        for name in ("events.db", "events.db-wal", "events.db-shm", "HEAD"):
            shutil.copyfile(other / name, home / name)
    shutil.rmtree(other)


def make_outdated_log(home: Path) -> None:
    """Leave a database of an earlier day beside the HEAD of today."""
    half = STEPS[: len(STEPS) // 2]
    with EventLog.open(home) as log:
        for step in half:
            _append_step(log, step)
    early = (home / "events.db").read_bytes()
    write_log(home)
    (home / "events.db").write_bytes(early)


MakeLog = Callable[[Path], None]
AT_REST: dict[str, tuple[MakeLog, Callable[[Path], Iterator[Corruption]]]] = {
    "a bit flipped in the database": (make_closed_log, lambda scene: flip_bits(scene / "events.db", 1024)),
    "a page of zeros": (
        make_closed_log,
        lambda scene: overwrite_pages(scene / "events.db", lambda _: bytes(PAGE)),
    ),
    "a page of noise": (
        make_closed_log,
        lambda scene: overwrite_pages(
            scene / "events.db", lambda number: random.Random(number).randbytes(PAGE)
        ),
    ),
    "two pages exchanged": (make_closed_log, lambda scene: swap_pages(scene / "events.db")),
    "the database cut short": (make_closed_log, lambda scene: truncate_file(scene / "events.db", PAGE)),
    "a bit flipped in the WAL": (make_killed_log, lambda scene: flip_bits(scene / "events.db-wal", 2048)),
    "the WAL cut short": (make_killed_log, lambda scene: truncate_file(scene / "events.db-wal", 2048)),
    "the WAL overwritten with noise": (
        make_killed_log,
        lambda scene: overwrite_file(scene / "events.db-wal"),
    ),
    "-wal deleted": (make_killed_log, lambda _: delete_files("events.db-wal")),
    "-wal and HEAD deleted": (make_killed_log, lambda _: delete_files("events.db-wal", "HEAD")),
    "-shm deleted": (make_killed_log, lambda _: delete_files("events.db-shm")),
    "-shm overwritten with noise": (make_killed_log, lambda scene: overwrite_file(scene / "events.db-shm")),
    "only the main file copied, its owner killed": (make_killed_log, lambda _: keep_only("events.db")),
    "only the main file copied, its owner stopped": (make_closed_log, lambda _: keep_only("events.db")),
    "HEAD deleted": (make_closed_log, lambda _: delete_files("HEAD")),
    "HEAD overwritten with noise": (make_closed_log, lambda scene: overwrite_file(scene / "HEAD")),
    "the database deleted": (make_closed_log, lambda _: delete_files("events.db")),
    "the database of an earlier day": (make_outdated_log, lambda _: leave_intact()),
}
"""Of each fault at rest the log that it is done to, and the ways to corrupt it."""


def corrupt_copy(scene: Path, home: Path, corrupt: Corruption) -> str:
    shutil.copytree(scene, home)
    corrupt(home)
    return check_log(home, len(STEPS))


def open_read_only(home: Path) -> str | None:
    """Open a log on a file system that is mounted read-only; None where we have no right to mount."""
    write_log(home)
    script = f"mount --bind {home} {home} && mount -o remount,ro,bind {home} && exec {sys.executable} -c "
    code = (
        f"from state.log import EventLog; from state.errors import StateError; from pathlib import Path\n"
        f"try: EventLog.open(Path({str(home)!r}))\n"
        f"except StateError as error: print(error.code)"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{script} "$0"', code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return done.stdout.strip() or None if done.returncode == 0 else None


# --- the whole ---


def run(options: argparse.Namespace, report: Report) -> None:
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder, eager_writes():
        run_in(Path(folder), options, report)


def run_in(folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Do all faults, at each place or each `every`th; `folder` is on the fastest disk that there is."""
    homes = (folder / f"home{number}" for number in itertools.count())
    for name, fault_at in WHILE_WRITING.items():
        if options.only in name:
            _run_at_every_place(name, fault_at, homes, options.every, report)
    scenes: dict[MakeLog, Path] = {}
    for name, (make, corruptions) in AT_REST.items():
        if options.only not in name:
            continue
        if make not in scenes:
            scenes[make] = folder / make.__name__
            make(scenes[make])
        for number, corrupt in enumerate(itertools.islice(corruptions(scenes[make]), 0, None, options.every)):
            home = next(homes)
            report(make_case(name, number * options.every, corrupt_copy(scenes[make], home, corrupt)))
            shutil.rmtree(home)
    name = "a read-only file system from the start"
    if options.only in name and (outcome := open_read_only(next(homes))) is not None:
        report(make_case(name, 0, outcome))


def _run_at_every_place(
    name: str, fault_at: FaultAt, homes: Iterator[Path], every: int, report: Report
) -> None:
    for nth in itertools.count(1, every):
        home = next(homes)
        outcome = fault_at(home, nth)
        shutil.rmtree(home, ignore_errors=True)
        if outcome is None:
            return
        report(make_case(name, nth, outcome))


def make_case(fault: str, place: int, outcome: str) -> Case:
    return Case(fault, str(place), outcome, wrong=outcome if outcome.startswith(UNSEEN) else "")


def summarize(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Of each fault how many cases there were, how often nothing was lost, and what was detected by name."""
    summary: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(case.fault for case in cases):
        own = [case for case in cases if case.fault == name]
        named = Counter(case.outcome for case in own if case.outcome != KEPT and not case.wrong)
        summary[name] = {
            "cases": len(own),
            "kept": sum(case.outcome == KEPT for case in own),
            "named": dict(sorted(named.items())),
            "unseen": sum(bool(case.wrong) for case in own),
        }
    return summary


def format_table(summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["| fault | cases | nothing lost | detected by name | lost unseen |", "|---|---|---|---|---|"]
    for name, row in summary.items():
        named = ", ".join(f"{what} {count}" for what, count in row["named"].items())
        lines.append(f"| {name} | {row['cases']:,} | {row['kept']:,} | {named} | {row['unseen']} |")
    return lines


@contextlib.contextmanager
def eager_writes() -> Iterator[None]:
    """Let the log write HEAD after every commit and snapshots after few events, so that little does much."""
    before = writer.HEAD_EVERY_S, snapshots.SNAPSHOT_EVERY
    writer.HEAD_EVERY_S, snapshots.SNAPSHOT_EVERY = 0.0, 8
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        writer.HEAD_EVERY_S, snapshots.SNAPSHOT_EVERY = before
        logging.disable(logging.NOTSET)
