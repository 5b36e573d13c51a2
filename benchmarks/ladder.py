"""The ladder of matrix products: four kernels, each with one idea more, and how far the engine climbs alone.

    .venv/bin/python benchmarks/ladder.py              # one to two minutes on 2 cores
    .venv/bin/python benchmarks/ladder.py --rows 1024  # the same for a quarter of the rows of the product

The rungs in `benchmarks/ladder/` compute out[M, N] = lhs_t[K, M].T @ rhs[K, N] in bfloat16: plain tiles,
loads of lhs_t hoisted, blocks of output tiles, blocks in all three dimensions. From the first rung the
rewrite engine searches on its own: in each step every rewrite of the best kernels is ranked by the static
estimate, the first few of them, no more than three of one kind, are predicted, and the fastest kernels go
on. Nothing tells it what the next rung does. While it searches it predicts a product of fewer rows
(`--search-rows`); what fits on the chip is checked at the full size, and the latency that it reports is that
of the full size.

All latencies are predicted. Exit status 0 when the engine gets at least as fast as the last rung, 1 when not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from nki_sim import targets  # noqa: E402
from nki_sim.forms import ArraySpec  # noqa: E402
from nki_sim.frontend.entry import trace_bytes  # noqa: E402
from nki_sim.program.ir import Program  # noqa: E402
from nki_sim.timing.forecast import forecast_program  # noqa: E402
from targets.nki.rewrites.estimate import estimate_kernel  # noqa: E402 - the path is set above
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites  # noqa: E402
from targets.nki.rewrites.kernel_ir import ArrayArgument  # noqa: E402
from targets.nki.rewrites.reader import read_kernel  # noqa: E402

RUNGS = ("plain", "hoisted", "blocked_free", "blocked")
DTYPE = "bfloat16"
SAME_KIND = 3
"""Rewrites by one transformation that are predicted in one step, so that others have their turn."""


class Size(NamedTuple):
    """The product: out[rows, columns], added up over `contraction`."""

    rows: int
    contraction: int
    columns: int

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.contraction, self.rows), (self.contraction, self.columns)


class Found(NamedTuple):
    """A kernel, its predicted latency, and the rewrites that led to it."""

    ms: float
    steps: tuple[str, ...]
    source: str


def source_of(rung: str) -> str:
    return (Path(__file__).parent / "ladder" / f"{rung}.py").read_text()


def predicted_ms(source: str, size: Size, target: str) -> float:
    """The predicted latency of a kernel of this project, traced here."""
    arrays = [ArraySpec(shape, DTYPE) for shape in size.shapes]
    program = Program.from_bytes(trace_bytes(source, args=arrays, target=target))
    return forecast_program(program, targets.load(target)).latency_ms


def promising(source: str, size: Size, target: str, count: int) -> Iterator[RewrittenKernel]:
    """The rewrites of a kernel that the static estimate puts first, at most `SAME_KIND` of a kind."""
    arguments = [ArrayArgument(shape, DTYPE) for shape in size.shapes]
    chip = targets.load(target)
    children, _ = explore_rewrites(read_kernel(source, arguments, chip), arguments, chip)
    ranked = sorted(children, key=lambda child: estimate_kernel(child.kernel, chip).total_ns)
    kinds: Counter[str] = Counter()
    for child in ranked:
        kinds[child.transform.id] += 1
        if kinds[child.transform.id] <= SAME_KIND and count > 0:
            count -= 1
            yield child


def climb(
    source: str, full: Size, part: Size, target: str, *, beam: int, steps: int, predictions: int
) -> Found:
    """The best kernel found from `source`, its latency that of the full size."""
    frontier = [Found(predicted_ms(source, part, target), (), source)]
    best, seen = frontier[0], {source}
    for _ in range(steps):
        made = []
        for parent in frontier:
            for child in promising(parent.source, full, target, predictions):
                if child.source in seen:
                    continue
                seen.add(child.source)
                title = child.transform.render_title(child.site, child.choice)
                found = predicted_ms(child.source, part, target)
                made.append(Found(found, (*parent.steps, title), child.source))
        frontier = sorted(made, key=lambda found: found.ms)[:beam]
        best = min([best, *frontier], key=lambda found: found.ms)
    return best._replace(ms=predicted_ms(best.source, full, target))


def report(rungs: dict[str, float], found: Found) -> Iterator[str]:
    """Lines for people."""
    first = rungs[RUNGS[0]]
    yield f"{'rung':<14} {'predicted ms':>12} {'speed-up':>9}"
    for name, ms in {**rungs, "engine": found.ms}.items():
        yield f"{name:<14} {ms:>12.3f} {first / ms:>8.2f}x"
    yield f"The engine's steps from {RUNGS[0]}:"
    yield from (f"  {number}. {step}" for number, step in enumerate(found.steps, 1))


def main(argv: Sequence[str] | None = None) -> int:
    options = _options().parse_args(argv)
    full = Size(options.rows, options.contraction, options.columns)
    part = full._replace(rows=min(options.search_rows, full.rows))
    rungs = {name: predicted_ms(source_of(name), full, options.target) for name in RUNGS}
    found = climb(
        source_of(RUNGS[0]),
        full,
        part,
        options.target,
        beam=options.beam,
        steps=options.steps,
        predictions=options.predictions,
    )
    if options.json:
        print(json.dumps({"rungs_ms": rungs, "engine_ms": found.ms, "steps": found.steps}, indent=2))
    else:
        print("\n".join(report(rungs, found)))
    if options.out is not None:
        options.out.write_text(found.source)
    return 0 if found.ms <= rungs[RUNGS[-1]] else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", choices=("trn1", "trn2"), default="trn1")
    parser.add_argument("--rows", type=int, default=4096, help="M (4096)")
    parser.add_argument("--contraction", type=int, default=8192, help="K (8192)")
    parser.add_argument("--columns", type=int, default=8192, help="N (8192)")
    parser.add_argument("--search-rows", type=int, default=1024, help="rows predicted while searching (1024)")
    parser.add_argument("--beam", type=int, default=2, help="kernels that go on from one step (2)")
    parser.add_argument("--steps", type=int, default=4, help="rewrites in a row (4)")
    parser.add_argument("--predictions", type=int, default=8, help="rewrites predicted per kernel (8)")
    parser.add_argument("--out", type=Path, help="write the engine's kernel there")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
