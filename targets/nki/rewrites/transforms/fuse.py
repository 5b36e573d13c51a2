"""Fusion: one instruction does what two did, where the machine has an instruction for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import is_plain, sole_writer
from targets.nki.rewrites.model import Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, Refused, Transform
from targets.nki.rewrites.values import Symbol


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
        fused = _RULES[first.op, second.op](kernel, place)
        fused = syntax.at_front(fused, syntax.leading_of_all(first.node, second.node))
        dst = first.access("dst")
        assert dst is not None
        declared = kernel.declarations[dst.tensor.id]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node in (first, declared):
                return []
            return [fused] if node is second else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _check_pair(kernel: Kernel, first: Statement, second: Statement) -> None:
    made = first.access("dst")
    data = second.access("data")
    assert made is not None
    assert data is not None
    taken = [access for access in second.accesses if access.tensor.id == made.tensor.id]
    if len(kernel.users(made.tensor)) != 2 or taken != [data]:
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


def _scale_into_activation(kernel: Kernel, pair: Pair) -> cst.BaseStatement:
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
    return syntax.with_arguments(second.node, changes)


def _two_scalars(kernel: Kernel, pair: Pair) -> cst.BaseStatement:
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
    return syntax.with_arguments(second.node, changes)


_RULES: dict[tuple[str, str], Callable[[Kernel, Pair], cst.BaseStatement]] = {
    ("tensor_scalar", "activation"): _scale_into_activation,
    ("tensor_scalar", "activation_reduce"): _scale_into_activation,
    ("tensor_scalar", "tensor_scalar"): _two_scalars,
}
