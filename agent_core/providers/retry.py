"""When a failed question is asked again: a pure policy, whose pauses somebody else sleeps.

Pauses double from try to try up to a longest one, and a draw spreads each over the upper half of its window,
so that questions that failed together do not come back together. An endpoint that says when to come back is
not asked earlier; where that is later than the deadline allows, waiting for it would be in vain.
"""

from __future__ import annotations

from pydantic import Field

from agent_core.providers.failures import REMEDIES, Failure, Remedy
from state.model import FrozenModel


class RetryPolicy(FrozenModel):
    """How often a question is asked in all, and the first and the longest pause between two tries."""

    tries: int = Field(default=8, ge=1)
    first_seconds: float = Field(default=1.0, gt=0)
    longest_seconds: float = Field(default=120.0, gt=0)


def retry_pause(
    failure: Failure, attempt: int, draw: float, left_seconds: float, policy: RetryPolicy
) -> float | None:
    """Return the seconds to wait before the next try, None when there is none.

    `attempt` counts the tries so far, from 1; `draw` is from [0, 1); `left_seconds` is what the deadline of
    the whole question leaves. Only failures whose remedy is to come back later are tried again here.
    """
    if REMEDIES[failure.kind] is not Remedy.BACK_OFF or attempt >= policy.tries:
        return None
    window = min(policy.longest_seconds, policy.first_seconds * 2.0 ** min(attempt - 1, 32))
    seconds = window * (0.5 + 0.5 * draw)
    if failure.retry_after_seconds is not None:
        # Behind the time that was asked for, and spread: all who were refused were told the same time.
        seconds = max(seconds, failure.retry_after_seconds + window * 0.5 * draw)
    return seconds if seconds < left_seconds else None
