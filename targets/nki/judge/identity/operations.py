"""What each instruction of the simulator computes over a domain, and what it reads for that.

Instructions are in the tables of `pointwise` and `rowwise`. What is in neither, and everything that computes
in integers, is computed exactly, as floats are, where all that it reads is known; else nothing is known of
the results but what they depend on: all of the operands.
"""

from __future__ import annotations

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.errors import KernelError
from nki_sim.forms import Form, Operand
from nki_sim.functions import COMPARE, LOGICAL
from nki_sim.running.machine import view
from nki_sim.semantics import SEMANTICS
from nki_sim.semantics.arrays import NUMPY, Array
from remote.judge.identity.domain import Planes
from targets.nki.judge.identity import pointwise, rowwise
from targets.nki.judge.identity.call import REDUCED, Call, Operation, Results, read, written
from targets.nki.judge.identity.places import Where, whole

_TRUTHS = COMPARE | LOGICAL
_MOVES = frozenset({"dma_copy", "tensor_copy", "dma_transpose", "nc_transpose", "sendrecv"})
_CUT = frozenset({"tensor_tensor", "tensor_scalar", "scalar_tensor_tensor"})
"""Instructions on integers whose arithmetic in the simulator takes parts of tiles as it takes tiles."""

_REDUCTIONS = frozenset({"tensor_reduce", "tensor_partition_reduce"})


def operation(form: Form) -> Operation:
    """How an instruction is evaluated."""
    if form.op in _REDUCTIONS and form.param("op") not in REDUCED:
        return _ANY
    return _KNOWN.get(form.op, _ANY)


def evaluate(one: Operation, call: Call) -> Results:
    """The results of an instruction, in the types that they are stored in."""
    exactly = one is _ANY or (call.form.op in _CUT and _has_integers(call.form))
    found = _exact(call, in_full=one is _ANY) if exactly else None
    if found is not None:
        return found
    return {role: _stored(call, role, value) for role, value in one.compute(call).items()}


def _everything(form: Form, part: Where) -> dict[str, Where]:
    del part
    return {item.role: whole(item) for item in read(form)}


def _nothing_known(call: Call) -> Results:
    """Functions that nothing is known of, of the sum of all elements that were read."""
    domain = call.domain
    total = call.number(0.0)
    for value in call.given.values():
        total = domain.binary("add", total, domain.reduce("add", value, (0, 1)))
    found = {}
    for item in written(call.form):
        index = call.number(np.arange(1.0, 1.0 + item.elements).reshape(item.partitions, item.free))
        each = domain.binary("multiply", index, domain.binary("add", total, call.number(1.0)))
        found[item.role] = domain.unary(f"nisa.{call.form.op} {item.role}", each)
    return found


_ANY = Operation(_nothing_known, _everything, "whole")
_KNOWN = {**pointwise.OPERATIONS, **rowwise.OPERATIONS}


def _has_integers(form: Form) -> bool:
    return any(DTYPES[item.dtype].kind != "float" for item in form.operands)


def _exact(call: Call, *, in_full: bool) -> Results | None:
    """What the simulator computes; None where something that is read is not known, or it fails."""
    known = {role: call.domain.known(value) for role, value in call.given.items()}
    if any(np.isnan(values).any() for values in known.values()):
        return None
    arrays = {item.role: _array(call, item, known.get(item.role), in_full) for item in call.form.operands}
    values = {**dict(call.form.params), "engine": call.form.engine, "target": call.target}
    try:
        with np.errstate(all="ignore"):
            SEMANTICS[call.form.op](arrays, values)
    except KernelError:
        return None
    return {
        item.role: call.domain.constant(arrays[item.role].reshape(len(arrays[item.role]), -1))
        for item in written(call.form)
    }


def _array(call: Call, item: Operand, known: Array | None, in_full: bool) -> Array:
    """An operand in its own type: in its own shape, or the part of it as [rows, columns]."""
    part = (call.part.rows.size, call.part.columns.size if item.free > 1 else 1)
    shape = view(call.form, item).shape if in_full else part
    values: Array = np.zeros(shape) if known is None else known.reshape(shape)
    return values.astype(NUMPY[item.dtype])


def _stored(call: Call, role: str, value: Planes) -> Planes:
    """A result in the type of its operand: floats keep it, integers round what is known."""
    item = call.form.operand(role)
    if item is None or DTYPES[item.dtype].kind == "float" or _kept(call.form, item.dtype):
        return value
    known = call.domain.known(value)
    if np.isnan(known).any():
        return call.domain.unary(f"as {item.dtype}", value)
    return call.domain.constant(np.clip(np.rint(known), *DTYPES[item.dtype].limits))


def _kept(form: Form, dtype: str) -> bool:
    """Whether what is stored fits the integer type as it is: the same type, or truth values."""
    if form.op in _MOVES:
        return all(item.dtype == dtype for item in form.operands)
    return (form.param("op1") or form.param("op0") or form.param("op")) in _TRUTHS
