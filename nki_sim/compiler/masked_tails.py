"""Models products of masked tails: the legacy compiler traces a loop's body once, with one product width.

A product whose mask cuts the moving operand runs as wide as the others of its line, if the tiles have room:
it multiplies the masked part too. Readers of the result keep to the mask, and so does DMA. Profiles show the
extra flops and bytes [C].
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.compiler.tile_cuts import access_box
from nki_sim.forms import Form, Operand
from nki_sim.program.ir import Ints

_WIDENED = frozenset({"moving", "dst"})


def widen_products(draft: ProgramDraft) -> None:
    """Widen products to the widest one of their line."""
    lines = draft.program.lines[draft.sources]
    widths = np.array([_moving_width(form) for form in draft.forms], dtype=np.int64)[draft.form_ids]
    full = np.zeros(int(lines.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(full, lines, widths)
    forms = draft.form_ids.copy()
    narrow = np.flatnonzero((widths > 0) & (widths < full[lines]))
    read = _read_columns(draft, narrow)
    for number in narrow.tolist():
        width = int(full[lines[number]])
        if _has_room(draft, number, width) and _is_unread(draft, number, width, read=read):
            forms[number] = draft.add_form(_widen_form(draft.forms[int(forms[number])], width))
    draft.replace_forms(forms)


def _moving_width(form: Form) -> int:
    """Elements that a product moves through the engine; 0 if it cannot be widened."""
    plain = form.op == "nc_matmul" and all(
        len(item.dims) == 2 and item.dims[1][0] == 1 for item in form.operands if item.role in _WIDENED
    )
    return form["moving"].free if plain else 0


def _has_room(draft: ProgramDraft, number: int, width: int) -> bool:
    """Whether the tiles of a product have room to the right of what it touches."""
    cells, form = draft.cells, draft.forms[int(draft.form_ids[number])]
    offsets: Ints = cells.offset[cells.first[number] : cells.first[number + 1]]
    pairs = zip(form.operands, offsets.tolist(), strict=True)
    return all(offset % item.row + width <= item.row for item, offset in pairs if item.role in _WIDENED)


def _read_columns(draft: ProgramDraft, numbers: Ints) -> dict[int, set[tuple[int, int]]]:
    """For each tensor that these products write, the columns (first, end) of every read of it."""
    cells = draft.cells
    chosen = np.zeros(len(draft.tensor_sites), dtype=bool)
    chosen[cells.tensor[cells.first[numbers]]] = True
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)
    rows = np.flatnonzero(chosen[cells.tensor] & cells.reads)
    places = zip(
        *(one[rows].tolist() for one in (cells.instruction, cells.operand, cells.offset)), strict=True
    )
    for (at, place, offset), tensor in zip(places, cells.tensor[rows].tolist(), strict=True):
        item = draft.forms[int(draft.form_ids[at])].operands[place]
        box = access_box(item, offset)
        found[tensor].add((0, item.row) if item.index_step else (box.left, box.right))
    return found


def _is_unread(
    draft: ProgramDraft, number: int, width: int, *, read: dict[int, set[tuple[int, int]]]
) -> bool:
    """Whether nothing reads the extra columns that the product would write."""
    cell = int(draft.cells.first[number])
    dst = draft.forms[int(draft.form_ids[number])]["dst"]
    begin = int(draft.cells.offset[cell]) % dst.row
    accesses = read[int(draft.cells.tensor[cell])]
    return all(right <= begin + dst.free or left >= begin + width for left, right in accesses)


def _widen_form(form: Form, width: int) -> Form:
    def wide(item: Operand) -> Operand:
        return replace(item, dims=(item.dims[0], (1, width))) if item.role in _WIDENED else item

    return replace(form, operands=tuple(wide(item) for item in form.operands))
