"""Arrays of loaded tiles that do not fit: each part is loaded where it is used, into a small tile."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import replace

from nki_sim.compiler.compiled import LOAD_AGAIN
from nki_sim.compiler.draft import Draft, Step
from nki_sim.compiler.residency import KEPT_PARTS
from nki_sim.forms import Form, Operand

Part = tuple[int, int, Operand]


class _Stream:
    """One pass over the instructions that takes the loads of some tiles to where they are used."""

    def __init__(self, draft: Draft, tensors: set[int]) -> None:
        self._draft = draft
        self._tensors = tensors
        self._loads: dict[int, list[Step]] = defaultdict(list)
        self._recent: dict[int, OrderedDict[Part, int]] = defaultdict(OrderedDict)
        self._steps: list[Step] = []

    def run(self) -> list[Step]:
        for step in self._draft.steps:
            written = [t for t, (w, _) in zip(step.tensors, self._draft.effects(step.form), strict=True) if w]
            if len(written) == 1 and written[0] in self._tensors:
                self._loads[written[0]].append(step)
                continue
            if self._tensors.intersection(step.tensors):
                self._use(step)
            self._steps.append(step)
        return self._steps

    def _use(self, step: Step) -> None:
        form = self._draft.forms[step.form]
        operands, tensors, offsets = list(form.operands), list(step.tensors), list(step.offsets)
        for place, tensor in enumerate(step.tensors):
            if tensor in self._tensors:
                part = tensor, offsets[place], operands[place]
                tensors[place] = self._part(step, part)
                operands[place], offsets[place] = _narrow(operands[place], offsets[place])
        step.form = self._draft.form(replace(form, operands=tuple(operands)))
        step.tensors, step.offsets = tuple(tensors), tuple(offsets)

    def _part(self, step: Step, part: Part) -> int:
        """The small tile with a part, loaded unless it is still there."""
        recent = self._recent[self._draft.tensor_sites[part[0]]]
        if part in recent:
            recent.move_to_end(part)
            return recent[part]
        tensor, offset, item = part
        site = self._draft.site(tensor)
        made = self._draft.tensor(replace(site, shape=(site.shape[0], item.free_extent)))
        for load in self._loads[tensor]:
            self._steps.append(self._narrow_load(step, load, (made, offset, item)))
        recent[part] = made
        if len(recent) > KEPT_PARTS:
            recent.popitem(last=False)
        return made

    def _narrow_load(self, step: Step, load: Step, part: Part) -> Step:
        """The load of a tile cut to the part; of patterns that cannot be cut, as many bytes of the source."""
        made, offset, item = part
        dst, src = self._draft.forms[load.form].operands
        start, column = divmod(offset, item.row)
        wide, rows = item.free_extent, item.partitions
        place = load.offsets[1]
        if len(dst.dims) == len(src.dims) == 2:
            place += (
                (start - load.offsets[0] // dst.row) * src.dims[0][0] + column - load.offsets[0] % dst.row
            )
        near = Operand("dst", ((wide, rows), (1, wide)), dst.dtype, "sbuf", wide, start)
        far = replace(src, dims=((src.dims[0][0], rows), (1, wide)))
        form = self._draft.form(Form("dma_copy", "dma", (near, far), ()))
        return Step(form, (made, load.tensors[1]), (start * wide, place), step.source, LOAD_AGAIN)


def _narrow(item: Operand, offset: int) -> tuple[Operand, int]:
    wide, start = item.free_extent, offset // item.row
    return replace(item, dims=((wide, item.partitions), *item.dims[1:]), row=wide), start * wide


def stream(draft: Draft, tensors: set[int]) -> None:
    """Load the parts of some tiles where they are used."""
    draft.steps = _Stream(draft, tensors).run()
