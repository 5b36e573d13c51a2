"""Shares resources among runs: effect slots by time used, and slots for runs under way.

`FairShare` is start-time fair queueing. The run that has used the least of a kind of slot, in seconds,
is next, so that neither many effects nor long ones crowd out another run. When an effect starts, its run
is charged the recent average duration; when it ends, the charge is corrected to the real duration. A run
that joins or returns starts at the start time of the run served last, so nobody accumulates credit and
newcomers do not wait. Time decides only which run is next, never what a run finds.
"""

from __future__ import annotations

from collections.abc import Iterable

SMOOTHING = 0.25
"""Weight of the latest effect in the average duration of a run's effects."""

FIRST_SECONDS = 1.0
"""The assumed duration of an effect before any has ended."""


class FairShare:
    """The fair queue of one kind of slot."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._lasting: dict[str, float] = {}
        self._now = 0.0
        self._overall = FIRST_SECONDS

    def charge_next(self, runs: Iterable[str]) -> tuple[str, float]:
        """Choose the next of `runs` and charge it for an effect; return the run and the charge in
        seconds.

        Among runs with equal use, the first is next.
        """
        run = min(runs, key=self._start_time)
        self._now = self._start_time(run)
        charge = self._lasting.get(run, self._overall)
        self._had[run] = self._now + charge
        return run, charge

    def settle_charge(self, run: str, charge: float, seconds: float) -> None:
        """Correct a charge: the effect took `seconds` (0 if it did not start after all)."""
        if run in self._had:
            self._had[run] += seconds - charge
        if seconds > 0:
            before = self._lasting.get(run, self._overall)
            self._lasting[run] = before + SMOOTHING * (seconds - before)
            self._overall += SMOOTHING * (seconds - self._overall)

    def forget(self, run: str) -> None:
        """Drop the records of a run that has ended."""
        self._had.pop(run, None)
        self._lasting.pop(run, None)

    def _start_time(self, run: str) -> float:
        return max(self._had.get(run, 0.0), self._now)


class RunSlots:
    """Limits how many runs are under way; the others wait for a slot, first come, first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: set[str] = set()
        self._waiting: dict[str, None] = {}

    def take_slot(self, run: str) -> bool:
        """Return whether `run` has a slot; if not, it is queued for one."""
        if run not in self._held and len(self._held) < self.limit and self._first_waiting() in (None, run):
            self._waiting.pop(run, None)
            self._held.add(run)
        if run not in self._held:
            self._waiting.setdefault(run)
        return run in self._held

    def release_slot(self, run: str) -> None:
        """Release the slot of `run`, or remove it from the queue."""
        self._held.discard(run)
        self._waiting.pop(run, None)

    def next_waiting(self) -> tuple[str, ...]:
        """Return the waiting runs that could get a slot now."""
        free = max(0, self.limit - len(self._held))
        return tuple(self._waiting)[:free]

    def _first_waiting(self) -> str | None:
        return next(iter(self._waiting), None)
