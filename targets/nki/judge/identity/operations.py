"""What each instruction of the simulator computes over a domain, and which elements it reads.

The tables in `pointwise`, `rowwise` and `quantised` list the instructions. An instruction in no table, or one
on integers, is computed exactly, as for floats, if everything it reads is known. Otherwise its results are
unknown and depend on all operands.
"""

from __future__ import annotations

import numpy as np

from nki_sim.dtypes import DTYPES, integer_limits
from nki_sim.errors import KernelError
from nki_sim.forms import Form, Operand
from nki_sim.functions import COMPARE, LOGICAL
from nki_sim.operators.rules.search import UNMODIFIED
from nki_sim.running.machine import make_view
from nki_sim.semantics import SEMANTICS
from nki_sim.semantics.arrays import NUMPY, Array
from remote.judge.identity.domain import Planes
from targets.nki.judge.identity import pointwise, quantised, rowwise
from targets.nki.judge.identity.instruction_operations import (
    KNOWN_REDUCTIONS,
    InstructionOperation,
    OperationCall,
    RoleResults,
    operands_read,
    operands_written,
)
from targets.nki.judge.identity.operand_elements import OperandElements, all_elements

_TRUTH_OPERATORS = COMPARE | LOGICAL
_MOVES = frozenset({"dma_copy", "tensor_copy", "dma_transpose", "nc_transpose", "sendrecv"})
_CUTTABLE = frozenset({"tensor_tensor", "tensor_scalar", "scalar_tensor_tensor"})
"""Integer instructions whose arithmetic in the simulator works on parts of tiles as on whole tiles."""

_REDUCTIONS = frozenset({"tensor_reduce", "tensor_partition_reduce"})


def select_operation(form: Form) -> InstructionOperation:
    """How an instruction is evaluated."""
    if form.op in _REDUCTIONS and form.param("op") not in KNOWN_REDUCTIONS:
        return _OPAQUE_OPERATION
    if form.op == "nc_stream_shuffle" and UNMODIFIED in pointwise.shuffle_mask(form):
        return _OPAQUE_OPERATION
    return _OPERATIONS.get(form.op, _OPAQUE_OPERATION)


def evaluate_operation(one: InstructionOperation, call: OperationCall) -> RoleResults:
    """The results of an instruction, in the types in which they are stored."""
    exactly = one is _OPAQUE_OPERATION or (call.form.op in _CUTTABLE and _has_integers(call.form))
    found = _compute_exactly(call, in_full=one is _OPAQUE_OPERATION) if exactly else None
    if found is not None:
        return found
    return {role: _store_as_dtype(call, role, value) for role, value in one.compute(call).items()}


def _reach_everything(form: Form, part: OperandElements) -> dict[str, OperandElements]:
    del part
    return {item.role: all_elements(item) for item in operands_read(form)}


def _compute_opaque(call: OperationCall) -> RoleResults:
    """Opaque functions of the sum of all elements that were read."""
    domain = call.domain
    total = call.make_constant(0.0)
    for value in call.given.values():
        total = domain.apply_binary("add", total, domain.reduce("add", value, (0, 1)))
    found = {}
    for item in operands_written(call.form):
        index = call.make_constant(np.arange(1.0, 1.0 + item.elements).reshape(item.partitions, item.free))
        each = domain.apply_binary(
            "multiply", index, domain.apply_binary("add", total, call.make_constant(1.0))
        )
        found[item.role] = domain.apply_unary(f"nisa.{call.form.op} {item.role}", each)
    return found


_OPAQUE_OPERATION = InstructionOperation(_compute_opaque, _reach_everything, "whole")
_OPERATIONS = {**pointwise.OPERATIONS, **rowwise.OPERATIONS, **quantised.OPERATIONS}


def _has_integers(form: Form) -> bool:
    return any(DTYPES[item.dtype].kind != "float" for item in form.operands)


def _compute_exactly(call: OperationCall, *, in_full: bool) -> RoleResults | None:
    """What the simulator computes; None if something it reads is unknown, or if it fails."""
    known = {role: call.domain.known_values(value) for role, value in call.given.items()}
    if any(np.isnan(values).any() for values in known.values()):
        return None
    arrays = {
        item.role: _operand_array(call, item, known.get(item.role), in_full) for item in call.form.operands
    }
    values = {**dict(call.form.params), "engine": call.form.engine, "target": call.target}
    try:
        with np.errstate(all="ignore"):
            SEMANTICS[call.form.op](arrays, values)
    except KernelError:
        return None
    return {
        item.role: call.domain.constant(arrays[item.role].reshape(len(arrays[item.role]), -1))
        for item in operands_written(call.form)
    }


def _operand_array(call: OperationCall, item: Operand, known: Array | None, in_full: bool) -> Array:
    """An operand in its own type: in its own shape, or its part as [rows, columns]."""
    part = (call.part.rows.size, call.part.columns.size if item.free > 1 else 1)
    shape = make_view(call.form, item).shape if in_full else part
    values: Array = np.zeros(shape) if known is None else known.reshape(shape)
    return values.astype(NUMPY[item.dtype])


def _store_as_dtype(call: OperationCall, role: str, value: Planes) -> Planes:
    """A result in the type of its operand: floats are unchanged, integers round known values."""
    item = call.form.operand(role)
    if item is None or DTYPES[item.dtype].kind == "float" or _fits_dtype(call.form, item.dtype):
        return value
    known = call.domain.known_values(value)
    if np.isnan(known).any():
        return call.domain.apply_unary(f"as {item.dtype}", value)
    return call.domain.constant(np.clip(np.rint(known), *integer_limits(DTYPES[item.dtype])))


def _fits_dtype(form: Form, dtype: str) -> bool:
    """Whether a value fits the integer type unchanged: it has the same type, is a boolean, or is a scale."""
    if form.op == "quantize_mx":
        return True
    if form.op in _MOVES:
        return all(item.dtype == dtype for item in form.operands)
    return (form.param("op1") or form.param("op0") or form.param("op")) in _TRUTH_OPERATORS
