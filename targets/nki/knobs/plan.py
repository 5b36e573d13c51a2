"""Plans what a graph needs on the chip: buffers, and steps that fill one from others; the knobs place them.

An input is loaded once, into SBUF, for all its readers there. Results of the tensor engine are in PSUM first,
and a step of its own copies them to SBUF, unless they are read in place. The result is stored from SBUF. A
PSUM buffer in which a sum is made and from which it is drained is *partial* in the summed dimension: how much
of that dimension it holds when it is drained is a knob too.

If a dimension is walked in rounds, a buffer of a *round* is made again in each, and a *running* one outlives
them all. A step may have a *state*: a buffer of its own in which it carries its operand to the next round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from nki_sim import targets
from nki_sim.targets import Target
from targets.nki.knobs.graph import PARTITIONS_PREFIX, Call, Graph, SettingValue, Value
from targets.nki.knobs.operators import DRAIN, LOAD, OPERATORS, SPREAD, STATE_SLOT, STORE, Operator

_BATCH = "#"
"""Prefix of the letters of batch axes, in every step."""

ROUND_AXIS = "~"
"""The letter of the dimension whose rounds a step runs in although none of its tensors has it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A part of a value on the chip, a tile or more; `partial` is the dimension that is being summed."""

    name: str
    memory: str
    dims: tuple[str, ...]
    partial: str | None = None
    lead: int = 0
    round: str | None = None
    running: str | None = None

    @property
    def core_dims(self) -> tuple[str, ...]:
        """The dimensions that instructions see: those after the batch."""
        return self.dims[self.lead :]

    @property
    def scoped_dims(self) -> tuple[str, ...]:
        """The dimensions along which its extent is a knob."""
        dims = tuple(dim for dim in self.dims if not dim.startswith(PARTITIONS_PREFIX))
        return dims if self.partial is None else (*dims, self.partial)


@dataclass(frozen=True)
class PlanStep:
    """An operator on buffers and arrays in HBM; `axes` maps its letters to dimensions."""

    number: int
    operator: str
    operands: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, SettingValue], ...]
    result: str
    axes: tuple[tuple[str, str], ...]
    state: str = ""

    @cached_property
    def entry(self) -> Operator:
        """The operator's entry in the table."""
        return OPERATORS[self.operator]

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """All tensors it reads, its state, and the tensor it writes, last."""
        return (*(name for _, name in self.operands), *((self.state,) if self.state else ()), self.result)

    @cached_property
    def reduced_dim(self) -> str | None:
        """The dimension that its operator sums away."""
        return dict(self.axes).get(self.entry.reduces or (ROUND_AXIS if self.entry.fades else ""))

    @cached_property
    def single_tile_dims(self) -> frozenset[str]:
        """Dimensions of which an instruction takes one tile at a time: of partitions and of a batch."""
        read = self.entry.operands.items() if self.entry.reads == "sbuf" else ()
        on_partitions = (letters for slot, letters in read if slot not in self.entry.rows)
        first = [letters[0] for letters in (*on_partitions, self.entry.result)]
        return frozenset(dim for letter, dim in self.axes if letter in first or letter.startswith(_BATCH))


@dataclass(frozen=True, eq=False)
class BufferPlan:
    """Arrays in HBM, buffers and steps, in an order in which each step finds its operands. One per graph."""

    graph: Graph
    buffers: tuple[Buffer, ...]
    steps: tuple[PlanStep, ...]

    @cached_property
    def buffer(self) -> Mapping[str, Buffer]:
        """Buffers by name; all other tensors are in HBM."""
        return {item.name: item for item in self.buffers}

    @cached_property
    def producer(self) -> Mapping[str, PlanStep]:
        """The step that fills a buffer."""
        return {name: step for step in self.steps for name in (step.state, step.result) if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[PlanStep, ...]]:
        """The steps that read a buffer."""
        return {
            item.name: tuple(step for step in self.steps if item.name in dict(step.operands).values())
            for item in self.buffers
        }

    @cached_property
    def round_dims(self) -> Mapping[str, str]:
        """Running sums, parts of rounds, their inputs and readers, each with the rounds' dimension."""
        found = {}
        for dim in self.graph.rounds:
            sums = {name for item in self.buffers if item.running == dim for name in item.dims}
            for item in self.buffers:
                lies_over_both = dim in item.dims and not sums.isdisjoint(item.dims)
                if lies_over_both or dim in (item.round, item.running):
                    found[item.name] = dim
        return found

    @cached_property
    def step_reach(self) -> Mapping[tuple[int, str], tuple[int, tuple[str, ...]]]:
        """The most tiles that an instruction takes, and the buffers, by step and dimension."""
        limits = targets.load(self.graph.target)
        return {
            (step.number, dim): (
                1
                if dim in step.single_tile_dims
                else self._instruction_limit(step, dim, limits) // self.graph.dim[dim].tile,
                tuple(name for name in step.tensors if name in self.buffer and dim in self.buffer[name].dims),
            )
            for step in self.steps
            for _, dim in step.axes
        }

    def _instruction_limit(self, step: PlanStep, dim: str, limits: Target) -> int:
        """The most elements of a dimension that an instruction takes."""
        if (ROUND_AXIS, dim) in step.axes:
            return self.graph.dim[dim].size
        letters = [letter for letter, name in step.axes if name == dim and letter in step.entry.limits]
        found = [int(getattr(limits, step.entry.limits[letter])) for letter in letters]
        memories = {self.buffer[name].memory for name in step.tensors if name in self.buffer}
        found.append(
            limits.psum_access_elements_max if "psum" in memories else limits.sbuf_access_elements_max
        )
        return min(found)

    def dims_of(self, tensor: str) -> tuple[str, ...]:
        """The dimensions of a buffer, or of an array in HBM."""
        known = self.buffer.get(tensor)
        return self.graph.value[tensor].dims if known is None else known.dims

    def rows_of(self, buffer: str) -> int:
        """The number of partitions that a buffer takes."""
        return self.graph.dim[self.buffer[buffer].core_dims[0].removeprefix(PARTITIONS_PREFIX)].tile

    def core_of(self, tensor: str) -> tuple[str, ...]:
        """The dimensions that instructions see."""
        return self.dims_of(tensor)[self.lead_of(tensor) :]

    def lead_of(self, tensor: str) -> int:
        """The number of its batch dimensions."""
        known = self.buffer.get(tensor)
        return self.graph.value[tensor].lead if known is None else known.lead


@lru_cache(maxsize=64)
def plan_graph(graph: Graph) -> BufferPlan:
    """The buffers and steps of a graph."""
    buffers: dict[str, Buffer] = {}
    steps: list[PlanStep] = []
    for call in graph.calls:
        for _, name in call.operands:
            if name in graph.inputs and (buffer := _operand_buffer(graph, call, name)) not in {
                name,
                *buffers,
            }:
                value = graph.value[name]
                buffers[buffer] = Buffer(buffer, "sbuf", value.chip_dims, lead=value.lead)
                entry = LOAD if value.spread is None else SPREAD
                steps.append(_copy_step(entry, name, buffer, value=value, number=len(steps)))
        for made, step in _plan_call(graph, call, len(steps)):
            buffers[made.name] = made
            steps.append(step)
            if step.state:
                running = made.round
                buffers[step.state] = replace(made, name=step.state, round=None, running=running)
    output = graph.output
    steps.append(_copy_step(STORE, f"sbuf_{output}", output, value=graph.value[output], number=len(steps)))
    return BufferPlan(graph, tuple(buffers.values()), tuple(steps))


def _plan_call(graph: Graph, call: Call, number: int) -> Iterator[tuple[Buffer, PlanStep]]:
    entry, value = OPERATORS[call.operator], graph.value[call.result]
    axes = _call_axes(entry, call, graph)
    drained = entry.memory == "psum" and value.memory == "sbuf"
    partial = axes.get(entry.reduces or "") if drained else None
    rounds = {"round": value.round, "running": value.running}
    buffer = Buffer(f"{entry.memory}_{call.result}", entry.memory, value.dims, partial, value.lead, **rounds)
    operands = tuple((slot, _operand_buffer(graph, call, name)) for slot, name in call.operands)
    state = "" if entry.carries is None else f"{buffer.name}_{STATE_SLOT}"
    yield (
        buffer,
        PlanStep(number, entry.name, operands, call.settings, buffer.name, tuple(axes.items()), state),
    )
    if drained:
        copy = Buffer(f"sbuf_{call.result}", "sbuf", value.dims, lead=value.lead)
        yield copy, _copy_step(DRAIN, buffer.name, copy.name, value=value, number=number + 1)


def _operand_buffer(graph: Graph, call: Call, name: str) -> str:
    """The buffer that a call reads a value in, or the array in HBM."""
    return name if OPERATORS[call.operator].reads == "hbm" else f"{graph.value[name].memory}_{name}"


def _call_axes(entry: Operator, call: Call, graph: Graph) -> dict[str, str]:
    found: dict[str, str] = {}
    for slot, name in call.operands:
        found |= _value_axes(entry.operands[slot], graph.value[name])
    for value in (graph.value[name] for _, name in call.operands):
        dim = value.round or value.running
        if dim is not None and dim not in found.values():
            found[ROUND_AXIS] = dim
    return found


def _value_axes(letters: tuple[str, ...], value: Value) -> dict[str, str]:
    """The letters of a value's dimensions, those of a batch first."""
    batch = {f"{_BATCH}{number}": dim for number, dim in enumerate(value.dims[: value.lead])}
    return batch | dict(zip(letters, value.core_dims, strict=False))


def _copy_step(entry: Operator, source: str, result: str, *, value: Value, number: int) -> PlanStep:
    axes = _value_axes(entry.operands["data"] if entry is SPREAD else entry.result, value)
    return PlanStep(number, entry.name, (("data", source),), (), result, tuple(axes.items()))
