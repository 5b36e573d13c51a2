"""Rephrasing: other instructions for the same value that are cheaper or run on another engine.

VectorE computes powers in the time of a copy; ScalarE computes squares. Two instructions for a product and a
sum may be cheaper than one, if the first leaves its result in PSUM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import declaration_text
from targets.nki.rewrites.elementwise import (
    NEUTRAL_OPERANDS,
    find_sole_writer,
    has_plain_arguments,
    memset_value,
)
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result
from targets.nki.rewrites.values import LibrarySymbol

FLOAT_DTYPES = frozenset({"float32", "bfloat16", "float16"})

Alternatives = dict[str, list[str]]
"""Source of the replacement statements, by display name."""


class Rephrase(Transform[Statement]):
    """Replaces an instruction by others that compute the same."""

    id: ClassVar[str] = "rephrase"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "both compute the same function in float32, element by element"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(item for item in kernel.operations() if item.op in _REPHRASE_RULES)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        return tuple({"as": name} for name in _find_alternatives(kernel, target, place))

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        lines = _find_alternatives(kernel, target, place)[str(choice["as"])]
        new: list[cst.BaseStatement] = [syntax.parse_statement(line) for line in lines]
        new[0] = syntax.with_leading_lines(new[0], syntax.leading_lines(place.node))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return new if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _find_alternatives(kernel: Kernel, target: Target, item: Statement) -> Alternatives:
    if not has_plain_arguments(item):
        raise RewriteRefused(f"{item.op} has arguments that other instructions have no place for")
    exact = [access.tensor for access in item.accesses if access.tensor.dtype not in FLOAT_DTYPES]
    if exact:
        raise RewriteRefused(f"{exact[0].name} holds {exact[0].dtype}, of which others keep other digits")
    found = _REPHRASE_RULES[item.op](kernel, target, item)
    if not found:
        raise RewriteRefused(f"no other instruction computes what this {item.op} does")
    return found


def _call_text(kernel: Kernel, op: str, words: Mapping[str, str]) -> str:
    return f"{kernel.nisa}.{op}({', '.join(f'{name}={text}' for name, text in words.items())})"


def _symbol_name(item: Statement, role: str) -> str:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else ""


def _rephrase_reciprocal(kernel: Kernel, target: Target, item: Statement) -> Alternatives:
    """1 / x is x to the power of -1, in the time of a copy."""
    del target
    words = {"dst": item.texts["dst"], "data": item.texts["data"]}
    return {
        "power": [
            _call_text(kernel, "tensor_scalar", words | {"op0": f"{kernel.nl}.power", "operand0": "-1.0"})
        ]
    }


def _rephrase_square(kernel: Kernel, target: Target, item: Statement) -> Alternatives:
    """x * x is a function of ScalarE, in every function table."""
    del target
    first, second = item.find_access("data1"), item.find_access("data2")
    if first is None or second is None or first.view != second.view or _symbol_name(item, "op") != "multiply":
        return {}
    words = {"dst": item.texts["dst"], "op": f"{kernel.nl}.square", "data": item.texts["data1"]}
    return {"square": [_call_text(kernel, "activation", words)]}


def _rephrase_tensor_tensor(kernel: Kernel, target: Target, item: Statement) -> Alternatives:
    return _rephrase_square(kernel, target, item) | _rephrase_constant_operand(kernel, item)


def _rephrase_constant_operand(kernel: Kernel, item: Statement) -> Alternatives:
    """A tile that holds one number is that number; if it changes nothing, the rest is a copy."""
    op, found = _symbol_name(item, "op"), Alternatives()
    for role, other in (("data1", "data2"), ("data2", "data1")):
        access, kept = item.find_access(role), item.find_access(other)
        writer = find_sole_writer(kernel, access.tensor) if access is not None else None
        number = memset_value(writer) if writer is not None else None
        if access is None or kept is None or number is None or access.view.shape != kept.view.shape:
            continue
        if NEUTRAL_OPERANDS.get(op) == number:
            words = {"dst": item.texts["dst"], "src": item.texts[other]}
            return {"copy": [_call_text(kernel, "tensor_copy", words)]}
        words = {"dst": item.texts["dst"], "data": item.texts[other], "op0": f"{kernel.nl}.{op}"}
        swapped = {"reverse0": "True"} if role == "data1" else {}
        words |= {"operand0": repr(number)} | swapped
        found = {"tensor_scalar": [_call_text(kernel, "tensor_scalar", words)]}
    return found


_POWER_EXPONENTS = {"sqrt": "0.5", "rsqrt": "-0.5", "reciprocal": "-1.0"}


def _rephrase_activation(kernel: Kernel, target: Target, item: Statement) -> Alternatives:
    """VectorE can compute roots as powers, and copies with a scale as products."""
    del target
    function, words = _symbol_name(item, "op"), {"dst": item.texts["dst"], "data": item.texts["data"]}
    if function == "exp":
        return _rephrase_quotient(kernel, item)
    steps = [(name, item.texts[role]) for role, name in _LINEAR_STEPS if role in item.texts]
    if function in _POWER_EXPONENTS:
        steps.append(("power", _POWER_EXPONENTS[function]))
    elif function == "square" and not steps:
        data = item.texts["data"]
        words = {"dst": item.texts["dst"], "data1": data, "data2": data, "op": f"{kernel.nl}.multiply"}
        return {"product": [_call_text(kernel, "tensor_tensor", words)]}
    elif function != "copy" or not steps:
        return {}
    if len(steps) > len("01"):
        raise RewriteRefused("a tensor_scalar has two operators at most")
    for number, (name, operand) in enumerate(steps):
        words |= {f"op{number}": f"{kernel.nl}.{name}", f"operand{number}": operand}
    return {"tensor_scalar": [_call_text(kernel, "tensor_scalar", words)]}


def _rephrase_quotient(kernel: Kernel, item: Statement) -> Alternatives:
    """exp(x - log(s)) is exp(x) / s, where exp(x) is there because s is its sum."""
    data = item.find_access("data")
    minus = find_sole_writer(kernel, data.tensor) if data is not None and data.view.is_whole else None
    if minus is None or minus.op != "tensor_scalar" or not has_plain_arguments(minus):
        return {}
    column, plain = minus.find_access("operand0"), not {"bias", "scale"} & item.texts.keys()
    root = find_sole_writer(kernel, column.tensor) if column is not None else None
    if root is None or not plain or {"op1", "reverse0"} & minus.texts.keys():
        return {}
    if (_symbol_name(minus, "op0"), _symbol_name(root, "op")) != ("subtract", "log"):
        return {}
    total, exps = root.find_access("data"), _find_exponential(kernel, minus, root)
    if total is None or exps is None or {"bias", "scale"} & root.texts.keys():
        return {}
    if exps.path != item.path or any(
        kernel.may_change(access.tensor, exps, item)
        for access in exps.accesses
        if access.role != "reduce_res"
    ):
        return {}
    if kernel.may_change(total.tensor, root, item) or kernel.may_rebind(root.texts["data"], root, item):
        return {}
    name, nl = kernel.fresh_name("inverse"), kernel.nl
    words = {"dst": item.texts["dst"], "data": exps.texts["dst"], "op0": f"{nl}.multiply", "operand0": name}
    return {
        "quotient": [
            f"{name} = {nl}.ndarray(({total.view.shape[0]}, 1), dtype={nl}.float32, buffer={nl}.sbuf)",
            _call_text(kernel, "reciprocal", {"dst": name, "data": root.texts["data"]}),
            _call_text(kernel, "tensor_scalar", words),
        ]
    }


def _find_exponential(kernel: Kernel, minus: Statement, root: Statement) -> Statement | None:
    """The instruction that makes exp of what `minus` reads, and its sum, which `root` reads."""
    data, total = minus.find_access("data"), root.find_access("data")
    for item in kernel.operations():
        source, result = item.find_access("data"), item.find_access("reduce_res")
        if source is None or result is None or data is None or total is None or item.order > root.order:
            continue
        plain = not {"bias", "scale"} & item.texts.keys() and _symbol_name(item, "op") == "exp"
        made = item.find_access("dst")
        whole = made is not None and find_sole_writer(kernel, made.tensor) is item
        if plain and whole and source.view == data.view and result.view == total.view:
            return item
    return None


_LINEAR_STEPS = (("scale", "multiply"), ("bias", "add"))


def _rephrase_scalar_tensor(kernel: Kernel, target: Target, item: Statement) -> Alternatives:
    """(data op0 operand0) by a tensor_scalar, the rest by a tensor_tensor."""
    dst, goal = item.find_access("dst"), item.find_access("operand1")
    assert dst is not None
    assert goal is not None
    name = kernel.fresh_name(f"{dst.tensor.name}_part")
    scale = {"dst": name, "data": item.texts["data"], "op0": item.texts["op0"]}
    scale |= {"operand0": item.texts["operand0"]}
    if item.arguments.get("reverse0"):
        scale["reverse0"] = "True"
    pair = [name, item.texts["operand1"]]
    first, second = reversed(pair) if item.arguments.get("reverse1") else pair
    rest = {"dst": item.texts["dst"], "data1": first, "data2": second, "op": item.texts["op1"]}
    found: Alternatives = {}
    for engine in ("scalar", "vector"):
        if engine == "scalar" and not (target.scalar_tensor_scalar and _runs_on_scalar(item)):
            continue
        words = scale | ({"engine": f"{kernel.nisa}.engine.scalar"} if engine == "scalar" else {})
        for buffer in ("psum", "sbuf") if goal.tensor.buffer == "sbuf" else ("sbuf",):
            declared = f"{name} = {declaration_text(kernel, item, buffer)}"
            lines = [
                declared,
                _call_text(kernel, "tensor_scalar", words),
                _call_text(kernel, "tensor_tensor", rest),
            ]
            found[f"{engine} product in {buffer}"] = lines
    return found


def _runs_on_scalar(item: Statement) -> bool:
    return _symbol_name(item, "op0") in {"multiply", "add"} and not item.arguments.get("reverse0")


_REPHRASE_RULES: dict[str, Callable[[Kernel, Target, Statement], Alternatives]] = {
    "reciprocal": _rephrase_reciprocal,
    "tensor_tensor": _rephrase_tensor_tensor,
    "activation": _rephrase_activation,
    "scalar_tensor_tensor": _rephrase_scalar_tensor,
}
