"""Builds the loop nest that steps share; each step runs at the end of its path.

Steps whose paths begin alike share those loops, in an order in which each finds its operands. If a step
outside a loop must run between two inside it, the loop appears twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.placement import LoopStage, Placement, is_used


@dataclass(eq=False)
class LoopNest:
    """A loop, or the whole kernel if `level` is None, with the loops and step numbers in it."""

    level: LoopStage | None
    items: list[LoopNest | int] = field(default_factory=list)

    def step_chains(self, above: tuple[LoopNest, ...] = ()) -> Iterator[tuple[int, tuple[LoopNest, ...]]]:
        """Every step with the loops around it, the kernel first."""
        for item in self.items:
            if isinstance(item, LoopNest):
                yield from item.step_chains((*above, self))
            else:
                yield item, (*above, self)


def build_nest(ir: KernelIR, place: Placement) -> LoopNest:
    """The loop nest of the steps that an IR runs."""
    used = {step.number: step for step in ir.plan.steps if is_used(ir, step)}
    needs = {
        number: {ir.plan.producer[name].number for _, name in step.operands if name in ir.plan.buffer}
        & used.keys()
        for number, step in used.items()
    }
    return _build_level(None, sorted(needs), place.paths, needs=needs, depth=0)


def _build_level(
    level: LoopStage | None,
    numbers: list[int],
    paths: Mapping[int, tuple[LoopStage, ...]],
    *,
    needs: Mapping[int, set[int]],
    depth: int,
) -> LoopNest:
    nest = LoopNest(level)
    groups: dict[LoopStage | int, list[int]] = {}
    for number in numbers:
        path = paths[number]
        groups.setdefault(path[depth] if len(path) > depth else number, []).append(number)
    while groups:
        key, ready = _next_group(groups, needs)
        left = [number for number in groups.pop(key) if number not in ready]
        nest.items.append(
            key if isinstance(key, int) else _build_level(key, ready, paths, needs=needs, depth=depth + 1)
        )
        if left:
            groups[key] = left
    return nest


def _next_group(
    groups: Mapping[LoopStage | int, list[int]], needs: Mapping[int, set[int]]
) -> tuple[LoopStage | int, list[int]]:
    """The first group that can run as a whole; else, of the first group, what the others wait for."""
    pending = {number for numbers in groups.values() for number in numbers}
    ready = {key: _ready_steps(numbers, pending, needs) for key, numbers in groups.items()}
    for key in sorted(groups, key=lambda item: groups[item][0]):
        if len(ready[key]) == len(groups[key]):
            return key, ready[key]
    for key in sorted(groups, key=lambda item: groups[item][0]):
        wanted = _needed_steps(pending - set(groups[key]), needs)
        if found := [number for number in ready[key] if number in wanted]:
            return key, found
    raise AssertionError("some step that others wait for has its operands")


def _ready_steps(numbers: list[int], pending: set[int], needs: Mapping[int, set[int]]) -> list[int]:
    """The steps of a group that need nothing pending outside it."""
    ready: list[int] = []
    for number in numbers:
        if not (needs[number] & pending) - set(ready):
            ready.append(number)
    return ready


def _needed_steps(numbers: set[int], needs: Mapping[int, set[int]]) -> set[int]:
    """The steps that these steps need, directly or not."""
    found: set[int] = set()
    rest = list(numbers)
    while rest:
        more = needs[rest.pop()] - found
        found |= more
        rest += more
    return found


@dataclass(frozen=True)
class BufferLifetimes:
    """The loop in which each buffer is made, and the first and last of its items that use it."""

    loops: Mapping[str, LoopNest]
    used: Mapping[str, tuple[int, int]]

    def buffers_made_in(self, nest: LoopNest) -> tuple[str, ...]:
        """The buffers that are made again in each iteration of a loop."""
        return tuple(name for name, home in self.loops.items() if home is nest)

    def merged_tile_loop(self, nest: LoopNest) -> LoopNest | None:
        """The loop over the tiles of blocks, if it is all that the loop over blocks contains."""
        match nest.items:
            case [LoopNest(level=(loop, _)) as inner] if nest.level is not None and not self.buffers_made_in(
                nest
            ):
                return inner if loop.split(".")[0] == nest.level[0].split(".")[0] else None
        return None


def buffer_lifetimes(ir: KernelIR, place: Placement, nest: LoopNest) -> BufferLifetimes:
    """The lifetimes of all used buffers, in a nest whose paths are valid."""
    chains = dict(nest.step_chains())
    loops: dict[str, LoopNest] = {}
    used: dict[str, tuple[int, int]] = {}
    for buffer in (item for item in ir.plan.buffers if is_used(ir, ir.plan.producer[item.name])):
        users = [
            step.number for step in ir.plan.steps if buffer.name in step.tensors and step.number in chains
        ]
        home = chains[users[0]][len(place.contexts[buffer.name])]
        inside: list[tuple[LoopNest | int, ...]] = [(*chains[number], number) for number in users]
        at = [home.items.index(chain[chain.index(home) + 1]) for chain in inside]
        loops[buffer.name], used[buffer.name] = home, (min(at), max(at))
    return BufferLifetimes(loops, used)
