"""Instructions that combine elements: products of matrices, reductions, scans, statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.forms import Form
from nki_sim.semantics.common import IDENTITIES
from remote.judge.identity.domain import Planes
from remote.judge.identity.recurrence import recurrence
from targets.nki.judge.identity.call import Call, Operation, Results, rows_of
from targets.nki.judge.identity.places import Where

_ANY_ORDER = frozenset({"add", "multiply", "maximum", "minimum"})


def _factors(form: Form, part: Where) -> dict[str, Where]:
    """Columns of both operands for rows and columns of the product, and what it is added to."""
    stationary, moving = form["stationary"], form["moving"]
    halves = 2 if form.param("perf_mode") == "double_row" else 1
    found = {"dst": part} if form.param("accumulate") else {}
    for item, wanted in ((stationary, part.rows), (moving, part.columns)):
        starts = np.arange(halves) * (item.free // halves)
        columns = (starts[:, None] + wanted.reshape(1, -1)).reshape(1, -1)
        found[item.role] = Where(np.arange(item.partitions)[:, None], columns)
    return found


def _product(call: Call) -> Results:
    """stationary.T @ moving; with double rows the contraction runs through both halves of a row."""
    depth = call.form["stationary"].partitions
    depth *= 2 if call.value("perf_mode") == "double_row" else 1
    left = call.given["stationary"].move(lambda array: array.reshape(depth, -1).T)
    right = call.given["moving"].move(lambda array: array.reshape(depth, -1))
    result = call.domain.matmul(left, right)
    if call.value("accumulate"):
        result = call.domain.binary("add", call.given["dst"], result)
    return {"dst": result}


def _inner(form: Form) -> int:
    """Elements that a reduction of the last axes takes together."""
    axes, data = form.param("axis"), form["data"]
    assert isinstance(axes, tuple)
    inner = 1
    for _, count in data.dims[len(data.dims) - len(axes) :]:
        inner *= count
    return inner


def _groups(form: Form, part: Where) -> dict[str, Where]:
    inner = _inner(form)
    columns = part.columns.reshape(-1, 1) * inner + np.arange(inner)
    return {"data": Where(part.rows, columns.reshape(1, -1))}


def _tensor_reduce(call: Call) -> Results:
    rows, inner = len(call.part.rows), _inner(call.form)
    data = call.given["data"].move(lambda array: array.reshape(rows, -1, inner))
    result = call.reduced(str(call.value("op")), data, 2).move(lambda array: array.reshape(rows, -1))
    return {"dst": call.negated(result, call.value("negate"))}


def _all_rows(form: Form, part: Where) -> dict[str, Where]:
    return {"data": Where(np.arange(form["data"].partitions)[:, None], part.columns)}


def _partition_reduce(call: Call) -> Results:
    return {"dst": call.reduced(str(call.value("op")), call.given["data"], 0)}


def _up_to(form: Form, part: Where) -> dict[str, Where]:
    """The same rows, up to the last column that is wanted."""
    first = np.zeros((1, 1), np.int64)
    roles = (item for item in form.operands if item.role in {"data0", "data1", "initial"})
    return {item.role: Where(part.rows, part.columns if item.role != "initial" else first) for item in roles}


def _scan(call: Call) -> Results:
    """res[i] = (data0[i] op0 res[i-1]) op1 data1[i]; res[-1] is `initial`."""
    factors, terms, state = call.given["data0"], call.given["data1"], call.operand("initial")
    ops = (call.value("op0"), call.value("op1"), call.value("reverse0"), call.value("reverse1"))
    if ops[:2] == ("multiply", "add"):
        return {"dst": _recurrence(call, factors, terms, state)}
    found = []
    for at in range(terms.shape[1]):
        state = call.apply(ops[0], _column(factors, at), state, ops[2])
        state = call.apply(ops[1], state, _column(terms, at), ops[3])
        found.append(state)
    return {"dst": _side_by_side(found)}


def _recurrence(call: Call, factors: Planes, terms: Planes, state: Planes) -> Planes:
    """res[i] = factors[i] * res[i-1] + terms[i]."""
    factors, terms = factors.move(np.transpose), terms.move(np.transpose)
    return recurrence(call.domain, factors, terms, _column(state, 0).move(np.ravel)).move(np.transpose)


def _columns(value: Planes, start: int | None, end: int | None, step: int = 1) -> Planes:
    return value.move(lambda array: array[:, start:end:step])


def _column(value: Planes, at: int) -> Planes:
    return _columns(value, at, at + 1)


def _side_by_side(parts: Sequence[Planes]) -> Planes:
    rows = max(part.shape[0] for part in parts)
    wide = [part.move(lambda array: np.broadcast_to(array, (rows, array.shape[1]))) for part in parts]
    return wide[0].join(wide[1:], lambda arrays: np.concatenate(arrays, axis=1))


def _cumulative(call: Call) -> Results:
    """reg = (src op0 imm0) op1 reg for one element after the other; dst gets every reg."""
    terms = call.apply(call.value("op0"), call.given["src"], call.operand("imm0"), call.value("reverse0"))
    op, command = str(call.value("op1")), call.value("reduce_cmd")
    if command == "reset_reduce":
        state = call.number(IDENTITIES[op])
    else:
        state = call.operand("imm1") if command == "load_reduce" else call.given["reduce_regs"]
    found = []
    for at in range(terms.shape[1]):
        state = call.apply(op, _column(terms, at), state, call.value("reverse1"))
        found.append(state)
    return {"dst": _side_by_side(found), "reduce_regs": state}


def _bn_stats(call: Call) -> Results:
    """(count, mean, variance * count) of the even elements of each row, then of the odd ones."""
    found: list[Planes] = []
    for start in (0, 1):
        found += _statistics(call, _columns(call.given["data"], start, None, 2))
    return {"dst": _chosen(_side_by_side(found), call.part)}


def _statistics(call: Call, data: Planes) -> list[Planes]:
    domain, count = call.domain, data.shape[1]
    if not count:
        return [call.number(np.zeros((data.shape[0], 1)))] * 3
    mean = call.reduced("average", data, 1)
    apart = domain.binary("subtract", data, mean)
    spread = domain.reduce("add", domain.binary("multiply", apart, apart), (1,))
    return [call.number(np.full((data.shape[0], 1), float(count))), mean, spread]


def _bn_aggr(call: Call) -> Results:
    """Mean and variance of all that the (count, mean, variance * count) of a row stand for."""
    domain = call.domain
    count, mean, spread = (_columns(call.given["data"], start, None, 3) for start in range(3))
    total = domain.reduce("add", count, (1,))
    middle = domain.reduce("add", domain.binary("multiply", count, mean), (1,))
    middle = domain.binary("divide", middle, total)
    apart = domain.binary("subtract", mean, middle)
    apart = domain.binary("multiply", count, domain.binary("multiply", apart, apart))
    around = domain.reduce("add", domain.binary("add", spread, apart), (1,))
    both = _side_by_side([middle, domain.binary("divide", around, total)])
    return {"dst": _chosen(both, call.part)}


def _chosen(value: Planes, part: Where) -> Planes:
    columns = part.columns.reshape(-1)
    return value.move(lambda array: array.take(columns, 1))


OPERATIONS: dict[str, Operation] = {
    "nc_matmul": Operation(_product, _factors),
    "tensor_reduce": Operation(_tensor_reduce, _groups),
    "tensor_partition_reduce": Operation(_partition_reduce, _all_rows),
    "tensor_tensor_scan": Operation(_scan, _up_to, "prefix", depth=12),
    "tensor_scalar_cumulative": Operation(_cumulative, rows_of, "prefix", depth=12),
    "bn_stats": Operation(_bn_stats, rows_of),
    "bn_aggr": Operation(_bn_aggr, rows_of),
}
