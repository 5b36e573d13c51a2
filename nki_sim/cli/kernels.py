"""What verbs share for a kernel's file: its inputs, its program and the rules it breaks."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nki_sim
from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.checks import warnings
from nki_sim.checks.violations import Violation
from nki_sim.cli.progress import report_progress
from nki_sim.cli.report_text import Report
from nki_sim.errors import InputError, KernelError
from nki_sim.forms import ArraySpec
from nki_sim.harness import (
    RANDOM,
    ReferenceModule,
    collect_arrays,
    extended_import_path,
    fill_arguments,
    find_entry,
    make_specs,
    parse_argument,
    read_text,
)
from nki_sim.program.ir import Program
from nki_sim.semantics.arrays import NUMPY, Array

_NO_ARRAY = re.compile(r"'int' object (has no attribute|is not subscriptable|is not iterable)")


@dataclass(frozen=True)
class InputDraw:
    """The inputs for one seed, as the reference takes them and as the kernel takes them."""

    inputs: list[Any]
    arguments: list[Any]


class KernelInputs:
    """Source of a kernel's inputs: `--arg`, else the reference's `get_inputs`.

    `--arg` describes what the reference takes. If the reference has `transform_to_nki_inputs`, the kernel
    takes what that function returns for them.

    Raises:
        InputError: an argument or the reference is at fault.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.reference = ReferenceModule(Path(options.reference)) if options.reference else None
        self._given = [parse_argument(text) for text in options.arg]
        self._draws = self.reference is not None and self.reference.draws and not self._given
        self._transforms = self.reference is not None and self.reference.transforms
        if self._given and self.reference is not None and self.reference.draws:
            print(
                f"nki-sim: --arg is given: get_inputs() of {self.reference.path} is not called",
                file=sys.stderr,
            )

    @property
    def source(self) -> str | None:
        """What draws the inputs, and how; None if there are no arrays to draw."""
        if self._draws and self.reference is not None:
            return f"get_inputs() of {self.reference.path}; numpy.random.seed(seed)"
        drawn = any(isinstance(item, ArraySpec) for item in self._given)
        return RANDOM if drawn else None

    def draw(self, seed: int) -> InputDraw:
        """Draw the arrays for a seed.

        Raises:
            InputError: the reference is at fault, or draws arrays of types that no device has.
        """
        with report_progress(f"drawing inputs of seed {seed}"):
            if self._draws and self.reference is not None:
                inputs = self.reference.draw_inputs(seed)
            else:
                inputs = fill_arguments(self._given, seed)
            arguments = self.reference.make_arguments(inputs) if self.reference else inputs
        make_specs(arguments)  # refuses arrays of types that devices lack
        return InputDraw(inputs, arguments)

    def trace_arguments(self, seed: int) -> tuple[list[Any], InputDraw | None]:
        """Return the arguments to trace with; draws arrays only if their shapes are unknown otherwise."""
        if not (self._draws or self._transforms):
            return self._given, None
        drawn = self.draw(seed)
        return drawn.arguments, drawn


def trace_kernel(options: argparse.Namespace, report: Report, arguments: Sequence[Any]) -> Program:
    """Trace the kernel for these arguments.

    Raises:
        KernelError: the kernel is at fault.
    """
    file = Path(options.kernel)
    source = read_text(file)
    with (
        time_part(report, "trace"),
        report_progress(f"tracing {file}"),
        extended_import_path(file),
        _hint_shape_arguments(options),
    ):
        program = nki_sim.trace(
            source,
            args=[make_specs(item) for item in arguments],
            target=options.target,
            entry=options.entry or find_entry(source),
            filename=str(file),
        )
    report["kernel"] = program.kernel
    return program


@contextmanager
def _hint_shape_arguments(options: argparse.Namespace) -> Iterator[None]:
    """Add a hint to errors: a plain number where the kernel expects an array is usually a one-dimensional
    shape.
    """
    try:
        yield
    except KernelError as error:
        number = next((text for text in options.arg if text.isdecimal()), None)
        if number and not error.hint and _NO_ARRAY.search(error.message):
            error.hint = (
                f"--arg {number} is a number; arrays are written SHAPE:DTYPE, {number}:float32 is one of one "
                "dimension"
            )
        raise


def trace_on_shapes(options: argparse.Namespace, report: Report) -> Program:
    """Trace a kernel without values, and report the rules that it breaks.

    Raises:
        KernelError: the kernel is at fault.
        InputError: an argument or the reference is at fault.
    """
    inputs = KernelInputs(options)
    program = trace_kernel(options, report, inputs.trace_arguments(0)[0])
    check_rules(program, report)
    return program


def check_rules(program: Program, report: Report) -> bool:
    """Report the rules that the program breaks; return whether it breaks none."""
    with time_part(report, "run"), report_progress("checking"):
        target = targets.load(program.target)
        report["checks"] = [asdict(item) for item in checks.check(program, target)]
        report["warnings"] = [describe_finding(item) for item in warnings.find_warnings(program, target)]
    report["correct"] = False if report["checks"] else None
    return not report["checks"]


def describe_finding(found: Violation) -> Report:
    """Describe a warning, with the keys that broken rules and errors share."""
    fields = ("code", "message", "line", "hint", "tensor")
    return {name: getattr(found, name) for name in fields}


def describe_error(error: KernelError) -> Report:
    """Describe an error, with the keys that broken rules and errors share."""
    return {"code": error.code, "message": error.message, "line": error.line, "hint": error.hint}


def arrays_for_program(program: Program, drawn: InputDraw, seed: int) -> list[Array]:
    """Return the arrays for a seed.

    Raises:
        InputError: their shapes or types differ from those that the kernel was traced with.
    """
    arrays = collect_arrays(drawn.arguments)
    wanted = [(spec.shape, NUMPY[spec.dtype]) for spec in program.array_specs(program.inputs)]
    if [(array.shape, array.dtype) for array in arrays] != wanted:
        found = [make_specs(array) for array in arrays]
        raise InputError(f"seed {seed} gives inputs of other shapes or types than the first seed: {found}")
    return arrays


@contextmanager
def time_part(report: Report, part: str) -> Iterator[None]:
    """Record how long a part took; a trace that fails leaves zero."""
    begun = time.perf_counter()
    yield
    report["seconds"][part] += time.perf_counter() - begun
