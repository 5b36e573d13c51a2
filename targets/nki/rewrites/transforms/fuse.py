"""Fusion: one instruction does the work of two, if the machine has one for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import COMMUTATIVE_OPERATORS, find_sole_writer, has_plain_arguments
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.reductions import free_axes_text, reduces_rows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import LibrarySymbol


class ProducerConsumer(NamedTuple):
    """`first` makes the tile that `second` reads as its argument `role`."""

    first: Statement
    second: Statement
    role: str


class Fuse(Transform[ProducerConsumer]):
    """Fuses a producer into its only consumer."""

    id: ClassVar[str] = "fuse"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the fused instruction applies both operations in the same order, in float32"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, ProducerConsumer]:
        del target
        found: dict[str, ProducerConsumer] = {}
        for item in kernel.operations():
            for data in item.accesses:
                if data.writes or data.role not in _DATA_ROLES:
                    continue
                first = find_sole_writer(kernel, data.tensor)
                if first is not None and (first.op, item.op) in _FUSION_RULES:
                    name = f"{first.op} to {kernel.unique_label(data.tensor)} with {item.op}"
                    found[name] = ProducerConsumer(first, item, data.role)
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: ProducerConsumer) -> tuple[Choice, ...]:
        self.apply(kernel, target, place, {})
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: ProducerConsumer, choice: Choice) -> str:
        del target, choice
        first, second, role = place
        _check_pair(kernel, first, second, role)
        fused = _FUSION_RULES[first.op, second.op](kernel, place)
        told = syntax.merge_leading_lines(first.node, second.node)
        fused[0] = syntax.with_leading_lines(fused[0], told)
        dst = first.find_access("dst")
        assert dst is not None
        declared = kernel.declarations[dst.tensor.id]

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node in (first, declared):
                return []
            return fused if node is second else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _check_pair(kernel: Kernel, first: Statement, second: Statement, role: str) -> None:
    made = first.find_access("dst")
    data = second.find_access(role)
    assert made is not None
    assert data is not None
    taken = [access for access in second.accesses if access.tensor.id == made.tensor.id]
    if len(kernel.users_of(made.tensor)) != 2 or taken != [data]:
        raise RewriteRefused(f"{made.tensor.name} has other uses")
    if (
        first.path != second.path
        or first.guards != second.guards
        or not (data.view.is_whole and data.view.plain)
    ):
        raise RewriteRefused(f"{second.op} does not take all of {made.tensor.name} in the same place")
    if made.tensor.dtype != "float32":
        raise RewriteRefused(f"{made.tensor.name} is rounded to {made.tensor.dtype} in between")
    if not has_plain_arguments(first):
        raise RewriteRefused(f"{first.op} has arguments that the fused instruction has no place for")
    for access in first.accesses:
        if not access.writes and kernel.may_change(access.tensor, first, second):
            raise RewriteRefused(f"{access.tensor.name} changes in between")
    for text in first.texts.values():
        if kernel.may_rebind(text, first, second):
            raise RewriteRefused(f"{text} means something else after {first.op}")


def _symbol_name(item: Statement, role: str) -> str:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else ""


def _is_reversed(item: Statement) -> bool:
    return bool(item.arguments.get("reverse0") or item.arguments.get("reverse1"))


def _scale_into_activation(kernel: Kernel, pair: ProducerConsumer) -> list[cst.BaseStatement]:
    """activation(op, data * scale + bias)"""
    first, second, _ = pair
    ops = (_symbol_name(first, "op0"), _symbol_name(first, "op1"))
    if _is_reversed(first) or ops not in {
        ("multiply", ""),
        ("add", ""),
        ("subtract", ""),
        ("multiply", "add"),
    }:
        raise RewriteRefused("an activation takes data * scale + bias, nothing else")
    if {"scale", "bias"} & second.texts.keys():
        raise RewriteRefused("the activation has a scale or bias already")
    changes: dict[str, str | None] = {"data": first.texts["data"]}
    if ops == ("subtract", ""):
        name, lines = _negate_column(kernel, first)
        return [*lines, syntax.replace_arguments(second.node, changes | {"bias": name})]
    changes["scale" if ops[0] == "multiply" else "bias"] = first.texts["operand0"]
    if ops[1]:
        changes["bias"] = first.texts["operand1"]
    return [syntax.replace_arguments(second.node, changes)]


def _negate_column(kernel: Kernel, item: Statement) -> tuple[str, list[cst.BaseStatement]]:
    """The name of a column that holds what an instruction subtracts, negated, and the statements for it."""
    column = item.find_access("operand0")
    if column is None:
        raise RewriteRefused("an activation takes data * scale + bias, nothing else")
    name, nl = kernel.fresh_name(f"negative_{column.tensor.name}"), kernel.nl
    shape = f"({column.view.shape[0]}, 1)"
    words = {"dst": name, "data": item.texts["operand0"], "op0": f"{nl}.multiply", "operand0": "-1.0"}
    return name, [
        syntax.parse_statement(f"{name} = {nl}.ndarray({shape}, dtype={nl}.float32, buffer={nl}.sbuf)"),
        syntax.make_call(f"{kernel.nisa}.tensor_scalar", words),
    ]


def _shift_into_activation(kernel: Kernel, pair: ProducerConsumer) -> list[cst.BaseStatement]:
    """activation(op, data * scale + bias) for a copy that scales and shifts"""
    del kernel
    first, second, _ = pair
    if _symbol_name(first, "op") != "copy":
        raise RewriteRefused("the first activation does more than scale and shift")
    if {"scale", "bias"} & second.texts.keys():
        raise RewriteRefused("the activation has a scale or bias already")
    changes: dict[str, str | None] = {name: first.texts.get(name) for name in ("data", "scale", "bias")}
    return [syntax.replace_arguments(second.node, changes)]


def _merge_scalar_operators(kernel: Kernel, pair: ProducerConsumer) -> list[cst.BaseStatement]:
    """A tensor_scalar with two operators costs the same as one with one."""
    first, second, _ = pair
    if "op1" in first.texts or "op1" in second.texts:
        raise RewriteRefused("a tensor_scalar has two operators at most")
    nl = kernel.nl
    changes: dict[str, str | None] = {
        "data": first.texts["data"],
        "op0": f"{nl}.{_symbol_name(first, 'op0')}",
        "operand0": first.texts["operand0"],
        "op1": f"{nl}.{_symbol_name(second, 'op0')}",
        "operand1": second.texts["operand0"],
    }
    for old, item, new in (("reverse0", first, "reverse0"), ("reverse0", second, "reverse1")):
        changes[new] = item.texts.get(old)
    return [syntax.replace_arguments(second.node, changes)]


def _merge_reductions(kernel: Kernel, pair: ProducerConsumer) -> list[cst.BaseStatement]:
    """A reduction of reductions reduces everything."""
    del kernel
    first, second, _ = pair
    data, made = first.find_access("data"), second.find_access("dst")
    assert data is not None
    assert made is not None
    if not reduces_rows(second) or first.form is None or second.form is None:
        raise RewriteRefused("the second reduction leaves more than one number for each row")
    if first.form.param("op") != second.form.param("op") or "negate" in first.texts:
        raise RewriteRefused("the two reductions differ")
    if made.tensor.dtype != "float32":
        raise RewriteRefused(f"{made.tensor.name} is rounded to {made.tensor.dtype}")
    changes: dict[str, str | None] = {"data": first.texts["data"], "axis": free_axes_text(data.view)}
    return [syntax.replace_arguments(second.node, changes)]


def _negate_reduction(kernel: Kernel, pair: ProducerConsumer) -> list[cst.BaseStatement]:
    """A reduction can negate its result."""
    del kernel
    first, second, _ = pair
    negates = (_symbol_name(second, "op0"), second.arguments.get("operand0")) == ("multiply", -1.0)
    if not negates or "op1" in second.texts or not has_plain_arguments(second):
        raise RewriteRefused("a reduction negates its result, and does nothing else to it")
    made, column = second.find_access("dst"), first.find_access("dst")
    if made is None or column is None or made.tensor.dtype != column.tensor.dtype:
        raise RewriteRefused("the negative has another type")
    flag = None if first.arguments.get("negate") else "True"
    return [syntax.replace_arguments(first.node, {"dst": second.texts["dst"], "negate": flag})]


def _scale_into_tensor_tensor(kernel: Kernel, pair: ProducerConsumer) -> list[cst.BaseStatement]:
    """(data op0 operand0) op1 operand1, where operand1 is a tensor"""
    first, second, role = pair
    (other,) = {"data1", "data2"} - {role}
    data, tensor = first.find_access("data"), second.find_access(other)
    if "op1" in first.texts or not has_plain_arguments(second):
        raise RewriteRefused("a scalar_tensor_tensor has an operator with a scalar and one with a tensor")
    if data is None or tensor is None or {data.tensor.buffer, tensor.tensor.buffer} == {"psum"}:
        raise RewriteRefused("VectorE reads one of two tensors from PSUM at most")
    words = {
        "dst": second.texts["dst"],
        "data": first.texts["data"],
        "op0": first.texts["op0"],
        "operand0": first.texts["operand0"],
        "op1": second.texts["op"],
        "operand1": second.texts[other],
    }
    if "reverse0" in first.texts:
        words["reverse0"] = first.texts["reverse0"]
    if role == "data2" and _symbol_name(second, "op") not in COMMUTATIVE_OPERATORS:
        words["reverse1"] = "True"
    return [syntax.make_call(f"{kernel.nisa}.scalar_tensor_tensor", words)]


_DATA_ROLES = frozenset({"data", "data1", "data2"})

_FUSION_RULES: dict[tuple[str, str], Callable[[Kernel, ProducerConsumer], list[cst.BaseStatement]]] = {
    ("tensor_scalar", "activation"): _scale_into_activation,
    ("tensor_scalar", "activation_reduce"): _scale_into_activation,
    ("activation", "activation"): _shift_into_activation,
    ("activation", "activation_reduce"): _shift_into_activation,
    ("tensor_scalar", "tensor_scalar"): _merge_scalar_operators,
    ("tensor_scalar", "tensor_tensor"): _scale_into_tensor_tensor,
    ("tensor_reduce", "tensor_reduce"): _merge_reductions,
    ("tensor_reduce", "tensor_scalar"): _negate_reduction,
}
