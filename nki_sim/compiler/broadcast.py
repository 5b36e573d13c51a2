"""Models how the legacy compiler repeats a row over all partitions: it multiplies it by a column of ones.

The product of [1, 128] ones and [1, 512] values puts the values in all partitions of a PSUM bank, and ScalarE
copies them from there. Profiles count these products and copies [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nki_sim.compiler.program_draft import DraftStep, ProgramDraft
from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form, Operand, Site
from nki_sim.targets import Target

_FLAGS = (("accumulate", False),)


def multiply_broadcasts(draft: ProgramDraft, target: Target) -> None:
    """Replace shuffles that together repeat one row in all partitions by products and copies."""
    repeats = np.array([_is_row_repeat(form) for form in draft.forms], dtype=bool)[draft.form_ids]
    if not repeats.any():
        return
    groups = [
        group
        for group in _group_shuffles(draft, np.flatnonzero(repeats).tolist())
        if _fills_partitions(draft, group, target)
    ]
    maker = _BroadcastMaker(draft, target)
    made = [(group[0], step) for group in groups for step in maker.make_steps(group[0])]
    kept = np.ones(len(draft), dtype=bool)
    kept[[at for group in groups for at in group]] = False
    draft.splice(kept, [at for at, _ in made], [step for _, step in made])


def _is_row_repeat(form: Form) -> bool:
    """Whether a shuffle repeats one row that a product can handle."""
    if form.op != "nc_stream_shuffle" or form["src"].partitions != 1 or len(set(_shuffle_mask(form))) != 1:
        return False
    dst, src = form["dst"], form["src"]
    return (
        {dst.buffer, src.buffer} == {"sbuf"}
        and src.start == 0
        and src.dtype == dst.dtype
        and DTYPES[src.dtype].kind == "float"
        and all(item.dims[1:] == ((1, item.free),) for item in (dst, src))
    )


def _shuffle_mask(form: Form) -> tuple[int, ...]:
    mask = form.param("shuffle_mask")
    return mask if isinstance(mask, tuple) else ()


def _group_shuffles(draft: ProgramDraft, shuffles: list[int]) -> Iterator[list[int]]:
    """Groups of consecutive shuffles of one row into the same columns of one tile."""
    cells = draft.cells
    group: list[int] = []
    last: tuple[int, ...] = ()
    for at in shuffles:
        cell = int(cells.first[at])
        dst = draft.forms[int(draft.form_ids[at])]["dst"]
        column = int(cells.offset[cell]) % dst.row
        row = *cells.tensor[cell : cell + 2].tolist(), column, int(cells.offset[cell + 1]), dst.free
        if group and (at != group[-1] + 1 or row != last):
            yield group
            group = []
        group.append(at)
        last = row
    if group:
        yield group


def _fills_partitions(draft: ProgramDraft, group: list[int], target: Target) -> bool:
    """Whether the shuffles write each partition exactly once."""
    items = [draft.forms[int(draft.form_ids[at])]["dst"] for at in group]
    rows = sorted(row for item in items for row in range(item.start, item.start + item.partitions))
    return rows == list(range(target.partitions))


class _BroadcastMaker:
    """Makes the products and copies that repeat rows, and the tiles of ones that they need."""

    def __init__(self, draft: ProgramDraft, target: Target) -> None:
        self._draft = draft
        self._rows, self._most = target.partitions, target.matmul_moving_max
        # The tile of ones, by core and type.
        self._ones: dict[tuple[int, str], int] = defaultdict(lambda: -1)

    def make_steps(self, at: int) -> Iterator[DraftStep]:
        """The products and copies for the row that a shuffle repeats."""
        draft, cells = self._draft, self._draft.cells
        form, source = draft.forms[int(draft.form_ids[at])], int(draft.sources[at])
        dst, src = form["dst"], form["src"]
        (to, row), (start, place) = (
            column[cells.first[at] : cells.first[at] + 2].tolist() for column in (cells.tensor, cells.offset)
        )
        key = int(draft.program.cores[source]), src.dtype
        if self._ones[key] < 0:
            fill = self._fill_ones(src.dtype, source)
            self._ones[key] = fill.tensors[0]
            yield fill
        site = Site(f"{draft.site(to).name}.broadcast", (self._rows, self._most), "float32", "psum", 0)
        for first in range(0, src.free, self._most):
            count = min(self._most, src.free - first)
            bank = draft.add_tensor(site)
            product, copy = self._product_and_copy(dst, src, count)
            yield DraftStep(product, (bank, self._ones[key], row), (0, 0, place + first), source)
            yield DraftStep(copy, (to, bank), (start % dst.row + first, 0), source)

    def _product_and_copy(self, dst: Operand, src: Operand, count: int) -> tuple[int, int]:
        """The product that fills `count` columns of a bank, and the copy from there."""
        psum = _chip_operand("dst", "psum", "float32", shape=(self._rows, count), row=self._most)
        column = _chip_operand("stationary", "sbuf", src.dtype, shape=(1, self._rows), row=self._rows)
        row = replace(src, role="moving", dims=((src.row, 1), (1, count)))
        to = _chip_operand("dst", "sbuf", dst.dtype, shape=(self._rows, count), row=dst.row)
        return (
            self._draft.add_form(Form("nc_matmul", "tensor", (psum, column, row), _FLAGS)),
            self._draft.add_form(Form("tensor_copy", "scalar", (to, replace(psum, role="src")), ())),
        )

    def _fill_ones(self, dtype: str, source: int) -> DraftStep:
        ones = self._draft.add_tensor(Site("ones", (1, self._rows), dtype, "sbuf", 0))
        operand = _chip_operand("dst", "sbuf", dtype, shape=(1, self._rows), row=self._rows)
        form = self._draft.add_form(Form("memset", "vector", (operand,), (("value", 1.0),)))
        return DraftStep(form, (ones,), (0,), source)


def _chip_operand(role: str, buffer: str, dtype: str, *, shape: tuple[int, int], row: int) -> Operand:
    """The first (rows, columns) of an on-chip tile whose rows have `row` elements."""
    return Operand(role, ((row, shape[0]), (1, shape[1])), dtype, buffer, row, 0)
