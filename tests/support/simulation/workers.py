"""Who answers in a simulated world: each answer, its time and its trouble follow from what is asked.

The proposer is the scripted one, the judge that of the daemon's tests. An answer takes a time drawn from the
digest of the request; trouble that passes (a host lost, an answer that hangs) is drawn the same way, and
counted by delivery over the whole life of the world, so that who asks again, after a crash too, gets through.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_core.roles.scripted import ScriptedProposer
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.workers import Workers
from remote.errors import InfrastructureError
from remote.evaluator import EvaluationAnswer
from state.model import PredictedLatency, Usage
from tests.support import fakes

HANGS_SECONDS = 1e5
JUDGING = {"lost": "host lost", "hangs": "answer that hangs", "never": "host never judges"}
PREDICTING = {
    "lost": "host lost while predicting",
    "hangs": "prediction that hangs",
    "never": "host never predicts",
}
BUG = "bug of a proposer"
KINDS = (*JUDGING.values(), *PREDICTING.values(), BUG)
"""What can go wrong outside, as it is counted."""

TROUBLED_SHARE = 0.03
PRICE_USD = 1 / 64
"""A sum of these is exact in floating point."""


class Outside:
    """All that is outside the process: it goes on when the process is killed."""

    def __init__(self, seed: int, *, priced: bool) -> None:
        self.seed = seed
        self.usage = Usage(cost_usd=PRICE_USD) if priced else Usage()
        self.delivered: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def draw(self, *parts: object) -> random.Random:
        """Return the draws that belong to `parts`, the same whenever they are asked for."""
        return random.Random("|".join(map(str, (self.seed, *parts))))

    def workers(self) -> Workers:
        return Workers(create_evaluator=lambda _: Judge(self), create_proposer=lambda _: Proposer(self))


class Proposer(ScriptedProposer):
    """The scripted proposer, which takes its time and fails in ways of its own."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    async def look_ahead(self, request: Any, read: Any, predict: Any) -> Any:
        return await self._answer(request, lambda: ScriptedProposer.look_ahead(self, request, read, predict))

    async def plan(self, request: Any, read: Any) -> Any:
        return await self._answer(request, lambda: ScriptedProposer.plan(self, request, read))

    async def implement(self, request: Any, read: Any) -> Any:
        return await self._answer(request, lambda: ScriptedProposer.implement(self, request, read))

    async def summarize(self, request: Any, read: Any) -> Any:
        return await self._answer(request, lambda: ScriptedProposer.summarize(self, request, read))

    async def reflect(self, request: Any, read: Any) -> Any:
        return await self._answer(request, lambda: ScriptedProposer.reflect(self, request, read))

    async def _answer(self, request: Any, ask: Callable[[], Awaitable[Any]]) -> Any:
        draw = self._outside.draw(request.model_dump_json())
        await asyncio.sleep(draw.expovariate(1.0))
        if draw.random() < TROUBLED_SHARE:
            self._outside.counts[BUG] += 1
            raise ValueError("the simulated proposer has a bug")
        return replace(await ask(), usage=self._outside.usage)


class Judge:
    """Judges by text; time and trouble follow from the digest of the source."""

    name = "fake"

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def toolchain(self) -> str:
        return fakes.TOOLCHAIN

    async def evaluate(self, request: Any, blobs: Any, /) -> EvaluationAnswer:
        what = f"{request.source} {request.level}"
        await self._work(what, JUDGING, never=self._is_never_done(what))
        return fakes.judge_source(blobs.get_blob(request.source), request.target, request.level, fakes.LATE)

    async def predict(self, request: Any, blobs: Any, /) -> list[PredictedLatency]:
        # How kernels are grouped depends on what was cut off: what lasts may not depend on that.
        never = any(self._is_never_done(source) for source in request.sources)
        await self._work(f"{request.sources}", PREDICTING, never=never)
        return [fakes.predict_latency(source.encode()) for source in request.sources]

    def _is_never_done(self, what: str) -> bool:
        return Dealt.of(self._outside.draw(what)).never

    async def _work(self, what: str, kinds: Mapping[str, str], *, never: bool) -> None:
        """Take the time that is dealt, and meet what trouble is; `kinds` says how each is counted.

        Raises:
            InfrastructureError: the host is lost, which passes, or never answers this one.
        """
        self._outside.delivered[what] += 1
        dealt = Dealt.of(self._outside.draw(what))
        trouble = dealt.trouble if self._outside.delivered[what] <= dealt.times else None
        if trouble is not None:
            self._outside.counts[kinds[trouble]] += 1
        # A machine that is slow is not slow for ever: else a run that needs this verdict would never end.
        later = max(1, self._outside.delivered[what] - EvaluationRetryPolicy().tries)
        await asyncio.sleep(HANGS_SECONDS if trouble == "hangs" else dealt.seconds / later)
        if trouble == "lost":
            raise InfrastructureError("host_lost", "the simulated host is gone")
        if never:
            self._outside.counts[kinds["never"]] += 1
            raise InfrastructureError("bad_host", "the simulated host never answers this", retryable=False)

    async def aclose(self) -> None:
        pass


SLOWEST_SECONDS = 9.0
"""Less than an evaluation may take: whether tries in a row are too slow must not depend on who counts
them."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """How a kernel fares with its judge: the time it takes, and which trouble the first deliveries meet."""

    seconds: float
    trouble: str | None
    times: int
    never: bool

    @classmethod
    def of(cls, draw: random.Random) -> Dealt:
        return cls(
            seconds=min(draw.expovariate(0.7), SLOWEST_SECONDS),
            trouble=draw.choices((None, "lost", "hangs"), (16, 4, 1))[0],
            times=draw.randint(1, EvaluationRetryPolicy().tries - 1),
            never=draw.random() < TROUBLED_SHARE,
        )
