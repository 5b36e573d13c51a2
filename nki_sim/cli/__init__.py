"""`nki-sim`: the simulator at the command line. Thin: parses, calls, prints, maps errors to exit statuses.

0 correct, or nothing to compare with (`correct` is null); 1 incorrect or a broken rule; 2 usage, or a
reference at fault; 3 the kernel is at fault, or took longer than `--deadline`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

from nki_sim import __version__, targets
from nki_sim.cli import show, verbs, watch
from nki_sim.errors import KernelError, SimError

EXIT_USAGE, EXIT_KERNEL, EXIT_INTERRUPTED = 2, 3, 130

_KERNEL_VERBS = {
    "trace": (verbs.trace_kernel, "trace a kernel on shapes and apply the hardware's rules"),
    "run": (verbs.run, "trace, check, run on inputs, compare with a reference"),
    "profile": (verbs.profile, "predict time and counters, and say what limits the kernel"),
}
_PLAIN_VERBS = {
    "ops": (verbs.ops, "list what is supported, instruction by instruction and name by name"),
    "rules": (verbs.rules, "list the rules and errors with their codes, as a Markdown table"),
    "path": (verbs.path, "print the folder to put on PYTHONPATH so that kernels' imports work"),
}

_PRINTED: dict[str, Callable[[show.Report, Path | None], Iterable[str]]] = {
    "path": lambda report, _: [report["path"]],
    "ops": lambda report, _: verbs.ops_lines(report),
    "rules": lambda report, _: verbs.rules_lines(report),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is returned."""
    options = parser().parse_args(argv)
    try:
        out = sys.stdout
        # What a kernel prints must not end up in the JSON.
        with (
            watch.interruptible(),
            watch.deadline(options.deadline, lambda: _expired(options, out)),
            redirect_stdout(sys.stderr if options.json else out),
        ):
            status, report = options.action(options)
    except KeyboardInterrupt:  # also where a person quits the debugger in a kernel
        return EXIT_INTERRUPTED
    except KernelError as error:
        return _failed(options, _fields(error), EXIT_KERNEL)
    except (SimError, OSError, UnicodeDecodeError) as error:
        code = getattr(error, "code", "file")
        return _failed(options, {"code": code, "message": str(error), "line": 0, "hint": ""}, EXIT_USAGE)
    if options.json:
        print(show.as_json(report))
    else:
        print("\n".join(_PRINTED.get(options.verb, show.lines)(report, _source(options))))
    return int(status)


def _fields(error: KernelError) -> show.Report:
    return {"code": error.code, "message": error.message, "line": error.line, "hint": error.hint}


def _failed(options: argparse.Namespace, error: show.Report, status: int) -> int:
    if options.json and (status == EXIT_KERNEL or options.verb == "run"):
        known = options.report or verbs.blank(options)
        print(show.as_json({**known, "correct": False, "error": error}))
    if status == EXIT_USAGE:
        print(f"nki-sim: {error['message']}", file=sys.stderr)
    elif not options.json:
        print(f"{options.kernel}: " + "\n".join(show.finding(error, _source(options))), file=sys.stderr)
    return status


def _expired(options: argparse.Namespace, out: TextIO) -> int:
    message = f"not done after {options.deadline:g} seconds"
    hint = "raise --deadline, or try smaller inputs"
    fields = {"code": "limit_time", "message": message, "line": 0, "hint": hint}
    with redirect_stdout(out):
        return _failed(options, fields, EXIT_KERNEL)


def _source(options: argparse.Namespace) -> Path | None:
    return Path(options.kernel) if getattr(options, "kernel", None) else None


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    made = argparse.ArgumentParser(prog="nki-sim", description="Run, check and profile NKI kernels on a CPU.")
    made.add_argument("--version", action="version", version=f"nki-sim {__version__}")
    subparsers = made.add_subparsers(dest="verb", required=True)
    for verb, (action, text) in {**_KERNEL_VERBS, **_PLAIN_VERBS}.items():
        sub = subparsers.add_parser(verb, help=text, description=text)
        sub.set_defaults(action=action, deadline=None, report=None)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        if verb in _KERNEL_VERBS:
            _kernel_options(sub)
        if verb == "run":
            _run_options(sub)
        if verb == "trace":
            _trace_options(sub)
    return made


def _kernel_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "kernel", help="a file with a function kernel or optimized_kernel, or one @nki.jit function"
    )
    sub.add_argument("--arg", action="append", default=[], help="128x512:float32, or a number; once each")
    sub.add_argument("--reference", help="a file that defines forward(*inputs) or reference(*inputs)")
    sub.add_argument("--entry", help="the kernel's name when the file has several")
    sub.add_argument("--target", default="trn2", help=f"one of {', '.join(targets.names())}")
    sub.add_argument("--deadline", type=float, metavar="SECONDS", help="give up after so long")


def _trace_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--provenance",
        nargs="?",
        const=verbs.TILES,
        metavar="OUTPUT[I,J,...]",
        help="say which inputs each tile of the outputs depends on, through which precisions, and what is "
        "never used; with an element such as 0[3,5], which input elements that one depends on",
    )


def _run_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--seeds", default="0", help="comma-separated, for example 0,21,42")
    sub.add_argument(
        "--tolerance",
        type=float,
        default=verbs.REL_L2,
        help="largest relative L2 error (2e-5, for float32; narrower types need more)",
    )
    sub.add_argument("--eager", action="store_true", help="compute while the Python runs: print shows values")
    sub.add_argument(
        "--slice",
        action="append",
        default=[],
        metavar="OUTPUT[A:B,...]",
        help="run and compare only what this part of an output needs: 0[0:128,0:512]; may be repeated",
    )
