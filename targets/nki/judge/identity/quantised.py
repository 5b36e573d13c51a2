"""Products of MX operands: numbers that are divided by the scale of their group, and multiplied by it again.

Rounding to a few bits does nothing here, as casts do nothing. The scale is kept: 1 plus a weighted sum of the
group's elements, a number of that group alone. An operand with its own scale is then what was quantised; with
the scale of another group, or without one, it is something else.

A packed element holds four numbers, along a last axis of its planes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nki_sim.dtypes import PACKED_ELEMENTS
from nki_sim.forms import Form
from nki_sim.operators.rules.mx import GROUP_PARTITIONS, SCALE_ROWS, scales_of
from nki_sim.program.ir import Bools
from remote.judge.identity.domain import Planes
from targets.nki.judge.identity.instruction_operations import (
    InstructionOperation,
    OperationCall,
    RoleResults,
)
from targets.nki.judge.identity.operand_elements import OperandElements

_WEIGHTS = np.arange(1.0, 1.0 + GROUP_PARTITIONS * PACKED_ELEMENTS).reshape(
    GROUP_PARTITIONS, 1, PACKED_ELEMENTS
)


def _whole_groups(form: Form, asked: Mapping[str, Bools]) -> Bools:
    """The elements of whole groups that hold what is needed of the packed numbers and of the scales."""
    dst = form["dst"]
    groups: Bools = np.zeros((dst.partitions // GROUP_PARTITIONS, dst.free), bool)
    if "dst" in asked:
        groups |= asked["dst"].reshape(-1, GROUP_PARTITIONS, dst.free).any(axis=1)
    for quadrant, item in enumerate(scales_of(form, "dst_scale")):
        if item.role in asked:
            groups[quadrant * SCALE_ROWS :][:SCALE_ROWS] |= asked[item.role]
    return np.repeat(groups, GROUP_PARTITIONS, axis=0)


def _reach_source(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    del form
    columns = part.columns.reshape(-1, 1) * PACKED_ELEMENTS + np.arange(PACKED_ELEMENTS)
    return {"src": OperandElements(part.rows, columns.reshape(1, -1))}


def _written_groups(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """Where the numbers and the scales of a part of whole groups go."""
    found = {"dst": part}
    groups = part.rows.reshape(-1)[::GROUP_PARTITIONS] // GROUP_PARTITIONS
    for quadrant, item in enumerate(scales_of(form, "dst_scale")):
        rows = groups[groups // SCALE_ROWS == quadrant] % SCALE_ROWS
        found[item.role] = OperandElements(rows[:, None], part.columns)
    return found


def _quantise(call: OperationCall) -> RoleResults:
    """Divide each group by its scale: 1 + the weighted sum of its elements."""
    domain, groups = call.domain, len(call.part.rows) // GROUP_PARTITIONS
    shape = (groups, GROUP_PARTITIONS, call.part.columns.size, PACKED_ELEMENTS)
    source = call.given["src"].move(lambda array: array.reshape(shape))
    weighted = domain.apply_binary("multiply", source, domain.constant(_WEIGHTS))
    one = domain.constant(np.ones((1, 1, 1, 1)))
    scales = domain.apply_binary("add", domain.reduce("add", weighted, (1, 3)), one)
    numbers = domain.apply_binary("divide", source, scales)
    found = {"dst": numbers.move(lambda array: array.reshape(-1, *shape[2:]))}
    quadrants = call.part.rows.reshape(-1)[::GROUP_PARTITIONS] // GROUP_PARTITIONS // SCALE_ROWS
    for quadrant, item in enumerate(scales_of(call.form, "dst_scale")):
        mine = quadrants == quadrant
        found[item.role] = Planes(tuple(array[mine].reshape(-1, shape[2]) for array in scales.arrays))
    return found


def _reach_product(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """Columns of both operands and of their scales, and what the product is added to."""
    found = {"dst": part} if form.param("accumulate") else {}
    for role, wanted in (("stationary", part.rows), ("moving", part.columns)):
        for item in (form[role], *scales_of(form, f"{role}_scale")):
            rows = np.arange(item.partitions)[:, None]
            found[item.role] = OperandElements(rows, wanted.reshape(1, -1))
    return found


def _multiply(call: OperationCall) -> RoleResults:
    """The product of both operands times their scales, over partitions and the numbers of each element."""
    left, right = (_rescale(call, role) for role in ("stationary", "moving"))
    result = call.domain.matmul(left.move(np.transpose), right)
    if call.parameter("accumulate"):
        result = call.domain.apply_binary("add", call.given["dst"], result)
    return {"dst": result}


def _rescale(call: OperationCall, role: str) -> Planes:
    """An operand's numbers [4 K, columns], each times the scale of its group."""
    numbers = call.given[role]
    first, *others = (call.given[item.role] for item in scales_of(call.form, f"{role}_scale"))
    scales = first.join(others, np.concatenate)
    spread = scales.move(lambda array: np.repeat(array, GROUP_PARTITIONS, axis=0)[..., None])
    whole = call.domain.apply_binary("multiply", numbers, spread)
    columns = numbers.shape[1]
    return whole.move(lambda array: array.transpose(0, 2, 1).reshape(-1, columns))


OPERATIONS: dict[str, InstructionOperation] = {
    "quantize_mx": InstructionOperation(
        _quantise, _reach_source, demanded=_whole_groups, written=_written_groups, depth=8
    ),
    "nc_matmul_mx": InstructionOperation(_multiply, _reach_product, depth=PACKED_ELEMENTS),
}
