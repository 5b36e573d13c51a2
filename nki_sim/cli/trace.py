"""`nki-sim trace`: shows a kernel's program, the rules it breaks, and which inputs its results come from."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from nki_sim.cli import report_text
from nki_sim.cli.grammar import add_kernel_options
from nki_sim.cli.kernels import trace_on_shapes
from nki_sim.cli.progress import report_progress
from nki_sim.cli.report_text import Report
from nki_sim.cli.verb import Verb
from nki_sim.errors import InputError
from nki_sim.harness import parse_element
from nki_sim.program.ir import Program

TILES = "tiles"

_SHOWN = 20
"""Boxes of one input that the text output shows."""


def _add_options(sub: argparse.ArgumentParser) -> None:
    add_kernel_options(sub)
    sub.add_argument(
        "--provenance",
        type=_parse_provenance,
        metavar="tiles|OUTPUT[I,J,...]",
        help="tiles: which inputs each tile of the outputs depends on, through which precisions, and what is "
        "never used; an element such as 0[3,5]: which input elements that one depends on",
    )


def _parse_provenance(text: str) -> str:
    try:
        if text != TILES:
            parse_element(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {TILES} nor an element: 0[3,5]") from error
    return text


def _trace_kernel(options: argparse.Namespace, report: Report) -> int:
    program = trace_on_shapes(options, report)
    report["instructions"] = len(program)
    report["tensors"] = len(program.tensor_sites)
    report["bytes"] = len(program.to_bytes())
    if report["checks"]:
        return 1
    if options.provenance:
        with report_progress("following results back to inputs"):
            asked = options.provenance
            report["provenance"] = (
                _tile_provenance(program) if asked == TILES else _element_provenance(program, asked)
            )
    return 0


def _element_provenance(program: Program, asked: str) -> Report:
    """The input elements that one element depends on, as boxes: (first, end) along each dimension."""
    from nki_sim.flow.element_flow import find_input_elements, group_into_boxes

    shapes = {program.site(tensor).name: program.site(tensor).shape for tensor in program.inputs}
    found = find_input_elements(program, *parse_element(asked))
    return {
        "element": asked,
        "elements": [
            {
                "tensor": name,
                "shape": shapes[name],
                "count": len(numbers),
                "boxes": group_into_boxes(numbers, shapes[name]),
            }
            for name, numbers in found.items()
        ],
    }


def _tile_provenance(program: Program) -> Report:
    from nki_sim.flow import provenance

    unused = Counter(int(program.lines[number]) for number in provenance.find_dead_instructions(program))
    return {
        "tiles": [asdict(tile) for tile in provenance.find_tile_sources(program)],
        "precisions": [asdict(item) for item in provenance.list_operand_precisions(program)],
        "unused": [{"line": line, "instructions": count} for line, count in sorted(unused.items())],
    }


def _format_lines(report: Report, source: Path | None) -> Iterable[str]:
    plain = {name: value for name, value in report.items() if name != "provenance"}
    yield from report_text.format_report(plain, source)
    found = report["provenance"] or {}
    if "element" not in found:
        yield from report_text.format_report({"provenance": found} if found else {}, source)
        return
    yield f"element {found['element']} depends on:" if found["elements"] else f"{found['element']}: no input"
    for item in found["elements"]:
        total, shape = math.prod(item["shape"]), _format_shape(item["shape"])
        yield f"  {item['tensor']}: {item['count']} of {total} elements of shape {shape}"
        yield from (f"    {item['tensor']}{_format_box(box)}" for box in item["boxes"][:_SHOWN])
        if len(item["boxes"]) > _SHOWN:
            yield f"    and {len(item['boxes']) - _SHOWN} more boxes; --json has all"


def _format_shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _format_box(box: Sequence[Sequence[int]]) -> str:
    sides = (str(first) if end == first + 1 else f"{first}:{end}" for first, end in box)
    return f"[{', '.join(sides)}]"


VERB = Verb(
    name="trace",
    text="trace a kernel on shapes and apply the hardware's rules",
    action=_trace_kernel,
    options=_add_options,
    lines=_format_lines,
    keys={"instructions": None, "tensors": None, "bytes": None, "provenance": None},
)
