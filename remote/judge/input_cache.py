"""Caches the input sets that a worker has drawn, for the next kernel of the same problem."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from math import prod

from remote.judge import seed_stream, suite
from remote.judge.job import DigestJob, JudgeJob
from remote.judge.seed_stream import GeneratorStates
from remote.judge.spans import Array, InputSource
from seeds.inputs import dtype_of


class InputCache:
    """Recently used inputs, up to `max_bytes` in total."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sets: OrderedDict[tuple[str, str, str], list[Array]] = OrderedDict()
        self._nbytes = 0

    def get(
        self,
        job: JudgeJob,
        name: str,
        parts: Sequence[Array] | None = None,
        marks: Sequence[GeneratorStates] = (),
    ) -> list[Array]:
        """Return the inputs of a set, read-only; draw them if they are not cached.

        `parts` are the boxes that will be read of each input. `marks` are the generator states of a seed.
        With these, a set that is too large to be cached is drawn only where it is read.
        """
        key = (job.problem, job.size, name)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        sources = _make_sources(job, name, marks)
        if parts is None or not sources or self._can_keep_all(job):
            arrays = suite.draw_set(job.spec, job.size, name)
            self._keep_set(key, arrays)
        else:
            arrays = [source.read_boxes(boxes) for source, boxes in zip(sources, parts, strict=True)]
        for array in arrays:
            array.flags.writeable = False
        return arrays

    def _can_keep_all(self, job: JudgeJob) -> bool:
        """Whether all sets that a job needs fit into the cache."""
        dims = job.spec.dims(job.size)
        nbytes = sum(
            prod(item.resolve_shape(dims)) * dtype_of(item.dtype).itemsize for item in job.spec.inputs
        )
        return nbytes * len(job.excerpts) <= self._max_bytes

    def _keep_set(self, key: tuple[str, str, str], arrays: list[Array]) -> None:
        nbytes = sum(array.nbytes for array in arrays)
        if nbytes > self._max_bytes:
            return
        self._sets[key] = arrays
        self._nbytes += nbytes
        while self._nbytes > self._max_bytes:
            _, old = self._sets.popitem(last=False)
            self._nbytes -= sum(array.nbytes for array in old)


def digest_input_sets(job: DigestJob) -> dict[str, tuple[str, ...]]:
    """Return the sha256 of each array of input sets; draw them now and do not keep them."""
    return {
        name: tuple(
            hashlib.sha256(array.tobytes()).hexdigest() for array in suite.draw_set(job.spec, job.size, name)
        )
        for name in job.sets
    }


def _make_sources(job: JudgeJob, name: str, marks: Sequence[GeneratorStates]) -> list[InputSource]:
    """The inputs of a set as sources of parts; empty for a seed without generator states."""
    if not name.isdecimal():
        return suite.set_sources(job.spec, job.size, name)
    return seed_stream.seed_sources(job.spec, job.size, int(name), marks) if marks else []
