"""Propagates unwritten elements: which positions of a result an undefined position of an operand spoils.

Memory holds anything before the first write, NaN included. A result is therefore undefined wherever the
arithmetic uses such an element, even multiplied by zero. Copies, element-wise instructions, transposes and
products spoil only the positions computed from it. Instructions that work along the rows of partitions spoil
whole rows. Everything else spoils its whole result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_sim.forms import PRODUCTS, Form, Operand, index_role
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Bools
from nki_sim.semantics.matrix import MULTIPLYING_TARGET

SpreadRule = Callable[[Form, Operand, Bools, Operand], Bools]
"""(form, operand, its undefined positions [P, F], output) -> positions [P, F] of the output."""

_DECIDING = frozenset({"index", "indices", "predicate"})
"""Operands that may choose what an instruction touches."""


def deciding_roles(form: Form) -> frozenset[str]:
    """Roles whose elements are addresses or conditions, which must have been written."""
    found = {index_role(item.role) for item in form.operands if item.index_step}
    operator = OPERATORS[form.op]
    if not any(operator.effect(form, item.role)[0] for item in form.operands):
        return frozenset(item.role for item in form.operands)
    return frozenset(found | _DECIDING if operator.partial(form) else found)


def spread_undefined(form: Form, target: str, lost: dict[str, Bools], out: Operand) -> Bools | None:
    """Positions [P, F] of an output spoiled by undefined positions of operands, by role; None if none are."""
    found = np.zeros((out.partitions, out.free), dtype=bool)
    rule = _spread_rule(form, target)
    for role, places in lost.items():
        found |= rule(form, form[role], places, out)
    return found if found.any() else None


def _spread_rule(form: Form, target: str) -> SpreadRule:
    if form.op == "nc_transpose" and form.engine == "tensor" and target == MULTIPLYING_TARGET:
        return _spread_multiplied
    return _SPREADS.get(form.op, _spread_everywhere)


def _spread_everywhere(form: Form, item: Operand, places: Bools, out: Operand) -> Bools:
    del form, item
    return np.full((out.partitions, out.free), places.any())


def _spread_rows(form: Form, item: Operand, places: Bools, out: Operand) -> Bools:
    if item.partitions != out.partitions:
        return _spread_everywhere(form, item, places, out)
    return np.broadcast_to(places.any(axis=1, keepdims=True), (out.partitions, out.free))


def _spread_same_place(form: Form, item: Operand, places: Bools, out: Operand) -> Bools:
    if out.role not in {"dst", item.role} or item.elements != out.elements:
        return _spread_rows(form, item, places, out)
    return places.reshape(out.partitions, out.free)


def _spread_transposed(form: Form, item: Operand, places: Bools, out: Operand) -> Bools:
    if len(item.dims) != 2 or len(out.dims) != 2 or form.param("axes") not in {None, (1, 0)}:
        return _spread_everywhere(form, item, places, out)
    return places.T


def _spread_multiplied(form: Form, item: Operand, places: Bools, out: Operand) -> Bools:
    """A transpose by multiplication: every element of an output row uses all of an input column."""
    del form, item
    return np.broadcast_to(places.any(axis=0, keepdims=True).T, (out.partitions, out.free))


def _spread_product(form: Form, item: Operand, places: Bools, out: Operand) -> Bools:
    if form.param("perf_mode", "none") != "none":
        return _spread_everywhere(form, item, places, out)
    if item.role == "dst":
        return places
    columns = places.any(axis=0, keepdims=True)
    along = columns.T if item.role.startswith("stationary") else columns
    return np.broadcast_to(along, (out.partitions, out.free))


_SPREADS: dict[str, SpreadRule] = {
    **dict.fromkeys(
        (
            "tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "activation", "activation_reduce",
            "activate2", "exponential", "tensor_scalar_reduce", "reciprocal", "tensor_copy", "dma_copy",
            "dma_compute", "tensor_copy_predicated", "affine_select", "select_reduce", "dropout", "sendrecv",
        ),
        _spread_same_place,
    ),
    **dict.fromkeys(
        (
            "tensor_reduce", "tensor_tensor_scan", "tensor_scalar_cumulative", "bn_stats", "bn_aggr",
            "range_select", "max8", "nc_find_index8", "nc_match_replace8", "nonzero_with_count",
            "nc_n_gather", "sequence_bounds",
        ),
        _spread_rows,
    ),
    "nc_transpose": _spread_transposed,
    "dma_transpose": _spread_transposed,
    **dict.fromkeys(PRODUCTS, _spread_product),
}  # fmt: skip
