"""Instructions that move elements, or compute each from the elements at its position."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_sim.forms import Form
from nki_sim.program.ir import Ints
from nki_sim.semantics import SEMANTICS
from nki_sim.semantics.arrays import Array
from nki_sim.semantics.common import as_float
from nki_sim.semantics.gather import source_partitions
from remote.judge.identity.domain import Planes
from targets.nki.judge.identity.instruction_operations import (
    InstructionOperation,
    OperationCall,
    RoleResults,
    operands_read,
    reach_same_elements,
)
from targets.nki.judge.identity.operand_elements import OperandElements, element_numbers, elements_by_number

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _reach_in_order(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """The elements of the same numbers, counted in row order."""
    wanted = element_numbers(part, form["dst"])
    return {item.role: elements_by_number(wanted, item) for item in operands_read(form)}


def _copy_source(call: OperationCall) -> RoleResults:
    return {"dst": call.given["src"]}


def _reach_dma_transpose(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """The elements that a DMA transpose brings to the positions of the part."""
    src = form["src"]
    counts = [count for _, count in src.dims]
    order: Ints = np.arange(src.elements).reshape(counts).transpose(_AXES[len(counts)]).reshape(-1)
    return {"src": elements_by_number(order[element_numbers(part, form["dst"])], src)}


def _reach_transpose(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    del form
    return {"data": OperandElements(part.columns.reshape(-1, 1), part.rows.reshape(1, -1))}


def shuffle_mask(form: Form) -> Ints:
    """The partition of a quadrant that each of its partitions comes from."""
    return np.array(form.param("shuffle_mask"))


def _reach_shuffled(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    """The partition of the same quadrant that the mask names for each partition."""
    lanes: Ints = part.rows.reshape(-1)
    rows = source_partitions(shuffle_mask(form), lanes)
    return {"src": OperandElements(rows.reshape(-1, 1), part.columns)}


def _transpose_data(call: OperationCall) -> RoleResults:
    return {"dst": call.given["data"].move(np.transpose)}


def _sum_operands(call: OperationCall) -> RoleResults:
    first, *others = call.given.values()
    for other in others:
        first = call.domain.apply_binary("add", first, other)
    return {"dst": first}


def _fill_constant(call: OperationCall) -> RoleResults:
    value = call.parameter("value")
    assert value is not None
    return {"dst": call.make_constant(as_float(value))}


def _tensor_tensor(call: OperationCall) -> RoleResults:
    return {"dst": call.apply_operator(call.parameter("op"), call.given["data1"], call.given["data2"])}


def _apply_first_operator(call: OperationCall) -> Planes:
    return call.apply_operator(
        call.parameter("op0"), call.given["data"], call.operand("operand0"), call.parameter("reverse0")
    )


def _tensor_scalar(call: OperationCall) -> RoleResults:
    """(data op0 operand0) op1 operand1."""
    result = _apply_first_operator(call)
    if call.parameter("op1") is not None:
        result = call.apply_operator(
            call.parameter("op1"), result, call.operand("operand1"), call.parameter("reverse1")
        )
    return {"dst": result}


def _tensor_scalar_reduce(call: OperationCall) -> RoleResults:
    result = _apply_first_operator(call)
    return {"dst": result, **call.accumulate_registers(result, str(call.parameter("reduce_op")))}


def _activation(call: OperationCall) -> RoleResults:
    """op(data * scale + bias), and its sum over the free axis into the registers."""
    value = call.given["data"]
    if "scale" in call.given or call.parameter("scale", 0.0) != 1.0:
        value = call.domain.apply_binary("multiply", value, call.operand("scale"))
    if "bias" in call.given or call.parameter("bias") is not None:
        value = call.domain.apply_binary("add", value, call.operand("bias"))
    result = call.domain.apply_unary(str(call.parameter("op")), value)
    return {"dst": result, **call.accumulate_registers(result, str(call.parameter("reduce_op", "add")))}


def _exponential(call: OperationCall) -> RoleResults:
    """exp(src - max_value), and its sum over the free axis into the registers."""
    value = call.given["src"]
    if "max_value" in call.given or call.parameter("max_value", 0.0) != 0.0:
        value = call.domain.apply_binary("subtract", value, call.operand("max_value"))
    result = call.domain.apply_unary("exp", value)
    return {"dst": result, **call.accumulate_registers(result, "add")}


def _reciprocal(call: OperationCall) -> RoleResults:
    return {"dst": call.domain.apply_unary("reciprocal", call.given["data"])}


def _iota(call: OperationCall) -> RoleResults:
    """The numbers of `iota`, exactly as the instruction counts."""
    dst = call.form["dst"]
    counted: Array = np.empty((dst.partitions, dst.free), np.int32)
    SEMANTICS["iota"]({"dst": counted}, dict(call.form.params))
    return {"dst": call.make_constant(counted[call.part.rows, call.part.columns])}


def _affine_select(call: OperationCall) -> RoleResults:
    dst = call.form["dst"]
    chosen: Array = np.empty((dst.partitions, dst.free), np.float32)
    values = {**dict(call.form.params), "on_false_value": 0.0}
    SEMANTICS["affine_select"]({"dst": chosen, "on_true_tile": np.ones_like(chosen)}, values)
    mask = call.domain.constant(chosen[call.part.rows, call.part.columns] != 0)
    return {"dst": call.domain.select(mask, call.given["on_true_tile"], call.operand("on_false_value"))}


def _range_select(call: OperationCall) -> RoleResults:
    """Elements whose index, counted from `range_start`, is within both bounds."""
    index = call.make_constant(call.part.columns + as_float(call.parameter("range_start", 0) or 0))
    first = call.apply_operator(call.parameter("comp_op0"), index, call.given["bound0"])
    second = call.apply_operator(call.parameter("comp_op1"), index, call.given["bound1"])
    mask = call.domain.apply_binary("logical_and", first, second)
    result = call.domain.select(mask, call.given["on_true_tile"], call.operand("on_false_value"))
    return {"dst": result, **call.accumulate_registers(result, "maximum")}


def _evaluate_predicate(call: OperationCall) -> Planes:
    """Where the predicate is nonzero, or zero with `reverse_pred`."""
    name = "equal" if call.parameter("reverse_pred") else "not_equal"
    return call.domain.apply_binary(name, call.given["predicate"], call.make_constant(0.0))


def _select_reduce(call: OperationCall) -> RoleResults:
    result = call.domain.select(_evaluate_predicate(call), call.given["on_true"], call.operand("on_false"))
    return {"dst": result, **call.accumulate_registers(result, "maximum")}


def _copy_predicated(call: OperationCall) -> RoleResults:
    return {"dst": call.domain.select(_evaluate_predicate(call), call.operand("src"), call.given["dst"])}


def _pointwise_operation(
    compute: Callable[[OperationCall], RoleResults], depth: int = 1
) -> InstructionOperation:
    return InstructionOperation(compute, reach_same_elements, depth=depth)


OPERATIONS: dict[str, InstructionOperation] = {
    "dma_copy": InstructionOperation(_copy_source, _reach_in_order),
    "sendrecv": InstructionOperation(_copy_source, _reach_in_order),
    "tensor_copy": InstructionOperation(_copy_source, _reach_in_order),
    "dma_transpose": InstructionOperation(_copy_source, _reach_dma_transpose),
    "nc_transpose": InstructionOperation(_transpose_data, _reach_transpose),
    "nc_stream_shuffle": InstructionOperation(_copy_source, _reach_shuffled),
    "dma_compute": InstructionOperation(_sum_operands, _reach_in_order),
    "memset": _pointwise_operation(_fill_constant),
    "tensor_tensor": _pointwise_operation(_tensor_tensor),
    "tensor_scalar": _pointwise_operation(_tensor_scalar),
    "scalar_tensor_tensor": _pointwise_operation(_tensor_scalar),
    "tensor_scalar_reduce": _pointwise_operation(_tensor_scalar_reduce),
    "activation": _pointwise_operation(_activation, depth=20),
    "activation_reduce": _pointwise_operation(_activation, depth=20),
    "exponential": _pointwise_operation(_exponential, depth=20),
    "reciprocal": _pointwise_operation(_reciprocal, depth=10),
    "iota": _pointwise_operation(_iota),
    "affine_select": _pointwise_operation(_affine_select),
    "range_select": _pointwise_operation(_range_select),
    "select_reduce": _pointwise_operation(_select_reduce),
    "tensor_copy_predicated": _pointwise_operation(_copy_predicated),
}
