"""How many questions an endpoint is asked at a time, and how fast: from what it says of its limits.

`Gate` is the pure part: a frozen value and functions of it, the clock an argument. Buckets of requests and of
tokens are those that the endpoint's headers describe, filled up evenly until the time they said; a refusal
closes the gate until the endpoint's own time, and halves how many may be inside; answers widen it again, one
more per round of them. `Limiter` lets coroutines wait at a gate, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pydantic import Field

from agent_core.providers.completion import RateLimits
from agent_core.providers.failures import Failure, FailureKind
from state.model import Frozen

LONGEST_CLOSED_SECONDS = 900.0
"""How long one refusal may close a gate; longer waits are a matter of the questions' own deadlines."""

_SLOWED_BY = frozenset({FailureKind.RATE, FailureKind.OVERLOADED})


class Bucket(Frozen):
    """So many were left when it was seen, and it fills up evenly to its limit; some may be owed (below 0)."""

    left: float
    limit: float = Field(gt=0)
    seen: float
    per_second: float = Field(gt=0)

    def at(self, now: float) -> float:
        """Return how many there are now."""
        return min(self.limit, self.left + self.per_second * max(0.0, now - self.seen))

    def wait(self, wanted: float, now: float) -> float:
        """Return the seconds until so many are there; what never fits needs a full bucket."""
        return max(0.0, (min(wanted, self.limit) - self.at(now)) / self.per_second)

    def less(self, taken: float, now: float) -> Bucket:
        """Return the bucket after so many were taken."""
        return self.model_copy(update={"left": self.at(now) - taken, "seen": now})


class Gate(Frozen):
    """What is known of an endpoint's limits. At most `calls` may ever be inside, and `width` may be now."""

    calls: int = Field(ge=1)
    width: float = Field(ge=1)
    inside: int = Field(default=0, ge=0)
    closed_until: float = 0.0
    requests: Bucket | None = None
    tokens: Bucket | None = None


def gate(calls: int) -> Gate:
    """Return a gate through which so many may be at a time and of which nothing else is known."""
    return Gate(calls=calls, width=calls)


def wait(state: Gate, now: float, tokens: int) -> float | None:
    """Return the seconds until a question of so many tokens may enter: 0 is now, None is when one leaves."""
    if state.inside >= int(state.width):
        return None
    waits = [max(0.0, state.closed_until - now)]
    if state.requests is not None:
        waits.append(state.requests.wait(1.0, now))
    if state.tokens is not None:
        waits.append(state.tokens.wait(float(tokens), now))
    return max(waits)


def entered(state: Gate, now: float, tokens: int) -> Gate:
    """Return the gate after a question of so many tokens went in."""
    return state.model_copy(
        update={
            "inside": state.inside + 1,
            "requests": state.requests and state.requests.less(1.0, now),
            "tokens": state.tokens and state.tokens.less(float(tokens), now),
        }
    )


def left(state: Gate) -> Gate:
    """Return the gate after a question came out, answered or not."""
    return state.model_copy(update={"inside": max(0, state.inside - 1)})


def observed(state: Gate, now: float, limits: RateLimits) -> Gate:
    """Return the gate after the endpoint said so much of its limits."""
    requests = _bucket(limits.requests, limits.requests_limit, limits.requests_reset_seconds, now)
    tokens = _bucket(limits.tokens, limits.tokens_limit, limits.tokens_reset_seconds, now)
    return state.model_copy(update={"requests": requests or state.requests, "tokens": tokens or state.tokens})


def answered(state: Gate) -> Gate:
    """Return the gate after an answer: as many answers as may be inside make room for one more."""
    return state.model_copy(update={"width": min(float(state.calls), state.width + 1.0 / state.width)})


def refused(state: Gate, now: float, failure: Failure) -> Gate:
    """Return the gate after a failure; only those that ask for less make a difference."""
    if failure.kind not in _SLOWED_BY:
        return state
    seconds = min(failure.retry_after_seconds or 0.0, LONGEST_CLOSED_SECONDS)
    return state.model_copy(
        update={
            "width": max(1.0, state.width / 2.0),
            "closed_until": max(state.closed_until, now + seconds),
        }
    )


def _bucket(left: int | None, limit: int | None, reset_seconds: float | None, now: float) -> Bucket | None:
    """Return the bucket that headers describe: after the time of its reset it is full."""
    if left is None or reset_seconds is None or reset_seconds < 0.001:
        return None
    most = max(float(limit if limit is not None else left), float(left), 1.0)
    missing = most - left
    # A full bucket says nothing of how fast it fills; limits of both vendors are per minute.
    rate = missing / reset_seconds if missing > 0 else most / 60.0
    return Bucket(left=float(left), limit=most, seen=now, per_second=rate)


class NoTurn(Exception):  # noqa: N818 - the names of this tree say what happened
    """A question's turn would come too late; `seconds` is how long it would have to wait at least."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no turn within the time allowed; the wait is {seconds:.0f} s or longer")
        self.seconds = seconds


class Limiter:
    """A gate at which coroutines of one event loop wait, first come first served."""

    def __init__(self, calls: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate = gate(calls)
        self._clock = clock
        self._line = asyncio.Lock()  # held by the first in line; locks are handed on in order
        self._changed = asyncio.Event()

    @property
    def gate(self) -> Gate:
        """What is known of the endpoint's limits now."""
        return self._gate

    @asynccontextmanager
    async def turn(self, tokens: int, *, wait_seconds: float) -> AsyncIterator[None]:
        """Be inside the gate with a question of about so many tokens.

        Raises:
            NoTurn: the turn does not come within `wait_seconds`, as far as that is known early or late.
        """
        until = self._clock() + wait_seconds
        try:
            async with asyncio.timeout(wait_seconds):
                async with self._line:
                    await self._first_in_line(tokens, until)
                    self._gate = entered(self._gate, self._clock(), tokens)
        except TimeoutError:
            raise NoTurn(wait_seconds) from None
        try:
            yield
        finally:
            self._set(left(self._gate))

    def observe(self, limits: RateLimits) -> None:
        """Take in what an answer's headers said; made to be a request's `observe`."""
        self._set(observed(self._gate, self._clock(), limits))

    def answered(self) -> None:
        """Take in that an answer came."""
        self._set(answered(self._gate))

    def refused(self, failure: Failure) -> None:
        """Take in that a question failed."""
        self._set(refused(self._gate, self._clock(), failure))

    async def _first_in_line(self, tokens: int, until: float) -> None:
        while (seconds := wait(self._gate, self._clock(), tokens)) != 0.0:
            if seconds is not None and self._clock() + seconds > until:
                raise NoTurn(seconds)
            self._changed.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _set(self, state: Gate) -> None:
        self._gate = state
        self._changed.set()
