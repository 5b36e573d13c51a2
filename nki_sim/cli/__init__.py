"""`nki-sim`, the command line of the simulator: parses, calls, prints and maps errors to exit statuses.

Exit statuses: 0 done, and correct or not judged; 1 incorrect, or a broken rule; 2 wrong usage, or the
reference is at fault; 3 the kernel is at fault, or exceeded a time or size limit; 70 a fault of the
simulator. `verb_table` lists the verbs.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from nki_sim.cli import grammar, progress, report_text
from nki_sim.cli.grammar import UsageError, deadline_seconds, resolve_target
from nki_sim.cli.kernels import describe_error
from nki_sim.cli.report_text import Report
from nki_sim.cli.verb import EXIT_INCORRECT, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_KERNEL, EXIT_USAGE
from nki_sim.cli.verb_table import VERBS
from nki_sim.errors import KernelError, LimitError, RuleError, ScheduleError, SimError

_USAGE_CODES = {"entry": "--entry NAME", "arguments": "one --arg for each, in this order"}
"""Fixes on the command line for launch errors: no such kernel in the file, or other arguments."""

_LACKING = frozenset({"unsupported", "unsupported_argument", "eager_launch"})
"""Errors about missing features of the simulator, which are no verdict on the kernel."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status.

    Only a process of its own, which passes no `argv`, enforces a deadline.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    with progress.use_default_signals():
        try:
            return _parse_and_run(given, is_own_process=argv is None)
        finally:
            # Flush here, where a closed pipe ends the process quietly.
            print(end="", flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    return grammar.build_parser(VERBS.values())


def _parse_and_run(given: Sequence[str], *, is_own_process: bool) -> int:
    try:
        options = build_parser().parse_args(given)
    except UsageError as error:
        verb = next((VERBS[word] for word in given[:1] if word in VERBS), None)
        if "--json" in given:
            report = verb.blank_report() if verb else {"verb": None, "error": None}
            print(report_text.report_to_json({**report, "error": _error_fields(error)}))
        print(f"{error.usage}{error}", file=sys.stderr)
        return EXIT_USAGE
    return _run_verb(options, deadline_seconds(options) if is_own_process else None)


def _run_verb(options: argparse.Namespace, seconds: float | None) -> int:
    """Run the verb, for `seconds` at most; print its report to stdout or its error to stderr."""
    verb, out = VERBS[options.verb], sys.stdout
    report, options.stdout = verb.blank_report(), out
    # A program reads the trace that goes to stdout.
    taken = str(getattr(options, "trace", "")) == grammar.STDOUT
    try:
        if verb.on_kernel:
            report["file"] = getattr(options, "kernel", None)
            report["target"] = options.target = resolve_target(options)
        # The kernel's own prints must not end up in the JSON.
        with (
            progress.enforce_deadline(seconds, EXIT_KERNEL, lambda: _report_timeout(options, report, out)),
            redirect_stdout(sys.stderr if options.json or taken else out),
        ):
            status = verb.action(options, report)
    except RuleError as error:
        report["checks"] += [asdict(item) for item in error.broken] or [describe_error(error)]
        report["correct"], status = False, EXIT_INCORRECT
    except KeyboardInterrupt:  # the user quit the debugger; what it showed is the result
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  every error gets a status, and an object with --json
        return _report_failure(options, report, *_classify_error(error))
    said = (
        report_text.report_to_json(report)
        if options.json
        else "\n".join(verb.lines(report, _kernel_path(options)))
    )
    print(said, file=sys.stderr if taken else out)
    return status


def _classify_error(error: Exception) -> tuple[int, bool | None, Report]:
    """Return the exit status of an error, its verdict on the kernel, and its report."""
    if isinstance(error, KernelError) and error.code in _USAGE_CODES:
        hint = f"{error.hint} ({_USAGE_CODES[error.code]})"
        return EXIT_USAGE, None, {**describe_error(error), "hint": hint}
    if isinstance(error, KernelError):
        undecided = isinstance(error, LimitError) or error.code in _LACKING
        return EXIT_KERNEL, None if undecided else False, describe_error(error)
    if isinstance(error, ScheduleError):
        return EXIT_KERNEL, None, _error_fields(error)
    if isinstance(error, MemoryError):
        hint = "try smaller inputs, or --slice"
        fields = {"code": "limit_memory", "message": "there is not enough memory", "line": 0, "hint": hint}
        return EXIT_KERNEL, None, fields
    if isinstance(error, SimError | OSError):
        return EXIT_USAGE, None, _error_fields(error)
    traceback.print_exception(error)
    hint = "this is a fault of the simulator, not of the kernel; please report it"
    return EXIT_INTERNAL, None, {**_error_fields(error), "code": "internal_error", "hint": hint}


def _error_fields(error: Exception) -> Report:
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    return {"code": getattr(error, "code", "file"), "message": message, "line": 0, "hint": ""}


def _report_failure(
    options: argparse.Namespace, report: Report, status: int, correct: bool | None, error: Report
) -> int:
    if options.json:
        verdict = {"correct": correct} if "correct" in report else {}
        print(report_text.report_to_json({**report, **verdict, "error": error}))
    if status == EXIT_KERNEL:
        said = [] if options.json else report_text.format_finding(error, _kernel_path(options))
        first = f"{_kernel_path(options) or 'nki-sim'}: "
    else:
        said = [error["message"], *([f"    hint: {error['hint']}"] if error["hint"] else [])]
        first = f"nki-sim: {_kernel_path(options)}: " if error["code"] in _USAGE_CODES else "nki-sim: "
    if said:
        print(first + "\n".join(said), file=sys.stderr)
    return status


def _report_timeout(options: argparse.Namespace, report: Report, out: TextIO) -> None:
    fields = {
        "code": "limit_time",
        "message": f"not done after {deadline_seconds(options):g} seconds",
        "line": 0,
        "hint": "raise --deadline (0: no end), or try smaller inputs",
    }
    with redirect_stdout(out):
        _report_failure(options, report, EXIT_KERNEL, None, fields)


def _kernel_path(options: argparse.Namespace) -> Path | None:
    return Path(options.kernel) if getattr(options, "kernel", None) else None
