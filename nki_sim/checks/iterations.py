"""Checks loops whose iterations may run in any order: no iteration may depend on another one's writes.

The legacy `affine_range` promises this for everything but associative updates (`+=`, accumulating matmuls),
which commute. Two accesses of a tensor are compared if they lie in two iterations of one execution of a loop
and in the same iteration of the enclosing loops. Data-dependent addresses are the kernel's own
responsibility.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nki_sim.checks.conflicts import READ, UPDATE, WRITE, AccessConflict, PartyAccesses, find_conflicts
from nki_sim.checks.violations import Violation
from nki_sim.forms import PRODUCTS, Form
from nki_sim.program.ir import Bools, Ints, Iterations, Program

_COMMUTATIVE = frozenset(
    {"add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
)

# Instructions that combine dst with one of their inputs: the operation, and the inputs it may be.
_UPDATES = {
    "tensor_tensor": ("op", ("data1", "data2")),
    "tensor_scalar": ("op0", ("data",)),
    "scalar_tensor_tensor": ("op1", ("operand1",)),
}


def check(program: Program) -> Iterator[Violation]:
    """Yield at most one violation per declaration."""
    found = program.iterations
    if not len(found.parents):
        return
    chosen = _candidate_cells(program)
    kinds = _access_kinds(program)[chosen]
    nodes = found.nodes[program.cells.instruction[chosen]]
    executions = _loop_executions(found)
    seen: set[int] = set()
    for ancestors in _ancestors_by_level(found):
        parties = ancestors[nodes]
        inside = parties > 0
        accesses = PartyAccesses(chosen[inside], parties[inside], executions[parties[inside]], kinds[inside])
        for clash in find_conflicts(program, accesses, seen):
            yield _order_violation(program, clash)


def _candidate_cells(program: Program) -> Ints:
    """Cells of tensors in memory that are written and that more than one iteration touches."""
    cells, count = program.cells, len(program.tensor_sites)
    fixed = np.array(
        [item.index_step == 0 and item.buffer != "register" for item in program.operands], dtype=bool
    )[cells.operand]
    nodes = program.iterations.nodes[cells.instruction]
    low, high = np.full(count, len(program.iterations.parents) + 1), np.zeros(count, dtype=np.int64)
    np.minimum.at(low, cells.tensor, nodes)
    np.maximum.at(high, cells.tensor, nodes)
    written = np.zeros(count, dtype=bool)
    written[cells.tensor[cells.writes]] = True
    return np.flatnonzero((written & (low != high))[cells.tensor] & fixed)


def _ancestors_by_level(found: Iterations) -> Iterator[Ints]:
    """For each nesting depth, the ancestor of every iteration at that depth; 0 for iterations above it."""
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


def _loop_executions(found: Iterations) -> Ints:
    """A number for each iteration's execution of a loop; 0 for none."""
    pairs = np.stack([found.parents, found.loops])
    return np.concatenate([[-1], np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)])


def _access_kinds(program: Program) -> Ints:
    """READ, WRITE or UPDATE of every cell."""
    cells = program.cells
    kinds = np.where(cells.writes & ~cells.reads, WRITE, READ)
    for number, form in enumerate(program.forms):
        pairs = _update_inputs(form)
        if not pairs and form.op not in PRODUCTS:
            continue
        first = program.cells.first[:-1][program.form_ids == number]
        roles = [item.role for item in form.operands]
        goal = first + roles.index("dst")
        if form.op in PRODUCTS:
            kinds[goal] = UPDATE if form.param("accumulate") else WRITE
        for role in pairs:
            source = first + roles.index(role)
            same = _is_same_access(program, goal, source)
            kinds[goal[same]] = kinds[source[same]] = UPDATE
    return kinds


def _update_inputs(form: Form) -> list[str]:
    """Inputs of which dst is an associative update if both are the same access."""
    op, roles = _UPDATES.get(form.op, ("", ()))
    alone = form.op != "tensor_scalar" or form.param("op1") is None
    if not alone or form.param(op) not in _COMMUTATIVE:
        return []
    dims = form["dst"].dims
    inputs = [form.operand(role) for role in roles]
    return [item.role for item in inputs if item is not None and item.dims == dims]


def _is_same_access(program: Program, left: Ints, right: Ints) -> Bools:
    place = program.offsets[left] == program.offsets[right]
    return np.asarray((program.tensors[left] == program.tensors[right]) & place, dtype=bool)


def _order_violation(program: Program, clash: AccessConflict) -> Violation:
    cells, indices = program.cells, program.iterations.indices
    name = program.site(int(cells.tensor[clash.cell])).name
    mine, theirs = int(indices[clash.party - 1]), int(indices[clash.other - 1])
    verb = "writes" if cells.writes[clash.cell] else "reads"
    return Violation(
        "unexpected_output_dependencies",
        f"iteration {mine} of an affine_range loop {verb} elements of {name} that iteration {theirs} writes; "
        "the iterations may run in any order",
        name, "independent iterations", f"{mine} and {theirs}",
        int(program.lines[cells.instruction[clash.cell]]),
        f"if each iteration needs a {name} of its own, declare it inside the loop; if iterations add to it, "
        "write `+=`; if one continues what another left, make the loop an nl.sequential_range",
    )  # fmt: skip
