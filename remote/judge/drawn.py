"""Input sets that a worker has drawn and keeps for the next kernel of the same problem."""

from __future__ import annotations

from collections import OrderedDict

from remote.judge import suite
from remote.judge.job import Job
from remote.judge.suite import Array


class InputCache:
    """Inputs drawn before, the latest used ones, up to `max_bytes` altogether."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sets: OrderedDict[tuple[str, str, str], list[Array]] = OrderedDict()
        self._nbytes = 0

    def get(self, job: Job, name: str) -> list[Array]:
        """Return the inputs of a set, read-only; drawn now if they are not here."""
        key = (job.problem, job.size, name)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        arrays = suite.inputs(job.spec, job.size, name)
        for array in arrays:
            array.flags.writeable = False
        self._keep(key, arrays)
        return arrays

    def _keep(self, key: tuple[str, str, str], arrays: list[Array]) -> None:
        nbytes = sum(array.nbytes for array in arrays)
        if nbytes > self._max_bytes:
            return
        self._sets[key] = arrays
        self._nbytes += nbytes
        while self._nbytes > self._max_bytes:
            _, old = self._sets.popitem(last=False)
            self._nbytes -= sum(array.nbytes for array in old)
