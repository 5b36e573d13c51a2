"""Parser of the command line: options, their types, and usage errors that raise instead of exiting."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable
from typing import NoReturn

from nki_sim import __version__, targets
from nki_sim.cli.verb import Verb
from nki_sim.errors import SimError, TargetError
from nki_sim.frontend.context import PLATFORM, platform_target, resolve_target_name

DEADLINE_S = 600.0
REL_L2 = 2e-5

STDOUT = "-"
"""Names standard output instead of a file."""


class UsageError(SimError):
    """The command line does not parse; `usage` summarises what does."""

    code = "usage"

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class RaisingParser(argparse.ArgumentParser):
    """A parser that raises instead of exiting, so that `--json` can report errors; it allows no
    abbreviations.
    """

    def __init__(self, **options: object) -> None:
        super().__init__(**{**options, "allow_abbrev": False})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raise the error.

        Raises:
            UsageError: always.
        """
        if message.startswith("unrecognized arguments") and message.endswith(".py"):
            message += "; one kernel is taken at a time, two by nki-sim compare A.py B.py"
        raise UsageError(f"{self.prog}: {message}", self.format_usage())


def build_parser(verbs: Iterable[Verb]) -> argparse.ArgumentParser:
    """Build the parser of all verbs."""
    made = RaisingParser(prog="nki-sim", description="Run, check and profile NKI kernels on a CPU.")
    made.add_argument("--version", action="version", version=f"nki-sim {__version__}")
    subparsers = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in verbs:
        sub = subparsers.add_parser(verb.name, help=verb.text, description=verb.text)
        sub.set_defaults(deadline=0.0)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        verb.options(sub)
    return made


def add_kernel_options(sub: argparse.ArgumentParser) -> None:
    """Add the options of every verb that traces one kernel."""
    sub.add_argument(
        "kernel", help="a file with a function kernel or optimized_kernel, or one @nki.jit function"
    )
    add_input_options(sub)
    sub.add_argument("--entry", metavar="NAME", help="the kernel's name when the file has several")


def add_input_options(sub: argparse.ArgumentParser) -> None:
    """Add the options for arguments, target and time limit."""
    sub.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="SHAPE|NUMBER",
        help="one argument of the kernel; repeat it, in order. An array is SHAPE:DTYPE, such as "
        "128x512:bfloat16, or 2048:float32 for a vector; 128x512 alone is float32. Else a number, True, "
        "False or None. Takes precedence over the reference's get_inputs()",
    )
    sub.add_argument(
        "--reference",
        metavar="FILE",
        help="defines forward(*inputs) or reference(*inputs) on NumPy arrays, and perhaps get_inputs()",
    )
    sub.add_argument(
        "--target",
        help=f"one of {', '.join(targets.names())}; without it what {PLATFORM} names, else trn2",
    )
    sub.add_argument(
        "--deadline",
        type=parse_non_negative,
        metavar="SECONDS",
        default=None,
        help=f"give up after so long (default: {DEADLINE_S:g}, with --eager never); 0: never",
    )


def parse_non_negative(text: str) -> float:
    """Parse a finite number that is 0 or more.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return found


def deadline_seconds(options: argparse.Namespace) -> float | None:
    """Seconds that the command may take, None for no limit. The debugger has no limit."""
    given: float | None = options.deadline
    if given is None:
        return None if getattr(options, "eager", False) else DEADLINE_S
    return given or None


def resolve_target(options: argparse.Namespace) -> str:
    """Return the requested target.

    Raises:
        TargetError: it is not supported.
    """
    name = platform_target() if options.target is None else resolve_target_name(options.target)
    if name in targets.names():
        return name
    place = f"{PLATFORM}={os.environ.get(PLATFORM)}" if options.target is None else f"--target {name}"
    raise TargetError(f"{place}: unknown or unsupported target; supported: {', '.join(targets.names())}")
