"""The kinds of failed completions, and the remedy for each, as data."""

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
    """What to do after a failure."""

    PAUSE = "pause"
    """The run waits for a person, because it cannot fix this itself."""
    SHRINK = "shrink"
    """Ask again with less context, once."""
    MORE_OUTPUT = "more_output"
    """Ask again with room for a longer answer, once."""
    BACK_OFF = "back_off"
    """Ask again later, with growing pauses, as often as the retry policy allows."""
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
"""Failures of the endpoint, not of the request: enough of them in a row open its circuit breaker."""


class Failure(FrozenModel):
    """One failed attempt. `tokens` is what the endpoint counted anyway, None if it gave no count.

    `retry_after_seconds` is what the endpoint asked for, without a limit. `may_cost` says that no count came
    although the endpoint may have done work: the attempt may cost up to what was reserved.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after_seconds: float | None = None
    request_id: str | None = None
    tokens: Tokens | None = None
    may_cost: bool = False


class CallError(Exception):
    """A completion failed; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
