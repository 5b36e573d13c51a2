"""What is found out of a judgement so far, so that a worker goes on where another one was cut off.

A part is something that was checked and held: the tiles of a set, the whole outputs of a seed, the formula.
What does not hold ends the judgement, so no part says that. Parts are told while the worker judges, and are
given to the next one with the same job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

P = ParamSpec("P")

TELL_SECONDS = 0.05
"""Parts are told when so much time has passed: short ones together, as telling costs as much as they do."""


class JudgedParts:
    """The parts of one judgement: those that were `done` before, and those that are told as they come."""

    def __init__(
        self,
        done: Mapping[str, Any] | None = None,
        tell: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._done = dict(done or {})
        self._tell = tell
        self._fresh: dict[str, Any] = {}
        self._told = time.monotonic()

    def recall(self, name: str, judge: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the value of a part that is done; if it is not, judge it. Values are those of JSON."""
        if name not in self._done:
            self._done[name] = self._fresh[name] = judge(*args, **kwargs)
            if self._tell is not None and time.monotonic() - self._told >= TELL_SECONDS:
                self._tell(self._fresh)
                self._fresh, self._told = {}, time.monotonic()
        return self._done[name]
