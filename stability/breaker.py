"""A breaker per endpoint: after some failures of the endpoint in a row nobody asks it for a while.

It is closed (everybody asks), open (nobody does, until a time), or half open: the time is over and one
question probes whether the endpoint is back. A probe that fails opens it for twice as long, up to a longest
pause; any answer closes it. Failures of questions are answers: the endpoint works. Values are frozen and the
clock is an argument, so whoever keeps a breaker can also keep it in a log.

Times are seconds of one clock that is never below 0, of the caller's choice; across restarts it must be the
same one.
"""

from __future__ import annotations

from pydantic import Field

from state.model import FrozenModel


class BreakerPolicy(FrozenModel):
    """How many failures in a row open a breaker, and for how long."""

    failures: int = Field(default=5, ge=1)
    pause_seconds: float = Field(default=15.0, gt=0)
    longest_seconds: float = Field(default=900.0, gt=0)
    probe_seconds: float = Field(default=120.0, gt=0)
    """How long the others wait for a probe's word; then another one probes too."""


class CircuitBreaker(FrozenModel):
    """What is known of one endpoint. `openings` counts those in a row.

    Nobody asks before `until`, which is None while it is closed; `probing`: but for one who does.
    """

    failures: int = Field(default=0, ge=0)
    openings: int = Field(default=0, ge=0)
    until: float | None = None
    probing: bool = False


CLOSED_BREAKER = CircuitBreaker()


def admit_request(breaker: CircuitBreaker, now: float, policy: BreakerPolicy) -> tuple[CircuitBreaker, float]:
    """Return the breaker after somebody asked to go ahead, and the seconds to wait: 0 means go.

    Who is let through a breaker that was open is its probe, and must report with `record_answer`,
    `record_failure` or `record_withdrawal`.
    """
    if breaker.until is None:
        return breaker, 0.0
    if now < breaker.until:
        return breaker, breaker.until - now
    # A probe of which nobody hears again must not keep it half open for ever.
    return breaker.model_copy(update={"probing": True, "until": now + policy.probe_seconds}), 0.0


def record_answer(breaker: CircuitBreaker) -> CircuitBreaker:
    """Return the breaker after an answer, also one that says no to the question: the endpoint works."""
    return CLOSED_BREAKER


def record_failure(
    breaker: CircuitBreaker, now: float, policy: BreakerPolicy, *, retry_after_seconds: float | None = None
) -> CircuitBreaker:
    """Return the breaker after a failure of the endpoint.

    `retry_after_seconds` makes an opening at least so long, up to the longest pause. Failures of questions
    that were under way when it opened say nothing new.
    """
    if breaker.until is not None and not breaker.probing:
        return breaker
    failures = breaker.failures + 1
    if breaker.until is None and failures < policy.failures:
        return breaker.model_copy(update={"failures": failures})
    growing = policy.pause_seconds * 2.0 ** min(breaker.openings, 32)
    pause = min(policy.longest_seconds, max(growing, retry_after_seconds or 0.0))
    return CircuitBreaker(failures=failures, openings=breaker.openings + 1, until=now + pause)


def record_withdrawal(breaker: CircuitBreaker) -> CircuitBreaker:
    """Return the breaker after a question that told nothing of the endpoint: another may probe at once."""
    return breaker.model_copy(update={"probing": False, "until": 0.0}) if breaker.probing else breaker
