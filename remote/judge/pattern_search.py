"""Searches a host's texts for a user's pattern within a limit of CPU time, because a pattern may never end.

Python's regex engine checks for signals now and then, so a timer on this process's CPU time ends it, however
busy the machine is.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType

from remote.judge.job import GrepJob

CPU_S = 5.0


class PatternTooSlowError(Exception):
    """The pattern took longer than allowed."""

    def __init__(self) -> None:
        super().__init__(f"the pattern takes more than {CPU_S:g} s of processor time on it")


def search_texts(job: GrepJob) -> tuple[tuple[str, ...], ...]:
    """Return the matches of the pattern's group, or of the whole pattern without one, in each text.

    Raises:
        PatternTooSlowError: it takes too long.
    """
    pattern = re.compile(job.pattern)
    with _limit_cpu_time():
        return tuple(tuple(_search_text(pattern, text, job.most)) for text in job.texts)


def _search_text(pattern: re.Pattern[str], text: str, most: int) -> Iterator[str]:
    group = 1 if pattern.groups else 0
    told = (one.group(group) for one in pattern.finditer(text))
    return islice((one for one in told if one), most)


@contextmanager
def _limit_cpu_time() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise PatternTooSlowError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
