"""Draws parts of a seed's inputs: generator states are stored along the way, and drawing resumes from any.

The number of random words that an element takes is not known in advance, so nothing can be skipped. But a
draw that was made once can be resumed in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.spans import Array, InputSource
from seeds.inputs import draw_elements, dtype_of
from seeds.spec import InputSpec, ProblemSpec

GeneratorStates = NDArray[np.uint64]
"""States of the generator [chunks, 4]: high and low half, whether half a draw is left, and that half."""

CHUNK = 1 << 10
"""Elements between two stored states."""

_NAME = "marks"
_LOW_HALF = (1 << 64) - 1


def draw_with_states(spec: ProblemSpec, size: str, seed: int) -> tuple[list[Array], list[GeneratorStates]]:
    """Return a seed's inputs, as `seeds.inputs.draw` does, and for each input the states at its chunks.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    dims, generator = spec.dims(size), np.random.default_rng(seed)
    arrays, marks = [], []
    for item in spec.inputs:
        shape = item.resolve_shape(dims)
        flat = np.empty(prod(shape), dtype_of(item.dtype))
        states = []
        for first, end in _chunk_bounds(flat.size):
            states.append(_generator_state(generator))
            flat[first:end] = draw_elements(item, (end - first,), generator)
        arrays.append(flat.reshape(shape))
        marks.append(np.array(states, dtype=np.uint64).reshape(-1, 4))
    return arrays, marks


def name_states(marks: Sequence[GeneratorStates]) -> dict[str, GeneratorStates]:
    """Return the states of all inputs by the names under which a file holds them."""
    return {f"{_NAME}{number}": states for number, states in enumerate(marks)}


def find_state_names(found: Sequence[str]) -> list[str]:
    """Return the names in a file that hold states, in the order of the inputs."""
    return [f"{_NAME}{number}" for number in range(sum(name.startswith(_NAME) for name in found))]


def seed_sources(
    spec: ProblemSpec, size: str, seed: int, marks: Sequence[GeneratorStates]
) -> list[InputSource]:
    """Return a seed's inputs as sources of parts."""
    dims = spec.dims(size)
    return [
        InputSource(
            shape := item.resolve_shape(dims),
            dtype_of(item.dtype),
            _ChunkReader(item, prod(shape), seed, states),
        )
        for item, states in zip(spec.inputs, marks, strict=True)
    ]


class _ChunkReader:
    """Reads spans of one input; keeps the last chunk, because the next span often begins in it."""

    def __init__(self, item: InputSpec, size: int, seed: int, marks: GeneratorStates) -> None:
        self._item, self._size, self._marks = item, size, marks
        self._generator = np.random.default_rng(seed)
        self._state: dict[str, Any] = dict(self._generator.bit_generator.state)
        self._held: tuple[int, Array] | None = None

    def __call__(self, first: int, end: int) -> Array:
        start = first - first % CHUNK
        chunks = [self._draw_chunk(number) for number in range(start // CHUNK, -(-end // CHUNK))]
        return np.concatenate(chunks)[first - start : end - start]

    def _draw_chunk(self, number: int) -> Array:
        if self._held is None or self._held[0] != number:
            if self._held is None or self._held[0] != number - 1:  # otherwise the generator is already there
                self._restore_state(self._marks[number])
            count = min(CHUNK, self._size - number * CHUNK)
            self._held = number, draw_elements(self._item, (count,), self._generator)
        return self._held[1]

    def _restore_state(self, mark: GeneratorStates) -> None:
        """Set the generator to a stored state."""
        high, low, has_half, half = mark.tolist()
        state = {**self._state["state"], "state": high << 64 | low}
        self._generator.bit_generator.state = {
            **self._state, "state": state, "has_uint32": has_half, "uinteger": half,
        }  # fmt: skip


def _chunk_bounds(size: int) -> Iterator[tuple[int, int]]:
    return ((first, min(size, first + CHUNK)) for first in range(0, size, CHUNK))


def _generator_state(generator: np.random.Generator) -> tuple[int, int, int, int]:
    found: dict[str, Any] = dict(generator.bit_generator.state)
    state = found["state"]["state"]
    return state >> 64, state & _LOW_HALF, found["has_uint32"], found["uinteger"]
