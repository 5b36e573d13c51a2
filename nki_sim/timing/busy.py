"""How long each instruction keeps its engine busy, from its form, and from what the program did before it.

ScalarE and VectorE read a PSUM tile more slowly when several matmuls were added up in it: the work of the
instruction, not its overhead, takes longer by a factor (calibrated). The tensor engine runs at a lower clock
until it has worked for a while.
"""

from __future__ import annotations

import numpy as np

from nki_sim.operators.costs import Cost
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.targets import Target
from nki_sim.timing.timeline import Floats

_READERS = frozenset({"vector", "scalar"})


def busy_ns(program: Program, target: Target, costs: list[Cost]) -> Floats:
    """Per instruction, without the ramp of the tensor engine."""
    base = np.array([cost.busy_ns for cost in costs])
    stretch = target.psum_accumulate_stretch
    longer = np.array([max(cost.busy_ns, stretch * (cost.busy_ns - cost.overhead_ns)) for cost in costs])
    forms = program.form_ids
    if not len(forms):
        return np.zeros(0)
    return np.asarray(np.where(reads_accumulated(program), longer[forms], base[forms]))


def reads_accumulated(program: Program) -> Bools:
    """Which instructions of ScalarE and VectorE read a tile onto which the tensor engine added last."""
    found = np.zeros(len(program), dtype=bool)
    cells, forms = program.cells, program.forms
    in_psum = np.array([item.buffer == "psum" for item in program.operands], dtype=bool)
    chosen = np.flatnonzero(in_psum[cells.operand]) if len(in_psum) else np.zeros(0, dtype=np.int64)
    if not len(chosen):
        return found
    order = chosen[np.lexsort((cells.instruction[chosen], cells.tensor[chosen]))]
    instruction, form = cells.instruction[order], program.form_ids[cells.instruction[order]]
    products = np.array([item.engine == "tensor" for item in forms], dtype=bool)
    adding = np.array([bool(item.param("accumulate")) for item in forms], dtype=bool)
    readers = np.array([item.engine in _READERS for item in forms], dtype=bool)
    before = _last(cells.writes[order] & products[form], cells.tensor[order])
    reads = readers[form] & cells.reads[order] & (before >= 0)
    found[instruction[reads]] = adding[form[before[reads]]]
    return found


def _last(marked: Bools, group: Ints) -> Ints:
    """For each row the place of the last marked one up to it in its group, -1 where there is none."""
    places = np.arange(len(marked))
    last = np.maximum.accumulate(np.where(marked, places, -1))
    first = np.maximum.accumulate(np.where(np.diff(group, prepend=-1) != 0, places, 0))
    return np.where(last >= first, last, -1)


class Ramp:
    """The clock of one tensor engine: lowered until it has worked for a while, and again after idling.

    A credit of up to `tensor_ramp_ns` grows while the engine works and shrinks while it idles. At the top
    the clock is full, at the bottom it is lowered to `tensor_ramp_ratio`, and it stays so until the credit is
    at the other end. At a constant load that is the documented behaviour: the full clock about 3 us after
    work begins, the lowered one when the engine works less than half of the time for a few us.
    """

    def __init__(self, target: Target) -> None:
        self._top_ns, self._ratio = target.tensor_ramp_ns, target.tensor_ramp_ratio
        self._credit_ns = self._end_ns = 0.0
        self._full = self._top_ns == 0.0

    def extra_ns(self, at_ns: float, busy_ns: float) -> float:
        """What the lowered clock adds to an instruction that starts then."""
        self._credit_ns = max(0.0, self._credit_ns - (at_ns - self._end_ns))
        self._full = self._full and self._credit_ns > 0.0
        extra = 0.0 if self._full else self._climb(busy_ns)
        self._end_ns = at_ns + busy_ns + extra
        self._credit_ns = min(self._top_ns, self._credit_ns + busy_ns + extra)
        return extra

    def _climb(self, busy_ns: float) -> float:
        """The lowered clock lasts for the instruction, or until the credit is at the top."""
        left = self._top_ns - self._credit_ns
        slow_ns = min(busy_ns / self._ratio, left)
        self._full = slow_ns >= left
        return slow_ns * (1.0 - self._ratio)
