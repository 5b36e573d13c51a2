"""Circuit breakers: after several failures of an endpoint in a row, it is not called for a while.

A breaker is closed (calls are allowed), open (no calls until a time), or half open: the time is over, and one
call probes whether the endpoint is back. A failed probe opens the breaker for twice as long, up to a limit;
any answer closes it. An answer that refuses the request counts as an answer, because the endpoint works.
Values are frozen and the clock is an argument, so a breaker can also be kept in a log.

Times are seconds of one clock, chosen by the caller, that is never below 0; across restarts it must be the
same clock.
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
    """How long other calls wait for a probe's result; after that, another call probes too."""


class CircuitBreaker(FrozenModel):
    """What is known of one endpoint. `openings` counts openings in a row.

    No call is allowed before `until`, which is None while the breaker is closed. `probing` says that a probe
    is in flight.
    """

    failures: int = Field(default=0, ge=0)
    openings: int = Field(default=0, ge=0)
    until: float | None = None
    probing: bool = False


CLOSED_BREAKER = CircuitBreaker()


def admit_request(breaker: CircuitBreaker, now: float, policy: BreakerPolicy) -> tuple[CircuitBreaker, float]:
    """Return the breaker after a call asked to proceed, and the seconds to wait; 0 means go.

    A call that is let through an open breaker is its probe, and must report with `record_answer`,
    `record_failure` or `record_withdrawal`.
    """
    if breaker.until is None:
        return breaker, 0.0
    if now < breaker.until:
        return breaker, breaker.until - now
    # A probe that never reports must not keep the breaker half open for ever.
    return breaker.model_copy(update={"probing": True, "until": now + policy.probe_seconds}), 0.0


def record_answer(breaker: CircuitBreaker) -> CircuitBreaker:
    """Return the breaker after an answer, even one that refuses the request: the endpoint works."""
    return CLOSED_BREAKER


def record_failure(
    breaker: CircuitBreaker, now: float, policy: BreakerPolicy, *, retry_after_seconds: float | None = None
) -> CircuitBreaker:
    """Return the breaker after a failure of the endpoint.

    `retry_after_seconds` is the shortest time to open, up to the longest pause. Calls that were in flight
    when the breaker opened tell nothing new when they fail.
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
    """Return the breaker after a call that told nothing of the endpoint: another may probe at once."""
    return breaker.model_copy(update={"probing": False, "until": 0.0}) if breaker.probing else breaker
