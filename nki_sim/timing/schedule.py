"""Schedules a program: an event-driven list schedule on engine and DMA queues.

Each engine takes instructions from its queue in program order. Within a window it looks ahead past
instructions that still wait, as the vendor's compiler list-schedules independent instructions. DMA has three
such queues: loads, stores, and transfers whose descriptors software makes. They share the DMA engines. An
instruction starts when its queue is free, its dependences are visible, no other engine holds a port that it
needs, and the tiles that it may touch first have room. Memory is granted in program order and released when a
tile's last access ends. The values of a tile therefore rotate through the free space; a tile that the kernel
places itself serialises on its own dependences. All constants come from the target table. Every latency is a
prediction.

This module decides what goes next; `engines` computes when it happens. A given order leaves nothing to
decide, which is how a schedule is timed again with other constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

import numpy as np

from nki_sim.garbage_collection import rare_garbage_collection
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.dma import QueueTurns
from nki_sim.timing.engines import AS_IS, Assumptions, Engines
from nki_sim.timing.memory import PooledTile, ReplayedPool
from nki_sim.timing.timeline import (
    CAUSES,
    DEPENDENCE,
    DMA,
    ENGINE,
    ENGINES,
    FIRST_DMA,
    MEMORY,
    PORT,
    QUEUES,
    START,
    TABLE,
    Floats,
    PathStep,
    Timeline,
)

__all__ = [
    "AS_IS", "CAUSES", "DEPENDENCE", "DMA", "ENGINE", "ENGINES", "FIRST_DMA", "MEMORY", "PORT", "QUEUES",
    "START", "TABLE", "Assumptions", "Floats", "PathStep", "Timeline", "schedule",
]  # fmt: skip

_READY, _IDLE, _ARRIVED, _SERVE, _FREE = range(5)


def schedule(
    program: Program, target: Target, *, order: Timeline | None = None, assume: Assumptions = AS_IS
) -> Timeline:
    """Schedule a program on a target.

    With `order`, every decision is that of an earlier schedule of the program, and so is the tensor engine's
    clock ramp. Anything that gets faster then never makes the kernel slower, whereas list scheduling alone
    has anomalies. `assume` asks what the time would be if an engine took none, or if nothing waited for
    results.

    Raises:
        ScheduleError: the program does not fit on the chip.
    """
    with rare_garbage_collection():
        engines = Engines(program, target, assume, order)
        if order is None:
            _ListScheduler(program, target, engines).run()
        else:
            _replay_order(engines, order)
        return engines.build_timeline()


def _replay_order(engines: Engines, order: Timeline) -> None:
    """Repeat the decisions of an earlier schedule, each as soon as possible."""
    refills = {id(pool): ReplayedPool(pool) for pool in engines.rooms.pools}
    entered: dict[int, list[PooledTile]] = {}
    for tile in engines.rooms.tiles:
        for number in tile.entries:
            entered.setdefault(number, []).append(tile)
    admitted: set[int] = set()
    for number in order.actions.tolist():
        if engines.issue_ns[number] >= 0.0:
            engines.serve_slice(number)
        else:
            for tile in entered.get(number, ()):
                if tile.number not in admitted:
                    admitted.add(tile.number)
                    engines.admit_tile(tile, *refills[id(tile.pool)].grant_room(tile))
            (engines.issue_transfer if engines.is_dma(number) else engines.start_instruction)(number)
        for tile in engines.freed:
            refills[id(tile.pool)].release_tile(tile)
        engines.freed.clear()
        engines.woken.clear()


@dataclass(slots=True)
class _QueueLane:
    """A queue's instructions in program order; `head` is the first that has not started."""

    order: list[int]
    window: int
    ready: list[int] = field(default_factory=list)
    head: int = 0
    idle: bool = True


class _ListScheduler:
    """Decides, event by event, which of the ready instructions goes next."""

    def __init__(self, program: Program, target: Target, engines: Engines) -> None:
        self._engines = engines
        self._may_overcommit = program.dialect == "neuronxcc"
        lanes = program.cores * len(QUEUES) + engines.queue
        self._rank = [0] * len(program)
        self._lanes = []
        for index in range(engines.cores * len(QUEUES)):
            members = np.flatnonzero(lanes == index).tolist()
            dma = index % len(QUEUES) >= FIRST_DMA
            self._lanes.append(_QueueLane(members, target.dma_window if dma else target.issue_window))
            for place, number in enumerate(members):
                self._rank[number] = place
        self._turns = [QueueTurns(len(QUEUES) - FIRST_DMA) for _ in range(engines.cores)]
        # When each core's DMA engines next serve a slice.
        self._serving = [inf] * engines.cores
        self._events: list[tuple[float, int, int]] = []
        self._tiles = {tile.number: tile for tile in engines.rooms.tiles}

    def run(self) -> None:
        """Run until nothing is left to do, or nothing can go on."""
        handlers = (
            self._on_ready,
            self._on_idle,
            self._on_arrival,
            self._on_serve,
            self._on_free,
        )  # indexed by kind of event
        engines = self._engines
        engines.woken.extend(number for number, missing in enumerate(engines.missing) if missing == 0)
        for pool in engines.rooms.pools:
            for tile in pool.admit_waiting():
                engines.admit_tile(tile, 0.0, -1)
        self._push_events()
        while self._events or self._overcommit_memory():
            now, kind, item = heappop(self._events)
            handlers[kind](now, item)

    def _push_events(self) -> None:
        """Push events for the effects of the last action."""
        engines = self._engines
        for number in engines.woken:
            heappush(self._events, (engines.ready_ns[number], _READY, number))
        engines.woken.clear()
        for tile in engines.freed:
            heappush(self._events, (tile.end_ns, _FREE, tile.number))
        engines.freed.clear()

    def _on_ready(self, _: float, number: int) -> None:
        index = self._engines.lane[number]
        lane = self._lanes[index]
        heappush(lane.ready, self._rank[number])
        if lane.idle:
            self._start_next(lane, index)

    def _on_idle(self, _: float, index: int) -> None:
        self._lanes[index].idle = True
        self._start_next(self._lanes[index], index)

    def _start_next(self, lane: _QueueLane, index: int) -> None:
        """Start the first ready instruction of the window, if any."""
        if not lane.ready or lane.ready[0] >= lane.head + lane.window:
            return
        engines, number = self._engines, lane.order[heappop(lane.ready)]
        if index % len(QUEUES) >= FIRST_DMA:
            heappush(self._events, (engines.issue_transfer(number), _ARRIVED, number))
        else:
            engines.start_instruction(number)
            self._push_events()
        lane.idle = False
        order, issued, head = lane.order, engines.issue_ns, lane.head
        while head < len(order) and issued[order[head]] >= 0.0:
            head += 1
        lane.head = head
        heappush(self._events, (engines.free_ns[index], _IDLE, index))

    def _on_arrival(self, now: float, number: int) -> None:
        """A transfer has reached the DMA engines, which serve it when its turn comes."""
        core, queue = divmod(self._engines.lane[number], len(QUEUES))
        self._turns[core].add(queue - FIRST_DMA, number)
        if self._serving[core] > now:
            self._plan_service(now, core)

    def _plan_service(self, now: float, core: int) -> None:
        """Serve the next slice when the first engine that a waiting transfer needs is free."""
        at = min(map(self._engines.service_ns, self._turns[core].heads()), default=inf)
        if at < self._serving[core]:
            self._serving[core] = max(now, at)
            heappush(self._events, (self._serving[core], _SERVE, core))

    def _on_serve(self, now: float, core: int) -> None:
        """An engine is free: serve a slice of the first transfer in turn that needs it.

        As long as nothing else happens before, the next slices follow at once, without events.
        """
        if now != self._serving[core]:
            return  # an earlier event took its place
        turns, service_ns, events = self._turns[core], self._engines.service_ns, self._events
        heads = turns.heads()
        while heads:
            number = next(one for one in heads if service_ns(one) <= now)
            turns.take_turn(self._engines.lane[number] % len(QUEUES) - FIRST_DMA)
            if self._engines.serve_slice(number):
                turns.finish_transfer()
                self._push_events()
            heads = turns.heads()
            now = max(now, min(map(service_ns, heads), default=inf))
            if events and heads and events[0] <= (now, _SERVE, core):
                heappush(events, (now, _SERVE, core))
                break
        self._serving[core] = now

    def _on_free(self, now: float, tensor: int) -> None:
        tile = self._tiles[tensor]
        tile.pool.free += tile.size
        for other in tile.pool.admit_waiting():
            self._engines.admit_tile(other, now, tile.last)
        self._push_events()

    def _overcommit_memory(self) -> bool:
        """Give tiles room that does not exist, if nothing else can go on; return whether any got some.

        This happens only for programs whose compiler spills.
        """
        while not self._events and self._may_overcommit:
            pool = next((pool for pool in self._engines.rooms.pools if pool.has_waiting), None)
            if pool is None:
                break
            self._engines.admit_tile(pool.force_next(), *self._engines.latest)
            self._push_events()
        return bool(self._events)
