"""Reduces tiles that are read back from HBM to the columns that are read before they leave again [I]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nki_sim.compiler.compiled_program import RELOAD
from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.compiler.tile_cuts import TileBox, access_box, can_narrow
from nki_sim.forms import Form, Operand
from nki_sim.program.ir import Bools, Ints

_CellAccess = tuple[int, int, int, int, int]
"""Cell, instruction, position in it, tensor, offset."""


def narrow_reloads(draft: ProgramDraft) -> None:
    """Cut tiles that only one reload writes to the columns that are read."""
    rows = np.flatnonzero(_reloaded_tensors(draft)[draft.cells.tensor])
    boxes = _read_boxes(draft, _list_accesses(draft, rows[~draft.cells.writes[rows]]))
    if boxes:
        _cut_tiles(draft, boxes, [access for access in _list_accesses(draft, rows) if access[3] in boxes])


def _list_accesses(draft: ProgramDraft, rows: Ints) -> list[_CellAccess]:
    cells = draft.cells
    columns = (cells.instruction[rows], cells.operand[rows], cells.tensor[rows], cells.offset[rows])
    return list(zip(rows.tolist(), *(column.tolist() for column in columns), strict=True))


def _reloaded_tensors(draft: ProgramDraft) -> Bools:
    """Per tensor, whether one reload and nothing else writes it."""
    cells, count = draft.cells, len(draft.tensor_sites)
    reload = (draft.origins == RELOAD)[cells.instruction]
    writes = np.bincount(cells.tensor[cells.writes], minlength=count)
    ours = np.bincount(cells.tensor[cells.writes & reload], minlength=count)
    return np.asarray((ours == 1) & (writes == 1), dtype=bool)


def _read_boxes(draft: ProgramDraft, reads: list[_CellAccess]) -> dict[int, TileBox]:
    """The columns read of each tile, if they are not all and every access can be cut to them."""
    forms = draft.form_ids.tolist()
    found: dict[int, TileBox | None] = {}
    for _, at, place, tensor, offset in reads:
        item, site = draft.forms[forms[at]].operands[place], draft.site(tensor)
        own = access_box(item, offset) if can_narrow(item, site) else None
        known = found.get(tensor, own)
        found[tensor] = None if own is None or known is None else _enclosing_box(own, known, site.shape[0])
    return {t: box for t, box in found.items() if box is not None and box.width < draft.site(t).row}


def _enclosing_box(left: TileBox, right: TileBox, rows: int) -> TileBox:
    return TileBox(0, rows, min(left.left, right.left), max(left.right, right.right))


def _cut_tiles(draft: ProgramDraft, boxes: Mapping[int, TileBox], accesses: list[_CellAccess]) -> None:
    """Redirect accesses to tiles with only the columns of their boxes, and cut the reloads to match."""
    names = {tensor: _small_tile(draft, tensor, box) for tensor, box in boxes.items()}
    forms, origins = draft.form_ids.tolist(), draft.origins.tolist()
    tensors, offsets = draft.cells.tensor.copy(), draft.cells.offset.copy()
    known: dict[tuple[int, int, int], int] = {}
    for cell, at, place, tensor, offset in accesses:
        box, number, back = boxes[tensor], forms[at], origins[at] == RELOAD
        key = number, place, box.width
        if key not in known:
            form = draft.forms[number]
            known[key] = draft.add_form(_narrow_reload(form, box) if back else _narrow_use(form, place, box))
        forms[at], tensors[cell] = known[key], names[tensor]
        if back:
            offsets[cell + 1] = box.left
        else:
            row = draft.forms[number].operands[place].row
            offsets[cell] = offset // row * box.width + offset % row - box.left
    draft.replace_operands(tensors, offsets)
    draft.replace_forms(np.array(forms, dtype=np.int64))


def _small_tile(draft: ProgramDraft, tensor: int, box: TileBox) -> int:
    site = draft.site(tensor)
    return draft.add_tensor(replace(site, shape=(site.shape[0], box.width)))


def _narrow_use(form: Form, place: int, box: TileBox) -> Form:
    """A form with one operand in a tile that holds only the columns of a box."""
    operands = list(form.operands)
    operands[place] = _narrow_operand(operands[place], box, operands[place].dims[1:])
    return replace(form, operands=tuple(operands))


def _narrow_reload(form: Form, box: TileBox) -> Form:
    """A form that reloads the columns of a box."""
    chip, far = form.operands
    columns = ((1, box.width),)
    return replace(
        form, operands=(_narrow_operand(chip, box, columns), replace(far, dims=(far.dims[0], *columns)))
    )


def _narrow_operand(item: Operand, box: TileBox, columns: tuple[tuple[int, int], ...]) -> Operand:
    return replace(item, dims=((box.width, item.partitions), *columns), row=box.width)
