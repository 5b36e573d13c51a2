"""Detects a deadlocked program: all its processes sleep, look after look, without using CPU time.

A jailed program has its whole request, talks to nobody, and always has a reader for its output. So only a
timer or a lock of its own can keep it waiting. A busy machine looks different: there the program is ready to
run or waits for a disk, and neither counts as asleep.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

LOOK_S = 1.0
LOOKS = 15
"""Consecutive looks that must find a program asleep before it counts as deadlocked."""

_PROC = Path("/proc")
_AWAKE = frozenset({"R", "D"})


async def wait_for_deadlock(session: int) -> None:
    """Return when all processes of a session slept through `LOOKS` looks. Never return without /proc."""
    last, times = -1, 0
    while times < LOOKS:
        await asyncio.sleep(LOOK_S)
        used = _sleeping_cpu_ticks(session)
        times = times + 1 if used is not None and used == last else 0
        last = -1 if used is None else used


def _sleeping_cpu_ticks(session: int) -> int | None:
    """CPU time of a session's processes, in ticks; None if one is awake or none is visible."""
    found = [
        fields
        for fields in map(_read_stat_fields, _PROC.glob("[0-9]*/stat"))
        if fields[3:4] == [str(session)]
    ]
    if not found or any(fields[0] in _AWAKE for fields in found):
        return None
    return sum(int(fields[11]) + int(fields[12]) for fields in found)


def _read_stat_fields(stat: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, group, session, ...; none if it is gone."""
    with contextlib.suppress(OSError):
        return stat.read_text(errors="replace").rpartition(")")[2].split()
    return []
