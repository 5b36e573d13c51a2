"""The event log beside raw sqlite3 and the `eventsourcing` package: same disk, same run, same payloads.

`python benchmarks/event_log.py [--quick] [--events N] [--appends N] [--json]` measures durable appends per
second for 1, 8 and 32 concurrent callers, verified replay, and how fast and in how much memory a long log
opens. The last full result is kept in `benchmarks/results/event_log.json`. `eventsourcing` is in the
dependency group `bench`; without it its columns are empty.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "event_log.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from state import queries, schema, stream_fold  # noqa: E402
from state.appender import prepare_append  # noqa: E402
from state.chain import GENESIS, ChainVerifier  # noqa: E402
from state.events import Event  # noqa: E402
from state.log import EventLog  # noqa: E402
from state.opening import open_log, settle_log  # noqa: E402
from state.reader import LogReader  # noqa: E402
from state.records import NewEvent  # noqa: E402
from state.upcast import decode_event  # noqa: E402
from tests.support.scripted_runs import ScriptedRun, Step  # noqa: E402 - the path is set above

CALLERS = (1, 8, 32)
SLOTS = 8
"""Lanes of one run; more callers are more runs, as in a daemon."""

PLANS = 6
REPEATS = 3
"""Times that each rate is measured, all in turn; the best of each counts, as machines are shared."""

HAVE_EVENTSOURCING = importlib.util.find_spec("eventsourcing") is not None


def payloads(count: int) -> list[str]:
    """The JSON of a run's events, repeated to `count`."""
    texts = [
        step.event.model_dump_json() for step in ScriptedRun(rounds=20, slots=SLOTS, plans=PLANS).steps()
    ]
    return [texts[n % len(texts)] for n in range(count)]


# --- appends ---


def phases(callers: int, rounds: int) -> Iterator[list[list[NewEvent]]]:
    """What `callers` lanes append side by side, a phase per barrier; lanes of `SLOTS` share a run."""
    lanes = min(callers, SLOTS)
    scripts = {f"run{n}": ScriptedRun(seed=n, slots=lanes, plans=PLANS) for n in range(callers // lanes)}

    def together(steps: dict[str, list[list[Step]]]) -> list[list[NewEvent]]:
        return [[NewEvent(run, step.event) for step in lane] for run, some in steps.items() for lane in some]

    yield together({run: [list(script.beginning())] for run, script in scripts.items()})
    for number in range(1, rounds + 1):
        yield together({run: [[script.start_round(number)]] for run, script in scripts.items()})
        yield together(
            {
                run: [list(script.slot_steps(number, k)) for k in range(lanes)]
                for run, script in scripts.items()
            }
        )
        yield together({run: [list(script.closing(number))] for run, script in scripts.items()})


@contextmanager
def settled_heap() -> Iterator[None]:
    """Keep the collector from what this program loaded and made before; for each log alike."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def append_rate(directory: Path, callers: int, events: int) -> float:
    """Events per second with one event per append, all of them durable, checked, folded and projected."""
    plan = list(phases(callers, max(2, events // (callers * PLANS * 6))))

    async def lane(log: EventLog, news: list[NewEvent]) -> None:
        for new in news:
            await log.append([new])

    async def main() -> float:
        spent_s, count = 0.0, 0
        with EventLog.open(directory / f"ours{callers}") as log:
            for lanes in plan:
                start = time.perf_counter()
                await asyncio.gather(*(lane(log, news) for news in lanes))
                if len(lanes) == callers:  # between barriers there are fewer callers than asked for
                    spent_s += time.perf_counter() - start
                    count += sum(map(len, lanes))
        return count / spent_s

    with settled_heap():
        return asyncio.run(main())


BARE = """CREATE TABLE event(
    seq INTEGER PRIMARY KEY, stream TEXT, ver INT, payload TEXT, UNIQUE(stream, ver))"""


def sqlite_rate(directory: Path, events: int) -> float:
    """Events per second of bare sqlite3: the least table that can hold a log; no chain, no read models."""
    connection = schema.open_writer(directory / "bare.db")
    connection.execute(BARE)
    rows = [(None, "run", number, text) for number, text in enumerate(payloads(events))]
    return insert_rate(connection, rows)


def same_table_rate(directory: Path, events: int) -> float:
    """The same with the log's own columns, constraints and indexes; its chain is neither made nor checked."""
    connection = schema.open_writer(directory / "same.db")
    schema.migrate_schema(connection)
    connection.execute("DROP TRIGGER event_continues")
    connection.execute("INSERT INTO stream VALUES ('run', NULL, NULL, NULL)")
    digest = bytes(32)
    rows = [
        (n, "run", n, "Noted", 1, 0, None, f"r{n}#outcome", text, digest, digest, None, None, digest)
        for n, text in enumerate(payloads(events), start=1)
    ]
    return insert_rate(connection, rows)


def insert_rate(connection: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> float:
    """Rows per second, one to a durable commit; closes the connection."""
    statement = f"INSERT INTO event VALUES ({', '.join('?' * len(rows[0]))})"
    start = time.perf_counter()
    for row in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(statement, row)
        connection.execute("COMMIT")
    rate = len(rows) / (time.perf_counter() - start)
    connection.close()
    return rate


# --- replay ---


def history(events: int) -> Iterator[tuple[str, Event]]:
    """A log's events: runs of some 4,000, one after the other."""
    scripts = (ScriptedRun(seed=n, rounds=20, slots=SLOTS, plans=PLANS) for n in range(1_000_000))
    runs = ((f"run{n}", step.event) for n, script in enumerate(scripts) for step in script.steps())
    return islice(runs, events)


def fill(home: Path, events: int) -> None:
    """Write a log of `events` events, 256 to a commit."""
    layout, lock, appender = open_log(home, create=True, full_check=False)
    rest = history(events)
    while batch := [prepare_append([NewEvent(run, event)]) for run, event in islice(rest, 256)]:
        appender.append(batch)
        appender.save_snapshots()
    settle_log(appender.connection)
    appender.connection.close()
    lock.release()
    EventLog.open(layout.home).close()


def replay_rates(home: Path) -> dict[str, float]:
    """Events per second: chain and types checked; the same and folded."""
    with LogReader.open(home) as reader:
        connection = reader._handle.connection()  # noqa: SLF001 - measures below the public calls
        rates = {}
        for name, folding in (("verified", False), ("verified_and_folded", True)):
            walk = ChainVerifier(
                seq=0, log_hash=GENESIS, before=lambda row: queries.link_before(connection, row)
            )
            states: dict[str, stream_fold.StreamState] = {}
            start = time.perf_counter()
            for row in queries.log_rows(connection, after=0):
                walk.check_row(row)
                event = decode_event(row)
                if folding:
                    states[row.stream] = stream_fold.fold_event(row.stream, states.get(row.stream), event)
            rates[name] = walk.seq / (time.perf_counter() - start)
    return rates


# --- start-up ---

OPEN = """
import sys, time
started = time.perf_counter()
from pathlib import Path
from state.log import EventLog
imported = time.perf_counter()
log = EventLog.open(Path(sys.argv[1]))
states = [log.run_state(run) for run in log.active_runs()]
ready = time.perf_counter()
status = Path("/proc/self/status").read_text()  # not ru_maxrss, which a process inherits from its parent
peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
print(imported - started, ready - imported, peak)
log.close()
"""


def start_up(home: Path, events: int) -> dict[str, float]:
    """Import and open times in seconds and peak memory of a fresh process that owns a log of `events`."""
    output = subprocess.run(
        [sys.executable, "-c", OPEN, str(home)], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    imported_s, ready_s, peak = map(float, output)
    return {
        "events": events,
        "import_s": imported_s,
        "ready_s": ready_s,
        "peak_rss_bytes": peak,
        "log_bytes": (home / "events.db").stat().st_size,
    }


# --- all of it ---


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
    }


def measure(directory: Path, *, events: int, appends: int, again: bool = False) -> dict[str, Any]:
    """Run everything, or with `again` what was not measured for the kept result lately: appends and replay.

     `events` sizes the long log, `appends` each append measurement.

    The result: `machine` (python, sqlite, system, cpus); `appends`, a row per number of `callers` with
    `*_per_s` of each log, null where it was not measured; `replay`, events per second of each kind;
    `start_up`, a row per log of `events` with `*_s` in seconds and `*_bytes`.
    """
    rates = [append_rates(directory, callers, appends) for callers in CALLERS]
    if again:
        fill(directory / "log", events)
        kept = json.loads(RESULT.read_text(encoding="utf-8"))
        return kept | {"machine": machine(), "appends": rates, "replay": replay(directory, directory / "log")}
    sizes = sorted({max(1, events // 10), events})
    homes = [directory / f"log{size}" for size in sizes]
    for home, size in zip(homes, sizes, strict=True):
        fill(home, size)
    return {
        "machine": machine(),
        "appends": rates,
        "replay": replay(directory, homes[0]),
        "start_up": [start_up(home, size) for home, size in zip(homes, sizes, strict=True)],
    }


def append_rates(directory: Path, callers: int, events: int) -> dict[str, Any]:
    """All logs' appends per second with this many callers; sqlite3 has but one."""
    names = ("log", "eventsourcing", "sqlite3", "sqlite3_same_table")
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(REPEATS):
        place = directory / f"append-{callers}-{number}"
        place.mkdir()
        if callers == 1:
            measured["sqlite3"].append(sqlite_rate(place, events))
            measured["sqlite3_same_table"].append(same_table_rate(place, events))
        if HAVE_EVENTSOURCING:
            from benchmarks.eventsourcing_log import save_rate

            texts = payloads(events // callers // 2)
            with settled_heap():
                measured["eventsourcing"].append(save_rate(place / "theirs.db", callers, texts))
        measured["log"].append(append_rate(place, callers, events))
    return {"callers": callers} | {
        f"{name}_per_s": max(rates, default=None) for name, rates in measured.items()
    }


def replay(directory: Path, home: Path) -> dict[str, float | None]:
    """Both logs' replayed events per second."""
    measured: dict[str, list[float]] = {"verified": [], "verified_and_folded": [], "eventsourcing": []}
    for number in range(REPEATS):
        with settled_heap():
            rates = replay_rates(home)
        for name, rate in rates.items():
            measured[name].append(rate)
        if HAVE_EVENTSOURCING:
            from benchmarks.eventsourcing_log import replay_rate

            texts = payloads(20_000)
            with settled_heap():
                measured["eventsourcing"].append(replay_rate(directory / f"replay{number}.db", texts))
    return {name: max(rates, default=None) for name, rates in measured.items()}


def report(result: dict[str, Any]) -> Iterator[str]:
    """The result as lines of text."""
    about = result["machine"]
    yield f"{about['system']}, {about['cpus']} CPUs, Python {about['python']}, SQLite {about['sqlite']}"
    if not HAVE_EVENTSOURCING:
        yield "eventsourcing is not installed: pip install --group bench; its columns are empty"
    yield "\ndurable appends/s    event log   eventsourcing   ratio"
    for row in result["appends"]:
        yield f"{row['callers']:>10} callers {_columns(row['log_per_s'], row['eventsourcing_per_s'])}"
    alone = result["appends"][0]
    for name, what in (("sqlite3", "least table"), ("sqlite3_same_table", "the log's table")):
        rate = alone[f"{name}_per_s"]
        share = alone["log_per_s"] / rate
        yield f"sqlite3, {what}, 1 caller: {rate:,.0f}/s; the log reaches {share:.2f} of it"
    rates = result["replay"]
    yield "\nreplayed events/s     event log   eventsourcing   ratio"
    for name in ("verified", "verified_and_folded"):
        yield f"{name.replace('_', ' '):<19}{_columns(rates[name], rates['eventsourcing'])}"
    yield "\nopening a log          ready in s   peak MiB   log MiB"
    for row in result["start_up"]:
        peak, size = row["peak_rss_bytes"] / 2**20, row["log_bytes"] / 2**20
        sizes = f"{peak:>11.0f}{size:>10.0f}"
        yield f"{row['events']:>15,} events{row['ready_s']:>11.3f}{sizes} (+ {row['import_s']:.2f} s imports)"


def _columns(ours: float, theirs: float | None) -> str:
    return f"{ours:>12,.0f}" + ("" if theirs is None else f"{theirs:>16,.0f}{ours / theirs:>8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI; the result is not kept")
    parser.add_argument("--events", type=int, help="size of the long log (default 1,000,000)")
    parser.add_argument("--appends", type=int, help="events of each append measurement (default 8,000)")
    parser.add_argument(
        "--rates", action="store_true", help="only appends and replay; the rest stays as it was kept"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--directory", type=Path, help="where to write, to choose the disk")
    options = parser.parse_args()
    events = options.events or (10_000 if options.quick else 100_000 if options.rates else 1_000_000)
    appends = options.appends or (1_200 if options.quick else 8_000)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        result = measure(Path(scratch), events=events, appends=appends, again=options.rates)
    if not options.quick:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result) if options.json else "\n".join(report(result)))


if __name__ == "__main__":
    main()
