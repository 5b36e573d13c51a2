"""Numbers instructions by what they compute, so that work done twice is seen wherever its results lie.

An instruction's number stands for its operator, its parameters, the shapes of its operands, and the numbers
of the instructions that wrote what it reads. Which tile or bank holds a value does not count: a tile that is
loaded again with the same data holds the same value.
"""

from __future__ import annotations

from collections.abc import Hashable

from nki_sim.compiler.value_numbering import has_side_effect
from nki_sim.flow.graph import trace_data_flow
from nki_sim.forms import HBM_BUFFERS, Form
from nki_sim.program.ir import Program


def number_instructions(program: Program) -> list[int] | None:
    """Return a number for each instruction; those with the same number write the same values.

    None if a loop's iterations depend on data: its instructions run on other values each time.
    """
    if program.loop_partners:
        return None
    traced, cells = trace_data_flow(program), program.cells
    first, offsets, reads = cells.first.tolist(), cells.offset.tolist(), cells.reads.tolist()
    owners, tensors = cells.instruction.tolist(), cells.tensor.tolist()
    in_hbm = [program.site(number).buffer in HBM_BUFFERS for number in range(len(program.tensor_sites))]
    kinds = [_form_key(form) for form in program.forms]
    known: dict[Hashable, int] = {}
    found: list[int] = []

    def content_key(cell: int) -> Hashable:
        """What a cell reads: the values written there, and in HBM what the tensor held from the start."""
        written = [
            (found[owners[source]], source - first[owners[source]], offsets[source])
            for source in traced.sources(cell)
        ]
        return offsets[cell], tensors[cell] if in_hbm[tensors[cell]] else None, *written

    for number, form in enumerate(program.form_ids.tolist()):
        kind = kinds[form]
        cells_read = (cell for cell in range(first[number], first[number + 1]) if reads[cell])
        key = (number,) if kind is None else (kind, *map(content_key, cells_read))
        found.append(known.setdefault(key, len(known)))
    return found


def _form_key(form: Form) -> Hashable | None:
    """What instructions that compute the same share besides their data; None if no two ever do."""
    if has_side_effect(form):
        return None
    operands = tuple((item.role, item.dims, item.dtype, item.index_step) for item in form.operands)
    return form.op, form.engine, form.params, operands
