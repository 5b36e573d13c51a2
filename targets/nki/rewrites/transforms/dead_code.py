"""Dead code: removes instructions whose results nothing reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.round_trips import never_leaves
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor


class DeadCode(Transform[frozenset[Statement]]):
    """Removes instructions whose results are never read, and the tiles that held them."""

    id: ClassVar[str] = "dead_code"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = "no instruction reads the results, and they never leave the kernel"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, frozenset[Statement]]:
        del target
        gone = find_dead_code(kernel)
        return {"what nothing reads": gone} if gone else {}

    def list_choices(self, kernel: Kernel, target: Target, place: frozenset[Statement]) -> tuple[Choice, ...]:
        del target
        if len(place) == len(kernel.statements):
            raise RewriteRefused("nothing would be left of the kernel")
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: frozenset[Statement], choice: Choice) -> str:
        del target, choice
        return _remove_statements(kernel, place)


def remove_dead_code(kernel: Kernel) -> str:
    """Return the source without dead code."""
    gone = find_dead_code(kernel)
    return _remove_statements(kernel, gone) if gone else kernel.tree.text


def _remove_statements(kernel: Kernel, gone: frozenset[Statement]) -> str:
    def emit(node: Node) -> list[cst.BaseStatement] | None:
        return [] if node in gone else None

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def find_dead_code(kernel: Kernel) -> frozenset[Statement]:
    """Instructions and declarations that nothing needs, except others of the set."""
    tiles = [item.tensor for item in kernel.declarations.values() if item.tensor is not None]
    named = [tile for tile in tiles if tile.id not in kernel.escaping_ids]
    own = [tile for tile in named if tile.is_on_chip or never_leaves(kernel, tile)]
    gone: set[Statement] = set()
    while True:
        unread = {
            tile.id
            for tile in own
            if not any(_needs_tile(item, tile) for item in _remaining_users(kernel, tile, gone))
        }
        more = {item for item in kernel.operations() if item not in gone and _writes_only_to(item, unread)}
        if not more:
            break
        gone |= more
    idle = (kernel.declarations[tile.id] for tile in own if not _remaining_users(kernel, tile, gone))
    return frozenset(gone | set(idle))


def _remaining_users(kernel: Kernel, tile: Tensor, gone: set[Statement]) -> list[Statement]:
    return [item for item in kernel.users_of(tile) if item not in gone]


def _needs_tile(item: Statement, tile: Tensor) -> bool:
    """Whether an instruction needs a tile for something other than making it."""
    used = [access for access in item.accesses if access.tensor.id == tile.id]
    return any(not access.writes for access in used) and not _writes_tile_only(item, tile)


def _writes_tile_only(item: Statement, tile: Tensor) -> bool:
    """Whether an instruction writes only this tile, so that its reads of the tile serve only the tile."""
    return all(access.tensor.id == tile.id for access in item.accesses if access.writes)


def _writes_only_to(item: Statement, tiles: set[int]) -> bool:
    written = [access.tensor.id for access in item.accesses if access.writes]
    return bool(written) and set(written) <= tiles
