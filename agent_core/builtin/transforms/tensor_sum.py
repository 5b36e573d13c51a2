"""Sums on the tensor engine: what a loop adds to a tile is added up in PSUM, by products with the identity.

An addition of two tiles in SBUF takes VectorE two cycles per element. The tensor engine adds what it
multiplies to what is in PSUM; multiplied by the identity, that is the tile itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from agent_core.builtin import syntax
from agent_core.builtin.arithmetic import substituted
from agent_core.builtin.elementwise import is_plain
from agent_core.builtin.model import Kernel, Loop, Node, Statement, inside
from agent_core.builtin.staging import shape_texts
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.transforms.place import check_place
from agent_core.builtin.values import Affine, Symbol, Tensor
from nki_sim.targets import Target


@dataclass(frozen=True, slots=True)
class Sum:
    """`adder` adds `part` to `total` in `loop`, after `clear` has filled it with zeros."""

    adder: Statement
    clear: Statement
    total: Tensor
    part: Tensor
    loop: Loop


class TensorSum(Transform[Statement]):
    """Accumulates in PSUM what VectorE accumulated in SBUF."""

    id: ClassVar[str] = "tensor_sum"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "a product of finite numbers with the identity is the tile itself, "
        "and PSUM adds up in float32 in the same order"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        found: dict[str, Statement] = {}
        for item in kernel.operations():
            dst = item.access("dst")
            mine = [a for a in item.accesses if dst is not None and a.tensor.id == dst.tensor.id]
            if dst is not None and item.op == "tensor_tensor" and len(mine) == len("ab"):
                found.setdefault(kernel.label(dst.tensor), item)
        return found

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _chunk(target, _plan(kernel, place).total)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        plan = _plan(kernel, place)
        return _emit(kernel, target, plan, _chunk(target, plan.total))


def _plan(kernel: Kernel, adder: Statement) -> Sum:
    dst, first, second = (adder.access(role) for role in ("dst", "data1", "data2"))
    assert dst is not None
    assert first is not None
    assert second is not None
    total, op = dst.tensor, adder.arguments.get("op")
    mine, other = (first, second) if first.tensor.id == total.id else (second, first)
    declared = kernel.declarations.get(total.id)
    if not isinstance(op, Symbol) or op.leaf != "add" or not is_plain(adder) or mine.view != dst.view:
        raise Refused(f"{adder.op} does not add a tile to {total.name}")
    if declared is None or total.id in kernel.escaping or total.copies or adder.guards:
        raise Refused(f"{total.name} has a second name, or is added to under a condition")
    if other.tensor.buffer == "psum":
        check_place(kernel, other.tensor, "sbuf")
    for tensor, view in ((total, dst.view), (other.tensor, other.view)):
        if not tensor.on_chip or tensor.dtype != "float32" or len(tensor.shape) != len("pf"):
            raise Refused(f"{tensor.name} is no matrix of float32 on chip")
        if not (view.whole and view.plain) or tensor.copies:
            raise Refused(f"{tensor.name} is added in part")
    if set(adder.path) <= set(declared.path) or adder.path[: len(declared.path)] != declared.path:
        raise Refused(f"no loop adds to {total.name}")
    loop = adder.path[len(declared.path)]
    return Sum(adder, _clear(kernel, adder, total, loop), total, other.tensor, loop)


def _clear(kernel: Kernel, adder: Statement, total: Tensor, loop: Loop) -> Statement:
    """What fills the tile with zeros; nothing else may touch it before the loop ends."""
    declared = kernel.declarations[total.id]
    clear, *others = kernel.users(total)
    value = clear.arguments.get("value")
    zero = clear.op == "memset" and value in (0.0, Affine(0)) and clear.accesses[0].view.whole
    if not zero or (clear.path, clear.guards) != (declared.path, declared.guards):
        raise Refused(f"{total.name} does not begin as zeros")
    early = [item for item in others if item is not adder and inside(loop, item)]
    if early or any(item.order < adder.order for item in others):
        raise Refused(f"{total.name} is used before it is complete")
    return clear


def _chunk(target: Target, total: Tensor) -> int:
    """Columns of one product: those of a bank of PSUM."""
    columns, most = total.shape[1], min(target.psum_bank_bytes // 4, target.matmul_moving_max)
    if columns > most and columns % most:
        raise Refused(
            f"the {columns} columns of {total.name} are no multiple of the {most} of a bank of PSUM"
        )
    if total.shape[0] > target.matmul_stationary_max:
        raise Refused(f"{total.name} has more rows than a product")
    return min(columns, most)


def _emit(kernel: Kernel, target: Target, plan: Sum, chunk: int) -> str:
    nl, nisa = kernel.nl, kernel.nisa
    rows, columns = shape_texts(kernel, kernel.declarations[plan.total.id])
    ones, eye, bank = (kernel.fresh(name) for name in ("ones", "identity", f"{plan.total.name}_sum"))
    shape = f"{nl}.ndarray(({rows}, {rows}), dtype={nl}.float32, buffer={nl}.sbuf)"
    diagonal = [
        f"dst={eye}", f"pattern=[[-1, {rows}]]", "channel_multiplier=1", f"on_true_tile={ones}",
        "on_false_value=0.0", f"cmp_op={nl}.equal",
    ]  # fmt: skip
    top = [
        f"{ones} = {shape}",
        f"{nisa}.memset(dst={ones}, value=1.0)",
        f"{eye} = {shape}",
        f"{nisa}.affine_select({', '.join(diagonal)})",
    ]
    started = f"{bank} = {nl}.ndarray(({rows}, {columns}), dtype={nl}.float32, buffer={nl}.psum)"
    engine = f", engine={nisa}.engine.scalar" if target.scalar_tensor_copy else ""
    done = f"{nisa}.tensor_copy(dst={plan.total.name}, src={bank}{engine})"
    outermost = next(node for node in kernel.body if node is plan.clear or _holds(node, plan.clear))

    part = kernel.declarations[plan.part.id] if plan.part.buffer == "psum" else None

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        front = [syntax.statement(line) for line in top] if node is outermost else []
        if node is plan.clear:
            return [*front, syntax.statement(started)]
        if node is part:
            # A product takes its operands from SBUF.
            return [syntax.with_arguments(part.node, {"buffer": f"{nl}.sbuf"})]
        if node is plan.adder:
            return [_product(kernel, plan, eye, bank, chunk)]
        if node is plan.loop:
            body = syntax.rebuild(plan.loop.body, emit)
            return [*front, syntax.with_body(plan.loop.node, body), syntax.statement(done)]
        if front and not isinstance(node, Statement):
            body = syntax.rebuild(node.body, emit)
            return [*front, syntax.with_body(node.node, body)]
        return None

    return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _holds(node: Node, item: Statement) -> bool:
    return isinstance(node, Loop) and inside(node, item)


def _product(kernel: Kernel, plan: Sum, eye: str, bank: str, chunk: int) -> cst.BaseStatement:
    """The tile times the identity, bank by bank."""
    index = kernel.fresh("i_bank")
    part = "" if plan.total.shape[1] == chunk else f"[:, {index} * {chunk} : ({index} + 1) * {chunk}]"
    call = (
        f"{kernel.nisa}.nc_matmul(dst={bank}{part}, stationary={eye}, moving={plan.part.name}{part}, "
        f"is_stationary_onezero=True)"
    )
    line = syntax.statement(call)
    if not part:
        return syntax.at_front(line, syntax.leading(plan.adder.node))
    columns = shape_texts(kernel, kernel.declarations[plan.total.id])[1]
    count = substituted(f"columns // {chunk}", {"columns": columns})
    looped = syntax.loop(index, f"{kernel.nl}.affine_range({count})", [line])
    return syntax.at_front(looped, syntax.leading(plan.adder.node))
