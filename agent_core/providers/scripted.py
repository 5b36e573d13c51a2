"""A scripted provider, for tests and experiments: no network, no clock, no randomness.

Its answer depends on the request alone; which faults come first depends on how often the request came before.
Like every provider it answers once: faults are failures, and the caller decides what to do.
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
"""The reply to a request: the text of an answer, a whole answer, or a failure."""

Answers = Mapping[Digest, ScriptedAnswer] | Callable[[CompletionRequest], ScriptedAnswer]
"""By the digest of the request, or a pure function of it."""

FaultScript = Callable[[CompletionRequest, int], Failure | None]
"""Returns the fault of a request's n-th delivery (from 1), or None."""


def digest_of_question(request: CompletionRequest) -> Digest:
    """Return the digest that answers are found by: of the canonical JSON of the whole request."""
    return digest_of(canonical_json(request.model_dump(mode="json")))


def fail_first(*faults: Failure) -> FaultScript:
    """Return a script in which the first deliveries of every request meet these faults, in order."""
    return lambda _, delivery: faults[delivery - 1] if delivery <= len(faults) else None


def fail_share(share: float, *faults: Failure) -> FaultScript:
    """Return a script in which a share of all requests meets one fault each, at the first delivery.

    The request's digest decides which fault it meets, so this is the same in every process.
    """

    def fault(request: CompletionRequest, delivery: int) -> Failure | None:
        draw = int(digest_of_question(request)[-12:], 16)
        if delivery > 1 or (draw % 10_000) / 10_000 >= share:
            return None
        return faults[draw // 10_000 % len(faults)]

    return fault


class ScriptedProvider:
    """A provider without a model. `asked` holds the requests in order of arrival."""

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
        """Answer as scripted. The n-th request of all reports the n-th of `limits`.

        Raises:
            CallError: the script says so, or does not know the request (kind invalid).
        """
        self.asked.append(request)
        if len(self.asked) <= len(self._limits):
            observe(self._limits[len(self.asked) - 1])
        digest = digest_of_question(request)
        self._deliveries[digest] += 1
        await asyncio.sleep(0)  # like any real answer, it comes after other tasks had a turn
        fault = self._faults(request, self._deliveries[digest]) if self._faults is not None else None
        said = fault or self._scripted_answer(request, digest)
        if isinstance(said, Failure):
            raise CallError(said)
        return said if isinstance(said, Completion) else _make_completion(request, said)

    def count_deliveries(self, request: CompletionRequest) -> int:
        """Return how often the request came."""
        return self._deliveries[digest_of_question(request)]

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    def _scripted_answer(self, request: CompletionRequest, digest: Digest) -> ScriptedAnswer:
        if callable(self._answers):
            return self._answers(request)
        unknown = Failure(kind=FailureKind.INVALID, message="no such question in the script")
        return self._answers.get(digest, unknown)


def _make_completion(request: CompletionRequest, text: str) -> Completion:
    """Return a text as a completion, with estimated token counts."""
    texts = list(request.texts())
    return Completion(
        text=text,
        model=request.model,
        stop_reason="end_turn",
        tokens=Tokens(input=sum(map(estimate_tokens, texts)), output=estimate_tokens(text)),
    )
