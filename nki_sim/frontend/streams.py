"""Merges the instructions of a launch's programs into one order in which they can run.

Each program is traced by itself. Where programs wait for each other (`sendrecv`, `core_barrier`) their
streams are cut. The pieces before the first such point come core after core, then the point's work on each
core, then the pieces after it. Every program so finds the same data in memory as on the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nki_sim.errors import KernelError
from nki_sim.forms import Form, Site
from nki_sim.frontend.storage import fail
from nki_sim.frontend.tensor import Tensor
from nki_sim.operators import OPERATORS


@dataclass(slots=True)
class SyncPoint:
    """A point where a program waits for the other: `at` is (instructions, operands) recorded before it.

    `key` is the same on both cores: the instruction and its pipe. `src` and `dst` are what a sendrecv moves.
    The marks of a loop that contains such points are points too: `condition` is their register, and `end` is
    what is recorded with the mark itself, which one instruction of both cores replaces.
    """

    name: str
    key: tuple[Any, ...]
    line: int
    at: tuple[int, int]
    engine: Any
    src: Tensor | None = None
    dst: Tensor | None = None
    condition: Tensor | None = None
    end: tuple[int, int] | None = None


@dataclass(slots=True)
class InstructionStream:
    """What programs of one core recorded, column by column; see `program/wire.py` for the columns."""

    forms: array[int] = field(default_factory=lambda: array("I"))
    lines: array[int] = field(default_factory=lambda: array("I"))
    cores: array[int] = field(default_factory=lambda: array("B"))
    nodes: array[int] = field(default_factory=lambda: array("I"))
    tensors: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    syncs: list[SyncPoint] = field(default_factory=list)

    @property
    def end(self) -> tuple[int, int]:
        """(instructions, operands) recorded so far."""
        return len(self.forms), len(self.tensors)

    def mark_loop(self, name: str, condition: Tensor, line: int, at: tuple[int, int]) -> None:
        """Record that a device loop begins or ends with the instruction recorded since `at`.

        Loops without a synchronisation point stay as they are; the mark of their begin is removed at their
        end.
        """
        if name == "loop_end" and self.syncs[-1].name == "loop_begin":
            self.syncs.pop()
        else:
            self.syncs.append(SyncPoint(name, (), line, at, None, condition=condition, end=self.end))

    def extend(self, other: InstructionStream, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Append a piece of another stream."""
        for name in ("forms", "lines", "cores", "nodes"):
            getattr(self, name).extend(getattr(other, name)[start[0] : end[0]])
        for name in ("tensors", "offsets"):
            getattr(self, name).extend(getattr(other, name)[start[1] : end[1]])


class SharedTensors:
    """Tensors that all programs of a launch share: the first makes them, the others get them in order."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._made: list[Tensor] = []
        self._at = 0
        self._first = True

    def rewind(self) -> None:
        """Start again for another program."""
        self._first = self._first and not self._made
        self._at = 0

    def next_tensor(self, site: Site, make: Callable[[Site], Tensor]) -> Tensor:
        """Return the next tensor, which a program declares as `site`."""
        if self._first:
            self._made.append(make(site))
        self._at += 1
        found = self._made[self._at - 1] if self._at <= len(self._made) else None
        if found is None or (found._storage.site.shape, found._storage.site.dtype) != (
            site.shape,
            site.dtype,
        ):
            fail(
                "shared_hbm_mismatch",
                f"{site.name} {site.shape} is not number {self._at} of the {self._what} of the first program",
                "declare what programs share in the same order in all of them",
            )  # fmt: skip
        return found


SyncPoints = tuple[SyncPoint, ...]
"""A point where programs meet, as each core sees it, in order of cores."""

StreamSegment = tuple[InstructionStream, tuple[int, int], tuple[int, int]]
"""A stream from one position to another."""


def merge_streams(streams: list[InstructionStream]) -> Iterator[StreamSegment | SyncPoints]:
    """Yield pieces of streams, and between them the points where all programs meet.

    Raises:
        KernelError: the programs do not meet at the same points, so that one would wait forever.
    """
    counts = [len(stream.syncs) for stream in streams]
    starts = [(0, 0)] * len(streams)
    for number in range(min(counts)):
        places = tuple(stream.syncs[number] for stream in streams)
        yield from _segments_between(streams, starts, [place.at for place in places])
        starts = [place.end or place.at for place in places]
        _check_sync_points(places)
        yield places
    if len(set(counts)) > 1:
        core = counts.index(max(counts))
        place = streams[core].syncs[min(counts)]
        raise KernelError(
            "core_sync_mismatch",
            f"nisa.{place.name} on core {core} waits for ever: the other core has {min(counts)} such places",
            place.line, "synchronise as often in every program of the launch",
        )  # fmt: skip
    yield from _segments_between(streams, starts, [stream.end for stream in streams])


def _segments_between(
    streams: list[InstructionStream], starts: list[tuple[int, int]], ends: list[tuple[int, int]]
) -> Iterator[StreamSegment]:
    for stream, start, end in zip(streams, starts, ends, strict=True):
        if start != end:
            yield stream, start, end


def _check_sync_points(places: SyncPoints) -> None:
    first, *others = places
    for other in others:
        if (other.name, other.key) != (first.name, first.key):
            raise KernelError(
                "core_sync_mismatch",
                f"core 0 is at {_describe_sync(first)} (line {first.line}) while core 1 is at "
                f"{_describe_sync(other)}",
                other.line, "synchronise in the same order in every program",
            )  # fmt: skip
        for src, dst in ((first.src, other.dst), (other.src, first.dst)):
            if src is not None and dst is not None and (src.shape, src.dtype) != (dst.shape, dst.dtype):
                raise KernelError(
                    "shape_mismatch",
                    f"nisa.sendrecv sends {src.name} {src.shape} {src.dtype} into {dst.name} {dst.shape} "
                    f"{dst.dtype}", other.line, "tiles of both cores have one shape and type",
                )  # fmt: skip


def _describe_sync(place: SyncPoint) -> str:
    return f"nisa.{place.name}{place.key}"


def sync_operands(places: SyncPoints, core: int) -> dict[str, Any] | None:
    """The operands of a point's instruction on a core; None if it has no instruction there."""
    if places[0].condition is not None:
        return None if core else {"condition": places[0].condition, "other": places[1].condition}
    place, other = places[core], places[1 - core]
    moves = {} if place.dst is None else {"dst": place.dst, "src": other.src}
    return {**moves, "engine": place.engine}


def find_written_inputs(
    streams: Iterable[InstructionStream], forms: Sequence[Form], inputs: Iterable[int]
) -> set[int]:
    """Return the inputs that an instruction writes; streams refer to forms by number."""
    writes = [
        [
            cell
            for cell, item in enumerate(form.operands)
            if item.buffer == "hbm" and OPERATORS[form.op].effect(form, item.role)[0]
        ]
        for form in forms
    ]
    counts = [len(form.operands) for form in forms]
    wanted, found = set(inputs), set[int]()
    for stream in streams:
        at = 0
        for form in stream.forms:
            found.update(stream.tensors[at + cell] for cell in writes[form])
            at += counts[form]
    return wanted & found
