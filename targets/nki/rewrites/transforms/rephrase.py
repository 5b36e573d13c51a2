"""Other instructions for the same value: cheaper ones, or such as another engine has.

VectorE raises to powers in the time of a copy; ScalarE squares; a product and a sum by two instructions
may be cheaper than by one, when the first leaves its result in PSUM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import is_plain
from targets.nki.rewrites.model import Kernel, Node, Statement
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Choice, Refused, Transform, by_result
from targets.nki.rewrites.values import Symbol

FLOATS = frozenset({"float32", "bfloat16", "float16"})

Ways = dict[str, list[str]]
"""By what it is called for people: the sources of the statements instead."""


class Rephrase(Transform[Statement]):
    """Replaces an instruction by others that compute the same."""

    id: ClassVar[str] = "rephrase"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "both compute the same function in float32, element by element"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return by_result(item for item in kernel.operations() if item.op in _RULES)

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        return tuple({"as": name} for name in _ways(kernel, target, place))

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        lines = _ways(kernel, target, place)[str(choice["as"])]
        new: list[cst.BaseStatement] = [syntax.statement(line) for line in lines]
        new[0] = syntax.at_front(new[0], syntax.leading(place.node))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return new if node is place else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _ways(kernel: Kernel, target: Target, item: Statement) -> Ways:
    if not is_plain(item):
        raise Refused(f"{item.op} has arguments that other instructions have no place for")
    exact = [access.tensor for access in item.accesses if access.tensor.dtype not in FLOATS]
    if exact:
        raise Refused(f"{exact[0].name} holds {exact[0].dtype}, of which others keep other digits")
    found = _RULES[item.op](kernel, target, item)
    if not found:
        raise Refused(f"no other instruction computes what this {item.op} does")
    return found


def _call(kernel: Kernel, op: str, words: Mapping[str, str]) -> str:
    return f"{kernel.nisa}.{op}({', '.join(f'{name}={text}' for name, text in words.items())})"


def _symbol(item: Statement, role: str) -> str:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, Symbol) else ""


def _reciprocal(kernel: Kernel, target: Target, item: Statement) -> Ways:
    """1 / x is x to the power of -1, in the time of a copy."""
    del target
    words = {"dst": item.texts["dst"], "data": item.texts["data"]}
    return {
        "power": [_call(kernel, "tensor_scalar", words | {"op0": f"{kernel.nl}.power", "operand0": "-1.0"})]
    }


def _square(kernel: Kernel, target: Target, item: Statement) -> Ways:
    """x * x is a function of ScalarE, in every function table."""
    del target
    first, second = item.access("data1"), item.access("data2")
    if first is None or second is None or first.view != second.view or _symbol(item, "op") != "multiply":
        return {}
    words = {"dst": item.texts["dst"], "op": f"{kernel.nl}.square", "data": item.texts["data1"]}
    return {"square": [_call(kernel, "activation", words)]}


_POWERS = {"sqrt": "0.5", "rsqrt": "-0.5", "reciprocal": "-1.0"}


def _activation(kernel: Kernel, target: Target, item: Statement) -> Ways:
    """Roots are powers, copies with a scale products: VectorE has them, too."""
    del target
    function, words = _symbol(item, "op"), {"dst": item.texts["dst"], "data": item.texts["data"]}
    steps = [(name, item.texts[role]) for role, name in _LINEAR if role in item.texts]
    if function in _POWERS:
        steps.append(("power", _POWERS[function]))
    elif function == "square" and not steps:
        data = item.texts["data"]
        words = {"dst": item.texts["dst"], "data1": data, "data2": data, "op": f"{kernel.nl}.multiply"}
        return {"product": [_call(kernel, "tensor_tensor", words)]}
    elif function != "copy" or not steps:
        return {}
    if len(steps) > len("01"):
        raise Refused("a tensor_scalar has two operators at most")
    for number, (name, operand) in enumerate(steps):
        words |= {f"op{number}": f"{kernel.nl}.{name}", f"operand{number}": operand}
    return {"tensor_scalar": [_call(kernel, "tensor_scalar", words)]}


_LINEAR = (("scale", "multiply"), ("bias", "add"))


def _two_steps(kernel: Kernel, target: Target, item: Statement) -> Ways:
    """(data op0 operand0) by a tensor_scalar, what follows by a tensor_tensor."""
    dst, goal = item.access("dst"), item.access("operand1")
    assert dst is not None
    assert goal is not None
    name = kernel.fresh(f"{dst.tensor.name}_part")
    scale = {"dst": name, "data": item.texts["data"], "op0": item.texts["op0"]}
    scale |= {"operand0": item.texts["operand0"]}
    if item.arguments.get("reverse0"):
        scale["reverse0"] = "True"
    pair = [name, item.texts["operand1"]]
    first, second = reversed(pair) if item.arguments.get("reverse1") else pair
    rest = {"dst": item.texts["dst"], "data1": first, "data2": second, "op": item.texts["op1"]}
    found: Ways = {}
    for engine in ("scalar", "vector"):
        if engine == "scalar" and not (target.scalar_tensor_scalar and _on_scalar(item)):
            continue
        words = scale | ({"engine": f"{kernel.nisa}.engine.scalar"} if engine == "scalar" else {})
        for buffer in ("psum", "sbuf") if goal.tensor.buffer == "sbuf" else ("sbuf",):
            declared = f"{name} = {_tile(kernel, item, buffer)}"
            lines = [declared, _call(kernel, "tensor_scalar", words), _call(kernel, "tensor_tensor", rest)]
            found[f"{engine} product in {buffer}"] = lines
    return found


def _on_scalar(item: Statement) -> bool:
    return _symbol(item, "op0") in {"multiply", "add"} and not item.arguments.get("reverse0")


def _tile(kernel: Kernel, item: Statement, buffer: str) -> str:
    """A declaration of the size of what an instruction writes."""
    dst = item.access("dst")
    assert dst is not None
    declared = kernel.declarations.get(dst.tensor.id)
    if declared is not None and dst.view.whole and dst.view.plain:
        sizes = shape_texts(kernel, declared)
    else:
        sizes = [str(size) for size in dst.view.shape]
    nl = kernel.nl
    return f"{nl}.ndarray(({', '.join(sizes)}), dtype={nl}.float32, buffer={nl}.{buffer})"


_RULES: dict[str, Callable[[Kernel, Target, Statement], Ways]] = {
    "reciprocal": _reciprocal,
    "tensor_tensor": _square,
    "activation": _activation,
    "scalar_tensor_tensor": _two_steps,
}
