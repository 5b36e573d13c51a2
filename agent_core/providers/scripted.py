"""A model that answers as it is told, for tests and mechanism experiments: no network, no clock, no chance.

What it says depends on the question alone, and which faults come first on how often the question was asked
before. Like every provider it asks once: faults are failures, and who asks decides what follows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from agent_core.providers.completion import Completion, CompletionRequest, ObserveLimits, RateLimits, Tokens
from agent_core.providers.failures import CallError, Failure, FailureKind
from agent_core.providers.windows import estimate_tokens
from state.model import Digest, canonical_json, digest_of

ScriptedAnswer = str | Completion | Failure
"""What is said to a question: the text of an answer, a whole answer, or why there is none."""

Answers = Mapping[Digest, ScriptedAnswer] | Callable[[CompletionRequest], ScriptedAnswer]
"""By the digest of the question, or a pure function of it."""

FaultScript = Callable[[CompletionRequest, int], Failure | None]
"""A fault of the n-th delivery of a question, from 1; None is none."""


def digest_of_question(request: CompletionRequest) -> Digest:
    """Return the digest by which answers are found: of the canonical JSON of the whole request."""
    return digest_of(canonical_json(request.model_dump(mode="json")))


def fail_first(*faults: Failure) -> FaultScript:
    """Return faults that come one after the other with the first deliveries of every question."""
    return lambda _, delivery: faults[delivery - 1] if delivery <= len(faults) else None


def fail_share(share: float, *faults: Failure) -> FaultScript:
    """Return faults that a share of all questions meets once, with its first delivery.

    Which question meets which fault is read off its digest, so it is the same in every process.
    """

    def fault(request: CompletionRequest, delivery: int) -> Failure | None:
        draw = int(digest_of_question(request)[-12:], 16)
        if delivery > 1 or (draw % 10_000) / 10_000 >= share:
            return None
        return faults[draw // 10_000 % len(faults)]

    return fault


class ScriptedProvider:
    """A provider without a model. `asked` holds the questions in the order in which they came."""

    def __init__(
        self,
        answers: Answers,
        *,
        name: str = "scripted",
        faults: FaultScript | None = None,
        limits: Sequence[RateLimits] = (),
    ) -> None:
        self.name = name
        self.asked: list[CompletionRequest] = []
        self._answers = answers
        self._faults = faults
        self._limits = limits
        self._deliveries: Counter[Digest] = Counter()

    async def complete(
        self,
        request: CompletionRequest,
        *,
        deadline_seconds: float,  # noqa: ARG002 - the protocol's; nothing takes time here
        observe: ObserveLimits,
    ) -> Completion:
        """Answer as told. The n-th question of all is said to come with the n-th of `limits`.

        Raises:
            CallError: it was told to fail, or knows no such question (kind invalid).
        """
        self.asked.append(request)
        if len(self.asked) <= len(self._limits):
            observe(self._limits[len(self.asked) - 1])
        digest = digest_of_question(request)
        self._deliveries[digest] += 1
        await asyncio.sleep(0)  # like every answer, it comes after others had their turn
        fault = self._faults(request, self._deliveries[digest]) if self._faults is not None else None
        said = fault or self._scripted_answer(request, digest)
        if isinstance(said, Failure):
            raise CallError(said)
        return said if isinstance(said, Completion) else _make_completion(request, said)

    def count_deliveries(self, request: CompletionRequest) -> int:
        """Return how often the question came."""
        return self._deliveries[digest_of_question(request)]

    async def aclose(self) -> None:
        """Nothing is open."""

    def _scripted_answer(self, request: CompletionRequest, digest: Digest) -> ScriptedAnswer:
        if callable(self._answers):
            return self._answers(request)
        unknown = Failure(kind=FailureKind.INVALID, message="no such question in the script")
        return self._answers.get(digest, unknown)


def _make_completion(request: CompletionRequest, text: str) -> Completion:
    """Return a text as an answer, its tokens estimated."""
    texts = [part.text for part in (*request.guide, *request.case)]
    return Completion(
        text=text,
        model=request.model,
        stop_reason="end_turn",
        tokens=Tokens(input=sum(map(estimate_tokens, texts)), output=estimate_tokens(text)),
    )
