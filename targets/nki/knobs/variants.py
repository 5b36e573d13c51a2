"""Makes the variants of a workload: its graph, and the graphs that subsets of the graph rewrites make of it.

Rewrites are applied in the order of the table, because one may enable a later one. A subset in which a
rewrite is refused is no variant, because a smaller subset makes the same graph. Duplicate graphs are dropped
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.graph_rewrites import affine, epilogue, load_transpose, online, operand_swap, row_scale
from targets.nki.knobs.graph_rewrites.base import GraphRewrite, GraphRewriteRefused, producer_calls

REWRITES: tuple[GraphRewrite, ...] = (
    row_scale.REWRITE,
    operand_swap.REWRITE,
    load_transpose.REWRITE,
    online.REWRITE,
    affine.REWRITE,
    epilogue.REWRITE,
)
"""The graph rewrites in the order in which they are applied."""

IDENTITY = "identity"

MOST_VARIANTS = 32
"""Variants of a workload at most, those with fewer rewrites first."""


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """A graph that computes a workload, named after the rewrites that made it, joined by `+`."""

    name: str
    graph: Graph


def make_variants(graph: Graph) -> tuple[GraphVariant, ...]:
    """Return the variants of a graph, the unchanged one first; equal graphs have equal variants."""
    found: dict[object, GraphVariant] = {}
    for name, made in _rewrite_subsets(graph):
        found.setdefault(canonical_form(made), GraphVariant(name, made))
        if len(found) == MOST_VARIANTS:
            break
    return tuple(found.values())


def _rewrite_subsets(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """The graph that each subset makes, if none of its rewrites is refused."""
    for count in range(len(REWRITES) + 1):
        for chosen in combinations(REWRITES, count):
            made = graph
            try:
                for rewrite in chosen:
                    made = rewrite.apply(made)
            except GraphRewriteRefused:
                continue
            yield "+".join(rewrite.name for rewrite in chosen) or IDENTITY, made


def rewrite_refusals(graph: Graph) -> Mapping[str, str]:
    """Return why rewrites do not apply to the unchanged graph, by rewrite name."""
    found = {}
    for rewrite in REWRITES:
        try:
            rewrite.apply(graph)
        except GraphRewriteRefused as reason:
            found[rewrite.name] = str(reason)
    return found


def canonical_form(graph: Graph) -> object:
    """Return a form that is equal for graphs that differ only in names and in the order of calls."""
    made = producer_calls(graph)
    numbers = {name: number for number, name in enumerate(graph.inputs)}
    calls: list[object] = []

    def numbered(name: str) -> int:
        if name not in numbers:
            item = made[name]
            operands = tuple((slot, numbered(operand)) for slot, operand in item.operands)
            value = graph.value[name]
            rounds = value.round is not None, value.running is not None
            calls.append((item.operator, operands, item.settings, value.memory, rounds))
            numbers[name] = len(numbers)
        return numbers[name]

    numbered(graph.output)
    inputs = tuple((graph.shape(name), graph.value[name].dtype) for name in graph.inputs)
    return graph.target, inputs, tuple(calls)
