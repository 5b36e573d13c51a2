"""`nki-sim profile`: predicted time and counters, and what limits the kernel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from nki_sim import targets
from nki_sim.cli import profile_text
from nki_sim.cli.grammar import kernel_options
from nki_sim.cli.kernels import traced_on_shapes
from nki_sim.cli.show import Report
from nki_sim.cli.verb import Verb
from nki_sim.cli.watch import stage
from nki_sim.dtypes import DTYPES
from nki_sim.timing import chrome, counters
from nki_sim.timing.bounds import MinimalWork
from nki_sim.timing.explain import explain
from nki_sim.timing.forecast import Forecast, forecast
from nki_sim.timing.occupancy import thinned
from nki_sim.timing.uncertainty import interval
from nki_sim.timing.whatif import what_ifs

POINTS = 64
"""Of memory over time in a report; `--trace` has them all."""

MAX_WHAT_IFS = 20_000
"""Instructions up to which what-ifs are given without being asked for: each schedules the program anew."""

_NUMBERS = {field.name for field in fields(MinimalWork) if field.type == "int"}


def _options(sub: argparse.ArgumentParser) -> None:
    kernel_options(sub)
    sub.add_argument("--text", action="store_true", help="print a screenful for people (the default)")
    sub.add_argument(
        "--counters",
        choices=tuple(counters.CONVENTIONS),
        default="explorer",
        help="how counters count: explorer (default; totals, percents 0 to 100), or legacy as neuron-profile "
        "does on trn1 (engines' bytes per partition, float32 products twice, percents 0 to 1)",
    )
    sub.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the run as Chrome trace events, for ui.perfetto.dev"
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
        help=f"say what an engine without cost would save also of kernels over {MAX_WHAT_IFS} instructions",
    )
    sub.add_argument(
        "--work",
        type=parse_work,
        metavar="NAME=NUMBER,...",
        help="the problem's minimal work for the bounds (else read off the kernel): read_bytes, write_bytes, "
        "matmul_flops, matmul_dtype, activation_elements, elementwise_elements, elementwise_dtype",
    )


def parse_work(text: str) -> MinimalWork:
    """The minimal work of a problem from `name=value,...`.

    Raises:
        argparse.ArgumentTypeError: a name is unknown or a value no whole number or type.
    """
    try:
        pairs = dict(part.split("=", 1) for part in text.split(","))
        given = {name: _value(name, text) for name, text in pairs.items()}
        return MinimalWork(**given)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not read_bytes=..,write_bytes=..,...") from error


def _value(name: str, text: str) -> int | str:
    """A count, or the name of a type.

    Raises:
        KeyError, ValueError: it is none.
    """
    if name not in _NUMBERS:
        return DTYPES[text].name
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _profile(options: argparse.Namespace, report: Report) -> int:
    program = traced_on_shapes(options, report)
    if report["checks"]:
        return 1
    target = targets.load(program.target)
    with stage("predicting"):
        found = forecast(program, target)
        report["predicted"] = asdict(interval(found))
        report["instructions"] = len(found.compiled.program)
        report["explanation"] = explained(found, options.work)
        report["counters"] = counters.profile(found, options.counters)
        report["counters_convention"] = options.counters
    if options.what_if or len(found.compiled.program) <= MAX_WHAT_IFS:
        with stage("asking what if"):
            report["what_ifs"] = [asdict(item) for item in what_ifs(found)]
    _write(options, found)
    return 0


def explained(found: Forecast, work: MinimalWork | None) -> Report:
    """An explanation as a report, memory over time thinned out."""
    made = asdict(explain(found, work))
    for use in made["occupancy"]:
        points = thinned(use.pop("at_ms"), use.pop("used"), POINTS)
        use["over_time"] = [{"at_ms": at_ms, "used": used} for at_ms, used in points]
    return made


def _write(options: argparse.Namespace, found: Forecast) -> None:
    if options.trace:
        with stage(f"writing {options.trace}"), options.trace.open("w", encoding="utf-8") as file:
            chrome.write(found, file)
    if options.summary_json:
        content = counters.summary_file(found, options.counters)
        options.summary_json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _lines(report: Report, source: Path | None) -> Iterable[str]:
    return profile_text.lines(report, source)


VERB = Verb(
    name="profile",
    text="predict time and counters, and say what limits the kernel",
    action=_profile,
    options=_options,
    lines=_lines,
    keys={
        "predicted": None,
        "instructions": None,
        "explanation": None,
        "what_ifs": [],
        "counters_convention": None,
    },
)
