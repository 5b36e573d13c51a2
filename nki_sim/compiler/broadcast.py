"""Rows that are repeated over all partitions: the legacy compiler multiplies them by a column of ones.

The product of [1, 128] ones and [1, 512] values puts the values in all partitions of a PSUM bank, from where
ScalarE copies them; profiles count these products and copies [C].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nki_sim.compiler.draft import Draft, Step
from nki_sim.forms import Form, Operand, Site
from nki_sim.targets import Target

_FLAGS = (("is_stationary_onezero", True), ("accumulate", False))


def multiply(draft: Draft, target: Target) -> None:
    """Put products and copies in the place of shuffles that repeat one row."""
    found: dict[tuple[int, int, int], list[Step]] = {}
    for step in draft.steps:
        if _repeats(draft.forms[step.form]):
            found.setdefault((step.tensors[0], step.tensors[1], step.offsets[1]), []).append(step)
    whole = {id(group[0]): group for group in found.values() if _rows(draft, group) == target.partitions}
    gone = {id(step) for group in whole.values() for step in group}
    if whole:
        maker = _Broadcasts(draft, target)
        draft.steps = [
            new
            for step in draft.steps
            for new in (maker.steps(step) if id(step) in whole else () if id(step) in gone else (step,))
        ]


def _repeats(form: Form) -> bool:
    if form.op != "nc_stream_shuffle" or form["src"].partitions != 1:
        return False
    return len(set(_mask(form))) == 1 and all(item.dims[1:] == ((1, item.free),) for item in form.tiles)


def _mask(form: Form) -> tuple[int, ...]:
    mask = form.param("shuffle_mask")
    return mask if isinstance(mask, tuple) else ()


def _rows(draft: Draft, group: list[Step]) -> int:
    return sum(draft.forms[step.form]["dst"].partitions for step in group)


class _Broadcasts:
    """What repeats rows, and the ones that it multiplies by."""

    def __init__(self, draft: Draft, target: Target) -> None:
        self._draft = draft
        self._rows, self._most = target.partitions, target.matmul_moving_max
        self._ones: dict[str, int] = {}

    def steps(self, step: Step) -> Iterator[Step]:
        """The products and copies for the row that a shuffle repeats."""
        form, source = self._draft.forms[step.form], step.source
        dst, src = form["dst"], form["src"]
        if src.dtype not in self._ones:
            yield self._fill(src.dtype, source)
        name = f"{self._draft.site(step.tensors[0]).name}.broadcast"
        site = Site(name, (self._rows, self._most), "float32", "psum", 0)
        for first in range(0, src.free, self._most):
            count = min(self._most, src.free - first)
            bank = self._draft.tensor(site)
            psum = _chip("dst", "psum", "float32", (self._rows, count), self._most)
            column = _chip("stationary", "sbuf", src.dtype, (1, self._rows), self._rows)
            row = replace(src, role="moving", dims=((src.row, 1), (1, count)))
            product = self._draft.form(Form("nc_matmul", "tensor", (psum, column, row), _FLAGS))
            tensors, offsets = (bank, self._ones[src.dtype], step.tensors[1]), (0, 0, step.offsets[1] + first)
            yield Step(product, tensors, offsets, source)
            to = _chip("dst", "sbuf", dst.dtype, (self._rows, count), dst.row)
            copied = _chip("src", "psum", "float32", (self._rows, count), self._most)
            copy = self._draft.form(Form("tensor_copy", "scalar", (to, copied), ()))
            yield Step(copy, (step.tensors[0], bank), (step.offsets[0] % dst.row + first, 0), source)

    def _fill(self, dtype: str, source: int) -> Step:
        ones = self._draft.tensor(Site("ones", (1, self._rows), dtype, "sbuf", 0))
        self._ones[dtype] = ones
        operand = _chip("dst", "sbuf", dtype, (1, self._rows), self._rows)
        return Step(
            self._draft.form(Form("memset", "vector", (operand,), (("value", 1.0),))), (ones,), (0,), source
        )


def _chip(role: str, buffer: str, dtype: str, shape: tuple[int, int], row: int) -> Operand:
    """The first (rows, columns) of a tile on chip whose rows have `row` elements."""
    return Operand(role, ((row, shape[0]), (1, shape[1])), dtype, buffer, row, 0)
