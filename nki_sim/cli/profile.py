"""`nki-sim profile`: predicted time and counters, and what limits the kernel."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path

from nki_sim import targets
from nki_sim.cli import profile_text
from nki_sim.cli.grammar import STDOUT, add_kernel_options
from nki_sim.cli.kernels import trace_on_shapes
from nki_sim.cli.progress import report_progress
from nki_sim.cli.report_text import Report
from nki_sim.cli.verb import Verb
from nki_sim.dtypes import DTYPES
from nki_sim.errors import InputError
from nki_sim.timing import chrome_trace, counters
from nki_sim.timing.bottleneck import MAX_WHAT_IFS
from nki_sim.timing.bounds import MinimalWork
from nki_sim.timing.explain import explain_latency
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.occupancy import thin_series
from nki_sim.timing.uncertainty import predict_interval
from nki_sim.timing.what_if import WhatIf, what_ifs

POINTS = 64
"""Points of memory over time in a report; `--trace` has all of them."""

_NAMES = [field.name for field in fields(MinimalWork)]
_NUMBERS = {field.name for field in fields(MinimalWork) if field.type == "int"}
_REQUIRED = [field.name for field in fields(MinimalWork) if field.default is MISSING]
_EXAMPLE = "read_bytes=8388608,write_bytes=4194304,matmul_flops=0"


def _add_options(sub: argparse.ArgumentParser) -> None:
    add_kernel_options(sub)
    sub.add_argument("--text", action="store_true", help="print a screenful for people (the default)")
    sub.add_argument(
        "--counters",
        choices=tuple(counters.CONVENTIONS),
        default="explorer",
        help="how counters count: explorer (default; totals, percents 0 to 100), or legacy as neuron-profile "
        "does on trn1 (engines' bytes per partition, float32 products twice, percents 0 to 1)",
    )
    sub.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the run as Chrome trace events, for ui.perfetto.dev; - writes them to standard "
        "output, and the report to standard error",
    )
    sub.add_argument(
        "--summary-json",
        type=Path,
        metavar="FILE",
        help="write the counters as neuron-profile's --output-format summary-json does",
    )
    sub.add_argument(
        "--what-if",
        action="store_true",
        help=f"make what-ifs of kernels over {MAX_WHAT_IFS} instructions too",
    )
    sub.add_argument(
        "--work",
        type=parse_work,
        metavar="NAME=NUMBER,...",
        help="the problem's minimal work for the bounds (else read off the kernel): read_bytes, write_bytes, "
        "matmul_flops, matmul_dtype, activation_elements, elementwise_elements, elementwise_dtype, "
        "copied_bytes",
    )


def parse_work(text: str) -> MinimalWork:
    """Parse the minimal work of a problem from `name=value,...`.

    Raises:
        argparse.ArgumentTypeError: a name is unknown or missing, or a value is not an integer or a type.
    """
    found: dict[str, int | str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE; an example: {_EXAMPLE}")
        if name in found:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
        found[name] = _parse_value(name, value)
    lacking = [name for name in _REQUIRED if name not in found]
    if lacking:
        raise argparse.ArgumentTypeError(f"{' and '.join(lacking)} missing; an example: {_EXAMPLE}")
    return MinimalWork(**found)  # type: ignore[arg-type]


def _parse_value(name: str, text: str) -> int | str:
    """Parse a count, or the name of a type.

    Raises:
        argparse.ArgumentTypeError: the text is neither, or there is no such type.
    """
    if name not in _NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; there are {', '.join(_NAMES)}")
    if name in _NUMBERS and not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{name}={text}: a whole number from 0 is wanted")
    if name not in _NUMBERS and text not in DTYPES:
        raise argparse.ArgumentTypeError(f"{name}={text}: no data type; there are {', '.join(DTYPES)}")
    return int(text) if name in _NUMBERS else text


def _profile_kernel(options: argparse.Namespace, report: Report) -> int:
    if options.trace == Path(STDOUT) and options.json:
        raise InputError("--trace - and --json both write to standard output; give one of them a file")
    program = trace_on_shapes(options, report)
    if report["checks"]:
        for path in filter(None, (options.trace, options.summary_json)):
            _print_note(f"the kernel breaks rules: nothing is written to {path}")
        return 1
    target = targets.load(program.target)
    with report_progress("predicting"):
        found = forecast_program(program, target)
        report["predicted"] = asdict(predict_interval(found))
        report["instructions"] = len(found.compiled.program)
        report["counters"] = counters.profile_counters(found, options.counters)
        report["counters_convention"] = options.counters
    ifs = None
    if options.what_if or len(found.compiled.program) <= MAX_WHAT_IFS:
        with report_progress("asking what if"):
            ifs = what_ifs(found)
            report["what_ifs"] = [asdict(item) for item in ifs]
    with report_progress("explaining"):
        report["explanation"] = explain_forecast(found, options.work, ifs)
    _write_files(options, found)
    return 0


def explain_forecast(found: Forecast, work: MinimalWork | None, ifs: Sequence[WhatIf] | None) -> Report:
    """Report an explanation, with memory over time reduced to fewer points.

    The model bound was once called tight: it has both names.
    """
    made = asdict(explain_latency(found, work, ifs))
    roof = made["roofline"]
    roof |= {"model_bound_ms": roof["tight_ms"], "percent_of_model_bound": roof["tight_percent"]}
    for use in made["occupancy"]:
        points = thin_series(use.pop("at_ms"), use.pop("used"), POINTS)
        use["over_time"] = [{"at_ms": at_ms, "used": used} for at_ms, used in points]
    return made


def _write_files(options: argparse.Namespace, found: Forecast) -> None:
    if options.trace == Path(STDOUT):
        chrome_trace.write_chrome_trace(found, options.stdout)
    elif options.trace:
        with report_progress(f"writing {options.trace}"), options.trace.open("w", encoding="utf-8") as file:
            chrome_trace.write_chrome_trace(found, file)
        _print_note(f"wrote a trace for ui.perfetto.dev to {options.trace}")
    if options.summary_json:
        content = counters.profile_summary(found, options.counters)
        options.summary_json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        _print_note(f"wrote the predicted counters ({options.counters}) to {options.summary_json}")


def _print_note(text: str) -> None:
    print(f"nki-sim: {text}", file=sys.stderr)


def _format_lines(report: Report, source: Path | None) -> Iterable[str]:
    return profile_text.format_profile(report, source)


VERB = Verb(
    name="profile",
    text="predict time and counters, and say what limits the kernel",
    action=_profile_kernel,
    options=_add_options,
    lines=_format_lines,
    keys={
        "predicted": None,
        "instructions": None,
        "explanation": None,
        "what_ifs": [],
        "counters_convention": None,
    },
)
