"""Moves sums that a loop collects in a tile to PSUM, by matrix products with the identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Node, Statement, loop_contains
from targets.nki.rewrites.memory_placement import check_placement
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, LibrarySymbol, Tensor, TensorView


@dataclass(frozen=True, slots=True)
class LoopSum:
    """`adder` adds `added` to a `view` of the total in `loop`, after `clear` has set that to zero.

    If not `from_zero`, the sum begins with something else, which `clear` writes.
    """

    adder: Statement
    clear: Statement
    view: TensorView
    added: TensorView
    loop: Loop
    from_zero: bool = True

    @property
    def total(self) -> Tensor:
        return self.view.tensor

    @property
    def added_tile(self) -> Tensor:
        return self.added.tensor


@dataclass(frozen=True, slots=True)
class SumProducts:
    """The products that replace the sum: of `operand`, in place of the adder and of the `gone` statements.

    `made` gets the names of the identity and of the tile in PSUM; `before` goes in front of the loop.
    """

    operand: Tensor
    made: Callable[[str, str], list[cst.BaseStatement]]
    gone: tuple[Statement, ...] = ()
    before: Sequence[cst.BaseStatement] = ()


def find_adders(kernel: Kernel) -> Mapping[str, Statement]:
    """The statements that add to a tile, or do something similar, by the tile's name."""
    found: dict[str, Statement] = {}
    for item in kernel.operations():
        dst = item.find_access("dst")
        mine = [a for a in item.accesses if dst is not None and a.tensor.id == dst.tensor.id]
        if dst is not None and item.op == "tensor_tensor" and len(mine) == len("ab"):
            found.setdefault(kernel.unique_label(dst.tensor), item)
    return found


def find_matrix_sum(kernel: Kernel, adder: Statement) -> LoopSum:
    """Return the sum that an instruction adds to, if the total and the addend are whole matrices.

    Raises:
        RewriteRefused: as for `find_loop_sum`, or they are not whole matrices.
    """
    plan = find_loop_sum(kernel, adder)
    if not plan.from_zero:
        raise RewriteRefused(f"{plan.total.name} does not begin as zeros")
    for tensor, view in ((plan.total, plan.view), (plan.added_tile, plan.added)):
        if len(tensor.shape) != len("pf") or not (view.is_whole and view.plain):
            raise RewriteRefused(f"{tensor.name} is no matrix, or is added in part")
    return plan


def find_loop_sum(kernel: Kernel, adder: Statement) -> LoopSum:
    """Return the sum that an instruction adds to.

    Raises:
        RewriteRefused: it adds nothing, or its total is not a sum over a loop.
    """
    dst, first, second = (adder.find_access(role) for role in ("dst", "data1", "data2"))
    assert dst is not None
    assert first is not None
    assert second is not None
    total, op = dst.tensor, adder.arguments.get("op")
    mine, other = (first, second) if first.tensor.id == total.id else (second, first)
    declared = kernel.declarations.get(total.id)
    if (
        not isinstance(op, LibrarySymbol)
        or op.leaf != "add"
        or not has_plain_arguments(adder)
        or mine.view != dst.view
    ):
        raise RewriteRefused(f"{adder.op} does not add a tile to {total.name}")
    if declared is None or total.copies or adder.guards or declared.guards:
        raise RewriteRefused(f"{total.name} is declared or added to under a condition, or is a list of tiles")
    known = [tensor for tensor in (total, other.tensor) if tensor.id in kernel.escaping_ids]
    if known:
        raise RewriteRefused(f"{known[0].name} has a second name or is used by what cannot be read")
    for tensor in (total, other.tensor):
        if not tensor.is_on_chip or tensor.dtype != "float32" or tensor.copies:
            raise RewriteRefused(f"{tensor.name} is no tile of float32 on chip")
    if set(adder.path) <= set(declared.path) or adder.path[: len(declared.path)] != declared.path:
        raise RewriteRefused(f"no loop adds to {total.name}")
    loop = adder.path[len(declared.path)]
    clear = _find_clear(kernel, adder, total, loop=loop)
    zero = clear.op == "memset" and clear.arguments.get("value") in (0.0, Affine(0))
    return LoopSum(adder, clear, dst.view, other.view, loop, zero)


def _find_clear(kernel: Kernel, adder: Statement, total: Tensor, *, loop: Loop) -> Statement:
    """The statement that begins the sum; nothing else may touch the tile before the loop ends."""
    declared = kernel.declarations[total.id]
    clear, *others = kernel.users_of(total)
    goal = clear.find_access("dst")
    begins = goal is not None and goal.tensor.id == total.id and goal.view.is_whole and not goal.reads
    alone = sum(access.tensor.id == total.id for access in clear.accesses) == 1
    if not begins or not alone or (clear.path, clear.guards) != (declared.path, declared.guards):
        raise RewriteRefused(f"{total.name} does not begin whole, with zeros or something else")
    if kernel.may_rebind(declared.texts["shape"], declared, clear):
        raise RewriteRefused(f"{declared.texts['shape']} means something else where {total.name} is filled")
    early = [item for item in others if item is not adder and loop_contains(loop, item)]
    if early or any(item.order < adder.order for item in others):
        raise RewriteRefused(f"{total.name} is used before it is complete")
    return clear


def accumulate_in_psum(kernel: Kernel, target: Target, plan: LoopSum, products: SumProducts) -> str:
    """The source with the sum collected in PSUM.

    Raises:
        RewriteRefused: the products' operand is in PSUM and cannot move to SBUF, where products read it.
    """
    operand = products.operand
    if operand.buffer == "psum":
        check_placement(kernel, operand, "sbuf")
    nl, nisa = kernel.nl, kernel.nisa
    rows = shape_texts(kernel, kernel.declarations[plan.total.id])[0]
    ones, eye, bank = (kernel.fresh_name(name) for name in ("ones", "identity", f"{plan.total.name}_sum"))
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
    outermost = next(
        node for node in kernel.body if node is plan.clear or _contains_statement(node, plan.clear)
    )
    moved = kernel.declarations[operand.id] if operand.buffer == "psum" else None

    def others(node: Node) -> list[cst.BaseStatement] | None:
        if node in products.gone:
            return []
        if node is moved:
            return [syntax.replace_arguments(moved.node, {"buffer": f"{nl}.sbuf"})]
        if node is plan.clear:
            return list(products.before)
        return products.made(eye, bank) if node is plan.adder else None

    done = [copy_from_psum(kernel, target, plan.total.name, bank)]
    collect = collect_in_psum(kernel, plan, bank, done, others)

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is not outermost:
            return collect(node)
        front = [syntax.parse_statement(line) for line in top]
        if isinstance(node, Statement):
            return [*front, *(collect(node) or ())]
        return [*front, syntax.replace_body(node.node, syntax.rebuild_block(node.body, collect))]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def copy_from_psum(kernel: Kernel, target: Target, goal: str, source: str) -> cst.BaseStatement:
    """A copy from PSUM, by the least busy engine where products are made."""
    engine = {"engine": f"{kernel.nisa}.engine.scalar"} if target.scalar_tensor_copy else {}
    return syntax.make_call(f"{kernel.nisa}.tensor_copy", {"dst": goal, "src": source, **engine})


def collect_in_psum(
    kernel: Kernel, plan: LoopSum, bank: str, done: Sequence[cst.BaseStatement], others: syntax.Emit
) -> syntax.Emit:
    """How to emit a kernel's nodes when a sum is collected in a PSUM tile, named `bank`.

    The tile's declaration replaces the statement that clears the total; `done` comes after the loop. `others`
    emits the adder and everything else, and may add statements after the declaration.
    """
    shape = ", ".join(shape_texts(kernel, kernel.declarations[plan.total.id]))
    started = f"{bank} = {kernel.nl}.ndarray(({shape}), dtype={kernel.nl}.float32, buffer={kernel.nl}.psum)"

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if node is plan.clear:
            return [syntax.parse_statement(started), *(others(node) or ())]
        if node is plan.loop:
            body = syntax.rebuild_block(plan.loop.body, emit)
            return [syntax.replace_body(plan.loop.node, body), *done]
        return others(node)

    return emit


def _contains_statement(node: Node, item: Statement) -> bool:
    return isinstance(node, Loop) and loop_contains(node, item)
