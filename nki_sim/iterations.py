"""Loops whose iterations may run in any order: no iteration may depend on what another one writes.

The legacy `affine_range` promises this for all but associative updates (`+=`, accumulating matmuls), which
commute. Two accesses of a tensor are compared where they lie in two iterations of one execution of a loop,
with the loops around it in the same iteration. First by the boxes that enclose each iteration's accesses,
which settles nearly all tensors; where boxes overlap, element by element. Accesses whose address depends on
data are the kernel's own responsibility.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim import regions
from nki_sim.forms import Form, Operand
from nki_sim.ir import Bools, Ints, Iterations, Program
from nki_sim.violations import Violation

PLAIN, UPDATE, START = range(3)
"""What an access is: its order matters; an associative update; the write that starts a matmul's group."""

_COMMUTATIVE = frozenset(
    {"add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
)

# Where an instruction combines dst with one of its inputs: the operation, and the inputs that it may be.
_UPDATES = {
    "tensor_tensor": ("op", ("data1", "data2")),
    "tensor_scalar": ("op0", ("data",)),
    "scalar_tensor_tensor": ("op1", ("operand1",)),
}


def check(program: Program) -> Iterator[Violation]:
    """At most one violation per declaration."""
    found = program.iterations
    if not len(found.parents):
        return
    chosen = _candidates(program)
    boxes = regions.boxes(program, chosen)
    kinds = _kinds(program)[chosen]
    nodes = found.nodes[program.cells.instruction[chosen]]
    executions = _executions(found)
    seen: set[int] = set()
    for ancestors in _levels(found):
        for group, iterations in _groups(program, chosen, ancestors[nodes], executions):
            site = int(program.tensor_sites[program.cells.tensor[chosen[group[0]]]])
            if site in seen:
                continue
            clash = _clash(program, chosen[group], iterations, boxes[group], kinds[group])
            if clash is not None:
                seen.add(site)
                yield _violation(program, *clash)


def _candidates(program: Program) -> Ints:
    """Cells of tensors that are written and that more than one iteration touches."""
    cells, count = program.cells, len(program.tensor_sites)
    fixed = np.array([item.index_step == 0 for item in program.operands], dtype=bool)[cells.operand]
    nodes = program.iterations.nodes[cells.instruction]
    low, high = np.full(count, len(program.iterations.parents) + 1), np.zeros(count, dtype=np.int64)
    np.minimum.at(low, cells.tensor, nodes)
    np.maximum.at(high, cells.tensor, nodes)
    written = np.zeros(count, dtype=bool)
    written[cells.tensor[cells.writes]] = True
    return np.flatnonzero((written & (low != high))[cells.tensor] & fixed)


def _levels(found: Iterations) -> Iterator[Ints]:
    """For each depth of nesting: the ancestor of every iteration at that depth, 0 for those above it."""
    parents = np.concatenate([[0], found.parents])
    depth = np.zeros(len(parents), dtype=np.int64)
    ancestor = parents.copy()
    numbers = np.arange(len(parents))
    depth[1:] = 1
    while ancestor.any():
        depth += ancestor > 0
        ancestor = parents[ancestor]
    for level in range(1, int(depth.max()) + 1):
        at = np.where(depth >= level, numbers, 0)
        while np.any(depth[at] > level):
            at = np.where(depth[at] > level, parents[at], at)
        yield at


def _executions(found: Iterations) -> Ints:
    """A number per iteration (0 for none) that those of one execution of a loop share."""
    pairs = np.stack([found.parents, found.loops])
    return np.concatenate([[-1], np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)])


def _groups(program: Program, chosen: Ints, nodes: Ints, executions: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Positions in `chosen` of one tensor in one execution of a loop, and their iterations, sorted by these.

    Only where several iterations touch the tensor and one of them writes it.
    """
    tensors = program.cells.tensor[chosen]
    inside = np.flatnonzero(nodes)
    order = inside[np.lexsort((nodes[inside], executions[nodes[inside]], tensors[inside]))]
    if not len(order):
        return
    keys = np.stack([tensors[order], executions[nodes[order]]])
    first = np.flatnonzero(np.concatenate([[True], np.any(keys[:, 1:] != keys[:, :-1], axis=0)]))
    last = np.concatenate([first[1:], [len(order)]]) - 1
    several = nodes[order[first]] != nodes[order[last]]
    writes = np.logical_or.reduceat(program.cells.writes[chosen[order]], first)
    for begin, end in zip(first[several & writes].tolist(), last[several & writes].tolist(), strict=True):
        group = order[begin : end + 1]
        yield group, nodes[group]


def _clash(
    program: Program, cells: Ints, iterations: Ints, boxes: Ints, kinds: Ints
) -> tuple[int, int, int] | None:
    """A cell, its iteration and another iteration that clash in one tensor; `iterations` is sorted."""
    first = np.flatnonzero(np.diff(iterations, prepend=-1))
    bounds = np.stack([
        np.minimum.reduceat(boxes[:, 0], first), np.maximum.reduceat(boxes[:, 1], first),
        np.minimum.reduceat(boxes[:, 2], first), np.maximum.reduceat(boxes[:, 3], first),
    ], axis=1)  # fmt: skip
    if _disjoint(bounds[:, 0], bounds[:, 1]) or _disjoint(bounds[:, 2], bounds[:, 3]):
        return None
    near, _ = regions.neighbours(bounds)
    close = np.array([len(others) > 1 for others in near], dtype=bool)
    if not close.any():
        return None
    mine = np.repeat(close, np.diff(np.append(first, len(cells))))
    return _Elements(program, cells[mine], iterations[mine], kinds[mine]).clash()


def _disjoint(starts: Ints, ends: Ints) -> bool:
    order = np.argsort(starts, kind="stable")
    return bool(np.all(starts[order[1:]] >= np.maximum.accumulate(ends[order])[:-1]))


@dataclass(frozen=True, slots=True)
class _Access:
    """One access pattern of one iteration."""

    cell: int
    iteration: int
    kind: int
    offset: int
    item: Operand

    def of(self, owners: Ints, base: int) -> Ints:
        """The owners of the elements it touches."""
        shape = tuple(count for _, count in self.item.dims)
        strides = tuple(step * owners.itemsize for step, _ in self.item.dims)
        return np.ndarray(shape, owners.dtype, owners, (self.offset - base) * owners.itemsize, strides)


class _Elements:
    """Which iteration writes each element of a tensor, by kind of write."""

    def __init__(self, program: Program, cells: Ints, iterations: Ints, kinds: Ints) -> None:
        table, items = program.cells, program.operands
        operand, offset, writes = table.operand[cells], table.offset[cells], table.writes[cells]
        # The same access of the same iteration counts once.
        _, at = np.unique(np.stack([operand, offset, iterations, kinds, writes]), axis=1, return_index=True)
        at = np.sort(at)
        columns = (cells[at], iterations[at], kinds[at], offset[at], operand[at])
        self._accesses = [
            _Access(cell, iteration, kind, place, items[number])
            for cell, iteration, kind, place, number in zip(*(c.tolist() for c in columns), strict=True)
        ]
        self._writes = writes[at].tolist()
        self._base = min(access.offset for access in self._accesses)
        self._size = max(access.offset + access.item.extent for access in self._accesses) - self._base

    def clash(self) -> tuple[int, int, int] | None:
        # The first and the last iteration that writes each element, by kind.
        first = np.full((3, self._size), np.iinfo(np.int32).max, dtype=np.int32)
        last = np.full((3, self._size), -1, dtype=np.int32)
        for access, writes in zip(self._accesses, self._writes, strict=True):
            if writes:
                for owners, latest in ((first, np.minimum), (last, np.maximum)):
                    view = access.of(owners[access.kind], self._base)
                    latest(view, access.iteration, out=view)
        for access in self._accesses:
            for kind in _AGAINST[access.kind]:
                low, high = (int(end) for end in self._ends(access, first[kind], last[kind]))
                if low < access.iteration or high > access.iteration:
                    return access.cell, access.iteration, low if low < access.iteration else high
        return None

    def _ends(self, access: _Access, first: Ints, last: Ints) -> tuple[Any, Any]:
        return access.of(first, self._base).min(), access.of(last, self._base).max()


# Writes of which kinds, made by other iterations, an access clashes with.
_AGAINST = {PLAIN: (PLAIN, UPDATE, START), UPDATE: (PLAIN,), START: (PLAIN, START)}


def _kinds(program: Program) -> Ints:
    """PLAIN, UPDATE or START of every cell."""
    kinds = np.zeros(len(program.cells.tensor), dtype=np.int64)
    for number, form in enumerate(program.forms):
        pairs = _pairs(form)
        if not pairs and form.op != "nc_matmul":
            continue
        first = program.cells.first[:-1][program.form_ids == number]
        roles = [item.role for item in form.operands]
        goal = first + roles.index("dst")
        if form.op == "nc_matmul":
            kinds[goal] = UPDATE if form.param("accumulate") else START
        for role in pairs:
            source = first + roles.index(role)
            same = _same(program, goal, source)
            kinds[goal[same]] = kinds[source[same]] = UPDATE
    return kinds


def _pairs(form: Form) -> list[str]:
    """Inputs that dst is an associative update of, if it is the same access."""
    op, roles = _UPDATES.get(form.op, ("", ()))
    alone = form.op != "tensor_scalar" or form.param("op1") is None
    if not alone or form.param(op) not in _COMMUTATIVE:
        return []
    dims = form["dst"].dims
    inputs = [form.operand(role) for role in roles]
    return [item.role for item in inputs if item is not None and item.dims == dims]


def _same(program: Program, left: Ints, right: Ints) -> Bools:
    place = program.offsets[left] == program.offsets[right]
    return np.asarray((program.tensors[left] == program.tensors[right]) & place, dtype=bool)


def _violation(program: Program, cell: int, iteration: int, other: int) -> Violation:
    cells, indices = program.cells, program.iterations.indices
    name = program.site(int(cells.tensor[cell])).name
    mine, theirs = int(indices[iteration - 1]), int(indices[other - 1])
    verb = "writes" if cells.writes[cell] else "reads"
    return Violation(
        "unexpected_output_dependencies",
        f"iteration {mine} of an affine_range loop {verb} elements of {name} that iteration {theirs} writes",
        name, "independent iterations", f"{mine} and {theirs}",
        int(program.lines[cells.instruction[cell]]),
        "use nl.sequential_range, declare the tile inside the loop, or update it with += alone",
    )  # fmt: skip
