"""Points of a workload's space as one line of text: the variant's name and the knobs' signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR, Scope, knob_signature
from targets.nki.knobs.malformed import malformed
from targets.nki.knobs.report import Failure, knob_words
from targets.nki.knobs.validity import difference
from targets.nki.knobs.variants import variants

MOST_TOLD = 4
"""Knobs that a title names."""


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration of one variant of a workload."""

    variant: str
    ir: KernelIR

    def __str__(self) -> str:
        return f"{self.variant} {knob_signature(self.ir)}"


def graphs_of(graph: Graph) -> Mapping[str, Graph]:
    """The graphs of a workload's variants by name, itself first."""
    return {item.name: item.graph for item in variants(graph)}


def parsed(text: str, graphs: Mapping[str, Graph]) -> Point:
    """The point that a line names.

    Raises:
        KnobError: it names none of this workload: another variant, or knobs that are none of its.
    """
    parts = text.split(" ")
    if len(parts) != 4 or parts[0] not in graphs:
        raise KnobError(f"{text!r:.80} is no point of this workload")
    variant, order, ltiles, scopes = parts
    try:
        ir = KernelIR(
            graphs[variant],
            tuple(order.split(">")),
            {dim: int(count) for dim, count in _pairs(ltiles, ",", "=")},
            {
                name: {dim: Scope[scope] for dim, scope in _pairs(held, ",", "=")}
                for name, held in _pairs(scopes, ";", ":")
            },
        )
    except (KeyError, ValueError) as error:
        raise KnobError(f"{text!r:.80} is no point of this workload: {error}") from error
    wrong: list[Failure] = malformed(ir)
    if wrong:
        raise KnobError(f"{text!r:.80} is no point of this workload: {wrong[0]}")
    return Point(variant, ir)


def _pairs(text: str, between: str, within: str) -> list[tuple[str, str]]:
    found = [tuple(item.split(within)) for item in text.split(between) if item]
    return [(name, value) for name, value in found]


def turned(one: Point, other: Point) -> str:
    """In words, what is to be turned to get from one point to another of the same variant."""
    if one.variant != other.variant:
        return "other knobs"
    fix = difference(one.ir, other.ir)
    told = ", ".join(knob_words(knob, value) for knob, value in fix[:MOST_TOLD])
    left = len(fix) - MOST_TOLD
    return told + (f" and {left} more knob{'s' if left > 1 else ''}" if left > 0 else "")
