"""Writes source text of LibCST statements, caching it for each statement and indentation.

Most statements of a rewritten kernel are the same nodes as in the kernel before, so their text is known. Only
what changed is generated, and the heads of the loops around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import libcst as cst

_Block = cst.For | cst.If | cst.FunctionDef


class SourceWriter:
    """Writes statements as `module.code` would; caches them for its lifetime."""

    def __init__(self, module: cst.Module) -> None:
        self._module = module
        self._known: dict[tuple[cst.CSTNode, str], str] = {}

    def write_module(self, body: Sequence[cst.BaseStatement]) -> str:
        """The module's code with other statements in it."""
        module = self._module
        header, footer = ("".join(map(module.code_for_node, part)) for part in (module.header, module.footer))
        text = header + self._statement_texts(body, "") + footer
        return text if module.has_trailing_newline else text.removesuffix(module.default_newline)

    def _statement_texts(self, items: Sequence[cst.CSTNode], indent: str) -> str:
        return "".join(self._statement_text(item, indent) for item in items)

    def _statement_text(self, item: cst.CSTNode, indent: str) -> str:
        known = self._known.get((item, indent))
        if known is None:
            known = (
                self._block_text(item, indent) if _is_plain_block(item) else self._generate_text(item, indent)
            )
            self._known[item, indent] = known
        return known

    def _block_text(self, item: _Block, indent: str) -> str:
        """A loop, condition or function, composed of the texts of its statements."""
        assert isinstance(item.body, cst.IndentedBlock)
        empty = item.body.with_changes(body=[])
        bare = self._generate_text(item.with_changes(body=empty.with_changes(footer=[])), indent)
        foot = self._generate_text(item.with_changes(body=empty), indent).removeprefix(bare)
        step = self._module.default_indent if empty.indent is None else empty.indent
        head = bare.removesuffix(f"{indent}{step}pass{self._module.default_newline}")
        return head + self._statement_texts(item.body.body, indent + step) + foot

    def _generate_text(self, item: cst.CSTNode, indent: str) -> str:
        """The text that LibCST writes for a statement in a block of this indentation."""
        if not indent:
            return self._module.code_for_node(item)
        assert isinstance(item, cst.BaseStatement)
        block = self._module.code_for_node(cst.IndentedBlock([item], indent=indent))
        return block.removeprefix(self._module.default_newline)


def _is_plain_block(item: cst.CSTNode) -> TypeGuard[_Block]:
    """Whether a statement consists of its head and statements on lines of their own."""
    alone = isinstance(item, cst.FunctionDef) or (isinstance(item, cst.For | cst.If) and item.orelse is None)
    return alone and isinstance(item.body, cst.IndentedBlock)  # type: ignore[attr-defined]
