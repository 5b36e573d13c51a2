"""The DMA engines of one core: who makes descriptors, how a transfer is split, whose turn it is.

A transfer waits in its queue, in order. Its descriptors are made on one of a few slots of the hardware, or by
GpSimd; a trigger latency later it is with the DMA engines. These are in-order servers: a transfer takes as
many as it has partitions to move, those that are free first, each for the same time. Together they move no
more than HBM does, nor do those of all cores on one stack of it. Queues take turns, as the hardware goes
round its rings: after so many bytes of one transfer, a slice, the next queue has its turn, so that a long
load does not keep a store waiting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nki_sim.forms import Form
from nki_sim.operators.costs import Cost
from nki_sim.targets import Target


def hbm_ns(form: Form, target: Target) -> float:
    """How long HBM takes for what a transfer reads and writes there."""
    moved = sum(item.nbytes for item in form.tiles if item.in_hbm)
    return moved / target.hbm_bytes_per_ns


def count_slices(form: Form, cost: Cost, target: Target) -> int:
    """In how many pieces the DMA engines move a transfer: whole rows, of about `dma_slice_bytes` on each."""
    nbytes = max(item.nbytes for item in form.tiles) / cost.channels
    return max(1, min(cost.rows, round(nbytes / target.dma_slice_bytes)))


@dataclass(frozen=True, slots=True)
class SliceService:
    """A slice's time on the DMA engines; the last of them came free at `free_ns` from `before`."""

    start_ns: float
    end_ns: float
    free_ns: float
    before: int


class HbmStack:
    """Until when a stack of HBM is busy with what transfers of all its cores have asked for so far."""

    def __init__(self) -> None:
        self._until_ns = 0.0

    def move_slice(self, start_ns: float, took_ns: float) -> float:
        """When a slice that begins then has been read and written."""
        self._until_ns = max(self._until_ns, start_ns) + took_ns
        return self._until_ns


class DmaEngines:
    """When each engine and each slot for descriptors are free again, and after which transfer."""

    def __init__(self, target: Target, hbm: HbmStack) -> None:
        self._free = [(0.0, -1)] * target.dma_engines
        self._slots = [(0.0, -1)] * target.dma_descriptor_queues
        self._hbm = hbm

    @property
    def free_ns(self) -> float:
        """When the first engine is free."""
        return self._free[0][0]

    @property
    def next_slot(self) -> tuple[float, int]:
        """When the next slot is free, and after which transfer."""
        return self._slots[0]

    def make_descriptors(self, number: int, at_ns: float, took_ns: float) -> None:
        """Make a transfer's descriptors on the next slot."""
        self._slots[0] = (at_ns + took_ns, number)
        self._slots.sort()

    def serve_slice(
        self, number: int, first_ns: float, busy_ns: float, hbm_ns: float, width: int
    ) -> SliceService:
        """Move a transfer that is there from `first_ns` on, `busy_ns` on each of `width` engines."""
        taken, others = self._free[:width], self._free[width:]
        free_ns, before = taken[-1]
        start_ns = max(first_ns, taken[0][0])
        done_ns = self._hbm.move_slice(start_ns, hbm_ns)
        end_ns = max(max(first_ns, free_ns) + busy_ns, done_ns)
        if free_ns <= start_ns:  # all begin together
            moved = [(end_ns, number)] * width
        else:
            moved = [(max(max(first_ns, free) + busy_ns, done_ns), number) for free, _ in taken]
        self._free = sorted(moved + others)
        return SliceService(start_ns, end_ns, free_ns, before)


class QueueTurns:
    """Transfers that have arrived, queue by queue; whose turn it is."""

    def __init__(self, queues: int) -> None:
        self._waiting: list[deque[int]] = [deque() for _ in range(queues)]
        self._last = 0

    def __bool__(self) -> bool:
        return any(self._waiting)

    def add(self, queue: int, number: int) -> None:
        """A transfer arrives, behind those of its queue."""
        self._waiting[queue].append(number)

    def next_transfer(self) -> int:
        """The first transfer of the queue whose turn it is; it stays there until it is `finish_transfer`."""
        count = len(self._waiting)
        order = ((self._last + step) % count for step in range(1, count + 1))
        self._last = next(queue for queue in order if self._waiting[queue])
        return self._waiting[self._last][0]

    def finish_transfer(self) -> None:
        """The transfer whose turn it was has been moved."""
        self._waiting[self._last].popleft()
