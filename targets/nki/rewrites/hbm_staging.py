"""Stages a tile in HBM: a loop in front makes it for all iterations and stores it, each iteration loads it.

What an outer loop makes again in each of its iterations is often too large for SBUF, if inner loops index it.
A transfer costs less than, for instance, transposing on TensorE.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import Loop, Node, Statement, StatementKind, loop_contains
from targets.nki.rewrites.staging import StagePlan, check_may_precede
from targets.nki.rewrites.transform import RewriteRefused

HELD_TWICE = "is loaded, and HBM would hold it twice"
"""Ends the reason against tiles that do not fit in SBUF and are only loaded."""


def check_is_computed(plan: StagePlan) -> None:
    """Check that something else than transfers makes the tile: loading it again would cost as much.

    Raises:
        RewriteRefused: transfers alone make it.
    """
    made = (item for item in plan.group if item.kind is StatementKind.OPERATE)
    if all(item.op == "dma_copy" for item in made):
        raise RewriteRefused(f"{plan.tensor.name} {HELD_TWICE}")


def emit_through_hbm(plan: StagePlan) -> str:
    """The source with the production and a store in front of the loop, and a load where the tile was made.

    Raises:
        RewriteRefused: the production may not come before the loop.
    """
    check_may_precede(plan)
    kernel, tensor = plan.kernel, plan.tensor
    declared = kernel.declarations[tensor.id]
    home, stored = declared.path[-1], kernel.fresh_name(f"{tensor.name}_stored")
    loaded = kernel.fresh_name(f"{tensor.name}_loaded")

    def before(node: Node) -> list[cst.BaseStatement] | None:
        if isinstance(node, Statement):
            return [node.node] if node in plan.group else []
        if not isinstance(node, Loop) or not any(loop_contains(node, item) for item in plan.group):
            return []
        body = syntax.rebuild_block(node.body, before)
        if node is home:
            body += _write_transfers(plan, stored, tensor.name, is_store=True)
        return body if node.id in plan.dropped else [syntax.replace_body(node.node, body)]

    def after(node: Node) -> list[cst.BaseStatement] | None:
        if node is plan.loop:
            rest = syntax.rebuild_block(plan.loop.body, after)
            moved = syntax.rebuild_block([plan.loop], before)
            return [_declare_stored(plan, stored), *moved, syntax.replace_body(plan.loop.node, rest)]
        if not isinstance(node, Statement):
            return None
        if node in plan.group and node is not declared:
            return []
        loads = _write_transfers(plan, stored, loaded, is_store=False) if node is declared else []
        return [syntax.rename_variable(node.node, tensor.name, loaded), *loads]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, after))


def _declare_stored(plan: StagePlan, name: str) -> cst.BaseStatement:
    """A tensor in HBM with a dimension for each grown loop, then for each list around the tile."""
    item, nl = plan.kernel.declarations[plan.tensor.id], plan.kernel.nl
    grown = [loop.count_text for loop in plan.grown]
    sizes = [*grown, *map(str, plan.tensor.copies), *shape_texts(plan.kernel, item)]
    shape, dtype = ", ".join(sizes), item.texts["dtype"]
    return syntax.parse_statement(f"{name} = {nl}.ndarray(({shape}), dtype={dtype}, buffer={nl}.private_hbm)")


def _write_transfers(plan: StagePlan, stored: str, name: str, *, is_store: bool) -> list[cst.BaseStatement]:
    """What moves the tile of a name, or each tile of its list, between SBUF and HBM."""
    kernel = plan.kernel
    picks = [kernel.fresh_name(f"{name}_{level}") for level in range(len(plan.tensor.copies))]
    tile = name + "".join(f"[{pick}]" for pick in picks)
    places = [*(str(loop.index_text) for loop in plan.grown), *picks]
    window = f"{stored}[{', '.join(places)}]" if places else stored
    ends = {"dst": window, "src": tile} if is_store else {"dst": tile, "src": window}
    lines: Sequence[cst.BaseStatement] = [syntax.make_call(f"{kernel.nisa}.dma_copy", ends)]
    for pick, count in reversed(list(zip(picks, plan.tensor.copies, strict=True))):
        lines = [syntax.make_loop(pick, f"{kernel.nl}.affine_range({count})", lines)]
    return list(lines)
