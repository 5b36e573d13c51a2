"""A program while a compiler rewrites it: instructions, forms and tensors that may be added and replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nki_sim.compiler.compiled import TRACED, Compiled
from nki_sim.forms import Form, Site
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program


@dataclass(slots=True)
class Step:
    """One instruction: its form, per operand a tensor and an offset, where it comes from and why."""

    form: int
    tensors: tuple[int, ...]
    offsets: tuple[int, ...]
    source: int
    origin: int = TRACED


class Draft:
    """The instructions of a program in order, and the tables that they refer to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.forms: list[Form] = list(program.forms)
        self.sites: list[Site] = list(program.sites)
        self.tensor_sites: list[int] = program.tensor_sites.tolist()
        self._form_ids: dict[Form, int] = {}
        self._site_ids: dict[Site, int] = {}
        self._effects: dict[int, list[tuple[bool, bool]]] = {}
        first = program.cells.first.tolist()
        tensors, offsets = program.tensors.tolist(), program.offsets.tolist()
        self.steps = [
            Step(
                form, tuple(tensors[first[at] : first[at + 1]]), tuple(offsets[first[at] : first[at + 1]]), at
            )
            for at, form in enumerate(program.form_ids.tolist())
        ]

    def form(self, form: Form) -> int:
        """The number of a form, a new one where it is not there yet."""
        if form not in self._form_ids:
            self._form_ids[form] = len(self.forms)
            self.forms.append(form)
        return self._form_ids[form]

    def tensor(self, site: Site) -> int:
        """One more tensor of a site."""
        if site not in self._site_ids:
            self._site_ids[site] = len(self.sites)
            self.sites.append(site)
        self.tensor_sites.append(self._site_ids[site])
        return len(self.tensor_sites) - 1

    def site(self, tensor: int) -> Site:
        """Where a tensor is declared."""
        return self.sites[self.tensor_sites[tensor]]

    def effects(self, form: int) -> list[tuple[bool, bool]]:
        """Per operand of a form whether it is (written, read)."""
        if form not in self._effects:
            one = self.forms[form]
            self._effects[form] = [OPERATORS[one.op].effect(one, item.role) for item in one.operands]
        return self._effects[form]

    def rename(self, names: Mapping[int, int]) -> None:
        """Put other tensors in the place of some."""
        for step in self.steps:
            if any(tensor in names for tensor in step.tensors):
                step.tensors = tuple(names.get(tensor, tensor) for tensor in step.tensors)

    def reform(self, forms: Mapping[int, int]) -> None:
        """Put other forms in the place of some."""
        for step in self.steps:
            step.form = forms.get(step.form, step.form)

    def compiled(self) -> Compiled:
        """The program as it stands now."""
        sources = np.array([step.source for step in self.steps], dtype=np.int64)
        nodes = self.program.iterations.nodes
        program = replace(
            self.program,
            sites=tuple(self.sites),
            forms=tuple(self.forms),
            tensor_sites=np.array(self.tensor_sites, dtype=np.int64),
            form_ids=np.array([step.form for step in self.steps], dtype=np.int64),
            lines=self.program.lines[sources],
            cores=self.program.cores[sources],
            tensors=np.array([one for step in self.steps for one in step.tensors], dtype=np.int64),
            offsets=np.array([one for step in self.steps for one in step.offsets], dtype=np.int64),
            iterations=replace(self.program.iterations, nodes=nodes[sources] if len(nodes) else nodes),
        )
        return Compiled(program, sources, np.array([step.origin for step in self.steps], dtype=np.int64))
