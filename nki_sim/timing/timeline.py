"""What a schedule is: when each instruction runs, what it waited for, and the chain that sets the time.

All times are in ns from the kernel's start, and predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nki_sim.program.ir import Ints

QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma_load", "dma_store", "dma_software")
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")

FIRST_DMA = QUEUES.index("dma_load")
"""Queues from here on are of transfers, which share the DMA engines of a core."""

CAUSES = ("start", "dependence", "engine", "memory", "port", "dma", "table")
"""Why an instruction did not start earlier; `Timeline.cause` holds places in this list.

Nothing; a result it needs; its queue was busy with the one before; no room for its tile; another engine held
a memory port that it needs; the DMA engines, HBM or the makers of descriptors were busy; its engine loaded a
function table.
"""

START, DEPENDENCE, ENGINE, MEMORY, PORT, DMA, TABLE = range(len(CAUSES))

Floats = npt.NDArray[np.float64]


def _none() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the critical path: from `begin_ns` to `end_ns` everything waits for `number`.

    `cause` says in what way the instruction waited for the step before it.
    """

    number: int
    begin_ns: float
    end_ns: float
    cause: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """A schedule, one entry per instruction in each column.

    `issue_ns`: when its queue took it up; for DMA, when its descriptors begin to be made.
    `descriptor_ns`: how long GpSimd makes them then, which it does for the queue `dma_software`.
    `start_ns`, `end_ns`: when it runs; for DMA, when packets are in flight.
    `queue` indexes `QUEUES`. `core` is that of the launch; each core has its own engines.
    `blocker`: the instruction that it waited for last, -1 for none; `cause`: in what way, one of `CAUSES`;
    `release_ns`: when the blocker let go, before latencies. `table_ns`: the load of a function table right
    before it. `ramp_ns`: what the tensor engine's lowered clock adds to it, within its interval.
    `actions` are instruction numbers in the order of decisions: issued, for DMA once more for each slice that
    the DMA engines move.
    `kernel_overhead_ns` is not in the intervals. `dynamic_loops` counts loops whose bounds depend on data:
    their bodies are timed once, whatever number of times they run.
    """

    issue_ns: Floats
    start_ns: Floats
    end_ns: Floats
    queue: Ints
    cause: Ints
    blocker: Ints
    kernel_overhead_ns: float
    core: Ints
    dynamic_loops: int = 0
    release_ns: Floats = field(default_factory=_none)
    table_ns: Floats = field(default_factory=_none)
    ramp_ns: Floats = field(default_factory=_none)
    descriptor_ns: Floats = field(default_factory=_none)
    actions: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def begin_ns(self) -> Floats:
        """When the engine begins to work for an instruction: with the load of its table, if there is one."""
        return self.start_ns - self.table_ns if len(self.table_ns) else self.start_ns

    @cached_property
    def span_ns(self) -> float:
        """From the first instruction's start to the last one's end."""
        return float(self.end_ns.max()) if len(self.end_ns) else 0.0

    @cached_property
    def latency_ms(self) -> float:
        """Predicted time of the whole kernel."""
        return (self.span_ns + self.kernel_overhead_ns) / 1e6

    def critical_path(self) -> list[Step]:
        """The chain of waits that ends with the last instruction, first step first.

        Each step begins where the one before ends, the first at 0, the last at `span_ns`.
        """
        steps: list[Step] = []
        number = int(np.argmax(self.end_ns)) if len(self.end_ns) else -1
        end_ns = self.span_ns
        while number >= 0:
            before = int(self.blocker[number])
            begin_ns = min(end_ns, float(self.release_ns[number])) if before >= 0 else 0.0
            steps.append(Step(number, begin_ns, end_ns, int(self.cause[number])))
            number, end_ns = before, begin_ns
        return steps[::-1]
