"""Fused reductions: the instruction that makes a tile, or part of one, also reduces its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.dtypes import DTYPES
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement, StatementKind
from targets.nki.rewrites.reductions import reduces_rows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import LibrarySymbol


class ReductionPair(NamedTuple):
    """`maker` writes the view that `reduction` reads; both are in one block."""

    maker: Statement
    reduction: Statement


class FuseReduction(Transform[ReductionPair]):
    """Fuses a reduction into the instruction that makes its input."""

    id: ClassVar[str] = "fuse_reduction"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "the engine reduces the float32 values that it writes; nothing touches them or the result in between"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, ReductionPair]:
        del target
        found: dict[str, ReductionPair] = {}
        for reduction in (item for item in kernel.operations() if item.op == "tensor_reduce"):
            pair, result = find_reduction_pair(kernel, reduction), reduction.find_access("dst")
            if pair is not None and result is not None:
                base = f"{pair.maker.op} and {reduction.op} to {kernel.unique_label(result.tensor)}"
                found.setdefault(base, pair)
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: ReductionPair) -> tuple[Choice, ...]:
        del target
        _check_fusible(kernel, place)
        ways = [way for way in _FUSED_INSTRUCTIONS if _FUSED_INSTRUCTIONS[way](kernel, place) is not None]
        if not ways:
            raise RewriteRefused(
                f"no instruction does what {place.maker.op} does and reduces with "
                f"{_describe_reduction(place)}"
            )
        return tuple({"by": way} for way in ways)

    def apply(self, kernel: Kernel, target: Target, place: ReductionPair, choice: Choice) -> str:
        del target
        _check_fusible(kernel, place)
        words = _FUSED_INSTRUCTIONS[str(choice["by"])](kernel, place)
        if words is None:
            raise RewriteRefused(
                f"{choice['by']} does not do what {place.maker.op} does and reduce with "
                f"{_describe_reduction(place)}"
            )
        made = syntax.make_call(f"{kernel.nisa}.{choice['by']}", words)
        told = syntax.merge_leading_lines(place.maker.node, place.reduction.node)
        fused = syntax.with_leading_lines(made, told)
        result = place.reduction.find_access("dst")
        assert result is not None
        declared = kernel.declarations[result.tensor.id]
        late = declared.order > place.maker.order

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is place.maker:
                return [declared.node, fused] if late else [fused]
            return [] if node is place.reduction or (late and node is declared) else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def find_reduction_pair(kernel: Kernel, reduction: Statement) -> ReductionPair | None:
    """Pair a reduction with the last earlier instruction that writes its input; None if they cannot fuse."""
    data = reduction.find_access("data")
    if data is None:
        return None
    before = [item for item in kernel.users_of(data.tensor) if item.order < reduction.order]
    last = max(
        (item for item in before if item.writes_tensor(data.tensor)),
        key=lambda item: item.order,
        default=None,
    )
    return ReductionPair(last, reduction) if last is not None and last.op in _FUSIBLE_MAKERS else None


def _check_fusible(kernel: Kernel, pair: ReductionPair) -> None:
    """Refuse unless the reduction can happen where the tile is made."""
    maker, reduction = pair
    made, data, result = maker.find_access("dst"), reduction.find_access("data"), reduction.find_access("dst")
    assert made is not None
    assert data is not None
    assert result is not None
    tile = made.tensor.name
    if not reduces_rows(reduction):
        raise RewriteRefused("it does not reduce all of the free axes")
    if maker.path != reduction.path or maker.guards != reduction.guards or made.view != data.view:
        raise RewriteRefused(f"{maker.op} does not make what is reduced, in the same block")
    if not has_plain_arguments(maker):
        raise RewriteRefused(f"{maker.op} has arguments that the fused instruction has no place for")
    if made.tensor.dtype != "float32" or result.tensor.dtype != "float32":
        raise RewriteRefused(f"{tile} or {result.tensor.name} is rounded to another type than float32")
    if any(DTYPES[access.tensor.dtype].kind != "float" for access in maker.accesses):
        raise RewriteRefused(f"{maker.op} reads integers")
    if result.tensor.id in {access.tensor.id for access in maker.accesses}:
        raise RewriteRefused(f"{maker.op} uses {result.tensor.name}, where the result goes")
    if re.search(r"\breduce_(cmd|res)\b", kernel.unread_source):
        raise RewriteRefused("the kernel may keep sums in the engine's registers, which this would overwrite")
    _check_between(kernel, maker, reduction, made=made, result=result)


def _check_between(
    kernel: Kernel, maker: Statement, reduction: Statement, *, made: Access, result: Access
) -> None:
    declared = kernel.declarations.get(result.tensor.id)
    for tensor in (result.tensor, made.tensor):
        if tensor.id in kernel.escaping_ids:
            raise RewriteRefused(f"{tensor.name} has a second name or is used by what cannot be read")
    if declared is None:
        raise RewriteRefused(f"{result.tensor.name} is declared elsewhere")
    late = declared.order > maker.order
    if late and (declared.path != maker.path or declared.guards != maker.guards):
        raise RewriteRefused(f"{result.tensor.name} is declared elsewhere")
    between = [item for item in kernel.statements if maker.order < item.order < reduction.order]
    for item in between:
        if item.kind is StatementKind.OPAQUE:
            raise RewriteRefused(f"in between is what cannot be read: {item.reason}")
        if item.touches_tensor(result.tensor) or item.writes_tensor(made.tensor):
            raise RewriteRefused(f"{item.op} uses {made.tensor.name} or {result.tensor.name} in between")
    for text in (reduction.texts["dst"], *((declared.texts["shape"],) if late else ())):
        if _may_rebind_name(kernel, text, maker, reduction=reduction):
            raise RewriteRefused(f"{text} means something else where {made.tensor.name} is made")


def _may_rebind_name(kernel: Kernel, text: str, maker: Statement, *, reduction: Statement) -> bool:
    """Whether a name in an expression is bound between the two, except by the result's own declaration."""
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    result = reduction.find_access("dst")
    assert result is not None
    between = [item for item in kernel.statements if maker.order < item.order < reduction.order]
    return any(names & item.binds for item in between if item.tensor != result.tensor)


def _describe_reduction(pair: ReductionPair) -> str:
    return f"{_symbol_name(pair.reduction, 'op')}{', negated' if _is_negated(pair) else ''}"


def _is_negated(pair: ReductionPair) -> bool:
    return bool(pair.reduction.arguments.get("negate"))


def _symbol_name(item: Statement, role: str) -> str:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else ""


CallArguments = dict[str, str]
"""Arguments of the fused instruction, in the order written."""


def _vector_arguments(kernel: Kernel, pair: ReductionPair) -> CallArguments | None:
    """Arguments for (data op0 operand0) reduced along the row; a copy multiplies by one."""
    maker, nl = pair.maker, kernel.nl
    if maker.op == "tensor_copy":
        step = {"data": maker.texts["src"], "op0": f"{nl}.multiply", "operand0": "1.0"}
    elif maker.op == "tensor_scalar" and not {"op1", "reverse0"} & maker.texts.keys():
        step = {name: maker.texts[name] for name in ("data", "op0", "operand0") if name in maker.texts}
    else:
        return None
    words = {"dst": maker.texts["dst"], **step, **_reduction_arguments(kernel, pair)}
    return words | ({"reduce_res_negate": "True"} if _is_negated(pair) else {})


def _scalar_arguments(kernel: Kernel, pair: ReductionPair) -> CallArguments | None:
    """Arguments for function(data * scale + bias), summed along the row."""
    if _symbol_name(pair.reduction, "op") != "add" or _is_negated(pair):
        return None
    step = _ACTIVATIONS_BY_MAKER.get(pair.maker.op, _no_activation)(pair.maker)
    if step is None:
        return None
    words = {"dst": pair.maker.texts["dst"], "op": f"{kernel.nl}.{step[0]}", "data": step[1]}
    return words | step[2] | _reduction_arguments(kernel, pair)


def _reduction_arguments(kernel: Kernel, pair: ReductionPair) -> CallArguments:
    return {
        "reduce_op": f"{kernel.nl}.{_symbol_name(pair.reduction, 'op')}",
        "reduce_res": pair.reduction.texts["dst"],
    }


ActivationSpec = tuple[str, str, CallArguments]
"""An activation: its function, its data, and its scale and bias."""


def _no_activation(maker: Statement) -> ActivationSpec | None:
    del maker
    return None


def _copy_activation(maker: Statement) -> ActivationSpec | None:
    return "copy", maker.texts["src"], {}


def _own_activation(maker: Statement) -> ActivationSpec | None:
    extra = {name: maker.texts[name] for name in ("bias", "scale") if name in maker.texts}
    return _symbol_name(maker, "op"), maker.texts["data"], extra


def _square_activation(maker: Statement) -> ActivationSpec | None:
    left, right = maker.find_access("data1"), maker.find_access("data2")
    same = left is not None and right is not None and left.view == right.view
    return ("square", maker.texts["data1"], {}) if same and _symbol_name(maker, "op") == "multiply" else None


_ACTIVATIONS_BY_MAKER: dict[str, Callable[[Statement], ActivationSpec | None]] = {
    "tensor_copy": _copy_activation,
    "activation": _own_activation,
    "tensor_tensor": _square_activation,
}
_FUSIBLE_MAKERS = frozenset({*_ACTIVATIONS_BY_MAKER, "tensor_scalar"})
_FUSED_INSTRUCTIONS: dict[str, Callable[[Kernel, ReductionPair], CallArguments | None]] = {
    "activation_reduce": _scalar_arguments,
    "tensor_scalar_reduce": _vector_arguments,
}
