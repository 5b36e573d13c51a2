"""How much of a public corpus the simulator runs: kernels found, traced, correct, why the others are not.

`python benchmarks/compat.py --corpus DIR --kind KIND [--target trn2] [--only PATTERN] [--timeout S]
[--memory-gib N] [--jobs N] [--json]` runs a checkout that you have. Nothing is fetched, and nothing of a
corpus is kept here. Every kernel (for suites and repositories: every script or test module) runs in a process
of its own. Corpora whose references need a package that is not installed say which.

Exit status 0 when every kernel found is correct, 1 otherwise, 2 when there is nothing to run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.corpora import autocomp, library, outcome, pairs, repository, samples, sources  # noqa: E402 - the path is set above
from benchmarks.corpora.processes import Limits  # noqa: E402

Kind = Callable[[argparse.Namespace, Limits], list[outcome.Outcome]]


def _pairs(find: Callable[[Path], object]) -> Kind:
    def run(options: argparse.Namespace, limits: Limits) -> list[outcome.Outcome]:
        chosen = [pair for pair in find(options.corpus) if sources.is_selected(pair.name, options.only)]  # type: ignore[attr-defined]
        return pairs.outcomes(
            chosen, target=options.target, seeds=options.seeds, limits=limits, jobs=options.jobs
        )

    return run


KINDS: dict[str, Kind] = {
    "nkibench": _pairs(pairs.nkibench),
    "kernels": _pairs(pairs.kernels),
    "nki-samples": samples.outcomes,
    "nki-library": library.outcomes,
    "autocomp": autocomp.outcomes,
    "repository": repository.outcomes,
}


def main(argv: list[str] | None = None) -> int:
    """Run one corpus, print the result, return the exit status."""
    options = _parser().parse_args(argv)
    if not options.corpus.is_dir():
        print(f"compat: {options.corpus} is not a folder", file=sys.stderr)
        return 2
    options.corpus = options.corpus.resolve()
    limits = Limits(options.timeout, options.memory_gib << 30, options.threads)
    found = KINDS[options.kind](options, limits)
    result = outcome.report(options.kind, options.corpus.name, options.target, found)
    print(json.dumps(result) if options.json else "\n".join(outcome.lines(result)))
    if not found:
        print(f"compat: no {options.kind} kernels under {options.corpus}", file=sys.stderr)
        return 2
    return int(result["correct"] < result["found"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="a checkout")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--seeds", default="0", help="nkibench and kernels: comma-separated, such as 0,21,42")
    parser.add_argument("--only", help="kernels, scripts or test modules whose name matches or contains this")
    parser.add_argument("--tests", type=int, default=3, help="suites: tests tried of each test function")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each pair, script or test")
    parser.add_argument("--memory-gib", type=int, default=8, help="memory for each process")
    parser.add_argument("--threads", type=int, default=1, help="threads that each process computes with")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
