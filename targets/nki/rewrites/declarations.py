"""Sources of declarations: their sizes, and new ones of the same size."""

from __future__ import annotations

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.transform import RewriteRefused


def shape_texts(kernel: Kernel, item: Statement) -> list[str]:
    """The sources of a declaration's sizes.

    Raises:
        RewriteRefused: the shape is not written as a tuple.
    """
    shape = syntax.parse_expression(item.texts["shape"])
    if not isinstance(shape, cst.Tuple):
        raise RewriteRefused(f"the shape {item.texts['shape']} is not written as a tuple")
    return [kernel.module.code_for_node(part.value) for part in shape.elements]


def declaration_text(kernel: Kernel, item: Statement, buffer: str) -> str:
    """A declaration of a float32 tile with the size of an instruction's result."""
    dst = item.find_access("dst")
    assert dst is not None
    declared = kernel.declarations.get(dst.tensor.id)
    if declared is not None and dst.view.is_whole and dst.view.plain:
        sizes = shape_texts(kernel, declared)
    else:
        sizes = [str(size) for size in dst.view.shape]
    nl = kernel.nl
    return f"{nl}.ndarray(({', '.join(sizes)}), dtype={nl}.float32, buffer={nl}.{buffer})"
