"""When each instruction runs: an event-driven schedule of a program on engine and DMA queues.

Each engine takes instructions from its queue in program order, looking ahead over those that still wait
within a window, as the vendor's compiler list-schedules independent instructions. Loads and stores are two
such queues; their transfers share the DMA engines. An instruction starts when its queue is free, what it
depends on is visible to it, and the tiles it is the first to touch have found room: memory is handed out
in program order and comes back when a tile's last access ends, so a tile declared inside a loop rotates
through the free space and one declared outside serialises on its own dependences. All times are in ns from
the kernel's start; all constants come from the target table. Every latency is a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from nki_sim.errors import ScheduleError
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.operators.costs import Cost
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target
from nki_sim.timing.deps import Dependences, dependences
from nki_sim.timing.memory import Pool, pools

QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma_load", "dma_store")
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")

CAUSES = ("start", "dependence", "engine", "memory")
"""Why an instruction did not start earlier; `Timeline.cause` holds places in this list."""

START, DEPENDENCE, ENGINE, MEMORY = range(len(CAUSES))

_LOAD, _STORE = QUEUES.index("dma_load"), QUEUES.index("dma_store")
_TENSOR, _SCALAR = QUEUES.index("tensor"), QUEUES.index("scalar")
_READY, _IDLE, _FREE = range(3)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """A schedule: per instruction start and end (ns), queue, why it started then and after which one.

    `core` is that of the launch; each core has its own engines and DMA queues.
    `blocker[i]` is the instruction that i waited for last, -1 for none; `cause[i]` says in what way.
    For DMA the interval is that of packets in flight, and `issue_ns` is when its queue took it up.
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

    @cached_property
    def latency_ms(self) -> float:
        """Predicted time of the whole kernel."""
        span = float(self.end_ns.max()) if len(self.end_ns) else 0.0
        return (span + self.kernel_overhead_ns) / 1e6


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted latency and the interval around it; `dynamic_loops` as in `Timeline`."""

    latency_ms: float
    lo_ms: float
    hi_ms: float
    dynamic_loops: int = 0


def schedule(program: Program, target: Target, *, order: Timeline | None = None) -> Timeline:
    """Schedule a program on a target.

    With `order`, instructions are issued as in that earlier schedule. It is there for properties: list
    scheduling has anomalies, so that "faster is never slower" holds for a fixed order alone.

    Raises:
        ScheduleError: the program does not fit on the chip.
    """
    return _Simulation(program, target, dependences(program), order=order).run()


def predict(program: Program, target: Target, *, timeline: Timeline | None = None) -> Prediction:
    """The predicted latency with an interval from two more schedules.

    Low: unlimited lookahead, and the latencies and overheads (`*_ns`, `*_cycles`) tagged inferred or
    calibrated moved by 20 % in the kernel's favour. High: strict program order and the same constants
    moved against it. Rates, sizes and limits stay as they are, whatever their tag.
    """
    waits = dependences(program)
    middle = (timeline or _Simulation(program, target, waits).run()).latency_ms
    ends = [
        _Simulation(program, moved(target, factor, window), waits).run().latency_ms
        for factor, window in ((0.8, max(1, len(program))), (1.2, 1))
    ]
    return Prediction(middle, min(middle, *ends), max(middle, *ends), len(program.loops))


def moved(target: Target, factor: float, window: int) -> Target:
    """The target with its uncertain latencies and overheads scaled and its lookahead replaced."""
    scaled = {
        name: getattr(target, name) * factor
        for name, tag in target.sources.items()
        if tag in {"C", "I"} and name.endswith("_ns") and not name.endswith("per_ns")
    }
    cycles = {
        name: round(getattr(target, name) * factor)
        for name, tag in target.sources.items()
        if tag in {"C", "I"} and name.endswith("_cycles")
    }
    return replace(target, issue_window=window, dma_window=window, **scaled, **cycles)


def queue_of(form: Form) -> int:
    """The queue a form's instructions wait in; DMA that writes HBM is a store."""
    if form.engine != "dma":
        return QUEUES.index(form.engine)
    return _STORE if form["dst"].in_hbm else _LOAD


@dataclass(slots=True)
class _Queue:
    """Instructions of one queue in the order to take them; `head` is the first that has not started."""

    order: list[int]
    window: int
    ready: list[int]
    head: int = 0
    free_ns: float = 0.0
    last: int = -1
    idle: bool = True


class _Simulation:
    """One run over the events: an instruction is ready, a queue is idle, a tile is given back."""

    def __init__(
        self, program: Program, target: Target, waits: Dependences, *, order: Timeline | None = None
    ) -> None:
        count = len(program)
        self._target = target
        self._costs = [OPERATORS[form.op].cost(form, target) for form in program.forms]
        self._forms = program.form_ids.tolist()
        form_queues = np.array([queue_of(form) for form in program.forms], dtype=np.int64)
        self._queue_of = form_queues[program.form_ids]
        self._queue = self._queue_of.tolist()
        self._core_of = program.cores
        self._core: list[int] = program.cores.tolist()
        # A given order also fixes how loads and stores interleave: they share one lane.
        frozen = order is not None
        lanes = np.where(frozen & (self._queue_of == _STORE), _LOAD, self._queue_of)
        self._lane_of = lanes + len(QUEUES) * self._core_of
        self._lane = self._lane_of.tolist()
        self._issue_ns = [0.0] * count
        self._followers: list[list[int]] = [[] for _ in range(count)]
        for number, items in enumerate(waits.predecessors):
            for item in items:
                self._followers[item].append(number)
        self._missing = [len(items) for items in waits.predecessors]
        self._ready_ns = [0.0] * count
        self._start = [-1.0] * count
        self._end = [0.0] * count
        self._cause = [START] * count
        self._blocker = [-1] * count
        self._rank, self._queues = self._fill_queues(order)
        cores = range(max(self._core, default=0) + 1)
        self._channels = [[0.0] * target.dma_engines for _ in cores]
        self._descriptors = [[0.0] * target.dma_descriptor_queues for _ in cores]
        self._last_transfer = [-1 for _ in cores]
        self._table = ["" for _ in cores]
        self._dynamic_loops = len(program.loops)
        self._pools, self._touched = pools(program, target)
        self._latest = (0.0, -1)
        self._may_overcommit = program.dialect == "neuronxcc"
        for pool in self._pools:
            for number in pool.gated():
                self._missing[number] += 1
        self._events: list[tuple[float, int, int]] = []

    def _fill_queues(self, order: Timeline | None) -> tuple[list[int], list[_Queue]]:
        rank = [0] * len(self._queue)
        queues = []
        cores = max(self._core, default=0) + 1
        for index, name in enumerate(QUEUES * cores):
            members = np.flatnonzero(self._lane_of == index)
            window = self._target.dma_window if name.startswith("dma") else self._target.issue_window
            if order is not None:
                members = members[np.argsort(order.issue_ns[members], kind="stable")]
                window = 1
            for place, number in enumerate(members.tolist()):
                rank[number] = place
            queues.append(_Queue(members.tolist(), window, []))
        return rank, queues

    def run(self) -> Timeline:
        for number, missing in enumerate(self._missing):
            if missing == 0:
                heappush(self._events, (0.0, _READY, number))
        for pool in self._pools:
            self._hand_out(pool, 0.0, -1)
        while self._events or self._overcommit():
            now, kind, item = heappop(self._events)
            if kind == _READY:
                queue = self._queues[self._lane[item]]
                heappush(queue.ready, self._rank[item])
                if queue.idle:
                    self._issue(queue, now)
            elif kind == _IDLE:
                self._queues[item].idle = True
                self._issue(self._queues[item], now)
            else:
                self._give_back(item, now)
        return self._timeline()

    def _issue(self, queue: _Queue, now: float) -> None:
        """Start the first ready instruction of the window, if any."""
        if not queue.ready or queue.ready[0] >= queue.head + queue.window:
            return
        number = queue.order[heappop(queue.ready)]
        index = self._queue[number]
        if self._ready_ns[number] < queue.free_ns:
            self._cause[number], self._blocker[number] = ENGINE, queue.last
        cost = self._costs[self._forms[number]]
        if index >= _LOAD:
            queue.free_ns = self._transfer(number, cost, now)
        else:
            busy = cost.busy_ns + self._switch_table(index, self._core[number], cost)
            self._start[number], self._end[number] = now, now + busy
            queue.free_ns = now + busy
        self._issue_ns[number] = now
        queue.last = number
        queue.idle = False
        while queue.head < len(queue.order) and self._start[queue.order[queue.head]] >= 0.0:
            queue.head += 1
        heappush(self._events, (queue.free_ns, _IDLE, self._lane[number]))
        self._finish(number, index, cost)

    def _switch_table(self, index: int, core: int, cost: Cost) -> float:
        if index != _SCALAR or not cost.table or cost.table == self._table[core]:
            return 0.0
        self._table[core] = cost.table
        return self._target.activation_table_ns

    def _transfer(self, number: int, cost: Cost, now: float) -> float:
        """Descriptors are made, the transfer is triggered, its parts queue on the least loaded engines."""
        core = self._core[number]
        slots = self._descriptors[core]
        slot = min(range(len(slots)), key=slots.__getitem__)
        slots[slot] = max(now, slots[slot]) + cost.descriptor_ns
        first = slots[slot] + self._target.dma_trigger_ns
        channels = self._channels[core]
        channels.sort()
        begins = [max(first, channels[i]) for i in range(cost.channels)]
        for i, begin in enumerate(begins):
            channels[i] = begin + cost.busy_ns
        if begins[-1] > first:
            self._cause[number], self._blocker[number] = ENGINE, self._last_transfer[core]
        self._last_transfer[core] = number
        self._start[number] = begins[0]
        self._end[number] = begins[-1] + cost.busy_ns
        return max(now, min(slots))

    def _finish(self, number: int, index: int, cost: Cost) -> None:
        """Tell followers when they may see the result, and memory when tiles come back."""
        end = self._end[number]
        self._latest = max(self._latest, (end, number))
        for follower in self._followers[number]:
            near = self._core[follower] == self._core[number]
            delay = self._delay(index, self._queue[follower], cost, near=near)
            self._arrive(follower, end + delay, number, DEPENDENCE)
        for tile in self._touched[number]:
            pool = tile.pool
            if pool.access_ended(tile, end, number):
                heappush(self._events, (tile.end_ns, _FREE, tile.number))

    def _delay(self, index: int, follower: int, cost: Cost, *, near: bool) -> float:
        """From the end of an instruction to where a queue, `near` on the same core, sees it."""
        if index >= _LOAD:
            return self._target.dma_completion_ns
        if index == follower and near:
            return 0.0
        # A DMA's own trigger latency already counts the semaphore.
        return cost.result_ns + (0.0 if follower >= _LOAD else self._target.semaphore_ns)

    def _arrive(self, number: int, time: float, source: int, cause: int) -> None:
        if time > self._ready_ns[number]:
            self._ready_ns[number] = time
            self._cause[number], self._blocker[number] = cause, source
        self._missing[number] -= 1
        if self._missing[number] == 0:
            heappush(self._events, (self._ready_ns[number], _READY, number))

    def _give_back(self, tile: int, now: float) -> None:
        pool = next(pool for pool in self._pools if tile in pool.tiles)
        self._hand_out(pool, now, pool.release(tile))

    def _hand_out(self, pool: Pool, now: float, source: int) -> None:
        for number in pool.hand_out():
            self._arrive(number, now, source, MEMORY)

    def _overcommit(self) -> bool:
        """Whether tiles that find no room got some all the same, now that nothing else can go on.

        Only programs whose compiler spills are given more than there is.
        """
        while not self._events and self._may_overcommit:
            pool = next((pool for pool in self._pools if pool.next < len(pool.waiting)), None)
            if pool is None:
                break
            end_ns, number = self._latest
            self._arrive(pool.force(), end_ns, number, MEMORY)
        return bool(self._events)

    def _timeline(self) -> Timeline:
        stuck = next((number for number, start in enumerate(self._start) if start < 0.0), None)
        if stuck is not None:
            raise ScheduleError(f"instruction {stuck} never finds room for its tiles; see the checks")
        return Timeline(
            np.array(self._issue_ns),
            np.array(self._start),
            np.array(self._end),
            self._queue_of,
            np.array(self._cause, dtype=np.int64),
            np.array(self._blocker, dtype=np.int64),
            self._target.kernel_overhead_ns,
            self._core_of,
            self._dynamic_loops,
        )
