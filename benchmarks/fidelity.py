"""How well predicted latencies and counters agree with measured ones.

`python benchmarks/fidelity.py --corpus ROOT --data FILE [--pairs FILE] [--target trn1] [--json]` compares
what `nki_sim` predicts with measurements that you have. Nothing is fetched, and nothing of a corpus is kept.

ROOT is a checkout with NKIBench's `summary.json`, or the folder that holds it. FILE of `--data` holds
measured profiles, each matched to a kernel by problem and dimensions:

    {"kernels": [{"problem": "silu", "config": {"M": 4096, "N": 7168}, "platform": "trn1",
                  "measured": {"latency": 1.33, "hbm_read_bytes": 117440512}}]}

`latency` is in ms, the other fields are those of a profile's summary; shares are of its `total_time` (s), or
of the latency. FILE of `--pairs` holds lists of
variants of one kernel:

    [{"problem": "silu", "platform": "trn1", "reference": "silu_numpy.py",
      "kernels": [{"file": "a.py", "latency_ms": 1.31}, {"file": "b.py", "latency_ms": 0.98}]}]

Instead of `reference` (a file that draws the inputs) there may be `args`, a list in the notation of
`nki-sim --arg` such as ["4096x7168:float32"]; without either, the corpus is asked by `problem` and `config`.
`platform`, `reference`, `args`, `entry` and `counters` (legacy or explorer) may also stand at a kernel.
Paths are relative to the file itself, or to ROOT.

Every kernel is traced and predicted in a process of its own. Per kernel: measured, predicted, ratio, the
predicted interval, and the relative error of each counter that both sides have, in the convention of the
legacy profiler for legacy kernels, and whether the medians for HBM bytes, spilled bytes and busy times reach
their aims (`counter_scores`). `overall` and `baselines` are over the profiles (over the variants when
there are none); `pairwise_order_percent` is over all pairs of profiles, or with `--pairs` over those pairs
of variants of one list whose measured latencies differ by more than 15 %.

What the figures are worth: on the kernels that the constants were calibrated on, scores are in-sample, and
the rules of the compiler's model were worked out on the same kernels. `--leave-one-out` leaves out what is
fitted, not what was learnt; only kernels that nobody looked at test all of it.

`--fit` searches the constants listed in `measured/fit.py` for the least error and prints them;
`--leave-one-out` does so on all kernels but one and predicts that one, for each, and says which constants
then lie outside the range that intervals assume. Neither changes any table.

`--families` does so by family, which is all kernels of one problem: it fits the constants of
`measured/families.py` on the other families of the same target, and prints the errors of each family left
out and in-sample beside those of the busiest engine, where that one is better, how many pairs more than 15 %
apart are in order by target and in all (`order`), how many measured latencies lie in intervals that were
made without the kernel's family, and how often orders that were said to be sure are right. `--write` keeps
this: `nki_sim/timing/residuals.json`, which intervals are made from, and `measured/bar.json`, which tests
compare with. `--programs FOLDER` keeps traced programs between runs.

`--what-ifs` looks for pairs of measured kernels that show one what-if of `nki-sim profile` each, and counts
those that gained no more than it said; `--write` keeps this in `nki_sim/timing/what_if_pairs.json`.

`--store` keeps the programs of all predicted kernels in `measured/programs.xz`, without the kernels; then
`--stored` predicts these, with no other files:

    python benchmarks/fidelity.py --stored --families --what-ifs --write     # after each change of the model

Eight kernels of NKIBench at full size take about two minutes on 2 cores, `--leave-one-out` ten more.

Exit status 0 when every kernel was predicted, 1 when some failed, 2 when there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.corpora.processes import Limits  # noqa: E402 - the path is set above
from benchmarks.measured import (  # noqa: E402
    cases,
    counter_scores,
    evidence,
    families,
    fit,
    report,
    runs,
    stored,
    what_if_pairs,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Compare, print the result, return the exit status."""
    options = _parser().parse_args(argv)
    if options.write and not _can_write(options):
        return _refuse("--write needs --stored, all kernels, and --families with draws or --what-ifs")
    with _programs(options.programs) as programs:
        try:
            fit.chosen(options.constants)
            found = _cases(options, programs)
        except cases.CaseError as error:
            return _refuse(str(error))
        chosen = [case for case in found if not options.only or options.only in case.name]
        if not chosen:
            return _refuse("nothing to compare: give --data, --pairs or --stored with kernels of this target")
        result = _compare_kernels(options, chosen, programs)
    print(json.dumps(result) if options.json else "\n".join(_lines(options, result)))
    return int(result["failed"] > 0)


def _can_write(options: argparse.Namespace) -> bool:
    """Tables hold all stored kernels; that of intervals needs draws."""
    partial = options.only or options.target or (options.families and options.no_interval)
    return options.stored and not partial and (options.families or options.what_ifs)


def _compare_kernels(options: argparse.Namespace, chosen: list[cases.Case], programs: Path) -> dict[str, Any]:
    outcomes = runs.outcomes(
        chosen,
        programs=programs,
        limits=Limits(options.timeout, options.memory_gib << 30),
        jobs=options.jobs,
        interval=not options.no_interval,
        what_ifs=options.what_ifs,
        tell=_tell,
    )
    result = report.report(outcomes)
    result["counter_scores"] = counter_scores.score_counters(result["kernels"])
    if options.fit or options.leave_one_out:
        good = [item.case for item in outcomes if item.found is not None and not item.case.group]
        with fit.Timer(good, programs, options.jobs, fit.chosen(options.constants)) as timer:
            curves = fit.Curves.of(timer, _tell)
            if options.fit:
                result["fit"] = fit.fit_constants(timer, curves, range(len(good)), tell=_tell)
            if options.leave_one_out:
                result["leave_one_out"] = fit.leave_one_out(timer, curves, tell=_tell)
    if options.families:
        predicted = [item for item in outcomes if item.found is not None]
        left_out = families.predict_left_out(
            predicted,
            programs=programs,
            jobs=options.jobs,
            ranges=fit.chosen(options.constants) if options.constants else families.FITTED,
            tell=_tell,
        )
        result["families"] = families.report_families(predicted, left_out)
        result["order"] = families.report_order(predicted, left_out)
        items = evidence.collect_predictions(predicted, left_out)
        result["evidence"] = evidence.report_evidence(items)
        if options.write:
            evidence.write_evidence(items)
    if options.what_ifs:
        bounded = what_if_pairs.bound_kernels(outcomes)
        result["what_ifs"] = what_if_pairs.report_pairs(list(what_if_pairs.find_pairs(bounded)), bounded)
        if options.write:
            what_if_pairs.write_table(result["what_ifs"])
    if options.store:
        good = [item.case for item in outcomes if item.found is not None]
        stored.write_store([(case, Path(runs.job_of(case, programs)["program"])) for case in good])
    return result


def _cases(options: argparse.Namespace, programs: Path) -> list[cases.Case]:
    if options.stored:
        kept = stored.Store().unpack_cases(programs)
        return [case for case in kept if options.target in (None, case.target)]
    found = cases.corpus(options.corpus) if options.corpus else []
    chosen = cases.profiles(options.data, found, options.target) if options.data else []
    if chosen and not options.corpus:
        raise cases.CaseError("--data needs --corpus, the checkout that holds the kernels of the profiles")
    if options.pairs:
        roots = [options.corpus, options.corpus / "NKIBench"] if options.corpus else []
        chosen += cases.Lists(options.pairs, roots, found, options.target or "trn1").cases()
    return chosen


@contextmanager
def _programs(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fidelity-") as made:
        yield Path(made)


def _lines(options: argparse.Namespace, result: dict[str, Any]) -> Iterator[str]:
    yield from report.lines(result, counters=not options.brief)
    yield from counter_scores.lines(result["counter_scores"])
    yield from fit.lines(result)
    if "families" in result:
        yield from families.lines(result["families"], result["order"])
        yield from evidence.lines(result["evidence"])
    if "what_ifs" in result:
        yield from what_if_pairs.lines(result["what_ifs"])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse(why: str) -> int:
    print(f"fidelity: {why}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help="a checkout with NKIBench's summary.json")
    parser.add_argument("--data", type=Path, help="measured profiles")
    parser.add_argument("--pairs", type=Path, help="lists of variants with measured latencies")
    parser.add_argument(
        "--target", help="only what was measured on this platform; the default of --pairs: trn1"
    )
    parser.add_argument("--only", help="kernels whose name contains this")
    parser.add_argument(
        "--no-interval", action="store_true", help="predict without intervals, which is quicker"
    )
    parser.add_argument("--brief", action="store_true", help="without the counters of each kernel")
    parser.add_argument("--fit", action="store_true", help="search the fitted constants for the least error")
    parser.add_argument("--leave-one-out", action="store_true", help="fit on all kernels but one, for each")
    parser.add_argument(
        "--families", action="store_true", help="predict each problem's kernels from a fit on the others"
    )
    parser.add_argument(
        "--stored", action="store_true", help="predict the programs that the project keeps, no other kernels"
    )
    parser.add_argument(
        "--store", action="store_true", help="keep the programs of all predicted kernels for --stored"
    )
    parser.add_argument(
        "--what-ifs", action="store_true", help="hold what-ifs against pairs of measured kernels"
    )
    parser.add_argument(
        "--write", action="store_true", help="keep the tables of --families and --what-ifs, and the bar"
    )
    parser.add_argument("--constants", help="constants to fit instead of the listed ones, comma-separated")
    parser.add_argument("--programs", type=Path, help="keep traced programs in this folder between runs")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each process")
    parser.add_argument("--memory-gib", type=int, default=4, help="memory for each process")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
