"""Writes points of a workload's space as one line of text: the variant's name and the knobs' signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR, Scope, knob_signature
from targets.nki.knobs.knob_values import find_malformed_values
from targets.nki.knobs.report import CheckFailure, describe_turn
from targets.nki.knobs.validity import knob_difference
from targets.nki.knobs.variants import make_variants

MOST_TOLD = 4
"""Number of knobs that a title names."""


@dataclass(frozen=True, slots=True)
class KnobPoint:
    """A configuration of one variant of a workload."""

    variant: str
    ir: KernelIR

    def __str__(self) -> str:
        return f"{self.variant} {knob_signature(self.ir)}"


def variant_graphs(graph: Graph) -> Mapping[str, Graph]:
    """The graphs of a workload's variants by name, the unchanged one first."""
    return {item.name: item.graph for item in make_variants(graph)}


def parse_point(text: str, graphs: Mapping[str, Graph]) -> KnobPoint:
    """Return the point that a line names.

    Raises:
        KnobError: it is no point of this workload: an unknown variant, or invalid knobs.
    """
    parts = text.split(" ")
    if len(parts) != 4 or parts[0] not in graphs:
        raise KnobError(f"{text!r:.80} is no point of this workload")
    variant, order, ltiles, scopes = parts
    try:
        ir = KernelIR(
            graphs[variant],
            tuple(order.split(">")),
            {dim: int(count) for dim, count in _split_pairs(ltiles, ",", "=")},
            {
                name: {dim: Scope[scope] for dim, scope in _split_pairs(held, ",", "=")}
                for name, held in _split_pairs(scopes, ";", ":")
            },
        )
    except (KeyError, ValueError) as error:
        raise KnobError(f"{text!r:.80} is no point of this workload: {error}") from error
    wrong: list[CheckFailure] = find_malformed_values(ir)
    if wrong:
        raise KnobError(f"{text!r:.80} is no point of this workload: {wrong[0]}")
    return KnobPoint(variant, ir)


def _split_pairs(text: str, between: str, within: str) -> list[tuple[str, str]]:
    found = [tuple(item.split(within)) for item in text.split(between) if item]
    return [(name, value) for name, value in found]


def describe_turns(one: KnobPoint, other: KnobPoint) -> str:
    """Describe which knobs to turn to get from one point to another of the same variant."""
    if one.variant != other.variant:
        return "other knobs"
    fix = knob_difference(one.ir, other.ir)
    told = ", ".join(describe_turn(knob, value) for knob, value in fix[:MOST_TOLD])
    left = len(fix) - MOST_TOLD
    return told + (f" and {left} more knob{'s' if left > 1 else ''}" if left > 0 else "")
