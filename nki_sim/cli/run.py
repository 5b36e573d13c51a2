"""`nki-sim run`: trace, check, run on inputs, compare with a reference."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nki_sim import targets
from nki_sim.cli.grammar import REL_L2, kernel_options, not_negative
from nki_sim.cli.kernels import Draw, Inputs, fitting, passes, timed, trace
from nki_sim.cli.show import Report
from nki_sim.cli.verb import Verb
from nki_sim.cli.watch import stage
from nki_sim.errors import InputError, ScheduleError
from nki_sim.flow.slices import Box
from nki_sim.harness import arrays_of, entry_of, importable, parse_parts, parse_seeds, read_text
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import Array
from nki_sim.timing.counters import profile
from nki_sim.timing.forecast import forecast


@dataclass(frozen=True)
class Try:
    """One seed, what it draws where that is known already, and the parts of outputs that are wanted."""

    seed: int
    drawn: Draw | None = None
    parts: Mapping[int, Sequence[Box]] | None = None


def _options(sub: argparse.ArgumentParser) -> None:
    kernel_options(sub)
    sub.add_argument("--seeds", default="0", help="comma-separated, for example 0,21,42 (default: 0)")
    sub.add_argument(
        "--tolerance",
        type=not_negative,
        default=REL_L2,
        help=f"largest relative L2 error ({REL_L2:g}, for float32; narrower types need more)",
    )
    sub.add_argument("--eager", action="store_true", help="compute while the Python runs: print shows values")
    sub.add_argument(
        "--slice",
        action="append",
        default=[],
        metavar="OUTPUT[A:B,...]",
        help="run and compare only what this part of an output needs: 0[0:128,0:512]; may be repeated. "
        "Checks and counters are those of the whole kernel",
    )


def _run(options: argparse.Namespace, report: Report) -> int:
    report["tolerance"] = options.tolerance
    seeds, parts = parse_seeds(options.seeds), parse_parts(options.slice) or None
    if options.eager and parts:
        raise InputError("--eager runs the whole kernel; leave out --slice")
    inputs = Inputs(options)
    report["inputs"] = inputs.source
    if options.eager:
        for seed in seeds:
            _eagerly(options, inputs, seed, report)
        return _judged(inputs, report)
    arguments, first = inputs.traced(seeds[0])
    program = trace(options, report, arguments)
    if not passes(program, report):
        return 1
    del arguments
    for seed in seeds:
        _one_seed(program, inputs, Try(seed, first, parts), report)
        first = None
    status = _judged(inputs, report)
    _count(program, report)
    return status


def _one_seed(program: Program, inputs: Inputs, one: Try, report: Report) -> None:
    drawn = one.drawn or inputs.draw(one.seed)
    with timed(report, "run"), stage(f"running seed {one.seed}"):
        outputs = numerics.run(program, fitting(program, drawn, one.seed), only=one.parts)
    _compare(inputs, one, drawn, outputs, report)


def _eagerly(options: argparse.Namespace, inputs: Inputs, seed: int, report: Report) -> None:
    """Compute while the kernel's Python runs, so that it can print values."""
    from nki_sim.frontend.eager import eager

    file = Path(options.kernel)
    entry = options.entry or entry_of(read_text(file))
    drawn = inputs.draw(seed)
    with timed(report, "run"), importable(file):
        result = eager(file, drawn.arguments, options.target, entry=entry)
    _compare(inputs, Try(seed), drawn, arrays_of(result), report)


def _compare(inputs: Inputs, one: Try, drawn: Draw, outputs: list[Array], report: Report) -> None:
    if inputs.reference is not None:
        with stage(f"comparing seed {one.seed} with the reference"):
            errors = inputs.reference.errors(drawn.inputs, outputs, one.parts)
        report["rel_l2"][str(one.seed)] = _largest(errors)


def _count(program: Program, report: Report) -> None:
    """Predicted counters; a verdict stands without them."""
    try:
        with timed(report, "run"), stage("predicting counters"):
            found = forecast(program, targets.load(program.target))
            report["counters"] = profile(found)
        if found.timeline.dynamic_loops:
            report["counters"]["dynamic_loops"] = found.timeline.dynamic_loops
    except ScheduleError as error:
        print(f"nki-sim: no counters: {error}", file=sys.stderr)


def _largest(errors: list[float]) -> float:
    """NaN wins: a result that is not a number is no agreement."""
    return max(errors, key=lambda value: (value != value, value), default=0.0)  # noqa: PLR0124


def _judged(inputs: Inputs, report: Report) -> int:
    if inputs.reference is not None:
        report["correct"] = all(value <= report["tolerance"] for value in report["rel_l2"].values())
    return int(report["correct"] is False)


VERB = Verb(
    name="run",
    text="trace, check, run on inputs, compare with a reference",
    action=_run,
    options=_options,
)
