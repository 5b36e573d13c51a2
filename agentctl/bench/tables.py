"""Prints the benchmark: a table of runs, the means, the comparison of arms, the techniques used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentctl.bench.results import ResultRow, build_report, count_rewrites, starts_of
from agentctl.bench.runs import KERNEL_ONLY
from targets.registry import load_target, target_names

_HEAD = (
    f"{'problem':36}{'arm':16}{'seed':>5}{'initial ms':>28}{'best ms':>28}{'speed-up':>9}{'% peak':>8}"
    f"{'% model':>8}{'wins %':>8}{'judged':>8}{'looked at':>10}{'s':>7}"
)


def render_lines(runs: Mapping[str, ResultRow]) -> Iterator[str]:
    """Yield all results of the runs as lines; every latency is predicted."""
    found = build_report(runs)
    yield from _accuracy_notes(found["model_error_percent"])
    yield from _run_table(list(runs.values()))
    yield from _overall_lines(found["overall"])
    yield from _arm_table(found["arms"])
    counts = count_rewrites(runs.values())
    if counts.total():
        yield ""
        yield "Techniques in the lines of descent of the beam's winners:"
        yield from (f"  {name:18}{count:4}" for name, count in counts.most_common())


def _accuracy_notes(errors: Mapping[str, Mapping[str, float] | None]) -> Iterator[str]:
    """Yield what is predicted here, and how far off that was on measured kernels."""
    yield "Latencies are predicted by the simulator's model, with the interval of its uncertain constants."
    for target, error in errors.items():
        if error is not None:
            yield (
                f"{target}: on {error['kernels']} measured kernels, each predicted by a model fitted "
                f"without its family, it was off by {error['median']:.1f} % in the median, "
                f"{error['worst']:.0f} % at worst."
            )


def _run_table(rows: Sequence[ResultRow]) -> Iterator[str]:
    for size, target in sorted({(one["size"], one["target"]) for one in rows}):
        yield ""
        yield f"{size} size, {target}"
        yield _HEAD
        mine = [one for one in rows if (one["size"], one["target"]) == (size, target)]
        yield from map(run_line, sorted(mine, key=lambda one: (one["problem"], one["arm"], one["seed"])))


def run_line(row: ResultRow) -> str:
    """Return one run as a line of the table."""
    initial = f"{row['initial_ms']:.4g} ({row['initial_lo_ms']:.4g}-{row['initial_hi_ms']:.4g})"
    best = f"{row['best_ms']:.4g} ({row['best_lo_ms']:.4g}-{row['best_hi_ms']:.4g})"
    wins = "" if row["best_wins_percent"] is None else f"{row['best_wins_percent']:.1f}"
    starts = starts_of(row)
    name = row["problem"] if starts == KERNEL_ONLY else f"{row['problem']} from {starts}"
    late = "" if row["in_time"] else " (time up)" if row["reason"] else " (cut off before its audit)"
    return (
        f"{name:36}{row['arm']:16}{row['seed']:>5}{initial:>28}{best:>28}{row['speedup']:8.2f}x"
        f"{row['percent_of_peak']:8.1f}{row['percent_of_tight_bound']:8.1f}{wins:>8}{row['evaluated']:8}"
        f"{row['looked_at']:10}{row['seconds']:7.0f}{late}"
    )


def _overall_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for target in target_names():
        if found[f"{target}_percent_of_peak"] is None:
            continue
        yield ""
        yield (
            f"{target}, geometric means over {found[f'{target}_problems']} problems: "
            f"{found[f'{target}_initial_percent_of_peak']:.1f} % of peak at first, "
            f"{found[f'{target}_percent_of_peak']:.1f} % at last, "
            f"{found[f'{target}_percent_of_tight_bound']:.1f} % of the model bound"
        )
        if (known := load_target(target).published) is not None:
            gain = f"{known.before_percent:g} % to {known.after_percent:g} %"
            yield f"  (published for {known.source}: {gain})"
        if caveat := load_target(target).caveat:
            yield f"  ({caveat})"


def _arm_table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for size, target in dict.fromkeys((one["size"], one["target"]) for one in found):
        mine = [one for one in found if (one["size"], one["target"]) == (size, target)]
        shares = list(mine[0]["needed"])
        yield ""
        yield f"Judged before a share of the gain was had (median, 95 % interval), {size} size, {target}"
        head = "".join(f"{share + ' % of the gain':>26}{'runs':>8}" for share in shares)
        yield f"{'arm':18}{head}{'gain at the end':>18}"
        yield from (_arm_line(one, shares) for one in mine)


def _arm_line(one: Mapping[str, Any], shares: Sequence[str]) -> str:
    cells = ""
    for share in shares:
        told = one["needed"][share]
        middle, low, high = map(_format_count, (told["median"], *told["interval"]))
        runs = f"{told['reached']}/{one['runs']}"
        cells += f"{f'{middle} ({low} to {high})':>26}{runs:>8}"
    gain = "" if one["gain_percent"] is None else f"{one['gain_percent']:.1f} %"
    return f"{one['arm']:18}{cells}{gain:>18}"


def _format_count(value: float | None) -> str:
    return "never" if value is None else f"{value:g}"
