"""Separation: a tile that is overwritten becomes several tiles, one for each value that it holds.

People reuse tiles: `t = t - mean`, then `t = exp(t)`. A rewrite that merges instructions asks what a tile
holds, and a tile that is written once has one answer. Separate tiles also do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Tensor


@dataclass(frozen=True, eq=False)
class TileVersions:
    """A tile and the instructions that overwrite it, without the first; each begins a new version."""

    declared: Statement
    writers: tuple[Statement, ...]
    names: tuple[str, ...]

    @property
    def tensor(self) -> Tensor:
        assert self.declared.tensor is not None
        return self.declared.tensor

    def name_at(self, item: Statement, *, writes: bool) -> str:
        """The name of the version that a statement reads or writes."""
        begun = [
            name for writer, name in zip(self.writers, self.names, strict=True) if writer.order < item.order
        ]
        if writes and item in self.writers:
            return self.names[self.writers.index(item)]
        return begun[-1] if begun else self.tensor.name


class Separate(Transform[str]):
    """Gives each value of a tile that is overwritten a tile of its own."""

    id: ClassVar[str] = "separate"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "each version is written whole before it is read, and keeps its value until the next"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, str]:
        del target
        return {"all tiles": "all tiles"} if next(_find_versions(kernel), None) is not None else {}

    def list_choices(self, kernel: Kernel, target: Target, place: str) -> tuple[Choice, ...]:
        del kernel, target, place
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: str, choice: Choice) -> str:
        del target, place, choice
        versions = {item.tensor.id: item for item in _name_versions(kernel)}
        if not versions:
            raise RewriteRefused("no tile is overwritten")

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            mine = [versions[key] for key in _touched_ids(node) if key in versions]
            if not mine or not isinstance(node, Statement):
                return None
            return [*_new_declarations(mine, node), _rename_operands(mine, node)]

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _touched_ids(node: Node) -> list[int]:
    """The ids of the tensors that a statement touches, each once."""
    accesses = node.accesses if isinstance(node, Statement) else ()
    return list(dict.fromkeys(access.tensor.id for access in accesses))


def _new_declarations(mine: list[TileVersions], node: Statement) -> Iterator[cst.BaseStatement]:
    """The declarations of the versions that an instruction begins."""
    for one in mine:
        if node in one.writers:
            name = one.names[one.writers.index(node)]
            made = syntax.rename_variable(one.declared.node, one.tensor.name, name)
            yield syntax.with_leading_lines(made, [])


def _rename_operands(mine: list[TileVersions], node: Statement) -> cst.BaseStatement:
    changes: dict[str, str | None] = {}
    for access in node.accesses:
        for one in mine:
            name = one.name_at(node, writes=access.writes)
            if access.tensor.id == one.tensor.id and name != one.tensor.name:
                text = node.texts[access.role]
                changes[access.role] = syntax.rename_in_expression(text, one.tensor.name, name)
    return syntax.replace_arguments(node.node, changes) if changes else node.node


def _find_versions(kernel: Kernel) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """The declarations of tiles that are overwritten, each with the instructions that do."""
    for tensor_id, declared in kernel.declarations.items():
        tensor = declared.tensor
        assert tensor is not None
        users = kernel.users_of(tensor)
        renamed = tensor_id in kernel.escaping_ids or tensor.copies or not tensor.is_on_chip
        if (
            renamed
            or kernel.binding_counts[tensor.name] != 1
            or not all(_names_operands(item) for item in users)
        ):
            continue
        writers = tuple(item for item in users[1:] if _overwrites(item, tensor, declared))
        if writers:
            yield declared, writers


def _names_operands(item: Statement) -> bool:
    """Whether the source of each operand is an argument of its own."""
    return all(access.role in item.texts for access in item.accesses)


def _overwrites(item: Statement, tensor: Tensor, declared: Statement) -> bool:
    """Whether an instruction writes all of a tile anew, in the block of its declaration."""
    if (item.path, item.guards) != (declared.path, declared.guards):
        return False
    written = [access for access in item.accesses if access.writes and access.tensor.id == tensor.id]
    return len(written) == 1 and (written[0].view.is_whole and written[0].view.plain and not written[0].reads)


def _name_versions(kernel: Kernel) -> Iterator[TileVersions]:
    taken: set[str] = set(kernel.identifiers)
    for declared, writers in _find_versions(kernel):
        assert declared.tensor is not None
        names = [_fresh_name(declared.tensor.name, taken) for _ in writers]
        yield TileVersions(declared, writers, tuple(names))


def _fresh_name(base: str, taken: set[str]) -> str:
    name, count = f"{base}_2", 3
    while name in taken:
        name, count = f"{base}_{count}", count + 1
    taken.add(name)
    return name
