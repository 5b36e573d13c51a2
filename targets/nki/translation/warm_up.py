"""Has the tensor engine work before its operands are there, so that its clock is high when they come.

Its clock is low until it has worked for about 3 us with all rows of its array. The first loads take as long.
"""

from __future__ import annotations

import ast
from collections import Counter

from targets.nki.translation.interleave import change_statements
from targets.nki.translation.layout import BANK, PARTITIONS
from targets.nki.translation.text import NameTable

_TENSOR = frozenset({"nc_matmul", "nc_transpose"})


def uses_tensor(source: str) -> bool:
    """Whether a kernel has instructions of the tensor engine."""
    return any(f"nisa.{name}(" in source for name in _TENSOR)


def warm_up(source: str, count: int) -> str | None:
    """Return a kernel that begins with so many products of zeros, which nothing reads; None for none."""
    return change_statements(source, lambda kernel: _begin_with_products(kernel, count)) if count else None


def _begin_with_products(kernel: ast.FunctionDef, count: int) -> list[ast.stmt]:
    taken = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name)}
    names = NameTable(Counter(taken | {argument.arg for argument in kernel.args.args}))
    zeros, bank, step = (names.new(stem) for stem in ("zeros", "warm_bank", "i_warm"))
    shape = f"({PARTITIONS}, {BANK})"
    text = (
        f"{zeros} = nl.ndarray({shape}, dtype=nl.bfloat16, buffer=nl.sbuf)\n"
        f"nisa.memset(dst={zeros}, value=0.0, engine=nisa.engine.gpsimd)\n"
        f"{bank} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.psum)\n"
        f"for {step} in nl.affine_range({count}):\n"
        f"    nisa.nc_matmul(dst={bank}, stationary={zeros}[:, 0:{PARTITIONS}], moving={zeros})\n"
    )
    return [*ast.parse(text).body, *kernel.body]
