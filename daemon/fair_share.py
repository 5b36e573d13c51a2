"""Dealing what runs share: slots for effects by time had, and places for runs that are under way.

`FairShare` is start-time fair queueing: whoever has had least of a kind of slot is next, counted in
seconds, so that neither many effects nor long ones crowd out another run. A run is charged what its effects
took of late when one starts, and what it took in truth when it ends. Who comes, or comes back, begins
where the one served last began: nobody saves up, and nobody new is made to wait. Time decides only who is
next, never what a run finds.
"""

from __future__ import annotations

from collections.abc import Iterable

SMOOTHING = 0.25
"""Weight of the latest effect in what a run's effects are taken to last."""

FIRST_SECONDS = 1.0
"""What an effect is taken to last before any has ended."""


class FairShare:
    """The turns of one kind of slot."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._lasting: dict[str, float] = {}
        self._now = 0.0
        self._overall = FIRST_SECONDS

    def charge_next(self, runs: Iterable[str]) -> tuple[str, float]:
        """Choose the next of `runs` and charge it for an effect; return it and the charge, in seconds.

        Of runs that have had the same, the first is next.
        """
        run = min(runs, key=self._start_time)
        self._now = self._start_time(run)
        charge = self._lasting.get(run, self._overall)
        self._had[run] = self._now + charge
        return run, charge

    def settle_charge(self, run: str, charge: float, seconds: float) -> None:
        """Correct a charge: the effect took `seconds` (0 when it did not start after all)."""
        if run in self._had:
            self._had[run] += seconds - charge
        if seconds > 0:
            before = self._lasting.get(run, self._overall)
            self._lasting[run] = before + SMOOTHING * (seconds - before)
            self._overall += SMOOTHING * (seconds - self._overall)

    def forget(self, run: str) -> None:
        """Drop what is known of a run that has ended."""
        self._had.pop(run, None)
        self._lasting.pop(run, None)

    def _start_time(self, run: str) -> float:
        return max(self._had.get(run, 0.0), self._now)


class RunSlots:
    """Which runs are under way at a time; the others wait for a place in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: set[str] = set()
        self._waiting: dict[str, None] = {}

    def take_slot(self, run: str) -> bool:
        """Return whether `run` has a place; if not, it waits for one."""
        if run not in self._held and len(self._held) < self.limit and self._first_waiting() in (None, run):
            self._waiting.pop(run, None)
            self._held.add(run)
        if run not in self._held:
            self._waiting.setdefault(run)
        return run in self._held

    def release_slot(self, run: str) -> None:
        """Give up the place of `run`, or its wait for one."""
        self._held.discard(run)
        self._waiting.pop(run, None)

    def next_waiting(self) -> tuple[str, ...]:
        """Return the runs that wait and could have a place now."""
        free = max(0, self.limit - len(self._held))
        return tuple(self._waiting)[:free]

    def _first_waiting(self) -> str | None:
        return next(iter(self._waiting), None)
