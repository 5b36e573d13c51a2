"""`nki-sim run`: traces a kernel, checks it, runs it on inputs and compares it with a reference."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nki_sim import targets
from nki_sim.cli.grammar import REL_L2, add_kernel_options, parse_non_negative
from nki_sim.cli.kernels import (
    InputDraw,
    KernelInputs,
    arrays_for_program,
    check_rules,
    time_part,
    trace_kernel,
)
from nki_sim.cli.progress import report_progress
from nki_sim.cli.report_text import Report
from nki_sim.cli.verb import Verb
from nki_sim.errors import InputError, ScheduleError
from nki_sim.flow.slices import ElementBox
from nki_sim.harness import (
    collect_arrays,
    extended_import_path,
    find_entry,
    parse_parts,
    parse_seeds,
    read_text,
)
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import Array
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import forecast_program


@dataclass(frozen=True)
class SeedRun:
    """One seed, its inputs if already drawn, and the wanted parts of the outputs."""

    seed: int
    drawn: InputDraw | None = None
    parts: Mapping[int, Sequence[ElementBox]] | None = None


def _add_options(sub: argparse.ArgumentParser) -> None:
    add_kernel_options(sub)
    sub.add_argument("--seeds", default="0", help="comma-separated, for example 0,21,42 (default: 0)")
    sub.add_argument(
        "--tolerance",
        type=parse_non_negative,
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


def _run_kernel(options: argparse.Namespace, report: Report) -> int:
    report["tolerance"] = options.tolerance
    seeds, parts = parse_seeds(options.seeds), parse_parts(options.slice) or None
    if options.eager and parts:
        raise InputError("--eager runs the whole kernel; leave out --slice")
    inputs = KernelInputs(options)
    report["inputs"] = inputs.source
    if options.eager:
        for seed in seeds:
            _run_seed_eagerly(options, inputs, seed, report=report)
        return _decide_status(inputs, report)
    arguments, first = inputs.trace_arguments(seeds[0])
    program = trace_kernel(options, report, arguments)
    if not check_rules(program, report):
        return 1
    del arguments
    for seed in seeds:
        _run_seed(program, inputs, SeedRun(seed, first, parts), report=report)
        first = None
    status = _decide_status(inputs, report)
    _predict_counters(program, report)
    return status


def _run_seed(program: Program, inputs: KernelInputs, one: SeedRun, *, report: Report) -> None:
    drawn = one.drawn or inputs.draw(one.seed)
    with time_part(report, "run"), report_progress(f"running seed {one.seed}"):
        outputs = numerics.run(program, arrays_for_program(program, drawn, one.seed), only=one.parts)
    _compare_outputs(inputs, one, drawn, outputs, report)


def _run_seed_eagerly(
    options: argparse.Namespace, inputs: KernelInputs, seed: int, *, report: Report
) -> None:
    """Compute while the kernel's Python runs, so that it can print values."""
    from nki_sim.frontend.eager import run_eagerly

    file = Path(options.kernel)
    entry = options.entry or find_entry(read_text(file))
    drawn = inputs.draw(seed)
    with time_part(report, "run"), extended_import_path(file):
        result = run_eagerly(file, drawn.arguments, options.target, entry=entry)
    _compare_outputs(inputs, SeedRun(seed), drawn, collect_arrays(result), report)


def _compare_outputs(
    inputs: KernelInputs, one: SeedRun, drawn: InputDraw, outputs: list[Array], report: Report
) -> None:
    if inputs.reference is not None:
        with report_progress(f"comparing seed {one.seed} with the reference"):
            errors = inputs.reference.relative_errors(drawn.inputs, outputs, one.parts)
        report["rel_l2"][str(one.seed)] = _largest_error(errors)


def _predict_counters(program: Program, report: Report) -> None:
    """Add predicted counters; if that fails, the verdict stands without them."""
    try:
        with time_part(report, "run"), report_progress("predicting counters"):
            found = forecast_program(program, targets.load(program.target))
            report["counters"] = profile_counters(found)
        if found.timeline.dynamic_loops:
            report["counters"]["dynamic_loops"] = found.timeline.dynamic_loops
    except ScheduleError as error:
        print(f"nki-sim: no counters: {error}", file=sys.stderr)


def _largest_error(errors: list[float]) -> float:
    """Return the largest error; NaN counts as larger than any number."""
    return max(errors, key=lambda value: (value != value, value), default=0.0)  # noqa: PLR0124


def _decide_status(inputs: KernelInputs, report: Report) -> int:
    if inputs.reference is not None:
        report["correct"] = all(value <= report["tolerance"] for value in report["rel_l2"].values())
    return int(report["correct"] is False)


VERB = Verb(
    name="run",
    text="trace, check, run on inputs, compare with a reference",
    action=_run_kernel,
    options=_add_options,
)
