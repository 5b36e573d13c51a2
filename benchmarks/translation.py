"""What translation makes of references: verdict, and predicted latency beside own kernel and bound.

    .venv/bin/python -m benchmarks.translation                       # the built-in problems at size `reduced`
    .venv/bin/python -m benchmarks.translation --size full           # some minutes on 2 free cores
    .venv/bin/python -m benchmarks.translation FILE.py ... --json    # files with `reference` and INPUT_SPECS

Every latency is predicted for the target; no hardware is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import remote
import seeds
from agentctl.translation import judge_translation, translate_problem, translate_reference
from agentctl.verbs.try_ import evaluate_kernel
from daemon.config import Config
from seeds import Problem
from seeds.errors import SeedsError
from seeds.from_reference import read_reference
from state.model import Evaluation, RunConfig
from targets.base import UntranslatableError


@dataclass(frozen=True, slots=True)
class Row:
    """One reference: how it was judged, and latencies in ms, None where there is none."""

    name: str
    verdict: str
    translated_ms: float | None = None
    own_ms: float | None = None
    tight_bound_ms: float | None = None


async def measure_problem(home: Path, config: Config, problem: Problem) -> Row:
    """Translate a problem's reference, judge the translation, and predict the problem's own kernel."""
    try:
        found = await translate_problem(home, config, problem)
    except UntranslatableError as error:
        return Row(problem.name, f"no translation: {error}")
    judged = await judge_translation(home, config, problem, found)
    row = _make_row(config, problem, judged.evaluation)
    own = (await evaluate_kernel(home, config, problem, problem.kernel.encode())).evaluation.benchmark
    return Row(row.name, row.verdict, row.translated_ms, own and own.latency_ms, row.tight_bound_ms)


async def measure_file(home: Path, config: Config, path: Path) -> Row:
    """Translate a file's reference, and judge the translation."""
    try:
        found = await translate_reference(home, config, read_reference(path))
    except (UntranslatableError, SeedsError) as error:
        return Row(path.stem, f"no translation: {error}")
    return _make_row(config, found.problem, found.judged.evaluation)


def _make_row(config: Config, problem: Problem, evaluation: Evaluation) -> Row:
    bound = remote.compute_bounds(problem, config.run.size, config.run.target).tight_ms
    identity = evaluation.identity.verdict if evaluation.identity else "judged"
    failure = evaluation.error.message if evaluation.error else "not correct"
    latency = evaluation.benchmark and evaluation.benchmark.latency_ms
    verdict = identity if evaluation.is_correct else failure
    return Row(problem.name, verdict, translated_ms=latency, tight_bound_ms=bound)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a table of results."""
    yield "| reference | verdict | translated, ms | own kernel, ms | model bound, ms | times the bound |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        times = [row.translated_ms, row.own_ms, row.tight_bound_ms]
        cells = ["" if item is None else f"{item:.4f}" for item in times]
        ratio = ""
        if row.translated_ms is not None and row.tight_bound_ms:
            ratio = f"{row.translated_ms / row.tight_bound_ms:.2f}"
        yield f"| {row.name} | {row.verdict} | {' | '.join(cells)} | {ratio} |"


async def measure(home: Path, config: Config, files: Sequence[Path], only: str) -> list[Row]:
    """One row for each file, or for each built-in problem; rows are shown on stderr as they come."""
    rows = []
    for item in files or [seeds.load_problem(name) for name in seeds.builtin_problems() if only in name]:
        is_file = isinstance(item, Path)
        rows.append(
            await (measure_file(home, config, item) if is_file else measure_problem(home, config, item))
        )
        print(f"{rows[-1].name}: {rows[-1].verdict}", file=sys.stderr, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; status 1 if a translation is not correct."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.py")
    parser.add_argument("--size", default="reduced", help="size of the built-in problems")
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--only", default="", metavar="TEXT", help="problems whose name contains this")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    size = "full" if wanted.files else wanted.size
    config = Config(run=RunConfig(problem="silu", target=wanted.target, size=size))
    with tempfile.TemporaryDirectory() as home:
        rows = asyncio.run(measure(Path(home), config, wanted.files, wanted.only))
    print(json.dumps([asdict(row) for row in rows], indent=1) if wanted.json else "\n".join(table(rows)))
    return int(any(row.verdict not in {"proven", "tested"} and row.translated_ms is None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
