"""A week of the daemon without a restart, compressed: does anything grow that should not?

The real host, supervisor, runner, commands, inbox and event log live through a week of virtual time in one
process (`week.py`). At intervals it stands still and is measured: its memory, files and threads, the log,
what a start on a copy of the home takes, and commands of `agentctl` on that copy. What flat means is in
`growth.py`.

    python -m benchmarks.faults --scenario soak --out soak.json --svg docs/soak.svg
    python -m benchmarks.faults --scenario soak --events 50000 --runs 12     # the same pace, for less long
    python -m benchmarks.faults --scenario soak --read soak.json --svg docs/soak.svg    # draw it again

`--home DIR` keeps the home, for `benchmarks/ready.py --home DIR`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.scenario import Case, Report
from benchmarks.faults.soak.chart import draw_svg
from benchmarks.faults.soak.gauges import Gauges, Sample
from benchmarks.faults.soak.growth import format_table, list_quantities
from benchmarks.faults.soak.week import Week, World
from benchmarks.simulation import folder
from state.log import EventLog

FULL = Week()
INTERVALS = 20
ENOUGH = 5
"""Samples with which each quarter has one, the interval before each included."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=FULL.events, help="about how many (%(default)s)")
    parser.add_argument("--runs", type=int, default=FULL.runs, help="how many arrive (%(default)s)")
    parser.add_argument("--hours", type=float, help="within how many; 168 for a million events")
    parser.add_argument("--intervals", type=int, default=INTERVALS, help="measurements (%(default)s)")
    parser.add_argument("--home", type=Path, help="keep the home here; it must not be there yet")
    parser.add_argument("--svg", type=Path, help="draw it")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.home is not None and options.home.exists():
        raise ValueError(f"--home {options.home}: is there already; name a folder that is to be made")
    scaled = FULL.hours * options.events / FULL.events
    hours = scaled if options.hours is None else options.hours
    seed = FULL.seed if options.seed is None else options.seed
    week = Week(options.events, options.runs, hours, seed)
    with tempfile.TemporaryDirectory(prefix="soak-", dir=folder()) as aside:
        home = options.home or Path(aside) / "home"
        soak(week, home, Path(aside), intervals=options.intervals, take=lambda one: report(make_case(one)))


def soak(week: Week, home: Path, aside: Path, *, intervals: int, take: Callable[[Sample], None]) -> None:
    """Live through a week in `home`, copies of which are made in `aside`; `take` gets each sample.

    Raises:
        Failed: the week did not go as it must.
    """
    gauges = Gauges(home, aside)

    def measure(log: EventLog) -> None:
        take(gauges.take_sample(log, world.hours))

    world = World(home, week, every=max(1, week.events // intervals), measure=measure)
    world.run()


def make_case(sample: Sample) -> Case:
    outcome = (
        f"{sample.runs} runs, {sample.active} active; {sample.resident_bytes / 1e6:.1f} MB, "
        f"{sample.handles} files, log {sample.log_bytes / 1e6:.1f} MB, start {1000 * sample.start_s:.0f} ms"
    )
    place = f"{sample.events:,} events, {sample.hours:.1f} hours"
    return Case("a week without a restart", place, outcome, figures=sample.as_json())


def read_samples(cases: Sequence[Case]) -> list[Sample]:
    return [Sample(**case.figures) for case in cases]


def judge(cases: Sequence[Case]) -> list[str]:
    """What grows; what is missing, where there are too few samples to tell."""
    if len(cases) < ENOUGH:
        return [f"{len(cases)} samples are too few to judge growth by; take at least {ENOUGH}"]
    return [
        f"{one.name} grew by {one.percent:.1f} %"
        for one in list_quantities(read_samples(cases))
        if not one.is_flat
    ]


def summarize(cases: Sequence[Case]) -> dict[str, Any]:
    samples = read_samples(cases)
    last = samples[-1]
    found = list_quantities(samples) if len(samples) >= ENOUGH else []
    return {
        "events": last.events,
        "runs": last.runs,
        "hours": last.hours,
        "most_active": max(one.active for one in samples),
        "quantities": [
            {
                "name": one.name,
                "before": one.before,
                "after": one.after,
                "percent": one.percent,
                "is_flat": one.is_flat,
            }
            for one in found
        ],
    }


def format_summary(summary: Mapping[str, Any]) -> Iterator[str]:
    yield format_caption(summary)
    if summary["quantities"]:
        yield ""
        yield from format_table(summary["quantities"])


def format_caption(summary: Mapping[str, Any]) -> str:
    return (
        f"{summary['events']:,} events of {summary['runs']} runs in {summary['hours']:.0f} hours of virtual "
        f"time; at most {summary['most_active']} runs active when measured"
    )


def draw(options: argparse.Namespace, cases: Sequence[Case]) -> None:
    """Draw it, as soon as there is a second quarter to compare with."""
    if options.svg and len(cases) >= ENOUGH:
        picture = draw_svg(list_quantities(read_samples(cases)), format_caption(summarize(cases)))
        options.svg.write_text(picture, encoding="utf-8")
