"""Checks DMA that adds to indexed places: one of its two sources must be the destination itself.

A rule of the form (`operators/rules/dma.py`) checks that the two are accessed alike. Only the program shows
that they are one tensor, at one place and with the same indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nki_sim.checks.violations import Violation
from nki_sim.forms import Form, index_role
from nki_sim.operators.rules.dma import find_updated_source
from nki_sim.program.ir import Program


def check(program: Program) -> Iterator[Violation]:
    """Yield one violation for each form that adds to another tensor than it reads."""
    cells = program.cells
    for number, form in enumerate(program.forms):
        pairs = _operand_pairs(form) if form.op == "dma_compute" else []
        issued = np.flatnonzero(program.form_ids == number) if pairs else np.zeros(0, np.int64)
        first = cells.first[issued]
        other = np.zeros(len(issued), dtype=bool)
        for left, right in pairs:
            for column in (cells.tensor, cells.offset):
                other |= column[first + left] != column[first + right]
        if other.any():
            at = int(issued[int(np.argmax(other))])
            name = program.site(int(cells.tensor[cells.first[at]])).name
            yield Violation(
                "indirect_sources", f"nisa.dma_compute adds to {name} by indices, but no source is {name} "
                "at the same place", name, "dst and another", "two others", int(program.lines[at]),
                "pass dst itself, with the same indices, as one of the two sources",
            )  # fmt: skip


def _operand_pairs(form: Form) -> list[tuple[int, int]]:
    """Operands that must match: the destination and its stand-in among the sources, with their indices."""
    source = find_updated_source(form)
    roles = [item.role for item in form.operands]
    if source is None or not any(item.index_step for item in form.operands):
        return []
    pairs = [("dst", source.role), (index_role("dst"), index_role(source.role))]
    return [(roles.index(left), roles.index(right)) for left, right in pairs if left in roles]
