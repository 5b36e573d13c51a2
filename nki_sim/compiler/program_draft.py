"""A program while a compiler rewrites it: columns of instructions and operands, and tables that grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nki_sim.compiler.compiled_program import LOAD_AGAIN, TRACED, CompiledProgram
from nki_sim.forms import Form, Site
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Bools, Cells, Ints, Program


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One added instruction: its form, a tensor and an offset per operand, its source and its origin."""

    form: int
    tensors: tuple[int, ...]
    offsets: tuple[int, ...]
    source: int
    origin: int = TRACED


class ProgramDraft:
    """The instructions of a program in order, and the tables that they refer to.

    `form_ids`, `sources` and `origins` have one row per instruction; `cells` has the operands.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.forms: list[Form] = list(program.forms)
        self.sites: list[Site] = list(program.sites)
        self.tensor_sites: list[int] = program.tensor_sites.tolist()
        # Keyed by text, which distinguishes 0.0 and -0.0 as the arithmetic does.
        self._form_ids: dict[str, int] = {}
        self._site_ids: dict[Site, int] = {}
        self._effects: list[list[tuple[bool, bool]]] = []
        self.form_ids = program.form_ids
        self.sources: Ints = np.arange(len(program))
        self.origins: Ints = np.full(len(program), TRACED)
        self._tensors, self._offsets = program.tensors, program.offsets
        self._cells: Cells | None = None

    def __len__(self) -> int:
        """Number of instructions."""
        return len(self.form_ids)

    # -- tables --------------------------------------------------------------------------------------

    def add_form(self, form: Form) -> int:
        """Return the number of a form; adds the form if it is new."""
        found = self._form_ids.setdefault(repr(form), len(self.forms))
        if found == len(self.forms):
            self.forms.append(form)
        return found

    def add_tensor(self, site: Site) -> int:
        """Add a tensor of a site."""
        found = self._site_ids.get(site)
        if found is None:
            found = self._site_ids[site] = len(self.sites)
            self.sites.append(site)
        self.tensor_sites.append(found)
        return len(self.tensor_sites) - 1

    def add_tensor_like(self, tensor: int) -> int:
        """Add a tensor of the same site as another."""
        self.tensor_sites.append(self.tensor_sites[tensor])
        return len(self.tensor_sites) - 1

    def site(self, tensor: int) -> Site:
        """The site that declares a tensor."""
        return self.sites[self.tensor_sites[tensor]]

    def move_sites(self, sites: set[int], buffer: str) -> None:
        """Move the tensors of some sites to another memory; the caller must update their operands."""
        for number in sites:
            self.sites[number] = replace(self.sites[number], buffer=buffer)
        self._site_ids = {site: number for site, number in self._site_ids.items() if number not in sites}

    def tensors_in_memory(self, *buffers: str, placed: bool = True) -> Bools:
        """Per tensor, whether it is in one of these memories; without `placed`, only if the compiler places
        it.
        """
        found = [site.buffer in buffers and (placed or site.address is None) for site in self.sites]
        return np.array(found, dtype=bool)[self.tensor_sites]

    # -- instructions --------------------------------------------------------------------------------

    def form_effects(self, form: int) -> list[tuple[bool, bool]]:
        """Per operand of a form, whether it is (written, read)."""
        for one in self.forms[len(self._effects) :]:
            operator = OPERATORS[one.op]
            self._effects.append([operator.effect(one, item.role) for item in one.operands])
        return self._effects[form]

    @property
    def is_changed(self) -> bool:
        """Whether instructions, operands or tensors differ from the program's."""
        program = self.program
        kept = self.form_ids is program.form_ids and self._tensors is program.tensors
        return not kept or len(self.tensor_sites) > len(program.tensor_sites)

    @property
    def cells(self) -> Cells:
        """The operands of all instructions; `operand` is the position in the instruction."""
        if self._cells is None:
            self._cells = self._new_cells()
        return self._cells

    def _new_cells(self) -> Cells:
        if self.form_ids is self.program.form_ids:  # only tensors and offsets may differ
            old = self.program.cells
            place = np.arange(len(old.instruction)) - old.first[old.instruction]
            return replace(old, operand=place, tensor=self._tensors, offset=self._offsets)
        if self.forms:
            self.form_effects(len(self.forms) - 1)
        counts = np.array([len(effects) for effects in self._effects], dtype=np.int64)
        flat = np.array([pair for effects in self._effects for pair in effects], dtype=bool).reshape(-1, 2)
        mine = counts[self.form_ids]
        first = np.concatenate([[0], np.cumsum(mine)])
        instruction = np.repeat(np.arange(len(self)), mine)
        place = np.arange(first[-1]) - first[instruction]
        kind = (np.cumsum(counts) - counts)[self.form_ids][instruction] + place
        writes, reads = flat[kind].T
        return Cells(instruction, place, self._tensors, self._offsets, first, writes, reads)

    @property
    def cores(self) -> range:
        """The cores of the launch."""
        return range(int(self.program.cores.max(initial=0)) + 1)

    def issuing_cores(self) -> Ints:
        """The core of each instruction."""
        return self.program.cores[self.sources]

    def tensor_cores(self) -> Ints:
        """The core whose memory holds a tensor: that of the first instruction to touch it."""
        found = np.zeros(len(self.tensor_sites), dtype=np.int64)
        cells, cores = self.cells, self.issuing_cores()
        if cores.any():
            found[cells.tensor[::-1]] = cores[cells.instruction[::-1]]
        return found

    def tensor_spans(self) -> tuple[Ints, Ints]:
        """Per tensor, the first and the last instruction that touch it (-1 if none does)."""
        first = np.full(len(self.tensor_sites), -1, dtype=np.int64)
        last, cells = first.copy(), self.cells
        first[cells.tensor[::-1]] = cells.instruction[::-1]
        last[cells.tensor] = cells.instruction
        return first, last

    def loaded_again_tensors(self) -> Bools:
        """Per tensor, whether it belongs to a load that the compiler moved to its use."""
        found = np.zeros(len(self.tensor_sites), dtype=bool)
        found[self.cells.tensor[(self.origins == LOAD_AGAIN)[self.cells.instruction]]] = True
        return found

    # -- changes -------------------------------------------------------------------------------------

    def replace_forms(self, forms: Ints | Mapping[int, int]) -> None:
        """Replace forms by others with as many operands: one per instruction, or by old form number."""
        if isinstance(forms, Mapping):
            names = np.arange(len(self.forms))
            names[list(forms)] = list(forms.values())
            forms = names[self.form_ids]
        self.form_ids, self._cells = forms, None

    def replace_operands(self, tensors: Ints, offsets: Ints) -> None:
        """Replace the tensors and offsets of all cells."""
        self._tensors, self._offsets, self._cells = tensors, offsets, None

    def rename_tensors(self, names: Mapping[int, int]) -> None:
        """Replace tensors by others."""
        if names:
            table = np.arange(len(self.tensor_sites))
            table[list(names)] = list(names.values())
            self.replace_operands(table[self._tensors], self._offsets)

    def splice(self, kept: Bools, at: Sequence[int], steps: Sequence[DraftStep]) -> None:
        """Drop instructions and insert `steps[i]` before instruction `at[i]`, in the given order."""
        old = self.cells
        rows = np.flatnonzero(kept)
        order = np.argsort(np.concatenate([2 * rows + 1, 2 * np.array(at, dtype=np.int64)]), kind="stable")
        cells = np.flatnonzero(kept[old.instruction])
        sizes = np.concatenate([np.diff(old.first)[rows], _int_array(len(step.tensors) for step in steps)])
        begins = np.cumsum(sizes) - sizes
        ends = np.cumsum(sizes[order])
        source = np.arange(ends[-1] if len(ends) else 0)
        source += np.repeat(begins[order] - (ends - sizes[order]), sizes[order])

        def column(mine: Ints, more: Ints) -> Ints:
            return np.concatenate([mine[rows], more])[order]

        self.form_ids = column(self.form_ids, _int_array(step.form for step in steps))
        self.sources = column(self.sources, _int_array(step.source for step in steps))
        self.origins = column(self.origins, _int_array(step.origin for step in steps))
        tensors = _int_array(one for step in steps for one in step.tensors)
        offsets = _int_array(one for step in steps for one in step.offsets)
        self._tensors = np.concatenate([old.tensor[cells], tensors])[source]
        self._offsets = np.concatenate([old.offset[cells], offsets])[source]
        self._cells = None

    def keep_instructions(self, kept: Bools) -> None:
        """Drop all other instructions."""
        if not kept.all():
            self.splice(kept, (), ())

    def build_program(self) -> CompiledProgram:
        """Build the program from the draft."""
        nodes = self.program.iterations.nodes
        program = replace(
            self.program,
            sites=tuple(self.sites),
            forms=tuple(self.forms),
            tensor_sites=np.array(self.tensor_sites, dtype=np.int64),
            form_ids=self.form_ids,
            lines=self.program.lines[self.sources],
            cores=self.issuing_cores(),
            tensors=self._tensors,
            offsets=self._offsets,
            iterations=replace(self.program.iterations, nodes=nodes[self.sources] if len(nodes) else nodes),
        )
        return CompiledProgram(program, self.sources, self.origins)


def _int_array(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
