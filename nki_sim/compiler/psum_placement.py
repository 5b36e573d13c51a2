"""Models intermediates that the legacy compiler keeps in PSUM, where VectorE reads two operands at full rate.

Profiles show that results of ScalarE and of `tensor_tensor` which only `tensor_tensor` reads are in PSUM
banks that no product needs. They get banks in the order in which they are made, two each so that iterations
overlap [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.flow.chip_memory import tile_footprint
from nki_sim.forms import Form
from nki_sim.program.ir import Ints
from nki_sim.targets import Target

_BANKS = 2
"""Banks of one intermediate: one is written while the other is read."""


def place_in_psum(draft: ProgramDraft, target: Target) -> None:
    """Move intermediates to PSUM while there are banks, in the order in which they are made."""
    used = {draft.tensor_sites[tensor] for tensor in np.unique(draft.cells.tensor).tolist()}
    banks = [number for number in used if draft.sites[number].buffer == "psum"]
    if any(draft.sites[number].address is not None for number in banks):
        return
    alive = _max_live_tiles(draft)
    uses = _SiteUses(draft, target)
    taken = [max(_BANKS, alive[number] * tile_footprint(draft.sites[number], target)) for number in banks]
    free = target.psum_banks - sum(taken)
    chosen: set[int] = set()
    for number in uses.made:
        if free >= _BANKS and alive[number] <= _BANKS and uses.fits_psum(number, chosen):
            chosen.add(number)
            free -= _BANKS
    if chosen:
        _move_to_psum(draft, chosen)


def _max_live_tiles(draft: ProgramDraft) -> list[int]:
    """Per site, the largest number of its tiles that live at the same time."""
    first, last = draft.tensor_spans()
    tensors = np.flatnonzero(first >= 0)
    sites = np.array(draft.tensor_sites)[tensors]
    # A tile begins to live before the tiles end that the same instruction uses last.
    times = np.concatenate([2 * first[tensors], 2 * last[tensors] + 1])
    sites = np.concatenate([sites, sites])
    steps = np.where(np.arange(len(sites)) < len(tensors), 1, -1)
    order = np.lexsort((times, sites))
    count = np.cumsum(steps[order])
    found = np.zeros(len(draft.sites), dtype=np.int64)
    # Each site's tiles begin and end within its stretch, so its count begins at zero.
    np.maximum.at(found, sites[order], count)
    return [int(one) for one in found]


class _SiteUses:
    """The writers and readers of each site's tiles; `made` are the sites in the order they are written."""

    def __init__(self, draft: ProgramDraft, target: Target) -> None:
        self._draft = draft
        self._bank = target.psum_bank_bytes
        self._writers: dict[int, set[int]] = defaultdict(set)
        self._readers: dict[int, set[int]] = defaultdict(set)
        # For the readers of a site, the sites of their other inputs.
        self._beside: dict[int, set[int]] = defaultdict(set)
        self.made: dict[int, None] = {}
        for form, sites in _form_site_pairs(draft):
            self._record_form(form, sites)

    def _record_form(self, form: int, sites: list[int]) -> None:
        for place, (write, read) in enumerate(self._draft.form_effects(form)):
            if write:
                self.made[sites[place]] = None
                self._writers[sites[place]].add(form)
            if read:
                self._readers[sites[place]].add(form)
                self._beside[sites[place]].update(_other_inputs(sites, place))

    def fits_psum(self, number: int, chosen: Iterable[int]) -> bool:
        """Whether tiles of a site may be in PSUM, given the sites already chosen."""
        site = self._draft.sites[number]
        beside = self._beside[number]
        return (
            site.buffer == "sbuf"
            and site.address is None
            and site.partition_bytes <= self._bank
            and all(self._is_producer(self._draft.forms[form]) for form in self._writers[number])
            and bool(self._readers[number])
            and all(self._draft.forms[form].op == "tensor_tensor" for form in self._readers[number])
            and all(self._draft.forms[form].engine == "vector" for form in self._readers[number])
            and number not in beside
            and beside.isdisjoint(chosen)
            and all(self._draft.sites[other].buffer != "psum" for other in beside)
        )

    @staticmethod
    def _is_producer(form: Form) -> bool:
        return form.engine == "scalar" or (form.op == "tensor_tensor" and form.engine == "vector")


def _form_site_pairs(draft: ProgramDraft) -> list[tuple[int, list[int]]]:
    """Forms with the sites of their operands; each combination once, in order of appearance."""
    cells = draft.cells
    sites = np.array(draft.tensor_sites)[cells.tensor]
    kind = draft.form_ids
    for place in range(int(cells.operand.max(initial=0)) + 1):
        column = np.zeros(len(draft), dtype=np.int64)
        rows = cells.operand == place
        column[cells.instruction[rows]] = sites[rows]
        _, kind = np.unique(kind * len(draft.sites) + column, return_inverse=True)
    _, firsts = np.unique(kind, return_index=True)
    return [
        (int(draft.form_ids[at]), sites[cells.first[at] : cells.first[at + 1]].tolist())
        for at in np.sort(firsts).tolist()
    ]


def _other_inputs(sites: list[int], place: int) -> list[int]:
    """The sites of an instruction's other inputs; the memory of its result does not matter."""
    return [site for at, site in enumerate(sites) if at != place and at > 0]


def _move_to_psum(draft: ProgramDraft, chosen: set[int]) -> None:
    """Turn accesses to tiles of some sites into PSUM accesses, which record their start in a bank."""
    cells = draft.cells
    rows = np.flatnonzero(np.isin(np.array(draft.tensor_sites)[cells.tensor], list(chosen)))
    moved: dict[int, dict[int, int]] = defaultdict(dict)
    for at, place, offset in zip(
        cells.instruction[rows].tolist(),
        cells.operand[rows].tolist(),
        cells.offset[rows].tolist(),
        strict=True,
    ):
        moved[at][place] = offset
    made: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
    forms: Ints = draft.form_ids.copy()
    for at, places in moved.items():
        number = int(forms[at])
        items = draft.forms[number].operands
        columns = tuple((place, offset % items[place].row) for place, offset in places.items())
        key = number, columns
        if key not in made:
            made[key] = draft.add_form(_form_in_psum(draft.forms[number], dict(columns)))
        forms[at] = made[key]
    draft.replace_forms(forms)
    draft.move_sites(chosen, "psum")


def _form_in_psum(form: Form, columns: dict[int, int]) -> Form:
    operands = tuple(
        replace(item, buffer="psum", column=columns[at]) if at in columns else item
        for at, item in enumerate(form.operands)
    )
    return replace(form, operands=operands)
