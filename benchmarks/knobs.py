"""What the knob surface's space is like, and what searching it finds: sizes, shares, optima, other ways.

    .venv/bin/python benchmarks/knobs.py --out knobs.json            # some minutes on 2 free cores
    .venv/bin/python benchmarks/knobs.py --out knobs.json --search search.json   # beside the rewrite engine
    .venv/bin/python benchmarks/knobs.py --workloads softmax --stages space,exhaustive

Per workload, in this order: how large its space is and which share of it is valid (`space`); every kernel of
a reduced size, and how soon the search is near the best of them (`exhaustive`); what the search finds at the
size itself in its graph and in one of its variants (`search`). Exhaustive is over all orders in which the
loops of dimensions of one tile come outermost; elsewhere they make buffers anew earlier or more often, and
nothing else. What is done is kept in `--out` and not done again. Every latency is predicted; no hardware is
timed. The best of the rewrite engine is read from a file of `benchmarks/search.py`. Exit status 0 when every
stage asked for is there, 1 when the deadline came first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

import seeds  # noqa: E402 - the path is set above
from agent_core.knobs import ops  # noqa: E402
from agent_core.knobs.carried import FILE, read  # noqa: E402
from agent_core.knobs.graph import Graph  # noqa: E402
from agent_core.knobs.ir import KernelIR, knob_signature  # noqa: E402
from agent_core.knobs.narrowing import default  # noqa: E402
from agent_core.knobs.neighbours import is_valid  # noqa: E402
from agent_core.knobs.render import render  # noqa: E402
from agent_core.knobs.sampling import anywhere  # noqa: E402
from agent_core.knobs.search import (  # noqa: E402
    Feedback,
    Mode,
    Trial,
    Tried,
    best_of,
    next_batch,
)
from agent_core.knobs.space import programs, size_of  # noqa: E402
from agent_core.knobs.tracing import Specs, trace  # noqa: E402
from agent_core.knobs.variants import IDENTITY, variants  # noqa: E402
from nki_sim import targets  # noqa: E402
from nki_sim.forms import ArraySpec  # noqa: E402
from nki_sim.frontend.entry import trace_bytes  # noqa: E402
from nki_sim.program.ir import Program  # noqa: E402
from nki_sim.timing.forecast import forecast  # noqa: E402
from nki_sim.timing.path import busy_ms  # noqa: E402

STAGES = ("space", "exhaustive", "search")
NEAR_RATIO = 1.02
"""Within this of the best kernel there is, a point counts as found."""
BATCH = 4
DRAWN = 500
"""Points of the whole space that are drawn for the share of valid ones."""


def matmul(lhs: Any, rhs: Any) -> Any:
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=lhs), moving=rhs)


def rmsnorm_matmul(x: Any, w: Any) -> Any:
    normed = ops.NKITranspose()(data=ops.NKIRMSNorm()(data=x))
    return ops.NKIMatmul()(stationary=normed, moving=w)


def softmax(x: Any) -> Any:
    return ops.NKISoftmax()(data=x)


def swiglu(x: Any, w_up: Any, w_down: Any, w_gate: Any) -> Any:
    flipped = ops.NKITranspose()(data=x)
    gate = ops.NKIMatmul()(stationary=w_gate, moving=flipped)
    up = ops.NKIMatmul()(stationary=w_up, moving=flipped)
    hidden = ops.NKITensorTensor(op="multiply")(data1=ops.NKIActivation(op="silu")(data=gate), data2=up)
    return ops.NKIMatmul()(stationary=hidden, moving=w_down)


def attention(q: Any, k: Any, v: Any) -> Any:
    queries, keys = ops.NKITranspose()(data=q), ops.NKITranspose()(data=k)
    scores = ops.NKIMatmul()(stationary=queries, moving=keys)
    weights = ops.NKISoftmax()(data=ops.NKITensorScalar(op0="multiply")(data=scores, operand0=0.125))
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=weights), moving=v)


@dataclass(frozen=True, slots=True)
class Workload:
    """A function at a reduced size, and at its own: that of these shapes, or of the problem it is.

    Reduced sizes have few tiles, in a prime number: what is done again counts, and blocks are a tile or all.
    """

    function: Callable[..., Any]
    reduced: Mapping[str, tuple[int, ...]]
    shapes: Specs | str

    def small(self, target: str) -> Graph:
        """The graph at the reduced size."""
        specs = {name: (shape, "float32") for name, shape in self.reduced.items()}
        return trace(self.function, specs, target=target)

    def graph(self, target: str) -> Graph:
        """The graph at the workload's own size."""
        if isinstance(self.shapes, str):
            return read(seeds.load(self.shapes).files[FILE], "full", target)
        return trace(self.function, self.shapes, target=target)


_SQUARE = ((2048, 2048), "bfloat16")

WORKLOADS: Mapping[str, Workload] = {
    "matmul_2048_bfloat16": Workload(
        matmul, {"lhs": (384, 128), "rhs": (128, 1536)}, {"lhs": _SQUARE, "rhs": _SQUARE}
    ),
    "softmax": Workload(softmax, {"x": (896, 512)}, {"x": ((2048, 2048), "float32")}),
    "attention": Workload(
        attention,
        {"q": (896, 64), "k": (128, 64), "v": (128, 64)},
        dict.fromkeys(("q", "k", "v"), ((1024, 128), "float32")),
    ),
    "rmsnorm_matmul": Workload(rmsnorm_matmul, {"x": (896, 128), "w": (128, 512)}, "rmsnorm_matmul"),
    "swiglu": Workload(
        swiglu,
        {"x": (896, 128), "w_up": (128, 128), "w_down": (128, 128), "w_gate": (128, 128)},
        "swiglu",
    ),
    "matmul": Workload(matmul, {"lhs": (896, 128), "rhs": (128, 512)}, "matmul"),
}


@dataclass(frozen=True)
class Clock:
    """A deadline, of the stage that has so many seconds, and how much may be looked at."""

    until: float
    seconds: float
    kernels: int
    evaluations: int

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until


def predicted(ir: KernelIR) -> tuple[float, str]:
    """The predicted latency of a point in ms, and its busiest engine."""
    graph = ir.graph
    specs = [ArraySpec(graph.shape(name), graph.value[name].dtype) for name in graph.inputs]
    program = Program.from_bytes(trace_bytes(render(ir), args=specs, target=graph.target))
    found = forecast(program, targets.load(graph.target))
    busy = busy_ms(found.timeline)
    return found.latency_ms, max(busy, key=busy.__getitem__)


def space(workload: Workload, target: str, clock: Clock) -> dict[str, Any]:
    """The size of a space, and the share of valid points among some drawn anywhere."""
    del clock
    graph, rng = workload.graph(target), Random(0)
    size = size_of(graph)
    valid = sum(is_valid(anywhere(graph, rng)) for _ in range(DRAWN))
    return {
        "loop_orders": size.loop_orders,
        "block_sizes": size.block_sizes,
        "buffer_scopes": size.buffer_scopes,
        "points": size.points,
        "variants": len(variants(graph)),
        "valid_percent": 100 * valid / DRAWN,
    }


def exhaustive(workload: Workload, target: str, clock: Clock) -> dict[str, Any]:
    """The best of all kernels of the reduced size, and how many points the search looks at to be near it."""
    graph = workload.small(target)
    times: list[float] = []
    whole = True
    for ir in programs(graph):
        if len(times) == clock.kernels or clock.is_over:
            whole = False
            break
        times.append(predicted(ir)[0])
    best = min(times)
    again = replace(clock, until=time.monotonic() + clock.seconds)
    history = searched(graph, again, max(BATCH, len(times) // 5), until_ms=best * NEAR_RATIO)
    found = [trial.ms for tried in history for trial in tried.trials if trial.ms is not None]
    return {
        "shapes": {name: list(shape) for name, shape in workload.reduced.items()},
        "kernels": len(times),
        "whole": whole,
        "best_ms": best,
        "worst_ms": max(times),
        "default_ms": predicted(default(graph))[0],
        "found_ms": min(found),
        "evaluations": len(found),
        "near": min(found) <= best * NEAR_RATIO,
    }


def searched(graph: Graph, clock: Clock, most: int, *, until_ms: float = 0.0, seed: int = 0) -> list[Tried]:
    """What the search tries, up to so many points, or until one is that fast. The default comes first."""
    ms, engine = predicted(default(graph))
    history = [Tried(Mode.JOINT, (Trial(default(graph), ms),))]
    best, count, rng = ms, 1, Random(seed)
    while count < most and best > until_ms and not clock.is_over:
        batch = next_batch(graph, rng, history, Feedback(engine), min(BATCH, most - count))
        trials: list[Trial] = []
        for ir in batch.points:
            ms, busiest = predicted(ir)
            trials.append(Trial(ir, ms))
            if ms < best:
                best, engine = ms, busiest
            if best <= until_ms or clock.is_over:
                break
        if not trials:
            break
        count += len(trials)
        history.append(Tried(batch.mode, tuple(trials), batch.knob))
    return history


def search(workload: Workload, target: str, clock: Clock) -> dict[str, Any]:
    """The best of the graph, and of the variant whose default is fastest, in as many evaluations for both."""
    graph = workload.graph(target)
    starts = {item.name: item.graph for item in variants(graph) if item.name != IDENTITY}
    defaults = {name: predicted(default(item))[0] for name, item in starts.items() if not clock.is_over}
    chosen = min(defaults, key=defaults.__getitem__, default=None)
    half = replace(clock, until=(time.monotonic() + clock.until) / 2)
    told = {IDENTITY: _told(searched(graph, half, clock.evaluations))}
    if chosen is not None:
        told[chosen] = _told(searched(starts[chosen], clock, clock.evaluations))
    return {"defaults_ms": defaults, "found": told}


def _told(history: Sequence[Tried]) -> dict[str, Any]:
    best = best_of(history)
    assert best is not None
    return {
        "default_ms": history[0].trials[0].ms,
        "best_ms": best.ms,
        "evaluations": sum(len(tried.trials) for tried in history),
        "knobs": knob_signature(best.ir),
    }


DONE: Mapping[str, Callable[[Workload, str, Clock], dict[str, Any]]] = {
    "space": space,
    "exhaustive": exhaustive,
    "search": search,
}


def table(parts: Mapping[str, Any], rewritten: Mapping[str, float]) -> Iterator[str]:
    """The lines of a table in Markdown; a dash stands for what is not there."""
    yield (
        "| workload | points | valid % | kernels at the reduced size | default, over the best % "
        "| evaluations until within 2 % | of all % | default ms | best ms | best variant | its best ms "
        "| rewrite engine ms |"
    )
    yield "|" + "---|" * 12
    for name, workload in WORKLOADS.items():
        if any(f"{name} {stage}" in parts for stage in STAGES):
            cells = [*_space_cells(parts, name), *_small_cells(parts, name), *_search_cells(parts, name)]
            best = rewritten.get(workload.shapes) if isinstance(workload.shapes, str) else None
            yield "| " + " | ".join([name, *cells, "-" if best is None else f"{best:.4g}"]) + " |"


def _space_cells(parts: Mapping[str, Any], name: str) -> list[str]:
    told = parts.get(f"{name} space")
    return ["-"] * 2 if told is None else [f"{told['points']:.1e}", f"{told['valid_percent']:.1f}"]


def _small_cells(parts: Mapping[str, Any], name: str) -> list[str]:
    told = parts.get(f"{name} exhaustive")
    if told is None:
        return ["-"] * 4
    count = told["kernels"]
    ended = "" if told["whole"] else "+"
    tries = str(told["evaluations"]) if told["near"] else f"not in {told['evaluations']}"
    over = 100 * (told["default_ms"] / told["best_ms"] - 1)
    return [f"{count}{ended}", f"{over:.1f}", tries, f"{100 * told['evaluations'] / count:.1f}"]


def _search_cells(parts: Mapping[str, Any], name: str) -> list[str]:
    told = parts.get(f"{name} search")
    if told is None:
        return ["-"] * 4
    plain = told["found"][IDENTITY]
    other = next(((key, item) for key, item in told["found"].items() if key != IDENTITY), None)
    cells = [f"{plain['default_ms']:.4g}", f"{plain['best_ms']:.4g}"]
    return cells + (["-", "-"] if other is None else [other[0], f"{other[1]['best_ms']:.4g}"])


def rewritten(path: Path | None, target: str) -> dict[str, float]:
    """The best that the rewrite engine came to, by problem, in a file of `benchmarks/search.py`."""
    if path is None:
        return {}
    runs = json.loads(path.read_text())["runs"].values()
    mine = [run for run in runs if (run["size"], run["target"]) == ("full", target) and run["best_ms"]]
    return {run["problem"]: run["best_ms"] for run in mine}


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
        seconds = min(whole - time.monotonic(), options.stage_seconds)
        clock = Clock(time.monotonic() + seconds, seconds, options.kernels, options.evaluations)
        kept[f"{name} {stage}"] = DONE[stage](WORKLOADS[name], options.target, clock)
        if options.out:
            _write(options.out, {"predicted": True, "target": options.target, "parts": kept})
    if options.json:
        print(json.dumps({"predicted": True, "target": options.target, "parts": kept}, indent=1))
    else:
        print("\n".join(table(kept, rewritten(options.search, options.target))))
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
    parser.add_argument("--kernels", type=int, default=4000, help="of a reduced size at most (4000)")
    parser.add_argument("--evaluations", type=int, default=60, help="points per graph searched (60)")
    parser.add_argument("--stage-seconds", type=float, default=300.0, help="for one stage (300)")
    parser.add_argument("--deadline-seconds", type=float, default=3600.0, help="no stage begins later (3600)")
    parser.add_argument("--search", type=Path, help="a file that benchmarks/search.py wrote")
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
