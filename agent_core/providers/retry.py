"""The retry policy: when a failed request is sent again. It is pure; the caller does the sleeping.

Pauses double from try to try up to a limit. A random draw spreads each over the upper half of its window, so
that requests that failed together do not come back together. An endpoint that says when to come back is not
called earlier; if that is after the deadline, there is no retry.
"""

from __future__ import annotations

from pydantic import Field

from agent_core.providers.failures import REMEDIES, Failure, Remedy
from state.model import FrozenModel


class RetryPolicy(FrozenModel):
    """The total number of tries, and the first and the longest pause between two tries."""

    tries: int = Field(default=8, ge=1)
    first_seconds: float = Field(default=1.0, gt=0)
    longest_seconds: float = Field(default=120.0, gt=0)


def retry_pause(
    failure: Failure, attempt: int, draw: float, left_seconds: float, policy: RetryPolicy
) -> float | None:
    """Return the seconds to wait before the next try, or None if there is none.

    `attempt` counts the tries so far, from 1; `draw` is from [0, 1); `left_seconds` is the time until the
    deadline of the whole request. Only failures with the remedy BACK_OFF are retried here.
    """
    if REMEDIES[failure.kind] is not Remedy.BACK_OFF or attempt >= policy.tries:
        return None
    window = min(policy.longest_seconds, policy.first_seconds * 2.0 ** min(attempt - 1, 32))
    seconds = window * (0.5 + 0.5 * draw)
    if failure.retry_after_seconds is not None:
        # After the time that was asked for, and spread out: all refused requests were told the same time.
        seconds = max(seconds, failure.retry_after_seconds + window * 0.5 * draw)
    return seconds if seconds < left_seconds else None
