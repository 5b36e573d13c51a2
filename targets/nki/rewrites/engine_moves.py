"""Instructions on other engines: which engines have one, what it is there, and how it is written.

An instruction whose first step changes nothing is the other step alone, which more engines have: VectorE
computes (1 * a) + b without a claim on the port that it shares with GpSimd, and GpSimd computes a + b.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import NEUTRAL_OPERANDS
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.transform import RewriteRefused

_ROLES = {"data": "data1", "operand1": "data2"}
"""Operands of the second step by their role in both."""
_STEPS = ("op0", "operand0", "op1", "reverse0", "reverse1")


def has_other_engines(item: Statement) -> bool:
    """Whether several engines have an instruction, or what it computes."""
    return len(OPERATORS[item.op].engines) > 1 or (item.form is not None and _is_one_step(item.form))


def other_engines(item: Statement) -> tuple[str, ...]:
    """Return the other engines that have the instruction.

    Raises:
        RewriteRefused: they do not compute the same.
    """
    if item.op == "nc_transpose":
        raise RewriteRefused("the vector engine transposes 32x32 blocks, not whole tiles")
    wide = [access.tensor for access in item.accesses if access.tensor.dtype in {"int32", "uint32"}]
    if wide:
        raise RewriteRefused(
            f"{wide[0].name} holds integers, of which engines keep different numbers of bits"
        )
    op = "tensor_tensor" if item.form is not None and _is_one_step(item.form) else item.op
    return tuple(name for name in OPERATORS[op].engines if name != item.engine)


def form_on(form: Form, engine: str) -> Form:
    """What an instruction is on an engine."""
    if engine == form.engine or not _is_one_step(form):
        return replace(form, engine=engine)
    operands = [replace(item, role=_ROLES.get(item.role, item.role)) for item in form.operands]
    params = [("op" if name == "op1" else name, value) for name, value in form.params]
    left = tuple((name, value) for name, value in params if name not in _STEPS)
    return replace(form, op="tensor_tensor", engine=engine, operands=tuple(operands), params=left)


def can_run_on(form: Form, engine: str, target: Target) -> bool:
    """Whether an engine has an instruction and reaches its operands."""
    reached = engine != "gpsimd" or all(operand.buffer != "psum" for operand in form.operands)
    moved = form_on(form, engine)
    return reached and not any(True for _ in OPERATORS[moved.op].find_breaches(moved, target))


def write_on(kernel: Kernel, item: Statement, node: cst.BaseStatement, engine: str) -> cst.BaseStatement:
    """An instruction, or a part of it, on an engine; `node` is its source on its own engine."""
    changes: dict[str, str | None] = {"engine": f"{kernel.nisa}.engine.{engine}"}
    if engine == item.engine or item.form is None or not _is_one_step(item.form):
        return syntax.replace_arguments(node, changes)
    texts = syntax.argument_texts(node)
    pair = [texts["data"], texts["operand1"]]
    first, second = reversed(pair) if item.form.param("reverse1") else pair
    words: dict[str, str | None] = {"data1": first, "data2": second, "op": texts["op1"]}
    dropped = dict.fromkeys((*_ROLES, *_STEPS))
    return syntax.replace_arguments(node, {**dropped, **words, **changes}, f"{kernel.nisa}.tensor_tensor")


def _is_one_step(form: Form) -> bool:
    """Whether an instruction of two steps changes nothing in the first one."""
    if form.op != "scalar_tensor_tensor" or form.param("reverse0"):
        return False
    number = form.param("operand0")
    return number is not None and NEUTRAL_OPERANDS.get(str(form.param("op0"))) == number
