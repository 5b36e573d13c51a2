"""`agentctl rescore`: ranks a run's kernels by another objective than the one the run searched by.

It changes nothing: it computes the objective from verdicts that are in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.formatting import format_count, format_ms, format_percent
from agentctl.run_lookup import find_run
from agentctl.text_layout import terminal_width, wrap_line
from daemon import exits
from daemon.errors import DaemonError
from daemon.profiles import parse_counters
from state.events import EvaluationCompleted
from state.model import Benchmark, EffectKey, LatencyBounds
from state.reader import LogReader
from targets.registry import roofline_name

COUNTER = "counter:"
LATENCY = "latency"
UNITS = {
    "_percent": "%",
    "_time": "s",
    "_bytes": "B",
    "_size": "B",
    **dict.fromkeys(("_cycles", "_cycle_count"), "cycles"),
    "_flops": "flop",
    "_intensity": "flop/B",
    "_ratio": "flop/B",
}
"""The unit of a counter, by the end of its name; other counters are plain counts."""


@dataclass(frozen=True, slots=True)
class ScoredKernel:
    """A correct kernel of a run: its verdict's numbers, and its title."""

    id: str
    title: str
    benchmark: Benchmark
    counters: dict[str, float]


@dataclass(frozen=True, slots=True)
class Objective:
    """What kernels are ranked by: how to compute a value (None: a kernel has none), how to print it,
    which is better.
    """

    meaning: str
    value: Callable[[ScoredKernel], float | None]
    spell: Callable[[float], str]
    higher_is_better: bool = False


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.option(
    "--objective",
    "name",
    default="latency",
    show_default=True,
    help="latency, lo or hi (the ends of its interval), p0 to p100 (a percentile of the model's draws), "
    "percent_of_peak, percent_of_model_bound, or counter:NAME of the profile (less is better).",
)
@click.option("-n", "most", type=click.IntRange(min=1), default=10, show_default=True, help="Kernels shown.")
@common_options
def rescore(session: Session, run: str, name: str, most: int) -> None:
    """Rank a run's correct kernels by an objective, beside their ranks by latency. Nothing is changed."""
    with LogReader.open(session.home) as reader, session.progress_bar("reading the run"):
        reader.check_end()
        run = str(find_run(reader, run)["run"])
        state = reader.run_state(run)
        kernels = _read_kernels(reader, run)
    objective = parse_objective(name, state.bounds, kernels, roofline=roofline_name(state.config.target))
    ranked = rank_kernels(kernels, objective)
    unranked = [one.id for one in kernels if objective.value(one) is None]
    before = {
        one.id: place for place, (one, _) in enumerate(rank_kernels(kernels, _latency_objective()), start=1)
    }
    rows = [
        {"rank": place, "rank_by_latency": before[one.id], "candidate": one.id, "value": value,
         "latency_ms": one.benchmark.latency_ms, "predicted": one.benchmark.predicted, "title": one.title}
        for place, (one, value) in enumerate(ranked, start=1)
    ]  # fmt: skip
    session.emit(
        {"run": run, "objective": name, "kernels": rows, "without": unranked},
        "\n".join(_format_ranking(run, objective, rows[:most], unranked=unranked)),
    )


def rank_kernels(kernels: Iterable[ScoredKernel], objective: Objective) -> list[tuple[ScoredKernel, float]]:
    """Return the kernels that have a value, best first, with their values; in ties the earlier kernel is
    first.
    """
    valued = [(one, value) for one in kernels if (value := objective.value(one)) is not None]
    sign = -1 if objective.higher_is_better else 1
    return sorted(valued, key=lambda pair: (sign * pair[1], _evaluation_key(pair[0])))


def _evaluation_key(kernel: ScoredKernel) -> EffectKey:
    return EffectKey.parse(f"{kernel.id}.evaluator")


def parse_objective(
    name: str, bounds: LatencyBounds, kernels: Iterable[ScoredKernel], *, roofline: str = "roofline"
) -> Objective:
    """Return the objective that is called `name`.

    Raises:
        DaemonError: there is none, or no kernel has that counter; the error names the nearest.
    """
    table = _named_objectives(bounds, roofline)
    if name in table:
        return table[name]
    if (found := re.fullmatch(r"p(\d{1,3})", name)) and int(found[1]) <= 100:
        return _percentile_objective(int(found[1]))
    known = sorted({counter for one in kernels for counter in one.counters})
    if name.startswith(COUNTER):
        counter = name.removeprefix(COUNTER)
        if counter in known:
            return _counter_objective(counter)
    names = [*table, "p50", "p90", *(COUNTER + counter for counter in known)]
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:7])} and counter:NAME"
    raise DaemonError(f"unknown objective {name!r}", code="unknown_objective", hint=hint)


def _latency_objective() -> Objective:
    return Objective(LATENCY, lambda one: one.benchmark.latency_ms, format_ms)


def _named_objectives(bounds: LatencyBounds, roofline: str) -> dict[str, Objective]:
    def share(bound_ms: float) -> Callable[[ScoredKernel], float]:
        return lambda one: 100 * bound_ms / one.benchmark.latency_ms

    of_model = Objective(
        "share of the model bound", share(bounds.tight_ms), format_percent, higher_is_better=True
    )
    return {
        "latency": _latency_objective(),
        "lo": Objective("lower end of the interval", lambda one: one.benchmark.lo_ms, format_ms),
        "hi": Objective("upper end of the interval", lambda one: one.benchmark.hi_ms, format_ms),
        "percent_of_peak": Objective(
            f"share of the {roofline}", share(bounds.plain_ms), format_percent, higher_is_better=True
        ),
        **dict.fromkeys(("percent_of_model_bound", "percent_of_tight_bound"), of_model),
    }


def _percentile_objective(percent: int) -> Objective:
    def value(one: ScoredKernel) -> float | None:
        draws = sorted(one.benchmark.draws_ms)
        if not draws:
            return None
        place = percent / 100 * (len(draws) - 1)
        low = int(place)
        high = min(low + 1, len(draws) - 1)
        return draws[low] + (place - low) * (draws[high] - draws[low])

    return Objective(f"percentile {percent} of the model's draws", value, format_ms)


def _counter_objective(name: str) -> Objective:
    unit = next((f" {unit}" for ending, unit in UNITS.items() if name.endswith(ending)), "")
    return Objective(
        f"counter {name}", lambda one: one.counters.get(name), lambda value: f"{value:.6g}{unit}"
    )


def _read_kernels(reader: LogReader, run: str) -> list[ScoredKernel]:
    """Return the correct kernels of a run whose latencies are comparable, without duplicates."""
    timed = {one.key.rpartition(".")[0]: one for one in _read_verdicts(reader, run)}
    found = []
    for row in reader.candidate_rows(run):
        judged = timed[row["candidate"]].evaluation
        if judged.benchmark is None or row["duplicate_of"] is not None:
            continue
        counters = parse_counters(reader.get_blob(judged.profile)) if judged.profile else {}
        found.append(
            ScoredKernel(
                row["candidate"], row["title"] or row["note"] or "initial kernel", judged.benchmark, counters
            )
        )
    return found


def _read_verdicts(reader: LogReader, run: str) -> Iterable[EvaluationCompleted]:
    """Yield a run's verdicts, oldest first, so that the last verdict of a kernel counts."""
    found = reader.iterate_events(run, ("EvaluationCompleted",))
    yield from (item.event for item in found if isinstance(item.event, EvaluationCompleted))


def _format_ranking(
    run: str, objective: Objective, rows: list[dict[str, Any]], *, unranked: list[str]
) -> list[str]:
    if not rows:
        return [f"{run} has no correct kernel with a {objective.meaning}"]
    lines = [f"{run} by {objective.meaning}; latencies {_latency_kind(rows)}"]
    lines += [wrap_line(_format_kernel(row, objective), terminal_width()) for row in rows]
    if unranked:
        lines.append(f"without it: {format_count(len(unranked), 'kernel')}")
    return lines


def _format_kernel(row: dict[str, Any], objective: Objective) -> str:
    """Return a kernel's line: its rank and value, with its rank by latency unless that is the objective."""
    other = objective.meaning != LATENCY
    before = f"(by latency {row['rank_by_latency']}.) " if other else ""
    value = f"{objective.spell(row['value'])}  " if other else ""
    return (
        f"{row['rank']:>3}. {before}{row['candidate']}  {value}{format_ms(row['latency_ms'])}  {row['title']}"
    )


def _latency_kind(rows: list[dict[str, Any]]) -> str:
    kinds = {"predicted" if row["predicted"] else "measured" for row in rows}
    return " or ".join(sorted(kinds))
