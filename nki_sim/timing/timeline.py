"""The result of scheduling: when each instruction runs, what it waited for, and the critical path.

All times are predicted, in ns from the kernel's start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nki_sim.errors import ScheduleError
from nki_sim.program.ir import Bools, Ints

QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma_load", "dma_store", "dma_software")
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")

FIRST_DMA = QUEUES.index("dma_load")
"""Queues from this index on hold transfers, which share the DMA engines of a core."""

CAUSES = ("start", "dependence", "engine", "memory", "port", "dma", "table")
"""Why an instruction did not start earlier; `Timeline.cause` holds indices into this tuple.

In order: nothing; a result it needs; its queue was busy with the previous instruction; no room for its tile;
another engine held a memory port that it needs; the DMA engines, HBM or the makers of descriptors were busy;
its engine loaded a function table.
"""

START, DEPENDENCE, ENGINE, MEMORY, PORT, DMA, TABLE = range(len(CAUSES))

_ENDED = frozenset({DEPENDENCE, MEMORY})
"""Waits for an instruction to end; other causes wait for something it took when it was issued."""

Floats = npt.NDArray[np.float64]


def _empty_column() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class PathStep:
    """A piece of the critical path: from `begin_ns` to `end_ns` everything waits for instruction `number`.

    `cause` says how the instruction waited for the step before it.
    """

    number: int
    begin_ns: float
    end_ns: float
    cause: int


@dataclass(frozen=True, eq=False)
class IssueWaits:
    """What each instruction waited for before it was issued, in columns like those of `Timeline`.

    `served` marks the transfers that the DMA engines delayed further after that.
    """

    cause: Ints
    blocker: Ints
    release_ns: Floats
    served: Bools


@dataclass(frozen=True, eq=False)
class Timeline:
    """A schedule, one entry per instruction in each column.

    `issue_ns`: when its queue took it up; for DMA, when its descriptors begin to be made.
    `descriptor_ns`: how long GpSimd then makes them; only for the queue `dma_software`.
    `start_ns`, `end_ns`: when it runs; for DMA, when packets are in flight.
    `queue` indexes `QUEUES`. `core` is that of the launch; each core has its own engines.
    `blocker`: the instruction that it waited for last, -1 for none; `cause`: how, one of `CAUSES`;
    `release_ns`: when the blocker let go, before latencies. `issued`: the same for the time of issue.
    `table_ns`: time to load a function table right before it. `ramp_ns`: what the tensor engine's lowered
    clock adds to it, within its interval.
    `actions` are instruction numbers in the order of decisions: once when issued, and for DMA once more for
    each slice that the DMA engines move.
    `kernel_overhead_ns` is not in the intervals. `dynamic_loops` counts loops whose bounds depend on data:
    their bodies are timed once, however often they run.
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
    release_ns: Floats = field(default_factory=_empty_column)
    table_ns: Floats = field(default_factory=_empty_column)
    ramp_ns: Floats = field(default_factory=_empty_column)
    descriptor_ns: Floats = field(default_factory=_empty_column)
    actions: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    issued: IssueWaits | None = None

    @cached_property
    def begin_ns(self) -> Floats:
        """When the engine begins to work for an instruction, including the load of its table."""
        return self.start_ns - self.table_ns if len(self.table_ns) else self.start_ns

    @cached_property
    def span_ns(self) -> float:
        """From the first instruction's start to the last one's end."""
        return float(self.end_ns.max()) if len(self.end_ns) else 0.0

    @cached_property
    def latency_ms(self) -> float:
        """Predicted time of the whole kernel."""
        return (self.span_ns + self.kernel_overhead_ns) / 1e6

    def critical_path(self) -> list[PathStep]:
        """The chain of waits that ends with the last instruction, first step first.

        Each step begins where the previous one ends, the first at 0, and the last ends at `span_ns`. A
        transfer is issued and then served: two of `actions`, each of which waited for an earlier one. No step
        occurs twice.

        Raises:
            ScheduleError: the waits form a cycle.
        """
        steps: list[PathStep] = []
        number, ended = int(np.argmax(self.end_ns)) if len(self.end_ns) else -1, True
        end_ns = self.span_ns
        for _ in range(2 * len(self.end_ns) + 1):
            if number < 0:
                return steps[::-1]
            cause, before, release_ns, ended = self._last_wait(number, ended=ended)
            begin_ns = min(end_ns, release_ns) if before >= 0 else 0.0
            steps.append(PathStep(number, begin_ns, end_ns, cause))
            number, end_ns = before, begin_ns
        raise ScheduleError(f"instruction {number} waits for itself")

    def _last_wait(self, number: int, *, ended: bool) -> tuple[int, int, float, bool]:
        """Why it was not served, or not issued, earlier, and whether the blocker had to end first."""
        served = self.issued is not None and bool(self.issued.served[number])
        of = self if self.issued is None or (ended and served) else self.issued
        cause = int(of.cause[number])
        waited = cause in _ENDED or (ended and served)
        return cause, int(of.blocker[number]), float(of.release_ns[number]), waited
