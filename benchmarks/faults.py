"""What the event log does when its disk fails: every fault at every place, and what came of it.

    .venv/bin/python benchmarks/faults.py              # some minutes; writes the table in docs/reliability.md
    .venv/bin/python benchmarks/faults.py --every 17   # each 17th place only

Faults while the log is written are made by `benchmarks.disk`, one operation of SQLite after the other.
Faults at rest are made to the files of a log that was closed, or whose owner was killed. After each, the log
is checked, opened and gone on with. Either nothing that was acknowledged is lost, or an error names what is
wrong; anything else is the failure of this program, and its exit status 1.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import disk  # noqa: E402
from benchmarks.disk import Fault, failing  # noqa: E402
from benchmarks.harms import (  # noqa: E402
    PAGE,
    Harm,
    alone,
    cuts,
    flips,
    noise,
    nothing,
    pages,
    swaps,
    without,
)
from benchmarks.workload import Script, Step  # noqa: E402
from state import snapshots, writer  # noqa: E402
from state.errors import AppendError, StateError  # noqa: E402
from state.head import read_head  # noqa: E402
from state.log import EventLog  # noqa: E402
from state.records import NewEvent  # noqa: E402
from state.verify import verify_log  # noqa: E402

DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- benchmarks/faults.py begin -->", "<!-- benchmarks/faults.py end -->"
RUN = "r"
TRIES = 3
READONLY = 8

KEPT = "nothing lost"
UNSEEN = "lost unseen"

STEPS: tuple[Step, ...] = tuple(Script(seed=7, rounds=1, slots=1, plans=2).steps())


@dataclass(slots=True)
class Tally:
    """What came of a fault: how often nothing was lost, and the names of what was detected."""

    cases: int = 0
    kept: int = 0
    named: Counter[str] = field(default_factory=Counter)
    unseen: list[str] = field(default_factory=list)

    def add(self, case: str, outcome: str) -> None:
        self.cases += 1
        if outcome == KEPT:
            self.kept += 1
        elif outcome.startswith(UNSEEN):
            self.unseen.append(f"{case}: {outcome}")
        else:
            self.named[outcome] += 1


# --- faults while it is written ---


def write(home: Path) -> int:
    """Append the whole script, trying again what failed; return how many events were acknowledged."""
    acknowledged = 0
    with contextlib.suppress(StateError, OSError), EventLog.open(home) as log:
        acknowledged = log.run_seq(RUN)
        for step in STEPS[acknowledged:]:
            _append(log, step)
            acknowledged += 1
    return acknowledged


def _append(log: EventLog, step: Step) -> None:
    for left in reversed(range(TRIES)):
        try:
            log.append_now([NewEvent(RUN, step.event)], blobs=step.blobs)
        except AppendError:
            if not left:
                raise
        else:
            return


def outcome_of(home: Path, acknowledged: int) -> str:
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
        if write(home) != len(STEPS) or not verify_log(home).is_ok:
            return f"{UNSEEN}: it does not go on"
    except StateError as error:
        return error.code
    return KEPT


def during(home: Path, fault: Fault) -> str | None:
    """Write with a fault; return what came of it, None when it never happened."""
    with failing(fault) as failing_disk:
        acknowledged = write(home)
    return outcome_of(home, acknowledged) if failing_disk.happened else None


def power_cut(home: Path, nth: int, draw: random.Random | None) -> str | None:
    """Cut the power at the nth operation; of what was not synced nothing is left, or what `draw` leaves."""
    anchor = home / "HEAD"
    held: list[bytes | None] = []
    with failing(
        Fault("any", nth, cut=True), lambda: held.append(anchor.read_bytes() if anchor.exists() else None)
    ) as failing_disk:
        acknowledged = write(home)
    if not held:
        return None
    failing_disk.lose_unsynced(draw)
    for name in ("events.db-shm", "HEAD"):
        (home / name).unlink(missing_ok=True)
    if held[0] is not None:
        anchor.write_bytes(held[0])
    return outcome_of(home, acknowledged)


At = Callable[[Path, int], str | None]
"""Has a fault happen at the nth place of a home's life; None when there is none of that number."""


def _live(kind: str, **how: object) -> At:
    return lambda home, nth: during(home, Fault(kind, nth, **how))  # type: ignore[arg-type]


DURING: dict[str, At] = {
    "no space at a write, once": _live("write", code=disk.SQLITE_FULL),
    "no space at a write and from then on": _live("write", code=disk.SQLITE_FULL, lasting=True),
    "short write, then no space": _live("write", code=disk.SQLITE_FULL, part=0.5),
    "torn write with an I/O error": _live("write", part=0.5),
    "torn write, and I/O errors from then on": _live("write", part=0.5, lasting=True),
    "I/O error at a write": _live("write"),
    "I/O error at a read": _live("read", code=disk.IOERR_READ),
    "I/O error when a file is cut": _live("truncate", code=disk.IOERR_TRUNCATE),
    "fsync fails": _live("sync", code=disk.IOERR_FSYNC),
    "fsync fails, and what it was to sync is gone": _live("sync", code=disk.IOERR_FSYNC, drops=True),
    "fsync fails from then on": _live("sync", code=disk.IOERR_FSYNC, lasting=True),
    "the file system becomes read-only": _live("any", code=READONLY, lasting=True),
    "power cut, nothing left of what was not synced": lambda home, nth: power_cut(home, nth, None),
    "power cut, any sectors left of what was not synced": lambda home, nth: power_cut(
        home, nth, random.Random(nth)
    ),
}


# --- faults at rest ---


def closed(home: Path) -> None:
    write(home)


def killed(home: Path) -> None:
    """Leave what a killed owner leaves: the database, its WAL with most of the log, and HEAD."""
    other = home.with_name("alive")
    with EventLog.open(other) as log:
        for step in STEPS:
            _append(log, step)
        while (anchor := read_head(other / "HEAD")) is None or anchor.seq < log.head.seq:
            time.sleep(0.01)  # HEAD is written once the events are acknowledged
        home.mkdir()
        for name in ("events.db", "events.db-wal", "events.db-shm", "HEAD"):
            shutil.copyfile(other / name, home / name)
    shutil.rmtree(other)


def yesterday(home: Path) -> None:
    """Leave a database of an earlier day beside the HEAD of today."""
    half = STEPS[: len(STEPS) // 2]
    with EventLog.open(home) as log:
        for step in half:
            _append(log, step)
    early = (home / "events.db").read_bytes()
    write(home)
    (home / "events.db").write_bytes(early)


AT_REST: dict[str, tuple[Callable[[Path], None], Callable[[Path], Iterator[Harm]]]] = {
    "a bit flipped in the database": (closed, lambda scene: flips(scene / "events.db", 1024)),
    "a page of zeros": (closed, lambda scene: pages(scene / "events.db", lambda _: bytes(PAGE))),
    "a page of noise": (
        closed,
        lambda scene: pages(scene / "events.db", lambda number: random.Random(number).randbytes(PAGE)),
    ),
    "two pages exchanged": (closed, lambda scene: swaps(scene / "events.db")),
    "the database cut short": (closed, lambda scene: cuts(scene / "events.db", PAGE)),
    "a bit flipped in the WAL": (killed, lambda scene: flips(scene / "events.db-wal", 2048)),
    "the WAL cut short": (killed, lambda scene: cuts(scene / "events.db-wal", 2048)),
    "the WAL overwritten with noise": (killed, lambda scene: noise(scene / "events.db-wal")),
    "-wal deleted": (killed, lambda _: without("events.db-wal")),
    "-wal and HEAD deleted": (killed, lambda _: without("events.db-wal", "HEAD")),
    "-shm deleted": (killed, lambda _: without("events.db-shm")),
    "-shm overwritten with noise": (killed, lambda scene: noise(scene / "events.db-shm")),
    "only the main file copied, its owner killed": (killed, lambda _: alone("events.db")),
    "only the main file copied, its owner stopped": (closed, lambda _: alone("events.db")),
    "HEAD deleted": (closed, lambda _: without("HEAD")),
    "HEAD overwritten with noise": (closed, lambda scene: noise(scene / "HEAD")),
    "the database deleted": (closed, lambda _: without("events.db")),
    "the database of an earlier day": (yesterday, lambda _: nothing()),
}
"""Of each fault at rest the scene, and the ways to harm it."""


def at_rest(scene: Path, home: Path, harm: Harm) -> str:
    shutil.copytree(scene, home)
    harm(home)
    return outcome_of(home, len(STEPS))


def read_only(home: Path) -> str | None:
    """Open a log on a file system that is mounted read-only; None where we have no right to mount."""
    write(home)
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


def run(folder: Path, *, every: int, say: Callable[[str], None]) -> dict[str, Tally]:
    """Do all faults, at each place or each `every`th; `folder` is on the fastest disk that there is."""
    tallies: dict[str, Tally] = {}
    homes = (folder / f"home{number}" for number in itertools.count())
    for name, at in DURING.items():
        tallies[name] = _at_every_place(at, homes, every)
        say(name)
    scenes: dict[Callable[[Path], None], Path] = {}
    for make in (closed, killed, yesterday):
        scenes[make] = folder / make.__name__
        make(scenes[make])
    for name, (make, harms) in AT_REST.items():
        tallies[name] = tally = Tally()
        for number, harm in enumerate(itertools.islice(harms(scenes[make]), 0, None, every)):
            home = next(homes)
            tally.add(f"{number * every}", at_rest(scenes[make], home, harm))
            shutil.rmtree(home)
        say(name)
    if (mounted := read_only(next(homes))) is not None:
        tallies["a read-only file system from the start"] = tally = Tally()
        tally.add("0", mounted)
    return tallies


def _at_every_place(at: At, homes: Iterator[Path], every: int) -> Tally:
    tally = Tally()
    for nth in itertools.count(1, every):
        home = next(homes)
        outcome = at(home, nth)
        shutil.rmtree(home, ignore_errors=True)
        if outcome is None:
            return tally
        tally.add(str(nth), outcome)
    return tally


def table(tallies: dict[str, Tally]) -> str:
    lines = ["| fault | cases | nothing lost | detected by name | lost unseen |", "|---|---|---|---|---|"]
    for name, tally in tallies.items():
        named = ", ".join(f"{what} {count}" for what, count in sorted(tally.named.items()))
        lines.append(f"| {name} | {tally.cases:,} | {tally.kept:,} | {named} | {len(tally.unseen)} |")
    return "\n".join(lines)


def update(text: str, content: str, begin: str = BEGIN, end: str = END) -> str:
    """Return a document with what stands between the marks replaced."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def _told(every: int) -> str:
    """Return, for the document, how much the table is of."""
    return "Every place:" if every == 1 else f"One place in {every} (`--every {every}`):"


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Let the log write HEAD after every commit and snapshots after few events, so that little does much."""
    before = writer.HEAD_EVERY_S, snapshots.SNAPSHOT_EVERY
    writer.HEAD_EVERY_S, snapshots.SNAPSHOT_EVERY = 0.0, 8
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        writer.HEAD_EVERY_S, snapshots.SNAPSHOT_EVERY = before
        logging.disable(logging.NOTSET)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="only each n-th place of each fault")
    options = parser.parse_args()
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder, eager():
        tallies = run(Path(folder), every=options.every, say=lambda name: print(name, file=sys.stderr))
    print(table(tallies))
    unseen = [f"{name}: {case}" for name, tally in tallies.items() for case in tally.unseen]
    print(*unseen, sep="\n", end="\n" if unseen else "")
    text = update(DOCUMENT.read_text(encoding="utf-8"), f"{_told(options.every)}\n\n{table(tallies)}")
    DOCUMENT.write_text(text, encoding="utf-8")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
