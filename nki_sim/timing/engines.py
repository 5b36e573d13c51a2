"""The engines of a launch: computes when each action happens. The scheduler decides which comes next.

`start_instruction` runs an instruction on a compute engine, `issue_transfer` hands a transfer to its queue,
and `serve_slice` hands a slice of it to the DMA engines. Each happens as soon as its inputs, memory, engine
and ports are available. Every time is a maximum or a sum of earlier times, so in a fixed order an earlier
event never makes another one later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nki_sim.errors import ScheduleError
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.operators.costs import Cost
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing import timeline as tl
from nki_sim.timing.busy_time import ClockRamp, instruction_busy_ns
from nki_sim.timing.chip_results import ChipResults, pipeline_ns
from nki_sim.timing.dependences import find_dependences
from nki_sim.timing.dma import DmaEngines, HbmStack, count_slices, hbm_ns
from nki_sim.timing.memory import MemoryPools, PooledTile, build_pools
from nki_sim.timing.pe_array import PeArray
from nki_sim.timing.ports import find_held_ports
from nki_sim.timing.timeline import FIRST_DMA, QUEUES, Floats, IssueWaits, Timeline

_STORE, _SOFTWARE = QUEUES.index("dma_store"), QUEUES.index("dma_software")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What-if assumptions: engines in `free` ("dma" among them) take no time; results need not be waited for.

    Without `dependences`, nothing waits for memory either.
    """

    free: frozenset[str] = frozenset()
    dependences: bool = True


AS_IS = Assumptions()


def find_queue(form: Form, cost: Cost) -> int:
    """Return the queue of a form's instructions; DMA that writes HBM is a store."""
    if form.engine != "dma":
        return QUEUES.index(form.engine)
    if cost.software:
        return _SOFTWARE
    return _STORE if form["dst"].in_hbm else FIRST_DMA


def _form_costs(program: Program, target: Target, assume: Assumptions) -> list[Cost]:
    costs = [OPERATORS[form.op].cost(form, target) for form in program.forms]
    return [
        replace(cost, busy_ns=0.0, result_ns=0.0, descriptor_ns=0.0, overhead_ns=0.0, table="")
        if form.engine in assume.free
        else cost
        for form, cost in zip(program.forms, costs, strict=True)
    ]


def _assume_target(target: Target, assume: Assumptions) -> Target:
    if "dma" not in assume.free:
        return target
    return replace(
        target, dma_trigger_ns=0.0, dma_completion_ns=0.0, dma_issue_ns=0.0, hbm_bytes_per_ns=float("inf")
    )


class Engines:
    """The state of engines, ports and memories, and the columns of the timeline so far.

    `woken` are instructions whose dependences all have times now. `freed` are tiles whose last access has a
    time now. The scheduler empties both. `issue_ns` is negative for instructions that have not started.
    `latest` is the last end so far, and its instruction.
    """

    def __init__(
        self, program: Program, target: Target, assume: Assumptions = AS_IS, order: Timeline | None = None
    ) -> None:
        count = len(program)
        costs, target = _form_costs(program, target, assume), _assume_target(target, assume)
        self._program, self._target, self._costs = program, target, costs
        self._results = ChipResults(program)
        queues = np.array(
            [find_queue(*pair) for pair in zip(program.forms, costs, strict=True)], dtype=np.int64
        )
        self.queue = queues[program.form_ids] if count else np.zeros(0, dtype=np.int64)
        self.cores = int(program.cores.max()) + 1 if count else 1
        self.lane: list[int] = (program.cores * len(QUEUES) + self.queue).tolist()
        self.forms: list[int] = program.form_ids.tolist()
        self._busy: list[float] = instruction_busy_ns(program, target, costs).tolist()
        self._slices = self._slice_counts(order)
        self._set_up_lanes(order, assume)
        self._ports = find_held_ports(program, target, costs)
        self._port_free = [0.0] * self._ports.count
        self._port_last = [-1] * self._ports.count
        self._hbm = [hbm_ns(form, target) if form.engine == "dma" else 0.0 for form in program.forms]
        self._set_up_waits(assume)
        self._moved = [0] * count
        self.ready_ns, self._arrival = [0.0] * count, [0.0] * count
        self.issue_ns, self._start, self._end = ([-1.0] * count for _ in range(3))
        self._cause, self._blocker = [tl.START] * count, [-1] * count
        self._release, self._table, self._ramp = ([0.0] * count for _ in range(3))
        # The transfer that kept another one waiting on the DMA engines, and until when.
        self._served_after, self._served_ns = [-1] * count, [0.0] * count
        self.actions: list[int] = []
        self.woken: list[int] = []
        self.freed: list[PooledTile] = []
        self.latest = (0.0, -1)

    def _slice_counts(self, order: Timeline | None) -> list[int]:
        """How many slices each transfer has; a given order keeps its own counts."""
        if order is not None:
            decided: list[int] = np.bincount(order.actions, minlength=len(self.forms)).tolist()
            return [count - 1 for count in decided]
        kinds = [
            count_slices(form, cost, self._target) if form.engine == "dma" and cost.channels else 1
            for form, cost in zip(self._program.forms, self._costs, strict=True)
        ]
        return [kinds[form] for form in self.forms]

    def _set_up_lanes(self, order: Timeline | None, assume: Assumptions) -> None:
        """Set up one lane per core and queue: when it is free, its latency to others, its table and clock."""
        target, count = self._target, self.cores * len(QUEUES)
        self.free_ns, self._lane_last = [0.0] * count, [-1] * count
        self._arrived_ns = [0.0] * count
        self._loaded = [""] * count
        stacks = [HbmStack() for _ in range(-(-self.cores // target.hbm_cores))]
        self._pipeline_ns = [
            0.0 if engine in assume.free else pipeline_ns(engine, target) for engine in QUEUES
        ] * self.cores
        self.dma = [DmaEngines(target, stacks[core // target.hbm_cores]) for core in range(self.cores)]
        self._frozen_ramp: list[float] | None = None if order is None else order.ramp_ns.tolist()
        throttled = target.tensor_ramp_ns > 0.0 and "tensor" not in assume.free
        tensors = range(QUEUES.index("tensor"), count, len(QUEUES))
        tiled = any(cost.parts for cost in self._costs)
        self._arrays = {lane: PeArray() for lane in tensors} if tiled else {}
        self._ramps = {lane: ClockRamp(target) for lane in tensors} if throttled else {}
        transfers = [lane % len(QUEUES) >= FIRST_DMA for lane in range(count)]
        self._settle = [target.dma_completion_ns if dma else target.semaphore_ns for dma in transfers]
        # A DMA's trigger latency already includes the semaphore.
        self._latency = [
            [
                settle if transfers[lane] else 0.0 if lane == to or transfers[to] else settle
                for to in range(count)
            ]
            for lane, settle in enumerate(self._settle)
        ]  # fmt: skip

    def _set_up_waits(self, assume: Assumptions) -> None:
        waits = find_dependences(self._program)
        if assume.dependences:
            self._followers = waits.followers
            self.missing = [len(items) for items in waits.predecessors]
            self.rooms = build_pools(self._program, self._target, waits.entries)
        else:
            self._followers = [[]] * len(self._program)
            self.missing = [0] * len(self._program)
            self.rooms = MemoryPools([], [[]] * len(self._program), [])
        for tile in self.rooms.tiles:
            for number in tile.entries:
                self.missing[number] += 1

    def is_dma(self, number: int) -> bool:
        """Whether an instruction is a transfer."""
        return self.lane[number] % len(QUEUES) >= FIRST_DMA

    def start_instruction(self, number: int) -> None:
        """Run an instruction of a compute engine as soon as possible."""
        lane, cost = self.lane[number], self._costs[self.forms[number]]
        free_ns, before = self._engine_free(lane, cost)
        if cost.table and cost.table != self._loaded[lane]:
            self._loaded[lane] = cost.table
            self._table[number] = self._target.activation_table_ns
        at = self._wait_for_engine(number, free_ns, before, table_ns=self._table[number])
        ports = self._ports.ports[number]
        if ports:
            at = self._wait_for_ports(number, ports, at)
        busy = self._busy[number]
        if lane in self._ramps:
            busy += self._ramp_up(number, lane, at)
        end = at + busy
        self._hold_ports(number, ports, end)
        self.issue_ns[number], self._start[number], self._end[number] = at, at, end
        array = self._arrays.get(lane)
        self.free_ns[lane] = end if array is None else max(at, array.hold_parts(cost.parts, number, end))
        self._lane_last[lane] = number
        self.actions.append(number)
        self._finish_instruction(
            number, lane, end, result_ns=cost.result_ns, piped_ns=at + self._pipeline_ns[lane]
        )

    def _engine_free(self, lane: int, cost: Cost) -> tuple[float, int]:
        """When an engine can take an instruction of this cost, and which instruction it waits for."""
        found = (self.free_ns[lane], self._lane_last[lane])
        array = self._arrays.get(lane) if self._arrays else None
        return found if array is None else max(found, array.free_time(cost.parts))

    def _wait_for_engine(self, number: int, free_ns: float, before: int, *, table_ns: float) -> float:
        at = self.ready_ns[number]
        if free_ns + table_ns > at:
            at = free_ns + table_ns
            self._record_wait(number, tl.TABLE if table_ns else tl.ENGINE, before, release_ns=free_ns)
        return at

    def _record_wait(self, number: int, cause: int, blocker: int, *, release_ns: float) -> None:
        self._cause[number], self._blocker[number], self._release[number] = cause, blocker, release_ns

    def _wait_for_ports(self, number: int, ports: tuple[int, ...], at: float) -> float:
        for port in ports:
            if self._port_free[port] > at:
                at = self._port_free[port]
                self._record_wait(number, tl.PORT, self._port_last[port], release_ns=at)
        return at

    def _hold_ports(self, number: int, ports: tuple[int, ...], end: float) -> None:
        for port in ports:
            self._port_free[port], self._port_last[port] = end, number

    def _ramp_up(self, number: int, lane: int, at: float) -> float:
        if self._frozen_ramp is not None:
            extra = self._frozen_ramp[number]
        else:
            extra = self._ramps[lane].extra_ns(
                at, self._busy[number], self._costs[self.forms[number]].rows_used
            )
        self._ramp[number] = extra
        return extra

    def issue_transfer(self, number: int) -> float:
        """Make a transfer's descriptors and trigger it; return when it reaches the DMA engines."""
        lane, cost = self.lane[number], self._costs[self.forms[number]]
        at = self._wait_for_engine(number, self.free_ns[lane], self._lane_last[lane], table_ns=0.0)
        made_ns = cost.descriptor_ns
        if cost.software:
            ports = self._ports.ports[number]
            at = self._wait_for_ports(number, ports, at)
            self._hold_ports(number, ports, at + made_ns)
            next_ns = at + made_ns
        elif made_ns:
            at, next_ns = self._make_descriptors(number, lane, at, made_ns=made_ns)
        else:  # they exist already
            next_ns = at
        self.free_ns[lane] = max(next_ns, at + self._target.dma_issue_ns)
        self.issue_ns[number], self._lane_last[lane] = at, number
        self.actions.append(number)
        # Queue order holds even if the previous transfer waits for its descriptors.
        self._arrived_ns[lane] = max(self._arrived_ns[lane], at + made_ns + self._target.dma_trigger_ns)
        self._arrival[number] = self._arrived_ns[lane]
        return self._arrival[number]

    def _make_descriptors(self, number: int, lane: int, at: float, *, made_ns: float) -> tuple[float, float]:
        """Make descriptors in hardware; return when that starts, and when the queue may issue its next
        transfer: they are made one transfer of a queue after another.
        """
        dma = self.dma[lane // len(QUEUES)]
        slot_ns, before = dma.next_slot
        if slot_ns > at:
            at = slot_ns
            self._record_wait(number, tl.DMA, before, release_ns=at)
        dma.make_descriptors(number, at, made_ns)
        return at, max(at + made_ns, dma.next_slot[0])

    def service_ns(self, number: int) -> float:
        """When the first DMA engine of a transfer is free."""
        return self.dma[self.lane[number] // len(QUEUES)].first_free_ns(self._costs[self.forms[number]])

    def serve_slice(self, number: int) -> bool:
        """Move a slice of a transfer; return whether it was the last."""
        lane, form, pieces = self.lane[number], self.forms[number], self._slices[number]
        first = self._arrival[number]
        service = self.dma[lane // len(QUEUES)].serve_slice(
            number, first, self._busy[number] / pieces, self._hbm[form] / pieces, self._costs[form]
        )
        if self._start[number] < 0.0:
            self._start[number] = service.start_ns
            if service.free_ns > first:
                self._served_after[number], self._served_ns[number] = service.before, service.free_ns
        self.actions.append(number)
        self._moved[number] += 1
        if self._moved[number] < pieces:
            return False
        self._end[number] = service.end_ns
        self._finish_instruction(number, lane, service.end_ns)
        return True

    def _finish_instruction(
        self, number: int, lane: int, end: float, *, result_ns: float = 0.0, piped_ns: float = 0.0
    ) -> None:
        """Tell followers when they may see the result, and pools when tiles are released.

        Other engines see the result `result_ns` after the end, the same engine not before `piped_ns`.
        """
        if end > self.latest[0]:
            self.latest = (end, number)
        lanes, latency, ready, missing = self.lane, self._latency[lane], self.ready_ns, self.missing
        cause, blocker, release = self._cause, self._blocker, self._release
        for follower in self._followers[number]:
            to = lanes[follower]
            time = end + latency[to]
            if to != lane:
                time += result_ns
            elif piped_ns > time and self._results.is_read_by(number, follower):
                time = piped_ns
            if time > ready[follower]:
                ready[follower] = time
                cause[follower], blocker[follower], release[follower] = tl.DEPENDENCE, number, end
            left = missing[follower] = missing[follower] - 1
            if not left:
                self.woken.append(follower)
        settled = end + self._settle[lane]
        for tile in self.rooms.touched[number]:
            if tile.end_access(settled, number):
                self.freed.append(tile)

    def admit_tile(self, tile: PooledTile, time: float, source: int) -> None:
        """Give a tile memory at `time`, so that its first accesses may go on; `source` is what freed the
        memory.
        """
        for number in tile.entries:
            if time > self.ready_ns[number]:
                self.ready_ns[number] = time
                self._record_wait(number, tl.MEMORY, source, release_ns=self._end[source])
            self.missing[number] -= 1
            if not self.missing[number]:
                self.woken.append(number)

    def _software_ns(self) -> Floats:
        made = [cost.descriptor_ns if cost.software else 0.0 for cost in self._costs]
        return np.array(made)[self._program.form_ids] if made else np.zeros(0)

    def _wait_columns(self) -> tuple[IssueWaits, dict[str, Any]]:
        """The waits before issue, and the last waits; transfers wait for DMA engines after their issue."""
        after = np.array(self._served_after, dtype=np.int64)
        issued = IssueWaits(
            np.array(self._cause, dtype=np.int64),
            np.array(self._blocker, dtype=np.int64),
            np.array(self._release),
            after >= 0,
        )
        last = {
            "cause": np.where(issued.served, tl.DMA, issued.cause),
            "blocker": np.where(issued.served, after, issued.blocker),
            "release_ns": np.where(issued.served, self._served_ns, issued.release_ns),
        }
        return issued, last

    def build_timeline(self) -> Timeline:
        """Build the timeline from all columns.

        Raises:
            ScheduleError: an instruction has never started.
        """
        stuck = next((number for number, end in enumerate(self._end) if end < 0.0), None)
        if stuck is not None:
            raise ScheduleError(f"instruction {stuck} never finds room for its tiles; see the checks")
        program = self._program
        issued, last = self._wait_columns()
        return Timeline(
            issue_ns=np.array(self.issue_ns),
            start_ns=np.array(self._start),
            end_ns=np.array(self._end),
            queue=self.queue,
            kernel_overhead_ns=self._target.kernel_overhead_ns,
            core=program.cores,
            dynamic_loops=len(program.loops),
            table_ns=np.array(self._table),
            ramp_ns=np.array(self._ramp),
            descriptor_ns=self._software_ns(),
            actions=np.array(self.actions, dtype=np.int64),
            issued=issued,
            **last,
        )
