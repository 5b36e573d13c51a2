"""How long each instruction keeps its engine busy, given its form and what the program did before it.

ScalarE and VectorE read a PSUM tile more slowly if several matmuls were accumulated in it: a calibrated
factor stretches the instruction's work, not its overhead. The tensor engine runs at a lower clock until it
has worked for a while.
"""

from __future__ import annotations

import numpy as np

from nki_sim.operators.costs import Cost
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.psum_sums import reads_sums
from nki_sim.timing.timeline import Floats


def instruction_busy_ns(program: Program, target: Target, costs: list[Cost]) -> Floats:
    """Busy time per instruction, without the clock ramp of the tensor engine."""
    base = np.array([cost.busy_ns for cost in costs])
    stretch = target.psum_accumulate_stretch
    longer = np.array([max(cost.busy_ns, stretch * (cost.busy_ns - cost.overhead_ns)) for cost in costs])
    forms = program.form_ids
    if not len(forms):
        return np.zeros(0)
    return np.asarray(np.where(reads_sums(program), longer[forms], base[forms]))


class ClockRamp:
    """The clock of one tensor engine: low until the engine has worked for a while, low again after idling.

    Work is counted in rows of the array: a credit of up to `tensor_ramp_ns` changes at the rate of twice the
    share of rows that work, minus one. At the maximum the clock becomes full, at zero it drops to
    `tensor_ramp_ratio`, and it stays so until the credit reaches the other end. With all rows this matches
    the documented behaviour: full clock about 3 us after work begins, lower clock if less than half is used
    for a few us. Products of half the rows never raise the clock: batched products of 64 rows keep the engine
    busy for 95 % of the time at half its clock, unless transposes of all rows go before them [M].
    """

    def __init__(self, target: Target) -> None:
        self._top_ns, self._ratio = target.tensor_ramp_ns, target.tensor_ramp_ratio
        self._credit_ns = self._end_ns = 0.0
        self._full = self._top_ns == 0.0

    def extra_ns(self, at_ns: float, busy_ns: float, rows: float) -> float:
        """Extra time that the lowered clock adds to an instruction that starts at `at_ns`.

        `rows` is the share of the array's rows that it uses. The instruction may start before the previous
        one ends, on another tile of the array.
        """
        self._add_credit(-max(0.0, at_ns - self._end_ns))
        rate = 2.0 * rows - 1.0
        extra = 0.0 if self._full else self._slow_clock_ns(busy_ns, rate)
        end_ns, worked_ns = at_ns + busy_ns + extra, busy_ns + extra
        if at_ns < self._end_ns:
            end_ns, worked_ns = max(end_ns, self._end_ns), max(0.0, end_ns - self._end_ns)
        self._end_ns = end_ns
        self._add_credit(rate * worked_ns)
        return extra

    def _add_credit(self, change_ns: float) -> None:
        self._credit_ns = min(self._top_ns, max(0.0, self._credit_ns + change_ns))
        self._full = self._full and self._credit_ns > 0.0

    def _slow_clock_ns(self, busy_ns: float, rate: float) -> float:
        """How long the low clock lasts: the whole instruction, or until the credit reaches the maximum."""
        slow_ns, left = busy_ns / self._ratio, self._top_ns - self._credit_ns
        if rate * slow_ns >= left:
            slow_ns, self._full = left / rate, True
        return slow_ns * (1.0 - self._ratio)
