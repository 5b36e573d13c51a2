"""Sums that a loop collects in a tile, and the same sums collected in PSUM by products with the identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import is_plain
from targets.nki.rewrites.model import Kernel, Loop, Node, Statement, inside
from targets.nki.rewrites.placing import check_place
from targets.nki.rewrites.staging import shape_texts
from targets.nki.rewrites.transform import Refused
from targets.nki.rewrites.values import Affine, Symbol, Tensor, View


@dataclass(frozen=True, slots=True)
class Sum:
    """`adder` adds `added` to a `view` of the total in `loop`, after `clear` has filled that with zeros."""

    adder: Statement
    clear: Statement
    view: View
    added: View
    loop: Loop

    @property
    def total(self) -> Tensor:
        return self.view.tensor

    @property
    def part(self) -> Tensor:
        return self.added.tensor


@dataclass(frozen=True, slots=True)
class Products:
    """What adds to the sum instead: of `operand`, in place of the adder and of what is `gone`.

    `made` gets the names of the identity and of the tile in PSUM; `before` stands in front of the loop.
    """

    operand: Tensor
    made: Callable[[str, str], list[cst.BaseStatement]]
    gone: tuple[Statement, ...] = ()
    before: Sequence[cst.BaseStatement] = ()


def adders(kernel: Kernel) -> Mapping[str, Statement]:
    """What adds to a tile, or does something like it, by the tile's name."""
    found: dict[str, Statement] = {}
    for item in kernel.operations():
        dst = item.access("dst")
        mine = [a for a in item.accesses if dst is not None and a.tensor.id == dst.tensor.id]
        if dst is not None and item.op == "tensor_tensor" and len(mine) == len("ab"):
            found.setdefault(kernel.label(dst.tensor), item)
    return found


def matrix_sum_of(kernel: Kernel, adder: Statement) -> Sum:
    """The sum that an instruction adds to, where that and what it adds are whole matrices.

    Raises:
        Refused: as `sum_of`, or they are not.
    """
    plan = sum_of(kernel, adder)
    for tensor, view in ((plan.total, plan.view), (plan.part, plan.added)):
        if len(tensor.shape) != len("pf") or not (view.whole and view.plain):
            raise Refused(f"{tensor.name} is no matrix, or is added in part")
    return plan


def sum_of(kernel: Kernel, adder: Statement) -> Sum:
    """The sum that an instruction adds to.

    Raises:
        Refused: it adds nothing, or to what is no sum over a loop.
    """
    dst, first, second = (adder.access(role) for role in ("dst", "data1", "data2"))
    assert dst is not None
    assert first is not None
    assert second is not None
    total, op = dst.tensor, adder.arguments.get("op")
    mine, other = (first, second) if first.tensor.id == total.id else (second, first)
    declared = kernel.declarations.get(total.id)
    if not isinstance(op, Symbol) or op.leaf != "add" or not is_plain(adder) or mine.view != dst.view:
        raise Refused(f"{adder.op} does not add a tile to {total.name}")
    if declared is None or total.copies or adder.guards or declared.guards:
        raise Refused(f"{total.name} is declared or added to under a condition, or is a list of tiles")
    known = [tensor for tensor in (total, other.tensor) if tensor.id in kernel.escaping]
    if known:
        raise Refused(f"{known[0].name} has a second name or is used by what cannot be read")
    for tensor in (total, other.tensor):
        if not tensor.on_chip or tensor.dtype != "float32" or tensor.copies:
            raise Refused(f"{tensor.name} is no tile of float32 on chip")
    if set(adder.path) <= set(declared.path) or adder.path[: len(declared.path)] != declared.path:
        raise Refused(f"no loop adds to {total.name}")
    loop = adder.path[len(declared.path)]
    return Sum(adder, _clear(kernel, adder, total, loop), dst.view, other.view, loop)


def _clear(kernel: Kernel, adder: Statement, total: Tensor, loop: Loop) -> Statement:
    """What fills the tile with zeros; nothing else may touch it before the loop ends."""
    declared = kernel.declarations[total.id]
    clear, *others = kernel.users(total)
    value = clear.arguments.get("value")
    zero = clear.op == "memset" and value in (0.0, Affine(0)) and clear.accesses[0].view.whole
    if not zero or (clear.path, clear.guards) != (declared.path, declared.guards):
        raise Refused(f"{total.name} does not begin as zeros")
    if kernel.rebinds(declared.texts["shape"], declared, clear):
        raise Refused(f"{declared.texts['shape']} means something else where {total.name} is filled")
    early = [item for item in others if item is not adder and inside(loop, item)]
    if early or any(item.order < adder.order for item in others):
        raise Refused(f"{total.name} is used before it is complete")
    return clear


def in_psum(kernel: Kernel, target: Target, plan: Sum, products: Products) -> str:
    """The source with the sum collected in PSUM.

    Raises:
        Refused: the products' operand is in PSUM, and cannot be in SBUF, where products take it from.
    """
    operand = products.operand
    if operand.buffer == "psum":
        check_place(kernel, operand, "sbuf")
    nl, nisa = kernel.nl, kernel.nisa
    rows = shape_texts(kernel, kernel.declarations[plan.total.id])[0]
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
    outermost = next(node for node in kernel.body if node is plan.clear or _holds(node, plan.clear))
    moved = kernel.declarations[operand.id] if operand.buffer == "psum" else None

    def others(node: Node) -> list[cst.BaseStatement] | None:
        if node in products.gone:
            return []
        if node is moved:
            return [syntax.with_arguments(moved.node, {"buffer": f"{nl}.sbuf"})]
        if node is plan.clear:
            return list(products.before)
        return products.made(eye, bank) if node is plan.adder else None

    done = [brought_back(kernel, target, plan.total.name, bank)]
    collect = collected(kernel, plan, bank, done, others)

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is not outermost:
            return collect(node)
        front = [syntax.statement(line) for line in top]
        if isinstance(node, Statement):
            return [*front, *(collect(node) or ())]
        return [*front, syntax.with_body(node.node, syntax.rebuild(node.body, collect))]

    return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def brought_back(kernel: Kernel, target: Target, goal: str, source: str) -> cst.BaseStatement:
    """A copy from PSUM, by the engine that has least to do where products are made."""
    engine = {"engine": f"{kernel.nisa}.engine.scalar"} if target.scalar_tensor_copy else {}
    return syntax.call(f"{kernel.nisa}.tensor_copy", {"dst": goal, "src": source, **engine})


def collected(
    kernel: Kernel, plan: Sum, bank: str, done: Sequence[cst.BaseStatement], others: syntax.Emit
) -> syntax.Emit:
    """What becomes of a kernel's nodes when a sum is collected in a tile in PSUM, named `bank`.

    It takes the place of the zeros; what is `done` with it comes behind the loop. What becomes of the adder
    and of all the rest is for `others`, of the zeros' place too: what that makes comes after the tile.
    """
    shape = ", ".join(shape_texts(kernel, kernel.declarations[plan.total.id]))
    started = f"{bank} = {kernel.nl}.ndarray(({shape}), dtype={kernel.nl}.float32, buffer={kernel.nl}.psum)"

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is plan.clear:
            return [syntax.statement(started), *(others(node) or ())]
        if node is plan.loop:
            body = syntax.rebuild(plan.loop.body, emit)
            return [syntax.with_body(plan.loop.node, body), *done]
        return others(node)

    return emit


def _holds(node: Node, item: Statement) -> bool:
    return isinstance(node, Loop) and inside(node, item)
