"""Estimates a kernel's time and memory statically: the simulator's own cost table over counted loops.

No schedule is made: for each engine, the busy time and the waits in each iteration (`stalls.py`) are summed.
The estimate is a norm over the engines, so that relieving the busiest one counts most and the others still
count. It ranks rewrites of one kernel. Latencies that people see come from the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod

from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target
from targets.nki.rewrites.kernel_ir import Kernel, Loop, Statement, StatementKind
from targets.nki.rewrites.stalls import busy_and_stalled_ns
from targets.nki.rewrites.values import Tensor

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "descriptor")
"""Everything that has a busy time; `descriptor` is the hardware that writes DMA descriptors."""
START_PARTITIONS = (32, 64)
"""A tile starts at partition 0, or at a multiple of the first of these that is large enough for it."""
SBUF_IS_FULL = "SBUF"
"""How the message begins if tiles do not fit SBUF; a kernel that spills breaks this rule from the start."""
NORM = 8.0
"""Exponent of the norm over engines: high enough to be near the maximum."""


def peak_occupancy(kernel: Kernel, buffer: str, size: Callable[[Tensor], int]) -> int:
    """The largest total size of tiles that are live at the same time; copies in a list live together."""
    change = [0] * (len(kernel.statements) + 2)
    for first, last, tensor in _tile_lifetimes(kernel):
        if tensor.buffer == buffer:
            change[first] += size(tensor)
            change[last + 1] -= size(tensor)
    return max(accumulate(change))


def _tile_lifetimes(kernel: Kernel) -> list[tuple[int, int, Tensor]]:
    """(first, last) statement of each declared tile's life, by statement number."""
    numbers = {item: number for number, item in enumerate(kernel.statements)}
    spans = _loop_spans(numbers)
    lives: dict[int, tuple[int, int]] = {}
    for item, number in numbers.items():
        for key in _touched_tiles(kernel, item):
            outer = _outermost_loop(kernel.declarations[key], item)
            first, last = (number, number) if outer is None else spans[outer]
            known = lives.get(key, (first, last))
            lives[key] = (min(first, known[0]), max(last, known[1]))
    found = [(life, kernel.declarations[key].tensor) for key, life in lives.items()]
    return [(*life, tensor) for life, tensor in found if tensor is not None]


def _touched_tiles(kernel: Kernel, item: Statement) -> frozenset[int]:
    """Ids of declared tiles that a statement uses; if unreadable, all tiles that it could name."""
    mine = (
        kernel.escaping_ids
        if item.kind is StatementKind.OPAQUE
        else {access.tensor.id for access in item.accesses}
    )
    return frozenset(mine & kernel.declarations.keys())


def _outermost_loop(declared: Statement, user: Statement) -> Loop | None:
    """The outermost loop around a user that is not also around the declaration."""
    return next((loop for loop in user.path if loop not in declared.path), None)


def _loop_spans(numbers: dict[Statement, int]) -> dict[Loop, tuple[int, int]]:
    spans: dict[Loop, tuple[int, int]] = {}
    for item, number in numbers.items():
        for loop in item.path:
            spans[loop] = (spans.get(loop, (number, number))[0], number)
    return spans


@dataclass(frozen=True, slots=True)
class StaticEstimate:
    """Busy nanoseconds per engine (`dma` and `descriptor` for the two parts of a transfer) and memory."""

    busy_ns: Mapping[str, float]
    sbuf_bytes: int
    """Bytes per partition live at once, without copies for overlapping iterations."""
    psum_banks: int
    """Banks live at once, without copies for overlapping iterations."""
    total_ns: float
    unread: int
    """Statements that cannot be read and are not counted; compare only estimates with equal values."""

    @property
    def busiest_engine(self) -> str:
        """The engine that is busy longest, `dma` for both parts of a transfer."""
        engine = max(ENGINES, key=lambda name: self.busy_ns[name])
        return "dma" if engine == "descriptor" else engine


def estimate_kernel(kernel: Kernel, target: Target) -> StaticEstimate:
    """Estimate a kernel; unreadable statements cost nothing, in it and in its rewrites alike."""
    costs = {statement: statement_ns(statement, target) for statement in kernel.operations()}
    busy = dict.fromkeys(ENGINES, 0.0)
    for statement, parts in costs.items():
        for engine, nanoseconds in parts.items():
            busy[engine] += nanoseconds * statement.trips
    busiest = max((name for name in ENGINES), key=busy.__getitem__)
    spent = (busy | busy_and_stalled_ns(kernel, costs, target)).values()
    at_work = sum(value**NORM for value in (*spent, *_dependence_chains_ns(kernel, costs))) ** (1 / NORM)
    total: float = target.kernel_overhead_ns + at_work + _fill_drain_ns(costs, busiest, target)
    sbuf = peak_occupancy(kernel, "sbuf", partial(tile_sbuf_bytes, target=target))
    banks = peak_occupancy(kernel, "psum", partial(tile_banks, target=target))
    unread = sum(item.kind is StatementKind.OPAQUE for item in kernel.statements)
    return StaticEstimate(busy, sbuf, banks, total, unread)


Costs = Mapping[Statement, Mapping[str, float]]


def _fill_drain_ns(costs: Costs, busiest: str, target: Target) -> float:
    """How long the busiest engine waits for its first instruction, and others finish after its last one.

    Work before its first instruction counts once, or for all iterations of loops that it does not share.
    """
    items = list(costs)
    mine = [number for number, item in enumerate(items) if busiest in costs[item]]
    if not mine:
        return 0.0
    total = 0.0
    for number, item in enumerate(items):
        near = items[mine[0] if number < mine[0] else mine[-1]]
        between = mine[0] <= number <= mine[-1]
        if between and (busiest != "dma" or item.path[:1] != near.path[:1]):
            continue  # other loops than the last ended long before the drain
        shared = prod(loop.trips for loop in item.path if loop in near.path)
        total += sum(costs[item].values()) * max(1, item.trips // shared)
        if "dma" in costs[item]:
            total += target.dma_trigger_ns + target.dma_completion_ns
    return total


def _dependence_chains_ns(kernel: Kernel, costs: Costs) -> list[float]:
    """Times of instructions that run in sequence because they share a tile declared outside their loop."""
    chains = []
    for tensor in _declared_tensors(kernel):
        users = [item for item in kernel.users_of(tensor) if not item.guards]
        for loop in {step for item in users for step in item.path if step.id not in tensor.home}:
            mine = [item for item in users if loop in item.path]
            written = [a for item in mine for a in item.accesses if a.writes and a.tensor.id == tensor.id]
            if tensor.is_on_chip and any(loop.id not in access.view.loops for access in written):
                turns = _count_rotating_parts(kernel, tensor, mine, loop=loop)
                chains.append(sum(sum(costs[item].values()) * item.trips for item in mine) / turns)
    return chains


def _count_rotating_parts(kernel: Kernel, tensor: Tensor, users: list[Statement], *, loop: Loop) -> int:
    """The number of parts of a tile that rotate in a loop: those that inner loops walk for all users."""
    views = [access.view for item in users for access in item.accesses if access.tensor.id == tensor.id]
    common = frozenset.intersection(*(view.loops for view in views)) - {step.id for step in loop.path}
    return prod(kernel.trips[name] for name in common - {loop.id})


def statement_ns(statement: Statement, target: Target) -> dict[str, float]:
    """Busy nanoseconds of one execution, by engine."""
    assert statement.form is not None
    return form_ns(statement.form, target)


def form_ns(form: Form, target: Target) -> dict[str, float]:
    """Busy nanoseconds of one execution of an instruction, by engine.

    A matrix product counts by the share of the array that it uses.
    """
    cost = OPERATORS[form.op].cost(form, target)
    if form.engine != "dma":
        return {form.engine: cost.busy_ns * cost.array_share}
    moved = {"dma": cost.busy_ns * cost.channels / target.dma_engines}
    if cost.software:
        return moved | {"gpsimd": cost.descriptor_ns}
    return moved | {"descriptor": cost.descriptor_ns / target.dma_descriptor_queues}


def find_rule_breaches(
    kernel: Kernel, made: StaticEstimate, target: Target, seen: AbstractSet[Form] = frozenset()
) -> list[str]:
    """The hardware rules that a kernel's readable instructions break, as messages; `made` is its estimate.

    Forms in `seen` were already checked and are skipped.
    """
    found = [
        f"{statement.op}: {access.role} is in {access.tensor.buffer}"
        for statement in kernel.operations()
        for access in statement.accesses
        if access.tensor.buffer not in OPERATORS[statement.op].signature_by_name[access.role].buffers
    ]
    found += [
        message for form in kernel.forms if form not in seen for message in _form_breaches(form, target)
    ]
    if made.sbuf_bytes > target.sbuf_usable_bytes:
        found.append(
            f"{SBUF_IS_FULL}: {made.sbuf_bytes} bytes per partition, {target.sbuf_usable_bytes} are usable"
        )
    if made.psum_banks > target.psum_banks:
        found.append(f"PSUM: {made.psum_banks} banks, there are {target.psum_banks}")
    return found


def _form_breaches(form: Form, target: Target) -> list[str]:
    return [f"{form.op}: {breach.message}" for breach in OPERATORS[form.op].find_breaches(form, target)]


def tile_bytes(tensor: Tensor) -> int:
    """Bytes per partition of all copies of an on-chip tensor."""
    return prod(tensor.copies) * prod(tensor.shape[1:]) * DTYPES[tensor.dtype].itemsize


def tile_sbuf_bytes(tensor: Tensor, target: Target) -> int:
    """Bytes per partition that a tile takes of SBUF: tiles with few partitions are stacked."""
    high = next((step for step in START_PARTITIONS if tensor.shape[0] <= step), target.partitions)
    return tile_bytes(tensor) * high // target.partitions


def tile_banks(tensor: Tensor, target: Target) -> int:
    """PSUM banks of all copies; a copy takes whole banks."""
    each = prod(tensor.shape[1:]) * DTYPES[tensor.dtype].itemsize
    return prod(tensor.copies) * -(-each // target.psum_bank_bytes)


def _declared_tensors(kernel: Kernel) -> list[Tensor]:
    return [item.tensor for item in kernel.declarations.values() if item.tensor is not None]
