"""Fusion: one instruction does what two did, where the machine has an instruction for both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.elementwise import is_plain, sole_writer
from agent_core.builtin.model import Kernel, Node, Statement
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.values import Affine, Symbol
from nki_sim.targets import Target


class Pair(NamedTuple):
    """`first` makes the tile that `second` reads as its data."""

    first: Statement
    second: Statement


class Fuse(Transform[Pair]):
    """Fuses a producer into its only consumer."""

    id: ClassVar[str] = "fuse"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the fused instruction applies both operations in the same order, in float32"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Pair]:
        del target
        found: dict[str, Pair] = {}
        for item in kernel.operations():
            data = item.access("data")
            first = sole_writer(kernel, data.tensor) if data is not None else None
            if data is not None and first is not None and (first.op, item.op) in _RULES:
                found[f"{first.op} to {kernel.label(data.tensor)} with {item.op}"] = Pair(first, item)
        return found

    def choices(self, kernel: Kernel, target: Target, place: Pair) -> tuple[Choice, ...]:
        self.apply(kernel, target, place, {})
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Pair, choice: Choice) -> str:
        del target, choice
        first, second = place
        _check_pair(kernel, first, second)
        fused, keeps_tile = _RULES[first.op, second.op](kernel, place)
        dst = first.access("dst")
        assert dst is not None
        declared = kernel.declarations[dst.tensor.id]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is first or (node is declared and not keeps_tile):
                return []
            return [fused] if node is second else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _check_pair(kernel: Kernel, first: Statement, second: Statement) -> None:
    made = first.access("dst")
    data = second.access("data")
    assert made is not None
    assert data is not None
    if len(kernel.users(made.tensor)) != 2:
        raise Refused(f"{made.tensor.name} has other uses")
    if (
        first.path != second.path
        or first.guards != second.guards
        or not (data.view.whole and data.view.plain)
    ):
        raise Refused(f"{second.op} does not take all of {made.tensor.name} in the same place")
    if made.tensor.dtype != "float32":
        raise Refused(f"{made.tensor.name} is rounded to {made.tensor.dtype} in between")
    if not is_plain(first):
        raise Refused(f"{first.op} has arguments that the fused instruction has no place for")
    for access in first.accesses:
        text = first.texts[access.role]
        if not access.writes and kernel.changes(access.tensor, first, second):
            raise Refused(f"{access.tensor.name} changes in between")
        if kernel.rebinds(text, first, second):
            raise Refused(f"{text} means something else after {first.op}")


def _symbol(item: Statement, role: str) -> str:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, Symbol) else ""


def _is_reversed(item: Statement) -> bool:
    return bool(item.arguments.get("reverse0") or item.arguments.get("reverse1"))


def _scale_into_activation(kernel: Kernel, pair: Pair) -> tuple[cst.BaseStatement, bool]:
    """activation(op, data * scale + bias)"""
    del kernel
    first, second = pair
    ops = (_symbol(first, "op0"), _symbol(first, "op1"))
    if _is_reversed(first) or ops not in {("multiply", ""), ("add", ""), ("multiply", "add")}:
        raise Refused("an activation takes data * scale + bias, nothing else")
    if {"scale", "bias"} & second.texts.keys():
        raise Refused("the activation has a scale or bias already")
    changes: dict[str, str | None] = {"data": first.texts["data"]}
    changes["scale" if ops[0] == "multiply" else "bias"] = first.texts["operand0"]
    if ops[1]:
        changes["bias"] = first.texts["operand1"]
    return syntax.with_arguments(second.node, changes), False


def _two_scalars(kernel: Kernel, pair: Pair) -> tuple[cst.BaseStatement, bool]:
    """tensor_scalar with two operators costs what one with one does."""
    first, second = pair
    if "op1" in first.texts or "op1" in second.texts:
        raise Refused("a tensor_scalar has two operators at most")
    nl = kernel.nl
    changes: dict[str, str | None] = {
        "data": first.texts["data"],
        "op0": f"{nl}.{_symbol(first, 'op0')}",
        "operand0": first.texts["operand0"],
        "op1": f"{nl}.{_symbol(second, 'op0')}",
        "operand1": second.texts["operand0"],
    }
    for old, item, new in (("reverse0", first, "reverse0"), ("reverse0", second, "reverse1")):
        changes[new] = item.texts.get(old)
    return syntax.with_arguments(second.node, changes), False


def _square_and_sum(kernel: Kernel, pair: Pair) -> tuple[cst.BaseStatement, bool]:
    """x * x and its sum are one activation_reduce(square)."""
    first = pair.first
    left, right = first.access("data1"), first.access("data2")
    if left is None or right is None or left.view != right.view or _symbol(first, "op") != "multiply":
        raise Refused("the product is no square")
    return _activation_reduce(kernel, pair, f"{kernel.nl}.square", first.texts["data1"], {}), True


def _activation_and_sum(kernel: Kernel, pair: Pair) -> tuple[cst.BaseStatement, bool]:
    first = pair.first
    extra = {name: first.texts[name] for name in ("bias", "scale") if name in first.texts}
    function = f"{kernel.nl}.{_symbol(first, 'op')}"
    return _activation_reduce(kernel, pair, function, first.texts["data"], extra), True


def _activation_reduce(
    kernel: Kernel, pair: Pair, function: str, data: str, extra: Mapping[str, str]
) -> cst.BaseStatement:
    first, second = pair
    made, result = first.access("dst"), second.access("dst")
    assert made is not None
    assert result is not None
    if re.search(r"\breduce_(cmd|res)\b", kernel.unread):
        raise Refused("the kernel may keep sums in the engine's registers, which this would overwrite")
    if not is_plain(second):
        raise Refused(f"{second.op} has arguments that an activation has no place for")
    if _symbol(second, "op") != "add" or second.arguments.get("negate"):
        raise Refused("an activation reduces by adding")
    axis = second.arguments.get("axis")
    if len(made.tensor.shape) != 2 or axis not in {Affine(1), (Affine(1),)} or result.view.shape[1:] != (1,):
        raise Refused("the sum is not over the whole free dimension")
    if result.tensor.dtype != "float32":
        raise Refused("the sum is not float32")
    words = {"dst": first.texts["dst"], "op": function, "data": data, **extra}
    words |= {"reduce_op": f"{kernel.nl}.add", "reduce_res": second.texts["dst"]}
    code = ", ".join(f"{name}={text}" for name, text in words.items())
    return syntax.at_front(
        syntax.statement(f"{kernel.nisa}.activation_reduce({code})"), syntax.leading(second.node)
    )


_RULES: dict[tuple[str, str], Callable[[Kernel, Pair], tuple[cst.BaseStatement, bool]]] = {
    ("tensor_scalar", "activation"): _scale_into_activation,
    ("tensor_scalar", "activation_reduce"): _scale_into_activation,
    ("tensor_scalar", "tensor_scalar"): _two_scalars,
    ("tensor_tensor", "tensor_reduce"): _square_and_sum,
    ("activation", "tensor_reduce"): _activation_and_sum,
}
