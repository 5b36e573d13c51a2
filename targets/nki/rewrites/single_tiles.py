"""What a loop over tiles leaves when there is one tile: no loop, no total, nothing to put together."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import NEUTRAL_OPERANDS, has_plain_arguments, memset_value
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.reductions import reduces_rows
from targets.nki.rewrites.source_simplification import simplify_source
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.values import LibrarySymbol, Tensor

_PASSES = ("loops of one iteration removed", "constants folded")


@dataclass(frozen=True, eq=False)
class LoneAddend:
    """`adder` adds what `maker` makes, and nothing else uses, to a total that `clear` has just begun."""

    clear: Statement
    maker: Statement
    made: Access
    adder: Statement


def dissolve_single_tiles(source: str, kernel: Kernel, target: Target) -> str:
    """Return a source without loops of one iteration, and without their sums, if it can be read so."""
    text, _ = simplify_source(source, _PASSES)
    try:
        found = read_kernel(text, kernel.arguments, target)
    except SourceError:
        return source
    addends = [one for item in found.operations() if (one := _find_addend(found, item)) is not None]
    single = {item for item in found.operations() if _reduces_one_element(item)}
    return _write_without_totals(found, addends, single) if addends or single else text


def _write_without_totals(kernel: Kernel, addends: list[LoneAddend], single: set[Statement]) -> str:
    makers = {one.maker: one for one in addends}
    adders = {one.adder: one for one in addends}
    gone = {one.clear for one in addends}
    gone |= {kernel.declarations[one.made.tensor.id] for one in addends if one.made.tensor.buffer == "sbuf"}

    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if not isinstance(node, Statement):
            return None
        if node in gone:
            return []
        if node in makers and makers[node].made.tensor.buffer == "sbuf":
            one = makers[node]
            return [syntax.replace_arguments(node.node, {one.made.role: one.adder.texts["dst"]})]
        if node in adders:
            return _write_copy(kernel, adders[node])
        return _write_single_element(kernel, node) if node in single else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _write_copy(kernel: Kernel, one: LoneAddend) -> list[cst.BaseStatement]:
    """The copy of a total from PSUM; nothing where the total is written directly."""
    if one.made.tensor.buffer == "sbuf":
        return []
    words = {"dst": one.adder.texts["dst"], "src": one.made.tensor.name}
    made = syntax.make_call(f"{kernel.nisa}.tensor_copy", words)
    return [syntax.with_leading_lines(made, syntax.leading_lines(one.adder.node))]


def _find_addend(kernel: Kernel, adder: Statement) -> LoneAddend | None:
    """What an instruction adds to a total that has just begun as the operator's neutral number."""
    dst, op = adder.find_access("dst"), adder.arguments.get("op")
    if adder.op != "tensor_tensor" or dst is None or not has_plain_arguments(adder):
        return None
    total = dst.tensor
    before = [item for item in kernel.users_of(total) if item.order < adder.order]
    others = [access for access in adder.accesses if access.tensor.id != total.id]
    if len(before) != 1 or len(others) != 1 or not isinstance(op, LibrarySymbol):
        return None
    (clear,), part = before, others[0].tensor
    users = [item for item in kernel.users_of(part) if item is not adder]
    number = memset_value(clear)
    if len(users) != 1 or number is None or NEUTRAL_OPERANDS.get(op.leaf) != number:
        return None
    made = [access for access in users[0].accesses if access.tensor.id == part.id and access.writes]
    one = LoneAddend(clear, users[0], made[0], adder) if len(made) == 1 else None
    return one if one is not None and _can_write_total(kernel, one, total) else None


def _can_write_total(kernel: Kernel, one: LoneAddend, total: Tensor) -> bool:
    """Whether what is added is all of the total, and is made in the block where the total begins."""
    part, declared = one.made.tensor, kernel.declarations.get(one.made.tensor.id)
    if declared is None or {total.id, part.id} & kernel.escaping_ids or total.copies or part.copies:
        return False
    if total.buffer != "sbuf" or (total.shape, total.dtype) != (part.shape, part.dtype):
        return False
    if part.buffer == "sbuf" and (one.made.reads or one.made.role not in one.maker.texts):
        return False
    touched = [access for item in (one.clear, one.maker, one.adder) for access in item.accesses]
    mine = [access.view for access in touched if access.tensor.id in {total.id, part.id}]
    places = {(item.path, item.guards) for item in (one.clear, one.maker, one.adder, declared)}
    return len(places) == 1 and all(view.is_whole and view.plain for view in mine)


def _reduces_one_element(item: Statement) -> bool:
    data = item.find_access("data")
    return data is not None and reduces_rows(item) and data.view.shape[1:] == (1,)


def _write_single_element(kernel: Kernel, item: Statement) -> list[cst.BaseStatement]:
    """A reduction of one element for each row as what it is: a copy, or a product with -1."""
    goal, source = item.texts["dst"], item.texts["data"]
    call, words = "tensor_copy", {"dst": goal, "src": source}
    if item.arguments.get("negate"):
        call = "tensor_scalar"
        words = {"dst": goal, "data": source, "op0": f"{kernel.nl}.multiply", "operand0": "-1.0"}
    made = syntax.make_call(f"{kernel.nisa}.{call}", words)
    return [syntax.with_leading_lines(made, syntax.leading_lines(item.node))]
