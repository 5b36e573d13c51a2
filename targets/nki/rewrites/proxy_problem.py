"""Finds a smaller problem to stand for a large one: fewer iterations of the kernel's outermost loops.

Predicting takes time per instruction. If dimensions of the problem only decide how often outermost loops run,
a kernel with fewer iterations does the same work less often, and a rewrite's gain there is close to its gain
at full size. Reading the kernel at other dimensions shows which dimensions these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from nki_sim.forms import Operand
from nki_sim.targets import Target
from targets.nki.rewrites.kernel_ir import (
    ArrayArgument,
    Kernel,
    KernelArgument,
    Loop,
    Node,
    Statement,
    StatementKind,
)
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import SourceError

if TYPE_CHECKING:
    from seeds import ProblemSpec

MIN_TRIPS = 2
"""Iterations that outermost loops keep at least, so that one can follow another."""

Dims = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ProxyProblem:
    """The dimensions to predict at, None for those of the problem, and the kernel's instructions at these."""

    dims: dict[str, int] | None
    instructions: int


def find_proxy_problem(source: str, spec: ProblemSpec, dims: Dims, target: Target, most: int) -> ProxyProblem:
    """Return the largest proxy with at most `most` instructions, or the smallest there is.

    Raises:
        SourceError: the source cannot be read at `dims`.
    """
    full = read_kernel(source, arguments_at(spec, dims), target)
    found, chosen, count = full, dict(dims), count_instructions(full)
    while count > most and (smaller := _halve_dimensions(source, spec, chosen, target=target, full=full)):
        chosen, found = smaller
        count = count_instructions(found)
    return ProxyProblem(None if found is full else chosen, count_instructions(full))


def arguments_at(spec: ProblemSpec, dims: Dims) -> list[KernelArgument]:
    """The kernel arguments at dimensions that none of the spec's sizes has."""
    arrays: list[KernelArgument] = [
        ArrayArgument(tuple(item.resolve_kernel_shape(dict(dims))), item.dtype) for item in spec.inputs
    ]
    return spec.call_arguments(arrays, lambda value: value)


def count_instructions(kernel: Kernel) -> int:
    """The number of instructions that a kernel runs, as far as they can be read."""
    return sum(item.trips for item in kernel.operations())


def _halve_dimensions(
    source: str, spec: ProblemSpec, dims: Dims, *, target: Target, full: Kernel
) -> tuple[dict[str, int], Kernel] | None:
    """The dimensions with one or two halved, whichever leaves most iterations; None if none can be halved."""
    even = sorted(name for name, size in dims.items() if size % 2 == 0)
    tried = []
    for names in (*combinations(even, 1), *combinations(even, 2)):
        smaller = {**dims, **{name: dims[name] // 2 for name in names}}
        try:
            kernel = read_kernel(source, arguments_at(spec, smaller), target)
        except SourceError:
            continue
        left = _fewest_trips_left(full, kernel)
        if left is not None:
            tried.append((-len(names), left, names, smaller, kernel))
    if not tried:
        return None
    *_, chosen, kernel = max(tried, key=lambda one: one[:3])
    return chosen, kernel


def _fewest_trips_left(full: Kernel, small: Kernel) -> int | None:
    """The fewest iterations left to a loop that runs less often; None unless only outermost loops do.

    A loop of one iteration around others does not count.
    """
    if len(full.nodes) != len(small.nodes):
        return None
    if not all(_is_same_kind(one, other) for one, other in zip(full.nodes, small.nodes, strict=True)):
        return None
    shrunk = [b for a, b in zip(full.loops, small.loops, strict=True) if a.trips != b.trips]
    if not shrunk or any(not item.is_outermost or item.trips < MIN_TRIPS for item in shrunk):
        return None
    return min(item.trips for item in shrunk)


def _is_same_kind(one: Node, other: Node) -> bool:
    if not isinstance(one, Statement) or not isinstance(other, Statement):
        return isinstance(one, Loop) == isinstance(other, Loop)
    if one.kind is not other.kind or one.kind is StatementKind.OPAQUE or one.op != other.op:
        return False
    if one.form is None or other.form is None:
        return True
    return one.engine == other.engine and [*map(_cost_pattern, one.form.operands)] == [
        *map(_cost_pattern, other.form.operands)
    ]


def _cost_pattern(operand: Operand) -> tuple[str, str, list[tuple[bool, int]]]:
    """What an operand's cost depends on; the distance of rows in HBM may change with the dimensions."""
    return operand.role, operand.buffer, [(step == 1, count) for step, count in operand.dims]
