"""Exponentials: VectorE's own instruction computes exp, which ScalarE computes at a quarter of its rate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import declaration_text
from targets.nki.rewrites.elementwise import Leaf, expand_expression, negation_operand
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result
from targets.nki.rewrites.values import Affine, LibrarySymbol, Value

_SCALED = "tensor_scalar and exponential"
_KEPT = ("reduce_res", "reduce_cmd", "name")
_ACTIVATIONS = frozenset({"activation", "activation_reduce"})


class Exponential(Transform[Statement]):
    """Replaces an exp on ScalarE by VectorE's exponential, with its bias and its sum."""

    id: ClassVar[str] = "exponential"
    counter: ClassVar[str] = "scalar_engine_active_time_percent"
    keeps: ClassVar[str] = "exp(src - max_value) in float32 is exp(data + bias) with the bias negated"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        if not target.exponential_speed:
            return {}
        return sites_by_result(item for item in kernel.operations() if _computes_exp(item))

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del target
        _check_registers(kernel, place)
        return ({"by": _SCALED if _is_scaled(place) else "exponential"},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target, choice
        _check_registers(kernel, place)
        lines = _scaled_lines(kernel, place) if _is_scaled(place) else _plain_lines(kernel, place)
        new: list[cst.BaseStatement] = [syntax.parse_statement(line) for line in lines]
        new[0] = syntax.with_leading_lines(new[0], syntax.leading_lines(place.node))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return list(new) if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _computes_exp(item: Statement) -> bool:
    op = item.arguments.get("op")
    return item.op in _ACTIVATIONS and isinstance(op, LibrarySymbol) and op.leaf == "exp"


def _check_registers(kernel: Kernel, item: Statement) -> None:
    """Refuse a sum where the kernel may keep another one in VectorE's registers."""
    if item.find_access("reduce_res") is not None and re.search(
        r"\breduce_(cmd|res)\b", kernel.unread_source
    ):
        raise RewriteRefused("the kernel may keep sums in the engine's registers, which this would overwrite")


def _is_scaled(item: Statement) -> bool:
    return "scale" in item.texts and _as_number(item.arguments.get("scale")) != 1.0


def _as_number(value: Value) -> float | None:
    if isinstance(value, Affine):
        return float(value.const) if value.is_const else None
    return value if isinstance(value, float) else None


def _scaled_lines(kernel: Kernel, item: Statement) -> list[str]:
    """The exponential has no scale: a tensor_scalar multiplies, and adds the bias along the way."""
    name = kernel.fresh_name("exponent")
    words = {"dst": name, "data": item.texts["data"], "op0": f"{kernel.nl}.multiply"}
    words |= {"operand0": item.texts["scale"]}
    if "bias" in item.texts:
        words |= {"op1": f"{kernel.nl}.add", "operand1": item.texts["bias"]}
    return [
        f"{name} = {declaration_text(kernel, item, 'sbuf')}",
        _call_text(kernel, "tensor_scalar", words),
        _exponential_text(kernel, item, {"src": name}),
    ]


def _plain_lines(kernel: Kernel, item: Statement) -> list[str]:
    words = {"src": item.texts["data"]}
    if "bias" not in item.texts:
        return [_exponential_text(kernel, item, words)]
    number, bias = _as_number(item.arguments.get("bias")), item.find_access("bias")
    known = repr(-number) if number is not None else _find_negated(kernel, item, bias)
    if known is not None:
        return [_exponential_text(kernel, item, words | {"max_value": known})]
    if bias is None:
        raise RewriteRefused("its bias is neither a tile nor a known number")
    name, nl = kernel.fresh_name("shift"), kernel.nl
    negation = {"dst": name, "data": item.texts["bias"], "op0": f"{nl}.multiply", "operand0": "-1.0"}
    return [
        f"{name} = {nl}.ndarray(({bias.view.shape[0]}, 1), dtype={nl}.float32, buffer={nl}.sbuf)",
        _call_text(kernel, "tensor_scalar", negation),
        _exponential_text(kernel, item, words | {"max_value": name}),
    ]


def _find_negated(kernel: Kernel, item: Statement, bias: Access | None) -> str | None:
    """The source of a column whose negative the bias is, if the kernel still has it."""
    if bias is None:
        return None
    inner = negation_operand(expand_expression(kernel, Leaf(bias.view, item.texts["bias"]), item))
    if not isinstance(inner, Leaf) or inner.view.tensor.dtype != "float32":
        return None
    return inner.text if inner.view.shape == bias.view.shape else None


def _exponential_text(kernel: Kernel, item: Statement, words: Mapping[str, str]) -> str:
    kept = {name: item.texts[name] for name in _KEPT if name in item.texts}
    if item.op == "activation_reduce":  # which always begins a sum of its own
        kept.setdefault("reduce_cmd", f"{kernel.nisa}.reduce_cmd.reset_reduce")
    return _call_text(kernel, "exponential", {"dst": item.texts["dst"], **words, **kept})


def _call_text(kernel: Kernel, op: str, words: Mapping[str, str]) -> str:
    return f"{kernel.nisa}.{op}({', '.join(f'{name}={text}' for name, text in words.items())})"
