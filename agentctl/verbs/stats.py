"""`agentctl stats`: prints the results of runs in numbers, from the log alone. It changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import click

from agentctl import formatting
from agentctl.app import Session, common_options
from agentctl.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_prefilter,
    format_speedup,
    format_work_time,
)
from agentctl.run_lookup import find_run
from agentctl.stats import figures
from agentctl.stats.facts import FactsWalk, RunFacts
from agentctl.text_layout import format_table
from agentctl.views.host_usage import HostUsage, PrefilterResult
from agentctl.views.spending import KINDS, Spending, SpendingWalk
from agentctl.views.walk import walk_events
from daemon import exits
from state.reader import LogReader
from state.records import ProgressCallback

Figures = dict[str, Any]
Row = Sequence[str]


SPENT_ON = {
    "models": "questions to models",
    "proposing": "planning and writing kernels here",
    "compile": "checking and compiling kernels",
    "execute": "running, comparing and timing them",
    "paused": "paused",
    "idle": "nothing under way",
}
"""Names of what a run's time is spent on."""


def _parse_thresholds(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """Parse comma-separated numbers.

    Raises:
        click.BadParameter: there is none, or one is not a number above 0.
    """
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or not all(math.isfinite(one) and one > 0 for one in found):
        raise click.BadParameter(f"{value!r}: numbers above 0 with commas are expected")
    return found


@click.command(epilog=exits.epilog())
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option(
    "--fast-at",
    metavar="P,Q",
    default=",".join(f"{p:g}" for p in figures.FAST_AT),
    show_default=True,
    callback=_parse_thresholds,
    help="The p of Fast@p.",
)
@common_options
def stats(session: Session, runs: tuple[str, ...], fast_at: tuple[float, ...]) -> None:
    """Show how often kernels were right, how much faster they were, and what that cost.

    Without RUN, of all runs. What a fork took over from its parent counts once in the sum.

    Fast@p is the share of attempts that led to a correct kernel more than p times as fast as the one that the
    run started from. AccelOpt counts the same kernels; KernelBench's fast_p is such a share. An improvement
    is a kernel that was kept and beats its parent beyond noise; its cost is all that was spent, divided by
    the number of improvements. If a price is unknown, so is the cost; it is not 0. If several things went on
    at one moment, its time is divided among them, so that the parts add up.
    """
    with LogReader.open(session.home) as reader:
        reader.check_end()
        rows = [find_run(reader, run) for run in dict.fromkeys(runs)] or reader.run_rows()
        rows = sorted(rows, key=lambda row: int(row["first_seq"]))
        with session.progress_bar("reading runs") as bar:
            found, times_, filtered = _read_runs(reader, rows, bar)
    each = [
        {**figures.run_figures(run, fast_at), "prefilter": one and asdict(one), "time": time}
        for run, one, time in zip(found, filtered, times_, strict=True)
    ]
    all_ = {**figures.combined_figures(found, fast_at), "time": _sum_times(times_)}
    session.emit({"runs": each, "all": all_}, "\n".join(_format_stats(each, all_)) if each else "no runs")


def _read_runs(
    reader: LogReader, rows: Sequence[dict[str, Any]], progress: ProgressCallback
) -> tuple[list[RunFacts], list[Figures], list[PrefilterResult | None]]:
    """Return the facts, times and pre-filter results of runs; their events are read only once."""
    found, times_, filtered = [], [], []
    ends = [reader.run_seq(str(row["run"])) for row in rows]
    for row, before in zip(rows, accumulate(ends, initial=0), strict=False):
        run = str(row["run"])
        facts, spending, elsewhere = FactsWalk(reader.get_blob), SpendingWalk(run), HostUsage()

        def told(done: int, _: int, before: int = before) -> None:
            progress(before + done, sum(ends))

        for _ in walk_events(reader, run, facts, spending, elsewhere, progress=told):
            pass
        found.append(facts.build_facts(row, reader.attempt_rows(run)))
        times_.append(_time_figures(spending.build_spending(reader)))
        filtered.append(elsewhere.prefilter_result)
    return found, times_, filtered


# --- printing --------------------------------------------------------------------------------------


def _format_stats(runs: Sequence[Figures], all_: Figures) -> Iterator[str]:
    """Yield one run in full; or several runs with a line each, and their totals in full."""
    if len(runs) == 1:
        (run,) = runs
        yield f"{run['run']}: {run['problem']} ({run['size']}) on {run['target']}"
        yield f"  best        {_format_best(run)}"
        if run["prefilter"]:
            yield f"  pre-filter  {format_prefilter(PrefilterResult(**run['prefilter']))}"
        yield from _format_figures(run)
        return
    yield from format_table(
        ("RUN", "SPEEDUP", "FAST", "VALID", "KEPT", "GAINS", "CALLS", "COST", "EACH"),
        [_run_row(run) for run in runs],
    )
    yield f"FAST is Fast@{all_['fast'][0]['p']:g}; GAINS are kept improvements, EACH what one cost"
    measured = ", ".join(run["run"] for run in runs if run["predicted"] is False)
    yield f"latencies are {f'but for those of {measured} ' if measured else ''}predicted"
    yield ""
    yield f"all {format_count(all_['runs'], 'run')}, with what they share counted once"
    yield f"  best        {format_speedup(all_['geomean_speedup'])}, the geometric mean over problems"
    yield from _format_figures(all_)


def _format_best(run: Figures) -> str:
    how = "" if run["predicted"] is None else ", predicted" if run["predicted"] else ", measured"
    return f"{format_speedup(run['best_speedup'])}{how}"


def _run_row(run: Figures) -> Row:
    return (
        run["run"],
        format_speedup(run["best_speedup"]),
        _format_share(run["fast"][0]["percent"]),
        _format_share(run["kernels"]["validity_percent"]),
        str(run["kernels"]["kept"]),
        str(run["kernels"]["improvements"]),
        str(run["calls"]["made"]),
        format_small_usd(run["cost_usd"]),
        _cost_per_improvement(run),
    )


def _format_figures(found: Figures) -> Iterator[str]:
    yield from _format_kernels(found)
    if found["calls"]["made"]:
        yield from _format_calls(found["calls"])
    rest = f"; {found['unpriced']} at no known price, others {format_small_usd(found['priced_usd'])}"
    yield f"  cost        {format_small_usd(found['cost_usd'])}{rest if found['unpriced'] else ''}"
    yield f"  each        {_cost_per_improvement(found)} for a kept improvement{_missing_cost_reason(found)}"
    yield ""
    yield from format_table(
        ("FAST@P", *(f"{one['p']:g}" for one in found["fast"])),
        [(name, *(_format_share(one["percent"]) for one in shares)) for name, shares in _fast_rows(found)],
    )
    yield from _format_times(found["time"])
    yield from _format_tables(found)


def _time_figures(spent: Spending) -> Figures:
    """Return how a run's time was spent, in seconds; the parts add up to the total."""
    return {"seconds": spent.seconds, "split": spent.split}


def _sum_times(times_: Sequence[Figures]) -> Figures:
    """Return the sum of the times of several runs."""
    return {
        "seconds": sum(one["seconds"] for one in times_),
        "split": {kind: sum(one["split"][kind] for one in times_) for kind in KINDS},
    }


def _format_times(spent: Figures) -> Iterator[str]:
    """Yield how the time was spent, without kinds that took none."""
    whole = spent["seconds"]
    yield ""
    yield from format_table(
        (f"TIME, OF {format_duration(whole)}", "TOOK", "%"),
        [
            (SPENT_ON[kind], format_duration(took), _format_share(100 * took / whole if whole else None))
            for kind, took in spent["split"].items()
            if took > 0
        ],
    )


def _fast_rows(found: Figures) -> Iterator[tuple[str, Sequence[Figures]]]:
    """Yield the rows of Fast@p: all attempts, then problems, or the rounds of a run that had several."""
    yield format_count(found["fast"][0]["of"], "attempt"), found["fast"]
    if "fast_problems" in found:
        yield format_count(found["problems"], "problem"), found["fast_problems"]
    elif len(found["rounds"]) > 1:
        for one in found["rounds"]:
            yield f"{one['fast'][0]['of']} of round {one['round']}", one["fast"]


def _format_kernels(found: Figures) -> Iterator[str]:
    kernels, repairs = found["kernels"], found["repairs"]
    failed = f", {format_count(kernels['failed'], 'attempt')} gave no kernel" if kernels["failed"] else ""
    valid = (
        f"{kernels['valid']} of {kernels['judged']} judged ({format_percent(kernels['validity_percent'])})"
    )
    yield f"  kernels     {kernels['proposed']} proposed{failed}"
    yield f"  valid       {valid}"
    improvements = format_count(kernels["improvements"], "improvement")
    yield f"  kept        {kernels['kept']}, {improvements} among them"
    if repairs["attempts"]:
        percent = format_percent(repairs["percent"])
        share = f"{repairs['succeeded']} of {repairs['attempts']} succeeded ({percent})"
        yield f"  repairs     {share}, in {format_count(repairs['rounds'], 'round')}"


def _format_calls(calls: Figures) -> Iterator[str]:
    failed = ", ".join(f"{number} {kind}" for kind, number in calls["failed"].items())
    uncounted = f"; {calls['uncounted_tokens']} more charged" if calls["uncounted_tokens"] else ""
    guessed = f" ({calls['estimated_tokens']} of all estimated)" if "estimated_tokens" in calls else ""
    yield f"  calls       {calls['made']}: {calls['answered']} answered, {calls['usable']} of these usable"
    yield f"  failed      {failed or 'none'}; {calls['lost']} lost"
    yield (
        f"  tokens      {calls['input_tokens']} in, {calls['cached_tokens']} of them cached; "
        f"{calls['output_tokens']} out{guessed}{uncounted}"
    )
    total, middle = format_duration(calls["total_ms"] / 1000), format_work_time(calls["median_ms"])
    yield f"  took        {total} in all, {middle} in the median"


def _missing_cost_reason(found: Figures) -> str:
    """Return why there is no cost per improvement."""
    if found["cost_per_improvement_usd"] is not None:
        return ""
    return ": a price is unknown" if found["unpriced"] else ": there is none"


def _cost_per_improvement(found: Figures) -> str:
    if found["unpriced"]:
        return "unknown"
    each = found["cost_per_improvement_usd"]
    return "-" if each is None else format_small_usd(each)


def _format_tables(found: Figures) -> Iterator[str]:
    for heads, rows in (
        (
            ("MODEL", "KERNELS", "VALID", "%", "KEPT", "GAINS", "CALLS", "COST"),
            map(_model_row, found["models"]),
        ),
        (
            ("ROLE", "CALLS", "ANSWERED", "USABLE", "%", "FAILED", "LOST", "MEDIAN", "COST"),
            map(_role_row, found["roles"]),
        ),
        (
            ("TECHNIQUE", "TRIED", "VALID", "KEPT", "GAINS", "MEDIAN"),
            map(_technique_row, found["techniques"]),
        ),
    ):
        if lines := list(rows):
            yield ""
            yield from format_table(heads, lines)


def _model_row(one: Figures) -> Row:
    return (
        one["model"], str(one["proposed"]), str(one["valid"]), _format_share(one["validity_percent"]),
        str(one["kept"]), str(one["improvements"]), str(one["calls"]["made"]),
        format_small_usd(one["cost_usd"]),
    )  # fmt: skip


def _role_row(one: Figures) -> Row:
    calls = one["calls"]
    return (
        one["role"], str(calls["made"]), str(calls["answered"]), str(calls["usable"]),
        _format_share(calls["usable_percent"]), str(sum(calls["failed"].values())), str(calls["lost"]),
        format_work_time(calls["median_ms"]), format_small_usd(one["cost_usd"]),
    )  # fmt: skip


def _technique_row(one: Figures) -> Row:
    return (
        one["technique"], str(one["tried"]), str(one["valid"]), str(one["kept"]),
        str(one["improvements"]), format_speedup(one["median_speedup"]),
    )  # fmt: skip


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}%"


def format_small_usd(value: float | None) -> str:
    """Return an amount with two significant digits, because single calls cost fractions of a cent."""
    if value is None or value == 0 or value >= 1:
        return formatting.format_usd(value)
    return f"${value:.{1 - math.floor(math.log10(value))}f}"
