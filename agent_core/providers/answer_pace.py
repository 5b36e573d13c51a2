"""How long an answer may take: until it begins, from one event to the next, and from its first token on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LARGEST_FIRST_TOKEN_SECONDS = 7200.0
"""The longest time to begin that is learnt: after that, a server is taken for dead."""

_MARGIN = 3.0
"""How many times the time that a model needed to begin it has the next time."""


class AnswerPace:
    """The deadlines of one answer. An answer that comes in one piece begins when it has come.

    `first_token_seconds` includes the time to connect and what a server needs to read the prompt, which on a
    small machine is many minutes.
    """

    def __init__(
        self, *, first_token_seconds: float, silence_seconds: float, deadline_seconds: float
    ) -> None:
        self._first_token_seconds = first_token_seconds
        self._silence_seconds = silence_seconds
        self._deadline_seconds = deadline_seconds
        self._timer: asyncio.Timeout | None = None
        self._since = 0.0
        self._begun_at: float | None = None
        self._is_whole_only = False
        self.expired = False

    @asynccontextmanager
    async def keep(self) -> AsyncIterator[None]:
        """Raise TimeoutError where a limit is passed; `describe_timeout` says which."""
        self._since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._first_token_seconds) as self._timer:
                yield
        except TimeoutError:
            self.expired = True
            raise

    def expect_whole(self) -> None:
        """Say that the answer comes in one piece: to begin and to be made have one limit together."""
        assert self._timer is not None
        self._is_whole_only = True
        self._timer.reschedule(self._since + self._first_token_seconds + self._deadline_seconds)

    def note_event(self, *, has_begun: bool) -> None:
        """Note that an event came, and whether the answer has begun with it or before."""
        if not has_begun:
            return
        assert self._timer is not None
        now = asyncio.get_running_loop().time()
        if self._begun_at is None:
            self._begun_at = now
        self._timer.reschedule(min(self._begun_at + self._deadline_seconds, now + self._silence_seconds))

    def describe_timeout(self) -> str:
        """Return which limit was passed."""
        if self._is_whole_only:
            return f"no answer in {self._first_token_seconds + self._deadline_seconds:g} s"
        if self._begun_at is None:
            return f"no first token in {self._first_token_seconds:g} s"
        if asyncio.get_running_loop().time() >= self._begun_at + self._deadline_seconds:
            return f"no whole answer in {self._deadline_seconds:g} s"
        return f"silent for {self._silence_seconds:g} s"

    def wanted_first_token_seconds(self) -> float | None:
        """Return a longer limit for the next answer to begin in; None if this one is long enough."""
        if self._is_whole_only:
            return None
        if self._begun_at is None:
            wanted = 2 * self._first_token_seconds if self.expired else 0.0
        else:
            wanted = _MARGIN * (self._begun_at - self._since)
        wanted = min(float(round(wanted)), LARGEST_FIRST_TOKEN_SECONDS)
        return wanted if wanted > self._first_token_seconds else None
