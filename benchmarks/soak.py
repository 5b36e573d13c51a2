"""A week of the daemon without a restart, compressed: does anything grow that should not?

    .venv/bin/python benchmarks/soak.py --out soak.json --svg docs/soak.svg
    .venv/bin/python benchmarks/soak.py --events 50000 --runs 12         # the same pace, for less long
    .venv/bin/python benchmarks/soak.py --read soak.json --svg docs/soak.svg    # judge and draw it again

The real host, supervisor, runner, commands, inbox and event log live through a week of virtual time in one
process (`benchmarks/soaking/week.py`). At intervals it stands still and is measured: its memory, files and
threads, the log, what a start on a copy of the home takes, and commands of `agentctl` on that copy. What
flat means is in `benchmarks/soaking/flat.py`. Exit status 1 when something is not.

Ctrl-C ends it, and leaves behind what was measured so far and was to be written, nothing else. `--home DIR`
keeps the home, for `benchmarks/ready.py --home DIR`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.simulation import folder  # noqa: E402 - the path is set above
from benchmarks.soaking.chart import svg  # noqa: E402
from benchmarks.soaking.flat import Quantity, quantities, table  # noqa: E402
from benchmarks.soaking.gauges import Gauges, Sample  # noqa: E402
from benchmarks.soaking.week import Failed, Week, World  # noqa: E402
from state.errors import StateError  # noqa: E402
from state.log import EventLog  # noqa: E402

FULL = Week()
INTERVALS = 20
ENOUGH = 5
"""Samples with which each quarter has one, the interval before each included."""

Keep = Callable[[Sequence[Sample]], None]


def soak(
    week: Week, home: Path, aside: Path, *, intervals: int = INTERVALS, keep: Keep | None = None
) -> list[Sample]:
    """Live through a week in `home`, copies of which are made in `aside`; return what was measured.

    `keep` is given all that was measured so far, each time.

    Raises:
        Failed: the week did not go as it must.
    """
    gauges = Gauges(home, aside)
    samples: list[Sample] = []
    begun = time.perf_counter()

    def measure(log: EventLog) -> None:
        samples.append(gauges.sample(log, world.hours))
        _tell(samples[-1], time.perf_counter() - begun)
        if keep is not None:
            keep(samples)

    world = World(home, week, every=max(1, week.events // intervals), measure=measure)
    world.run()
    return samples


def _tell(one: Sample, seconds: float) -> None:
    asked = ", ".join(f"{name} {1000 * took:.1f} ms" for name, took in one.query_s.items())
    print(
        f"{one.events:,} events after {one.hours:.1f} hours and {seconds:.0f} s: "
        f"{one.runs} runs, {one.active} active; "
        f"{one.resident_bytes / 1e6:.1f} MB, {one.handles} files, log {one.log_bytes / 1e6:.1f} MB, "
        f"start {1000 * one.start_s:.0f} ms ({one.replayed} events replayed); {asked} of CPU",
        file=sys.stderr,
        flush=True,
    )


def result(week: Week, samples: Sequence[Sample], found: Sequence[Quantity]) -> dict[str, Any]:
    """Return all that was measured and what it comes to, as JSON-like data."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "events": samples[-1].events,
        "runs": samples[-1].runs,
        "hours": samples[-1].hours,
        "asked": {"events": week.events, "runs": week.runs, "hours": week.hours},
        "quantities": [
            {
                "name": one.name,
                "before": one.before,
                "after": one.after,
                "percent": one.percent,
                "flat": one.flat,
            }
            for one in found
        ],
        "samples": [one.as_json() for one in samples],
    }


def head(samples: Sequence[Sample]) -> str:
    last = samples[-1]
    return (
        f"{last.events:,} events of {last.runs} runs in {last.hours:.0f} hours of virtual time; "
        f"at most {max(one.active for one in samples)} runs active when measured"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parsed(arguments)
    scaled = FULL.hours * given.events / FULL.events
    week = Week(given.events, given.runs, scaled if given.hours is None else given.hours, given.seed)
    try:
        if given.read:
            return _judged(_read(given.read), given.svg)
        with _interruptible(), tempfile.TemporaryDirectory(prefix="soak-", dir=folder()) as aside:
            home = given.home or Path(aside) / "home"
            keep = partial(_keep, week, given)
            samples = soak(week, home, Path(aside), intervals=given.intervals, keep=keep)
        return _judged(samples, None)
    except (Failed, StateError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _read(path: Path) -> list[Sample]:
    """Return what `--out` wrote."""
    return [Sample(**one) for one in json.loads(path.read_text(encoding="utf-8"))["samples"]]


def _judged(samples: Sequence[Sample], drawn: Path | None) -> int:
    """Print what samples come to, and draw them if asked to; return the exit status."""
    found = quantities(samples)
    print("\n".join([head(samples), "", *table(found)]))
    if drawn:
        drawn.write_text(svg(found, head(samples)), encoding="utf-8")
    return 0 if all(one.flat for one in found) else 1


def _keep(week: Week, given: argparse.Namespace, samples: Sequence[Sample]) -> None:
    """Write what was measured so far, as soon as there is a second quarter to compare with."""
    if len(samples) < ENOUGH:
        return
    found = quantities(samples)
    if given.out:
        given.out.write_text(json.dumps(result(week, samples, found), indent=1) + "\n", encoding="utf-8")
    if given.svg:
        given.svg.write_text(svg(found, head(samples)), encoding="utf-8")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block in order, also where a shell has them ignored."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=FULL.events, help="about how many (%(default)s)")
    parser.add_argument("--runs", type=int, default=FULL.runs, help="how many arrive (%(default)s)")
    parser.add_argument("--hours", type=float, help="within how many; 168 for a million events")
    parser.add_argument("--seed", type=int, default=FULL.seed, help="of all that is drawn (%(default)s)")
    parser.add_argument("--intervals", type=int, default=INTERVALS, help="measurements (%(default)s)")
    parser.add_argument("--home", type=Path, help="keep the home here; it must not be there yet")
    parser.add_argument("--out", type=Path, help="write all that was measured, as JSON")
    parser.add_argument("--read", type=Path, help="measure nothing: judge what --out wrote earlier")
    parser.add_argument("--svg", type=Path, help="draw it")
    given = parser.parse_args(arguments)
    if given.home is not None and given.home.exists():
        parser.error(f"--home {given.home}: is there already")
    return given


if __name__ == "__main__":
    raise SystemExit(main())
