"""Intermediates that the legacy compiler keeps in PSUM, where VectorE reads a second operand at full rate.

Profiles show results of ScalarE and of `tensor_tensor` that only `tensor_tensor` reads in PSUM banks that no
product needs, in the order in which they are made, each with two banks so that iterations overlap [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from nki_sim.compiler.draft import Draft, Step
from nki_sim.forms import Form
from nki_sim.targets import Target

_BANKS = 2
"""Banks of one intermediate: one is written while the other is read."""

_INPUTS = ("data1", "data2")


def place(draft: Draft, target: Target) -> None:
    """Move intermediates to PSUM while there are banks, first made first served."""
    sites = {draft.tensor_sites[tensor] for step in draft.steps for tensor in step.tensors}
    used = sum(_BANKS for number in sites if draft.sites[number].buffer == "psum")
    uses = _Uses(draft, target)
    chosen: set[int] = set()
    for number in uses.made:
        if used + _BANKS <= target.psum_banks and uses.suits(number, chosen):
            chosen.add(number)
            used += _BANKS
    if chosen:
        _move(draft, chosen)


class _Uses:
    """Who writes and reads the tiles of each site; `made` are the sites in the order they are written in."""

    def __init__(self, draft: Draft, target: Target) -> None:
        self._draft = draft
        self._bank = target.psum_bank_bytes
        self._writers: dict[int, set[int]] = defaultdict(set)
        self._readers: dict[int, set[int]] = defaultdict(set)
        # For the readers of a site, the sites of their other operands.
        self._beside: dict[int, set[int]] = defaultdict(set)
        self.made: dict[int, None] = {}
        for step in draft.steps:
            self._note(step)

    def _note(self, step: Step) -> None:
        sites = [self._draft.tensor_sites[tensor] for tensor in step.tensors]
        for place, (write, read) in enumerate(self._draft.effects(step.form)):
            if write:
                self.made[sites[place]] = None
                self._writers[sites[place]].add(step.form)
            if read:
                self._readers[sites[place]].add(step.form)
                self._beside[sites[place]].update(_without(sites, place))

    def suits(self, number: int, chosen: Iterable[int]) -> bool:
        """Whether tiles of a site may be in PSUM, next to those of the sites chosen already."""
        site = self._draft.sites[number]
        return (
            site.buffer == "sbuf"
            and site.address is None
            and site.partition_bytes <= self._bank
            and all(self._makes(self._draft.forms[form]) for form in self._writers[number])
            and bool(self._readers[number])
            and all(self._draft.forms[form].op == "tensor_tensor" for form in self._readers[number])
            and all(self._draft.forms[form].engine == "vector" for form in self._readers[number])
            and self._beside[number].isdisjoint(chosen)
            and all(self._draft.sites[other].buffer != "psum" for other in self._beside[number])
        )

    @staticmethod
    def _makes(form: Form) -> bool:
        return form.engine == "scalar" or (form.op == "tensor_tensor" and form.engine == "vector")


def _without(sites: list[int], place: int) -> list[int]:
    """The other inputs of an instruction: its result may be anywhere."""
    return [site for at, site in enumerate(sites) if at != place and at > 0]


def _move(draft: Draft, chosen: set[int]) -> None:
    for step in draft.steps:
        places = [at for at, tensor in enumerate(step.tensors) if draft.tensor_sites[tensor] in chosen]
        if places:
            form = draft.forms[step.form]
            operands = tuple(
                replace(item, buffer="psum") if at in places else item
                for at, item in enumerate(form.operands)
            )
            step.form = draft.form(replace(form, operands=operands))
    for number in chosen:
        draft.sites[number] = replace(draft.sites[number], buffer="psum")
