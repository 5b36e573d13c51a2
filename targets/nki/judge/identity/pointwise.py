"""Instructions that move elements, or compute each from those at its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_sim.forms import Form
from nki_sim.program.ir import Ints
from nki_sim.semantics import SEMANTICS
from nki_sim.semantics.arrays import Array
from nki_sim.semantics.common import number
from remote.judge.identity.domain import Planes
from targets.nki.judge.identity.call import Call, Operation, Results, along, read
from targets.nki.judge.identity.places import Where, numbered, numbers

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _in_order(form: Form, part: Where) -> dict[str, Where]:
    """The elements of the same numbers, counted in row order."""
    wanted = numbers(part, form["dst"])
    return {item.role: numbered(wanted, item) for item in read(form)}


def _copied(call: Call) -> Results:
    return {"dst": call.given["src"]}


def _turned(form: Form, part: Where) -> dict[str, Where]:
    """What a transpose by DMA brings to the places of the part."""
    src = form["src"]
    counts = [count for _, count in src.dims]
    order: Ints = np.arange(src.elements).reshape(counts).transpose(_AXES[len(counts)]).reshape(-1)
    return {"src": numbered(order[numbers(part, form["dst"])], src)}


def _swapped(form: Form, part: Where) -> dict[str, Where]:
    del form
    return {"data": Where(part.columns.reshape(-1, 1), part.rows.reshape(1, -1))}


def _transposed(call: Call) -> Results:
    return {"dst": call.given["data"].move(np.transpose)}


def _summed(call: Call) -> Results:
    first, *others = call.given.values()
    for other in others:
        first = call.domain.binary("add", first, other)
    return {"dst": first}


def _filled(call: Call) -> Results:
    value = call.value("value")
    assert value is not None
    return {"dst": call.number(number(value))}


def _tensor_tensor(call: Call) -> Results:
    return {"dst": call.apply(call.value("op"), call.given["data1"], call.given["data2"])}


def _first_op(call: Call) -> Planes:
    return call.apply(call.value("op0"), call.given["data"], call.operand("operand0"), call.value("reverse0"))


def _tensor_scalar(call: Call) -> Results:
    """(data op0 operand0) op1 operand1."""
    result = _first_op(call)
    if call.value("op1") is not None:
        result = call.apply(call.value("op1"), result, call.operand("operand1"), call.value("reverse1"))
    return {"dst": result}


def _tensor_scalar_reduce(call: Call) -> Results:
    result = _first_op(call)
    return {"dst": result, **call.accumulated(result, str(call.value("reduce_op")))}


def _activation(call: Call) -> Results:
    """op(data * scale + bias), and its sum over the free axis into the registers."""
    value = call.given["data"]
    if "scale" in call.given or call.value("scale", 0.0) != 1.0:
        value = call.domain.binary("multiply", value, call.operand("scale"))
    if "bias" in call.given or call.value("bias") is not None:
        value = call.domain.binary("add", value, call.operand("bias"))
    result = call.domain.unary(str(call.value("op")), value)
    return {"dst": result, **call.accumulated(result, str(call.value("reduce_op", "add")))}


def _reciprocal(call: Call) -> Results:
    return {"dst": call.domain.unary("reciprocal", call.given["data"])}


def _counted(call: Call) -> Results:
    """The numbers of `iota`, exactly as instructions count."""
    dst = call.form["dst"]
    counted: Array = np.empty((dst.partitions, dst.free), np.int32)
    SEMANTICS["iota"]({"dst": counted}, dict(call.form.params))
    return {"dst": call.number(counted[call.part.rows, call.part.columns])}


def _affine_select(call: Call) -> Results:
    dst = call.form["dst"]
    chosen: Array = np.empty((dst.partitions, dst.free), np.float32)
    values = {**dict(call.form.params), "on_false_value": 0.0}
    SEMANTICS["affine_select"]({"dst": chosen, "on_true_tile": np.ones_like(chosen)}, values)
    mask = call.domain.constant(chosen[call.part.rows, call.part.columns] != 0)
    return {"dst": call.domain.select(mask, call.given["on_true_tile"], call.operand("on_false_value"))}


def _range_select(call: Call) -> Results:
    """Elements whose index, from `range_start`, is within both bounds."""
    index = call.number(call.part.columns + number(call.value("range_start", 0) or 0))
    first = call.apply(call.value("comp_op0"), index, call.given["bound0"])
    second = call.apply(call.value("comp_op1"), index, call.given["bound1"])
    mask = call.domain.binary("logical_and", first, second)
    result = call.domain.select(mask, call.given["on_true_tile"], call.operand("on_false_value"))
    return {"dst": result, **call.accumulated(result, "maximum")}


def _holds(call: Call) -> Planes:
    """Where the predicate is not zero, or is with `reverse_pred`."""
    name = "equal" if call.value("reverse_pred") else "not_equal"
    return call.domain.binary(name, call.given["predicate"], call.number(0.0))


def _select_reduce(call: Call) -> Results:
    result = call.domain.select(_holds(call), call.given["on_true"], call.operand("on_false"))
    return {"dst": result, **call.accumulated(result, "maximum")}


def _copied_where(call: Call) -> Results:
    return {"dst": call.domain.select(_holds(call), call.operand("src"), call.given["dst"])}


def _pointwise(compute: Callable[[Call], Results], depth: int = 1) -> Operation:
    return Operation(compute, along, depth=depth)


OPERATIONS: dict[str, Operation] = {
    "dma_copy": Operation(_copied, _in_order),
    "sendrecv": Operation(_copied, _in_order),
    "tensor_copy": Operation(_copied, _in_order),
    "dma_transpose": Operation(_copied, _turned),
    "nc_transpose": Operation(_transposed, _swapped),
    "dma_compute": Operation(_summed, _in_order),
    "memset": _pointwise(_filled),
    "tensor_tensor": _pointwise(_tensor_tensor),
    "tensor_scalar": _pointwise(_tensor_scalar),
    "scalar_tensor_tensor": _pointwise(_tensor_scalar),
    "tensor_scalar_reduce": _pointwise(_tensor_scalar_reduce),
    "activation": _pointwise(_activation, depth=20),
    "activation_reduce": _pointwise(_activation, depth=20),
    "reciprocal": _pointwise(_reciprocal, depth=10),
    "iota": _pointwise(_counted),
    "affine_select": _pointwise(_affine_select),
    "range_select": _pointwise(_range_select),
    "select_reduce": _pointwise(_select_reduce),
    "tensor_copy_predicated": _pointwise(_copied_where),
}
