"""Why a completion did not come, and what follows from that, as data."""

from __future__ import annotations

from enum import StrEnum

from agent_core.providers.completion import Tokens
from state.model import FrozenModel


class FailureKind(StrEnum):
    """The kinds of failure, as the log names them."""

    AUTH = "auth"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    RATE = "rate"
    OVERLOADED = "overloaded"
    SPEND_LIMIT = "spend_limit"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    TRANSPORT = "transport"
    SERVER = "server"


class Remedy(StrEnum):
    """What a failure is followed by."""

    PAUSE = "pause"
    """The run waits for a person: nothing that it does by itself can help."""
    SHRINK = "shrink"
    """The same question with less context, once."""
    MORE_OUTPUT = "more_output"
    """The same question with room for a longer answer, once."""
    BACK_OFF = "back_off"
    """The same question later, the pause growing, as often as the policy has tries."""
    GIVE_UP = "give_up"
    """The proposal failed; the next one may do better."""


REMEDIES: dict[FailureKind, Remedy] = {
    FailureKind.AUTH: Remedy.PAUSE,
    FailureKind.INVALID: Remedy.GIVE_UP,
    FailureKind.TOO_LARGE: Remedy.SHRINK,
    FailureKind.RATE: Remedy.BACK_OFF,
    FailureKind.OVERLOADED: Remedy.BACK_OFF,
    FailureKind.SPEND_LIMIT: Remedy.PAUSE,
    FailureKind.REFUSED: Remedy.GIVE_UP,
    FailureKind.TRUNCATED: Remedy.MORE_OUTPUT,
    FailureKind.TRANSPORT: Remedy.BACK_OFF,
    FailureKind.SERVER: Remedy.BACK_OFF,
}

TRIPS_BREAKER = frozenset(
    {FailureKind.OVERLOADED, FailureKind.TRANSPORT, FailureKind.SERVER, FailureKind.RATE}
)
"""Failures of the endpoint, not of the question: enough of them in a row open its breaker."""


class Failure(FrozenModel):
    """One failed attempt. `tokens` is what it was counted at all the same, None where nobody said.

    `retry_after_seconds` is what the endpoint asked for, unbounded as it was said. `may_cost`: nobody said
    what it was counted at, yet the endpoint may have worked on it: it cost anything up to what was reserved.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after_seconds: float | None = None
    request_id: str | None = None
    tokens: Tokens | None = None
    may_cost: bool = False


class CallError(Exception):
    """A completion did not come; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
