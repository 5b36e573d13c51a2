"""What the knob surface's space is like, and what searching it finds: sizes, shares, optima, other ways.

    .venv/bin/python benchmarks/knobs.py --out knobs.json --tables tables       # half an hour on 2 free cores
    .venv/bin/python benchmarks/knobs.py --workloads softmax --stages exhaustive --seeds 20

Per workload, in this order: how large its space is and which share of it is valid (`space`); the latency of
every program of a reduced size, and how near the search comes to the best of them in 5 % as many evaluations,
with each seed, beside as many points drawn at random (`exhaustive`); what the search finds at the size itself
in its graph and in one of its variants (`search`), and what the rewrite engine does there (`rewrite`). With
`--tables`, the latencies of all programs are kept there, and searches are replayed from them without
predicting anything. What is done is kept in `--out` and not done again. Every latency is predicted; no
hardware is timed. Exit status 0 when every stage asked for is there, 1 when the deadline came first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.surface.programs import Found, Table, predict_point, table_of  # noqa: E402
from benchmarks.surface.rewriting import rewritten  # noqa: E402
from benchmarks.surface.told import STAGES, optima, spaces  # noqa: E402
from benchmarks.surface.workloads import WORKLOADS  # noqa: E402
from nki_sim import targets  # noqa: E402
from targets.nki.knobs.errors import KnobError  # noqa: E402 - the path is set above
from targets.nki.knobs.graph import Graph  # noqa: E402
from targets.nki.knobs.ir import KernelIR, knob_signature  # noqa: E402
from targets.nki.knobs.narrowing import default_ir  # noqa: E402
from targets.nki.knobs.neighbours import is_valid  # noqa: E402
from targets.nki.knobs.sampling import sample_any_point, sample_ir  # noqa: E402
from targets.nki.knobs.search import ProfileFeedback, SearchMode, Trial, TriedBatch, best_trial, next_batch  # noqa: E402
from targets.nki.knobs.space import space_size  # noqa: E402
from targets.nki.knobs.variants import IDENTITY, make_variants  # noqa: E402

NEAR_RATIO = 1.02
"""Within this of the best program there is, a point counts as found."""
BUDGET_SHARE = 0.05
"""Of all programs, how many a search may look at."""
BATCH = 4
DRAWN = 500
"""Points of the whole space that are drawn for the share of valid ones."""

Look = Callable[[KernelIR], Found]


@dataclass(frozen=True)
class Clock:
    """A deadline, how much may be looked at, by how many seeds, minutes of a run, where tables are kept."""

    until: float
    programs: int
    evaluations: int
    seeds: int
    minutes: float
    tables: Path | None = None

    def is_over(self) -> bool:
        return time.monotonic() > self.until


def space(name: str, target: str, clock: Clock) -> dict[str, Any]:
    """The size of a space, and the share of valid points among some drawn anywhere."""
    del clock
    graph, rng = WORKLOADS[name].graph(target), Random(0)
    size = space_size(graph)
    valid = sum(is_valid(sample_any_point(graph, rng)) for _ in range(DRAWN))
    return {
        "loop_orders": size.loop_orders,
        "block_sizes": size.block_sizes,
        "buffer_scopes": size.buffer_scopes,
        "points": size.points,
        "variants": len(make_variants(graph)),
        "valid_percent": 100 * valid / DRAWN,
    }


def exhaustive(name: str, target: str, clock: Clock) -> dict[str, Any]:
    """The best of all programs of the reduced size, and how near searches and draws come to it."""
    graph = WORKLOADS[name].small(target)
    path = clock.tables / f"{name}-{target}.json.gz" if clock.tables is not None else None
    table = table_of(graph, path, lambda count: count >= clock.programs or clock.is_over())
    near_ms = table.best_ms * NEAR_RATIO
    budget = max(1, int(BUDGET_SHARE * len(table.found)))
    endless = replace(clock, until=float("inf"))
    return {
        "shapes": {key: list(shape) for key, shape in WORKLOADS[name].reduced.items()},
        "programs": len(table.found),
        "whole": table.whole,
        "best_ms": table.best_ms,
        "worst_ms": table.worst_ms,
        "default_ms": table.of(default_ir(graph)).ms,
        "near_percent": 100 * sum(one.ms <= near_ms for one in table.found.values()) / len(table.found),
        "budget": budget,
        "searched": [
            _near(_latencies(search_points(graph, endless, budget, table.of, seed=seed)), near_ms)
            for seed in range(clock.seeds)
        ],
        "drawn": [_near(_draw_latencies(graph, budget, table, seed), near_ms) for seed in range(clock.seeds)],
    }


def _latencies(history: Sequence[TriedBatch]) -> list[float]:
    return [trial.ms for tried in history for trial in tried.trials if trial.ms is not None]


def _draw_latencies(graph: Graph, count: int, table: Table, seed: int) -> list[float]:
    first, rng = default_ir(graph), Random(seed)
    return [table.of(sample_ir(first, rng)).ms for _ in range(count)]


def _near(latencies: Sequence[float], near_ms: float) -> dict[str, Any]:
    """The best of some latencies in turn, and how many it took until one was near the best there is."""
    after = next((number for number, ms in enumerate(latencies, 1) if ms <= near_ms), None)
    return {"best_ms": min(latencies), "evaluations": len(latencies), "near_after": after}


def search_points(
    graph: Graph, clock: Clock, most: int, look: Look = predict_point, *, seed: int = 0
) -> list[TriedBatch]:
    """What the search tries, up to so many points. The default comes first."""
    best, engine = look(default_ir(graph))
    history = [TriedBatch(SearchMode.JOINT, (Trial(default_ir(graph), best),))]
    count, rng = 1, Random(seed)
    while count < most and not clock.is_over():
        batch = next_batch(graph, rng, history, ProfileFeedback(engine), min(BATCH, most - count))
        trials: list[Trial] = []
        for ir in batch.points:
            ms, busiest = look(ir)
            trials.append(Trial(ir, ms))
            if ms < best:
                best, engine = ms, busiest
            if clock.is_over():
                break
        if not trials:
            break
        count += len(trials)
        history.append(TriedBatch(batch.mode, tuple(trials), batch.knob))
    return history


def search(name: str, target: str, clock: Clock) -> dict[str, Any]:
    """The best of the graph, and of the variant whose default is fastest, in as many evaluations for both."""
    graph = WORKLOADS[name].graph(target)
    starts = {item.name: item.graph for item in make_variants(graph) if item.name != IDENTITY}
    defaults: dict[str, float] = {}
    for key, item in starts.items():
        with suppress(KnobError):  # a variant that fits nowhere
            if not clock.is_over():
                defaults[key] = predict_point(default_ir(item)).ms
    chosen = min(defaults, key=defaults.__getitem__, default=None)
    half = replace(clock, until=(time.monotonic() + clock.until) / 2)
    told = {IDENTITY: _summarize_history(search_points(graph, half, clock.evaluations))}
    if chosen is not None:
        told[chosen] = _summarize_history(search_points(starts[chosen], clock, clock.evaluations))
    return {"defaults_ms": defaults, "found": told}


def _summarize_history(history: Sequence[TriedBatch]) -> dict[str, Any]:
    best = best_trial(history)
    assert best is not None
    return {
        "default_ms": history[0].trials[0].ms,
        "best_ms": best.ms,
        "evaluations": sum(len(tried.trials) for tried in history),
        "knobs": knob_signature(best.ir),
    }


def rewrite(name: str, target: str, clock: Clock) -> dict[str, Any]:
    """The best of the rewrite engine in as many minutes as it may have, and the clock has."""
    return rewritten(WORKLOADS[name], target, min(clock.minutes, (clock.until - time.monotonic()) / 60))


DONE: Mapping[str, Callable[[str, str, Clock], dict[str, Any]]] = {
    "space": space,
    "exhaustive": exhaustive,
    "search": search,
    "rewrite": rewrite,
}


def lines(parts: Mapping[str, Any]) -> Iterator[str]:
    """All that is known, as tables in Markdown."""
    stages = {key.rpartition(" ")[2] for key in parts}
    if stages - {"exhaustive"}:
        yield from (*spaces(parts, WORKLOADS), "")
    if "exhaustive" in stages:
        yield from optima(parts, WORKLOADS)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options().parse_args(argv)
    kept = json.loads(options.out.read_text())["parts"] if options.out and options.out.exists() else {}
    whole = time.monotonic() + options.deadline_seconds
    missing = 0
    for name, stage in product(options.workloads, options.stages):
        if f"{name} {stage}" in kept:
            continue
        if time.monotonic() > whole:
            missing += 1
            continue
        print(f"{name}: {stage}", file=sys.stderr, flush=True)
        until = time.monotonic() + min(whole - time.monotonic(), options.stage_seconds)
        clock = Clock(
            until, options.programs, options.evaluations, options.seeds, options.minutes, options.tables
        )
        kept[f"{name} {stage}"] = DONE[stage](name, options.target, clock)
        if options.out:
            _write(options.out, {"predicted": True, "target": options.target, "parts": kept})
    if options.json:
        print(json.dumps({"predicted": True, "target": options.target, "parts": kept}, indent=1))
    else:
        print("\n".join(lines(kept)))
    return 1 if missing else 0


def _write(path: Path, told: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told, indent=1) + "\n")
    part.replace(path)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", choices=targets.names(), default="trn2")
    parser.add_argument(
        "--workloads", type=_several(WORKLOADS), default=list(WORKLOADS), help="names, or all"
    )
    parser.add_argument("--stages", type=_several(STAGES), default=list(STAGES), help=", ".join(STAGES))
    parser.add_argument("--programs", type=int, default=20_000, help="of a reduced size at most (20000)")
    parser.add_argument("--seeds", type=int, default=5, help="searches of a reduced size (5)")
    parser.add_argument("--tables", type=Path, help="keep the latencies of all programs in this folder")
    parser.add_argument("--evaluations", type=int, default=60, help="points per graph searched (60)")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the rewrite engine at most (5)")
    parser.add_argument("--stage-seconds", type=float, default=900.0, help="for one stage (900)")
    parser.add_argument("--deadline-seconds", type=float, default=7200.0, help="no stage begins later (7200)")
    parser.add_argument("--out", type=Path, help="keep what is done there, and go on from it")
    parser.add_argument("--json", action="store_true")
    return parser


def _several(known: Mapping[str, Any] | Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown; known are {', '.join(known)}")
        return found

    return names


if __name__ == "__main__":
    sys.exit(main())
