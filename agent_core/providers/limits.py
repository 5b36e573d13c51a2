"""Rate limiting: how many requests an endpoint gets at a time, and how fast, from the limits it reports.

`RateGate` is the pure part: a frozen value and functions of it, with the clock as an argument. The endpoint's
headers describe buckets of requests and tokens, which fill up evenly until their reset time. A refusal closes
the gate until the endpoint's own time, and halves how many requests may be inside. Answers widen it again: by
one for each full round of answers. `RateLimiter` lets coroutines wait at a gate, in the order in which they
came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pydantic import Field

from agent_core.providers.completion import RateLimits
from agent_core.providers.failures import Failure, FailureKind
from state.model import FrozenModel

LONGEST_CLOSED_SECONDS = 900.0
"""The longest time for which one refusal closes a gate; the requests' own deadlines handle longer waits."""

_SLOWED_BY = frozenset({FailureKind.RATE, FailureKind.OVERLOADED})


class TokenBucket(FrozenModel):
    """A token bucket: `left` at time `seen`, filling evenly up to `limit`; `left` may be negative."""

    left: float
    limit: float = Field(gt=0)
    seen: float
    per_second: float = Field(gt=0)

    def level_at(self, now: float) -> float:
        """Return the level at time `now`."""
        return min(self.limit, self.left + self.per_second * max(0.0, now - self.seen))

    def seconds_until(self, wanted: float, now: float) -> float:
        """Return the seconds until `wanted` are available; more than the limit needs a full bucket."""
        return max(0.0, (min(wanted, self.limit) - self.level_at(now)) / self.per_second)

    def after_taking(self, taken: float, now: float) -> TokenBucket:
        """Return the bucket after `taken` were taken."""
        return self.model_copy(update={"left": self.level_at(now) - taken, "seen": now})


class RateGate(FrozenModel):
    """The known limits of an endpoint. `calls` is the most that may ever be inside, `width` the most now."""

    calls: int = Field(ge=1)
    width: float = Field(ge=1)
    inside: int = Field(default=0, ge=0)
    closed_until: float = 0.0
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None


def open_gate(calls: int) -> RateGate:
    """Return a gate for at most `calls` at a time, with no limits known yet."""
    return RateGate(calls=calls, width=calls)


def seconds_until_entry(state: RateGate, now: float, tokens: int) -> float | None:
    """Return the seconds until a request with `tokens` may enter; None if another one must leave first."""
    if state.inside >= int(state.width):
        return None
    waits = [max(0.0, state.closed_until - now)]
    if state.requests is not None:
        waits.append(state.requests.seconds_until(1.0, now))
    if state.tokens is not None:
        waits.append(state.tokens.seconds_until(float(tokens), now))
    return max(waits)


def enter_gate(state: RateGate, now: float, tokens: int) -> RateGate:
    """Return the gate after a request with `tokens` entered."""
    return state.model_copy(
        update={
            "inside": state.inside + 1,
            "requests": state.requests and state.requests.after_taking(1.0, now),
            "tokens": state.tokens and state.tokens.after_taking(float(tokens), now),
        }
    )


def leave_gate(state: RateGate) -> RateGate:
    """Return the gate after a request left, answered or not."""
    return state.model_copy(update={"inside": max(0, state.inside - 1)})


def apply_limits(state: RateGate, now: float, limits: RateLimits) -> RateGate:
    """Return the gate with the limits that the endpoint reported."""
    requests = _make_bucket(limits.requests, limits.requests_limit, limits.requests_reset_seconds, now=now)
    tokens = _make_bucket(limits.tokens, limits.tokens_limit, limits.tokens_reset_seconds, now=now)
    return state.model_copy(update={"requests": requests or state.requests, "tokens": tokens or state.tokens})


def widen_gate(state: RateGate) -> RateGate:
    """Return the gate after an answer: a full round of answers makes room for one more."""
    return state.model_copy(update={"width": min(float(state.calls), state.width + 1.0 / state.width)})


def narrow_gate(state: RateGate, now: float, failure: Failure) -> RateGate:
    """Return the gate after a failure; only rate and overload failures change it."""
    if failure.kind not in _SLOWED_BY:
        return state
    seconds = min(failure.retry_after_seconds or 0.0, LONGEST_CLOSED_SECONDS)
    return state.model_copy(
        update={
            "width": max(1.0, state.width / 2.0),
            "closed_until": max(state.closed_until, now + seconds),
        }
    )


def _make_bucket(
    left: int | None, limit: int | None, reset_seconds: float | None, *, now: float
) -> TokenBucket | None:
    """Return the bucket that headers describe: it is full at its reset time."""
    if left is None or reset_seconds is None or reset_seconds < 0.001:
        return None
    most = max(float(limit if limit is not None else left), float(left), 1.0)
    missing = most - left
    # A full bucket does not show how fast it fills; limits of both vendors are per minute.
    rate = missing / reset_seconds if missing > 0 else most / 60.0
    return TokenBucket(left=float(left), limit=most, seen=now, per_second=rate)


class TurnTimeout(Exception):  # noqa: N818 - the names of this tree say what happened
    """A request's turn would come too late; `seconds` is the shortest wait that it would need."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no turn within the time allowed; the wait is {seconds:.0f} s or longer")
        self.seconds = seconds


class RateLimiter:
    """A gate at which coroutines of one event loop wait, first come first served."""

    def __init__(self, calls: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate = open_gate(calls)
        self._clock = clock
        self._line = asyncio.Lock()  # held by the first in line; asyncio passes locks on in order
        self._changed = asyncio.Event()

    @property
    def gate(self) -> RateGate:
        """What is currently known of the endpoint's limits."""
        return self._gate

    @asynccontextmanager
    async def take_turn(self, tokens: int, *, wait_seconds: float) -> AsyncIterator[None]:
        """Enter the gate with a request of about `tokens` tokens, and leave it at the end of the block.

        Raises:
            TurnTimeout: the turn does not come within `wait_seconds`; raised as soon as that is certain.
        """
        until = self._clock() + wait_seconds
        try:
            async with asyncio.timeout(wait_seconds):
                async with self._line:
                    await self._wait_for_turn(tokens, until)
                    self._gate = enter_gate(self._gate, self._clock(), tokens)
        except TimeoutError:
            raise TurnTimeout(wait_seconds) from None
        try:
            yield
        finally:
            self._set_gate(leave_gate(self._gate))

    def observe(self, limits: RateLimits) -> None:
        """Apply the limits of an answer's headers; pass this method as a request's `observe`."""
        self._set_gate(apply_limits(self._gate, self._clock(), limits))

    def record_answer(self) -> None:
        """Record that an answer came."""
        self._set_gate(widen_gate(self._gate))

    def record_failure(self, failure: Failure) -> None:
        """Record that a request failed."""
        self._set_gate(narrow_gate(self._gate, self._clock(), failure))

    async def _wait_for_turn(self, tokens: int, until: float) -> None:
        while (seconds := seconds_until_entry(self._gate, self._clock(), tokens)) != 0.0:
            if seconds is not None and self._clock() + seconds > until:
                raise TurnTimeout(seconds)
            self._changed.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _set_gate(self, state: RateGate) -> None:
        self._gate = state
        self._changed.set()
