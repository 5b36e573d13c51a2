"""Money under kills: the daemon killed at every event boundary of a run that buys answers of a faulty model.

A run asks a scripted server over real sockets, by the wire format of OpenAI and then by Anthropic's: with
questions, in sessions, in sessions that submit several kernels or end because their share of the cap is
spent, and in sessions of planners too. `--only WORDS` takes those whose name has these words. The server
faults at a third of the requests; where it takes no key or the account has no money, the run pauses, and a
person lets it go on. The daemon is killed at the N-th hit of a crash point, for every N: before and after
each commit, and between an answer and its event. Then the run is finished, and held against the run that
nobody killed. The last full summary is kept in `benchmarks/results/llm_kill_sweep.json`.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.llm_lives import CAP_USD, FORMATS, Lives, WireFormat, submit_run
from benchmarks.faults.llm_story import Story, count_calls_in_flight, create_faulty_script, read_story
from benchmarks.faults.scenario import Case, Report
from tests.support.llm_server import LlmServer

SEED = 3
CALM_FIGURES = ("started", "answered", "spent_usd", "further", "shares_spent")
CALM = "nothing"
"""The fault of the run that nobody kills."""


@dataclass
class KilledRun:
    """A run whose daemon was killed once: when, with how many calls in flight, and what it came to."""

    point: int
    in_flight: int
    requests: int
    story: Story

    def find_wrong(self, calm: Story) -> Iterator[str]:
        """Yield what must not be."""
        story = self.story
        if not story.ended:
            yield "did not end"
        if (story.hash, story.decisions) != (calm.hash, calm.decisions):
            yield "ended in another state than the run that nobody killed"
        if story.bought_again:
            yield f"{story.bought_again} answers of the log were bought again"
        if story.lost > self.in_flight:
            yield f"{story.lost} calls were repeated, {self.in_flight} were in flight"
        if not story.started - self.in_flight <= self.requests <= story.started:
            yield f"{self.requests} requests were sent for {story.started} that were logged"
        if story.over_cap:
            yield f"spent and reserved exceeded the cap after {len(story.over_cap)} events"
        yield from story.faults


def run(options: argparse.Namespace, report: Report) -> None:
    seed = SEED if options.seed is None else options.seed
    lives = Lives()
    try:
        for name, wire in FORMATS.items():
            if options.only in name:
                points = itertools.count(1, options.every)
                with tempfile.TemporaryDirectory() as folder:
                    sweep(Path(folder), lives, wire, points, seed=seed, report=report)
    finally:
        lives.close()


def sweep(
    folder: Path,
    lives: Lives,
    wire: WireFormat,
    points: Iterable[int],
    *,
    seed: int = SEED,
    at: str = "",
    report: Report,
) -> None:
    """Report the run that nobody kills, then one killed at each of these points, until it is over before.

    A point is the n-th hit of the crash point `at`, or of any.
    """
    with LlmServer(create_faulty_script(0)) as server:
        home = folder / "calm"
        calm_run = submit_run(home, wire, seed)
        status = lives.live_once(home, calm_run, wire, server)
        if status:
            raise RuntimeError(f"the run that nobody kills ended with {status}")
        calm = read_story(home, calm_run, CAP_USD)
    report(Case(CALM, wire.name, "ended", figures={"format": wire.name, **vars(calm)}))
    for point in points:
        killed = _kill_at(folder / f"at{point}", lives, wire, point, seed=seed, at=at)
        if killed is None:
            return
        report(make_case(wire, killed, calm))
        shutil.rmtree(folder / f"at{point}")


def make_case(wire: WireFormat, killed: KilledRun, calm: Story) -> Case:
    place = f"{wire.name} {killed.point}"
    figures = {"format": wire.name, "in_flight": killed.in_flight, **vars(killed.story)}
    return Case("SIGKILL", place, "ended alike", "; ".join(killed.find_wrong(calm)), figures)


def _kill_at(
    home: Path, lives: Lives, wire: WireFormat, point: int, *, seed: int, at: str
) -> KilledRun | None:
    """Kill a run once, its faults beginning with another kind at each point; None: it was over before."""
    with LlmServer(create_faulty_script(point)) as server:
        run_ = submit_run(home, wire, seed)
        status = lives.live_once(home, run_, wire, server, crash_at=f"{at}:{point}" if at else str(point))
        if status == 0:
            return None
        if status != -signal.SIGKILL:
            raise RuntimeError(f"a life that was to be killed at {point} ended with {status}")
        in_flight = count_calls_in_flight(home, run_)
        status = lives.live_once(home, run_, wire, server)
        if status:
            raise RuntimeError(f"the life after the kill at {point} ended with {status}")
        return KilledRun(point, in_flight, len(server.asked), read_story(home, run_, CAP_USD))


def summarize(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """By wire format: kills, and over all killed runs calls, repeats, money and failures."""
    names = dict.fromkeys(case.figures["format"] for case in cases)
    return {
        name: _summarize_format([case for case in cases if case.figures["format"] == name]) for name in names
    }


def _summarize_format(cases: Sequence[Case]) -> dict[str, Any]:
    killed = [case.figures for case in cases if case.fault != CALM]
    calm = next(case.figures for case in cases if case.fault == CALM)
    return {
        "calm": {name: calm.get(name, 0) for name in CALM_FIGURES},
        "kills": len(killed),
        "pauses": sum(one["paused"] for one in killed),
        "calls": sum(one["started"] for one in killed),
        "answers": sum(one["answered"] for one in killed),
        "repeats": sum(one["lost"] for one in killed),
        "in_flight": sum(one["in_flight"] for one in killed),
        "most_usd": max((one["most_usd"] for one in killed), default=0.0),
        "cap_usd": CAP_USD,
        "failed": _add_up(one["failed"] for one in killed),
        "recovered": _add_up(one["recovered"] for one in killed),
    }


def _add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def format_summary(summary: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, one in summary.items():
        calm = one["calm"]
        yield f"as {name}:"
        counts = f"{calm['started']} calls, {calm['answered']} answers"
        yield f"undisturbed: {counts}, ${calm['spent_usd']:.4f} spent"
        if calm["further"] or calm["shares_spent"]:
            yield (
                f"submitted besides: {calm['further']} kernels; "
                f"ended with their share spent: {calm['shares_spent']} sessions"
            )
        yield (
            f"kills {one['kills']}, calls {one['calls']}, answers {one['answers']}; "
            f"repeated {one['repeats']} of {one['in_flight']} calls that were in flight at a kill; "
            f"paused {one['pauses']} times"
        )
        yield f"spent and reserved at most ${one['most_usd']:.4f} of a cap of ${one['cap_usd']:.2f}"
        yield "failed attempts, and those after which the same question was answered:"
        for kind, count in one["failed"].items():
            yield f"  {kind:<12} {count:>6} {one['recovered'].get(kind, 0):>6}"
