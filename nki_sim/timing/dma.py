"""Models the DMA engines of one core: descriptors, splitting of transfers, and turns between queues.

A transfer waits in its queue, in order. Its descriptors are made in one of a few hardware slots or by GpSimd.
One trigger latency later the transfer reaches the DMA engines, which are in-order servers: a transfer takes
the engines of the partitions that it moves, each for the same time. Together the engines move no more than
HBM can, and so do those of all cores on one HBM stack. Queues take turns as the
hardware goes round its rings: after a slice of so many bytes of one transfer the next queue gets its turn, so
that a long load does not delay a store.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from nki_sim.forms import Form
from nki_sim.operators.costs import Cost
from nki_sim.targets import Target


def hbm_ns(form: Form, target: Target) -> float:
    """Time that HBM takes to read and write a transfer's bytes."""
    moved = sum(item.nbytes for item in form.tiles if item.in_hbm)
    return moved / target.hbm_bytes_per_ns


def count_slices(form: Form, cost: Cost, target: Target) -> int:
    """Number of slices of a transfer: whole rows, about `dma_slice_bytes` per DMA engine."""
    nbytes = max(item.nbytes for item in form.tiles) / cost.channels
    return max(1, min(cost.rows, round(nbytes / target.dma_slice_bytes)))


class SliceService(NamedTuple):
    """When a slice is on the DMA engines; the last engine it needed came free at `free_ns` from transfer
    `before`.
    """

    start_ns: float
    end_ns: float
    free_ns: float
    before: int


class HbmStack:
    """Until when an HBM stack is busy with the transfers of all its cores so far."""

    def __init__(self) -> None:
        self._until_ns = 0.0

    def move_slice(self, start_ns: float, took_ns: float) -> float:
        """Reserve HBM for a slice; return when the slice has been read and written."""
        self._until_ns = max(self._until_ns, start_ns) + took_ns
        return self._until_ns


class DmaEngines:
    """When each engine and each descriptor slot is free again, and which transfer used it last."""

    def __init__(self, target: Target, hbm: HbmStack) -> None:
        self._free = [(0.0, -1)] * target.dma_engines
        # What all engines have in common, while they do: most transfers take all engines for the same time.
        self._common: tuple[float, int] | None = (0.0, -1)
        self._first: dict[tuple[int, int], float] = {}
        self._slots = [(0.0, -1)] * target.dma_descriptor_queues
        self._hbm = hbm

    def first_free_ns(self, cost: Cost) -> float:
        """When the first of a transfer's engines is free."""
        if self._common:
            return self._common[0]
        key = cost.first_channel, cost.channels
        found = self._first.get(key)
        if found is None:
            found = self._first[key] = min(self._free[key[0] : key[0] + key[1]])[0]
        return found

    @property
    def next_slot(self) -> tuple[float, int]:
        """When the next slot is free, and which transfer used it last."""
        return self._slots[0]

    def make_descriptors(self, number: int, at_ns: float, took_ns: float) -> None:
        """Make a transfer's descriptors in the next slot."""
        self._slots[0] = (at_ns + took_ns, number)
        self._slots.sort()

    def serve_slice(
        self, number: int, first_ns: float, busy_ns: float, hbm_ns: float, cost: Cost
    ) -> SliceService:
        """Move a slice that is ready at `first_ns` and takes `busy_ns` on each engine of its transfer."""
        engines, mine = len(self._free), slice(cost.first_channel, cost.first_channel + cost.channels)
        if self._common and cost.channels < engines:
            self._free = [self._common] * engines
        free_ns, before = self._common or max(self._free[mine])
        start_ns = max(first_ns, self.first_free_ns(cost))
        done_ns = self._hbm.move_slice(start_ns, hbm_ns)
        end_ns = max(max(first_ns, free_ns) + busy_ns, done_ns)
        if free_ns > start_ns:
            taken = [(max(max(first_ns, free) + busy_ns, done_ns), number) for free, _ in self._free[mine]]
        else:  # all start together
            taken = [(end_ns, number)] * cost.channels
        self._common = taken[0] if len(taken) == engines and free_ns <= start_ns else None
        if not self._common:
            self._free[mine] = taken
            self._first.clear()
        return SliceService(start_ns, end_ns, free_ns, before)


class QueueTurns:
    """Transfers that have arrived, by queue, and whose turn it is."""

    def __init__(self, queues: int) -> None:
        self._waiting: list[deque[int]] = [deque() for _ in range(queues)]
        self._last = 0
        # By the queue that had the last turn, all queues from the next one on.
        self._orders = [[(last + step) % queues for step in range(1, queues + 1)] for last in range(queues)]

    def __bool__(self) -> bool:
        return any(self._waiting)

    def add(self, queue: int, number: int) -> None:
        """Append a transfer to its queue."""
        self._waiting[queue].append(number)

    def heads(self) -> list[int]:
        """The first transfer of each queue, in the order of turns."""
        waiting = self._waiting
        return [waiting[queue][0] for queue in self._orders[self._last] if waiting[queue]]

    def take_turn(self, queue: int) -> None:
        """Give the turn to the first transfer of a queue; it stays until `finish_transfer`."""
        self._last = queue

    def finish_transfer(self) -> None:
        """Remove the transfer whose turn it was."""
        self._waiting[self._last].popleft()
