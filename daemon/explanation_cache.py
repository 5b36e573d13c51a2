"""Keeps explanations of kernels: many roles of a round ask for the same one, and it is a pure result.

All planners of a kernel are told its what-ifs, and the sessions on it look at its profile. Whoever asks first
has it computed; who asks meanwhile waits for that. Nothing of it is logged: after a restart it is computed
once more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from remote.evaluator import ExplanationRequest
from remote.judge.job import JudgeOutcome
from state.model import KernelExplanation

MOST_KEPT = 128
"""Explanations that are kept, a few kB each; the one that was not asked for the longest goes first."""

Compute = Callable[[], Awaitable[KernelExplanation | JudgeOutcome]]


@dataclass(slots=True)
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    found: KernelExplanation | None = None


class ExplanationCache:
    """Explanations by what was asked, whoever asked.

    Refusals, failures and explanations without a latency are not kept.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._entries: OrderedDict[tuple[object, ...], _Entry] = OrderedDict()

    async def find(
        self, toolchain: str, request: ExplanationRequest, compute: Compute
    ) -> KernelExplanation | JudgeOutcome:
        """Return the explanation that a toolchain gives, computed only if it is not kept.

        If `compute` raises or is cancelled, the next who asks computes it.
        """
        key = (
            toolchain, request.target, request.problem.digest, request.size, request.source, request.topics,
        )  # fmt: skip
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        async with entry.lock:
            if entry.found is not None:
                return entry.found
            found = await compute()
            if isinstance(found, KernelExplanation) and found.error is None:
                entry.found = found
            return found
