"""Makes inputs in parts: where a program reads little of a large array, the rest costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = NDArray[np.int64]
Shape = tuple[int, ...]
SpanReader = Callable[[int, int], Array]
"""Returns the elements [first, end) of an input, seen flat."""

_MAX_PIECE = 1 << 18
"""Elements made at a time, so that intermediate arrays stay in the processor's caches."""

_MAX_GAP = 1 << 10
"""Unread elements between two spans that are still made as one."""


@dataclass(frozen=True)
class InputSource:
    """An input by its shape, type and the elements of any span; spans are requested in ascending order."""

    shape: Shape
    dtype: np.dtype[Any]
    span: SpanReader

    def read_all(self) -> Array:
        """Return the whole input."""
        return self._fill_spans([(0, prod(self.shape))])

    def read_boxes(self, boxes: Ints) -> Array:
        """Return the input with zeros outside the boxes (row, end row, column, end column).

        Rows are those of the last dimension. Pages without such elements take no memory.
        """
        return self._fill_spans(_merge_spans(boxes, self.shape[-1] if self.shape else 1))

    def _fill_spans(self, spans: list[tuple[int, int]]) -> Array:
        array = np.zeros(prod(self.shape), self.dtype)
        for first, end in _split_spans(spans):
            array[first:end] = self.span(first, end)
        return array.reshape(self.shape)


def _split_spans(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, end in spans:
        for start in range(first, end, _MAX_PIECE):
            yield start, min(end, start + _MAX_PIECE)


def _merge_spans(boxes: Ints, width: int) -> list[tuple[int, int]]:
    """The flat spans that boxes cover, ascending, with neighbours joined."""
    if not len(boxes):
        return []
    lines = [_line_bounds(box, width) for box in boxes.tolist()]
    starts, ends = (np.concatenate(part) for part in zip(*lines, strict=True))
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    cuts = np.flatnonzero(starts[1:] > ends[:-1] + _MAX_GAP)
    firsts, lasts = starts[[0, *(cuts + 1)]], ends[[*cuts, len(ends) - 1]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _line_bounds(box: list[int], width: int) -> tuple[Ints, Ints]:
    """First element of each line of a box, and one past the last; one line where it spans whole rows."""
    top, bottom, left, right = box
    if (left, right) == (0, width):
        return np.array([top * width]), np.array([bottom * width])
    rows = np.arange(top, bottom) * width
    return rows + left, rows + right
