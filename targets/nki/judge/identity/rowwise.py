"""Instructions that combine elements: matrix products, reductions, scans, statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.forms import Form
from nki_sim.semantics.common import IDENTITIES
from remote.judge.identity.domain import Planes
from remote.judge.identity.recurrence import solve_recurrence
from targets.nki.judge.identity.instruction_operations import (
    InstructionOperation,
    OperationCall,
    RoleResults,
    reach_same_elements,
    reach_same_rows,
)
from targets.nki.judge.identity.operand_elements import OperandElements

_ANY_ORDER = frozenset({"add", "multiply", "maximum", "minimum"})


def _reach_matmul(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """Columns of both operands for rows and columns of the product, and what the product is added to."""
    stationary, moving = form["stationary"], form["moving"]
    halves = 2 if form.param("perf_mode") == "double_row" else 1
    found = {"dst": part} if form.param("accumulate") else {}
    for item, wanted in ((stationary, part.rows), (moving, part.columns)):
        starts = np.arange(halves) * (item.free // halves)
        columns = (starts[:, None] + wanted.reshape(1, -1)).reshape(1, -1)
        found[item.role] = OperandElements(np.arange(item.partitions)[:, None], columns)
    return found


def _multiply_matrices(call: OperationCall) -> RoleResults:
    """stationary.T @ moving; with double rows the contraction runs over both halves of a row."""
    depth = call.form["stationary"].partitions
    depth *= 2 if call.parameter("perf_mode") == "double_row" else 1
    left = call.given["stationary"].move(lambda array: array.reshape(depth, -1).T)
    right = call.given["moving"].move(lambda array: array.reshape(depth, -1))
    result = call.domain.matmul(left, right)
    if call.parameter("accumulate"):
        result = call.domain.apply_binary("add", call.given["dst"], result)
    return {"dst": result}


def _inner_size(form: Form) -> int:
    """Number of elements that a reduction of the last axes combines."""
    axes, data = form.param("axis"), form["data"]
    assert isinstance(axes, tuple)
    inner = 1
    for _, count in data.dims[len(data.dims) - len(axes) :]:
        inner *= count
    return inner


def _reach_groups(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    inner = _inner_size(form)
    columns = part.columns.reshape(-1, 1) * inner + np.arange(inner)
    return {"data": OperandElements(part.rows, columns.reshape(1, -1))}


def _tensor_reduce(call: OperationCall) -> RoleResults:
    rows, inner = len(call.part.rows), _inner_size(call.form)
    data = call.given["data"].move(lambda array: array.reshape(rows, -1, inner))
    result = call.reduce_axis(str(call.parameter("op")), data, 2).move(lambda array: array.reshape(rows, -1))
    return {"dst": call.negate_if(result, call.parameter("negate"))}


def _reach_all_rows(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    return {"data": OperandElements(np.arange(form["data"].partitions)[:, None], part.columns)}


def _partition_reduce(call: OperationCall) -> RoleResults:
    return {"dst": call.reduce_axis(str(call.parameter("op")), call.given["data"], 0)}


def _reach_prefix(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """The same rows, up to the last column that is needed."""
    first = np.zeros((1, 1), np.int64)
    roles = (item for item in form.operands if item.role in {"data0", "data1", "initial"})
    return {
        item.role: OperandElements(part.rows, part.columns if item.role != "initial" else first)
        for item in roles
    }


def _tensor_tensor_scan(call: OperationCall) -> RoleResults:
    """res[i] = (data0[i] op0 res[i-1]) op1 data1[i]; res[-1] is `initial`."""
    factors, terms, state = call.given["data0"], call.given["data1"], call.operand("initial")
    ops = (
        call.parameter("op0"),
        call.parameter("op1"),
        call.parameter("reverse0"),
        call.parameter("reverse1"),
    )
    if ops[:2] == ("multiply", "add"):
        return {"dst": _scan_recurrence(call, factors, terms, state=state)}
    found = []
    for at in range(terms.shape[1]):
        state = call.apply_operator(ops[0], _take_column(factors, at), state, ops[2])
        state = call.apply_operator(ops[1], state, _take_column(terms, at), ops[3])
        found.append(state)
    return {"dst": _join_columns(found)}


def _scan_recurrence(call: OperationCall, factors: Planes, terms: Planes, *, state: Planes) -> Planes:
    """res[i] = factors[i] * res[i-1] + terms[i]."""
    factors, terms = factors.move(np.transpose), terms.move(np.transpose)
    return solve_recurrence(call.domain, factors, terms, _take_column(state, 0).move(np.ravel)).move(
        np.transpose
    )


def _slice_columns(value: Planes, start: int | None, end: int | None, *, step: int = 1) -> Planes:
    return value.move(lambda array: array[:, start:end:step])


def _take_column(value: Planes, at: int) -> Planes:
    return _slice_columns(value, at, at + 1)


def _join_columns(parts: Sequence[Planes]) -> Planes:
    rows = max(part.shape[0] for part in parts)
    wide = [part.move(lambda array: np.broadcast_to(array, (rows, array.shape[1]))) for part in parts]
    return wide[0].join(wide[1:], lambda arrays: np.concatenate(arrays, axis=1))


def _tensor_scalar_cumulative(call: OperationCall) -> RoleResults:
    """reg = (src op0 imm0) op1 reg for one element after the other; dst gets every reg."""
    terms = call.apply_operator(
        call.parameter("op0"), call.given["src"], call.operand("imm0"), call.parameter("reverse0")
    )
    op, command = str(call.parameter("op1")), call.parameter("reduce_cmd")
    if command == "reset_reduce":
        state = call.make_constant(IDENTITIES[op])
    else:
        state = call.operand("imm1") if command == "load_reduce" else call.given["reduce_regs"]
    found = []
    for at in range(terms.shape[1]):
        state = call.apply_operator(op, _take_column(terms, at), state, call.parameter("reverse1"))
        found.append(state)
    return {"dst": _join_columns(found), "reduce_regs": state}


def _bn_stats(call: OperationCall) -> RoleResults:
    """(count, mean, variance * count) of the even elements of each row, then of the odd ones."""
    found: list[Planes] = []
    for start in (0, 1):
        found += _count_mean_spread(call, _slice_columns(call.given["data"], start, None, step=2))
    return {"dst": _choose_columns(_join_columns(found), call.part)}


def _count_mean_spread(call: OperationCall, data: Planes) -> list[Planes]:
    domain, count = call.domain, data.shape[1]
    if not count:
        return [call.make_constant(np.zeros((data.shape[0], 1)))] * 3
    mean = call.reduce_axis("average", data, 1)
    apart = domain.apply_binary("subtract", data, mean)
    spread = domain.reduce("add", domain.apply_binary("multiply", apart, apart), (1,))
    return [call.make_constant(np.full((data.shape[0], 1), float(count))), mean, spread]


def _bn_aggr(call: OperationCall) -> RoleResults:
    """Mean and variance of all elements that a row's (count, mean, variance * count) triples describe."""
    domain = call.domain
    count, mean, spread = (_slice_columns(call.given["data"], start, None, step=3) for start in range(3))
    total = domain.reduce("add", count, (1,))
    middle = domain.reduce("add", domain.apply_binary("multiply", count, mean), (1,))
    middle = domain.apply_binary("divide", middle, total)
    apart = domain.apply_binary("subtract", mean, middle)
    apart = domain.apply_binary("multiply", count, domain.apply_binary("multiply", apart, apart))
    around = domain.reduce("add", domain.apply_binary("add", spread, apart), (1,))
    both = _join_columns([middle, domain.apply_binary("divide", around, total)])
    return {"dst": _choose_columns(both, call.part)}


def _choose_columns(value: Planes, part: OperandElements) -> Planes:
    columns = part.columns.reshape(-1)
    return value.move(lambda array: array.take(columns, 1))


OPERATIONS: dict[str, InstructionOperation] = {
    "nc_matmul": InstructionOperation(_multiply_matrices, _reach_matmul),
    "tensor_reduce": InstructionOperation(_tensor_reduce, _reach_groups),
    "tensor_partition_reduce": InstructionOperation(_partition_reduce, _reach_all_rows),
    "tensor_tensor_scan": InstructionOperation(_tensor_tensor_scan, _reach_prefix, "prefix", depth=12),
    "tensor_scalar_cumulative": InstructionOperation(
        _tensor_scalar_cumulative, reach_same_elements, "prefix", depth=12
    ),
    "bn_stats": InstructionOperation(_bn_stats, reach_same_rows),
    "bn_aggr": InstructionOperation(_bn_aggr, reach_same_rows),
}
