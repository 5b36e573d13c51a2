"""Computes how much on-chip memory a kernel needs at once, from the order of its source.

The simulator computes the same for a traced program. A tile is live from the first instruction that touches
it to the last one; if these are in loops inside its declaration's block, for all iterations of the loops.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from targets.nki.rewrites.kernel_ir import Kernel, Loop, Statement, StatementKind
from targets.nki.rewrites.values import Tensor


def peak_occupancy(kernel: Kernel, buffer: str, size: Callable[[Tensor], int]) -> int:
    """The largest total size of tiles that are live at the same time; copies in a list live together."""
    change = [0] * (len(kernel.statements) + 2)
    for first, last, tensor in _tile_lifetimes(kernel):
        if tensor.buffer == buffer:
            change[first] += size(tensor)
            change[last + 1] -= size(tensor)
    return max(accumulate(change))


def _tile_lifetimes(kernel: Kernel) -> list[tuple[int, int, Tensor]]:
    """(first, last) statement of each declared tile's life, by statement number."""
    numbers = {item: number for number, item in enumerate(kernel.statements)}
    spans = _loop_spans(numbers)
    lives: dict[int, tuple[int, int]] = {}
    for item, number in numbers.items():
        for key in _touched_tiles(kernel, item):
            outer = _outermost_loop(kernel.declarations[key], item)
            first, last = (number, number) if outer is None else spans[outer]
            known = lives.get(key, (first, last))
            lives[key] = (min(first, known[0]), max(last, known[1]))
    found = [(life, kernel.declarations[key].tensor) for key, life in lives.items()]
    return [(*life, tensor) for life, tensor in found if tensor is not None]


def _touched_tiles(kernel: Kernel, item: Statement) -> frozenset[int]:
    """Ids of declared tiles that a statement uses; if unreadable, all tiles that it could name."""
    mine = (
        kernel.escaping_ids
        if item.kind is StatementKind.OPAQUE
        else {access.tensor.id for access in item.accesses}
    )
    return frozenset(mine & kernel.declarations.keys())


def _outermost_loop(declared: Statement, user: Statement) -> Loop | None:
    """The outermost loop around a user that is not also around the declaration."""
    return next((loop for loop in user.path if loop not in declared.path), None)


def _loop_spans(numbers: dict[Statement, int]) -> dict[Loop, tuple[int, int]]:
    spans: dict[Loop, tuple[int, int]] = {}
    for item, number in numbers.items():
        for loop in item.path:
            spans[loop] = (spans.get(loop, (number, number))[0], number)
    return spans
