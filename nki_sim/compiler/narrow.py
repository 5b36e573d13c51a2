"""Tiles that are read back from HBM bring only the columns that are read before they leave again [I]."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nki_sim.compiler.compiled import RELOAD
from nki_sim.compiler.cut import Box, box_of, can_narrow
from nki_sim.compiler.draft import Draft
from nki_sim.forms import Operand
from nki_sim.program.ir import Ints


def narrow(draft: Draft) -> None:
    """Cut tiles that nothing but one reload writes down to what is read of them."""
    cells = draft.cells
    rows = np.flatnonzero(_reloaded(draft)[cells.tensor])
    boxes = _boxes(draft, rows)
    names = {tensor: _small(draft, tensor, box) for tensor, box in boxes.items()}
    if not names:
        return
    forms, tensors, offsets = draft.form_ids.copy(), cells.tensor.copy(), cells.offset.copy()
    known: dict[tuple[int, int, Operand], int] = {}
    for cell in rows.tolist():
        tensor, at, place = (int(one[cell]) for one in (cells.tensor, cells.instruction, cells.operand))
        box = boxes.get(tensor)
        if box is None:
            continue
        number = int(forms[at])
        form = draft.forms[number]
        item, offset = _within(form.operands[place], int(offsets[cell]), box)
        key = number, place, item
        if key not in known:
            operands = list(form.operands)
            operands[place] = item
            if draft.origins[at] == RELOAD:
                far = form.operands[1]
                operands[1] = replace(far, dims=((far.dims[0][0], item.partitions), (1, box.width)))
            known[key] = draft.form(replace(form, operands=tuple(operands)))
        if draft.origins[at] == RELOAD:
            offsets[cell + 1] = box.left
        forms[at], tensors[cell], offsets[cell] = known[key], names[tensor], offset
    draft.repoint(tensors, offsets)
    draft.reform(forms)


def _reloaded(draft: Draft) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """By tensor whether one reload, and nothing else, writes it."""
    cells = draft.cells
    count = len(draft.tensor_sites)
    reload = (draft.origins == RELOAD)[cells.instruction]
    writes = np.bincount(cells.tensor[cells.writes], minlength=count)
    ours = np.bincount(cells.tensor[cells.writes & reload], minlength=count)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (ours == 1) & (writes == 1)
    return found


def _boxes(draft: Draft, rows: Ints) -> dict[int, Box]:
    """The columns that are read of each tile, where they are not all and every access can be cut to them."""
    cells = draft.cells
    found: dict[int, Box | None] = {}
    for cell in rows[~cells.writes[rows]].tolist():
        tensor, at = int(cells.tensor[cell]), int(cells.instruction[cell])
        item, site = (
            draft.forms[int(draft.form_ids[at])].operands[int(cells.operand[cell])],
            draft.site(tensor),
        )
        own = box_of(item, int(cells.offset[cell])) if can_narrow(item, site) else None
        known = found.get(tensor, own)
        found[tensor] = None if own is None or known is None else _around(own, known, site.shape[0])
    return {t: box for t, box in found.items() if box is not None and box.width < draft.site(t).row}


def _around(left: Box, right: Box, rows: int) -> Box:
    return Box(0, rows, min(left.left, right.left), max(left.right, right.right))


def _small(draft: Draft, tensor: int, box: Box) -> int:
    site = draft.site(tensor)
    return draft.tensor(replace(site, shape=(site.shape[0], box.width)))


def _within(item: Operand, offset: int, box: Box) -> tuple[Operand, int]:
    """An access to a tile as one to its columns in a box; one to all of the tile as one to all of the box."""
    start, column = divmod(offset - item.below, item.row)
    if item.role == "dst" and item.free > box.width:
        return replace(
            item, dims=((box.width, item.partitions), (1, box.width)), row=box.width
        ), start * box.width
    place = start * box.width + column - box.left + item.below
    return replace(item, dims=((box.width, item.partitions), *item.dims[1:]), row=box.width), place
