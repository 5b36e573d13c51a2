"""Fused reductions: the instruction that makes a tile, or a part of one, also reduces its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.dtypes import DTYPES
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import is_plain
from targets.nki.rewrites.model import Access, Kernel, Kind, Node, Statement
from targets.nki.rewrites.reductions import reduces_rows
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Symbol


class Pair(NamedTuple):
    """`maker` writes the view that `reduction` reads right after it, in the same block."""

    maker: Statement
    reduction: Statement


class FuseReduction(Transform[Pair]):
    """Fuses a reduction into the instruction that makes what it reduces."""

    id: ClassVar[str] = "fuse_reduction"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "the engine reduces the float32 values that it writes; nothing touches them or the result in between"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Pair]:
        del target
        found: dict[str, Pair] = {}
        for reduction in (item for item in kernel.operations() if item.op == "tensor_reduce"):
            pair, result = pair_of(kernel, reduction), reduction.access("dst")
            if pair is not None and result is not None:
                base = f"{pair.maker.op} and {reduction.op} to {kernel.label(result.tensor)}"
                found.setdefault(base, pair)
        return found

    def choices(self, kernel: Kernel, target: Target, place: Pair) -> tuple[Choice, ...]:
        del target
        _check(kernel, place)
        ways = [way for way in _WAYS if _WAYS[way](kernel, place) is not None]
        if not ways:
            raise Refused(f"no instruction does what {place.maker.op} does and reduces with {_how(place)}")
        return tuple({"by": way} for way in ways)

    def apply(self, kernel: Kernel, target: Target, place: Pair, choice: Choice) -> str:
        del target
        _check(kernel, place)
        words = _WAYS[str(choice["by"])](kernel, place)
        if words is None:
            raise Refused(
                f"{choice['by']} does not do what {place.maker.op} does and reduce with {_how(place)}"
            )
        made = syntax.call(f"{kernel.nisa}.{choice['by']}", words)
        told = syntax.leading_of_all(place.maker.node, place.reduction.node)
        fused = syntax.at_front(made, told)
        result = place.reduction.access("dst")
        assert result is not None
        declared = kernel.declarations[result.tensor.id]
        late = declared.order > place.maker.order

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is place.maker:
                return [declared.node, fused] if late else [fused]
            return [] if node is place.reduction or (late and node is declared) else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def pair_of(kernel: Kernel, reduction: Statement) -> Pair | None:
    """A reduction with the last instruction before it that writes the tile it reduces, if that may fuse."""
    data = reduction.access("data")
    if data is None:
        return None
    before = [item for item in kernel.users(data.tensor) if item.order < reduction.order]
    last = max(
        (item for item in before if item.writes(data.tensor)), key=lambda item: item.order, default=None
    )
    return Pair(last, reduction) if last is not None and last.op in _MAKERS else None


def _check(kernel: Kernel, pair: Pair) -> None:
    """Raise unless the reduction can happen where the tile is made."""
    maker, reduction = pair
    made, data, result = maker.access("dst"), reduction.access("data"), reduction.access("dst")
    assert made is not None
    assert data is not None
    assert result is not None
    tile = made.tensor.name
    if not reduces_rows(reduction):
        raise Refused("it does not reduce all of the free axes")
    if maker.path != reduction.path or maker.guards != reduction.guards or made.view != data.view:
        raise Refused(f"{maker.op} does not make what is reduced, in the same block")
    if not is_plain(maker):
        raise Refused(f"{maker.op} has arguments that the fused instruction has no place for")
    if made.tensor.dtype != "float32" or result.tensor.dtype != "float32":
        raise Refused(f"{tile} or {result.tensor.name} is rounded to another type than float32")
    if any(DTYPES[access.tensor.dtype].kind != "float" for access in maker.accesses):
        raise Refused(f"{maker.op} reads integers")
    if result.tensor.id in {access.tensor.id for access in maker.accesses}:
        raise Refused(f"{maker.op} uses {result.tensor.name}, where the result goes")
    if re.search(r"\breduce_(cmd|res)\b", kernel.unread):
        raise Refused("the kernel may keep sums in the engine's registers, which this would overwrite")
    _check_between(kernel, maker, reduction, made, result)


def _check_between(
    kernel: Kernel, maker: Statement, reduction: Statement, made: Access, result: Access
) -> None:
    declared = kernel.declarations.get(result.tensor.id)
    for tensor in (result.tensor, made.tensor):
        if tensor.id in kernel.escaping:
            raise Refused(f"{tensor.name} has a second name or is used by what cannot be read")
    if declared is None:
        raise Refused(f"{result.tensor.name} is declared elsewhere")
    late = declared.order > maker.order
    if late and (declared.path != maker.path or declared.guards != maker.guards):
        raise Refused(f"{result.tensor.name} is declared elsewhere")
    between = [item for item in kernel.statements if maker.order < item.order < reduction.order]
    for item in between:
        if item.kind is Kind.OPAQUE:
            raise Refused(f"in between is what cannot be read: {item.reason}")
        if item.touches(result.tensor) or item.writes(made.tensor):
            raise Refused(f"{item.op} uses {made.tensor.name} or {result.tensor.name} in between")
    for text in (reduction.texts["dst"], *((declared.texts["shape"],) if late else ())):
        if _rebound(kernel, text, maker, reduction):
            raise Refused(f"{text} means something else where {made.tensor.name} is made")


def _rebound(kernel: Kernel, text: str, maker: Statement, reduction: Statement) -> bool:
    """Whether a name in an expression is bound between the two, but for the result's own declaration."""
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    result = reduction.access("dst")
    assert result is not None
    between = [item for item in kernel.statements if maker.order < item.order < reduction.order]
    return any(names & item.binds for item in between if item.tensor != result.tensor)


def _how(pair: Pair) -> str:
    return f"{_symbol(pair.reduction, 'op')}{', negated' if _is_negated(pair) else ''}"


def _is_negated(pair: Pair) -> bool:
    return bool(pair.reduction.arguments.get("negate"))


def _symbol(item: Statement, role: str) -> str:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, Symbol) else ""


Words = dict[str, str]
"""Arguments of the fused instruction, in the order written."""


def _on_vector(kernel: Kernel, pair: Pair) -> Words | None:
    """(data op0 operand0) reduced along the row; a copy multiplies by one."""
    maker, nl = pair.maker, kernel.nl
    if maker.op == "tensor_copy":
        step = {"data": maker.texts["src"], "op0": f"{nl}.multiply", "operand0": "1.0"}
    elif maker.op == "tensor_scalar" and not {"op1", "reverse0"} & maker.texts.keys():
        step = {name: maker.texts[name] for name in ("data", "op0", "operand0") if name in maker.texts}
    else:
        return None
    words = {"dst": maker.texts["dst"], **step, **_reducing(kernel, pair)}
    return words | ({"reduce_res_negate": "True"} if _is_negated(pair) else {})


def _on_scalar(kernel: Kernel, pair: Pair) -> Words | None:
    """function(data * scale + bias), added up along the row."""
    if _symbol(pair.reduction, "op") != "add" or _is_negated(pair):
        return None
    step = _SCALAR.get(pair.maker.op, _no_function)(pair.maker)
    if step is None:
        return None
    words = {"dst": pair.maker.texts["dst"], "op": f"{kernel.nl}.{step[0]}", "data": step[1]}
    return words | step[2] | _reducing(kernel, pair)


def _reducing(kernel: Kernel, pair: Pair) -> Words:
    return {
        "reduce_op": f"{kernel.nl}.{_symbol(pair.reduction, 'op')}",
        "reduce_res": pair.reduction.texts["dst"],
    }


Function = tuple[str, str, Words]
"""An activation: its function, its data, and its scale and bias."""


def _no_function(maker: Statement) -> Function | None:
    del maker
    return None


def _copied(maker: Statement) -> Function | None:
    return "copy", maker.texts["src"], {}


def _activated(maker: Statement) -> Function | None:
    extra = {name: maker.texts[name] for name in ("bias", "scale") if name in maker.texts}
    return _symbol(maker, "op"), maker.texts["data"], extra


def _squared(maker: Statement) -> Function | None:
    left, right = maker.access("data1"), maker.access("data2")
    same = left is not None and right is not None and left.view == right.view
    return ("square", maker.texts["data1"], {}) if same and _symbol(maker, "op") == "multiply" else None


_SCALAR: dict[str, Callable[[Statement], Function | None]] = {
    "tensor_copy": _copied,
    "activation": _activated,
    "tensor_tensor": _squared,
}
_MAKERS = frozenset({*_SCALAR, "tensor_scalar"})
_WAYS: dict[str, Callable[[Kernel, Pair], Words | None]] = {
    "activation_reduce": _on_scalar,
    "tensor_scalar_reduce": _on_vector,
}
