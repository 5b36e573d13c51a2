"""The daemon in a simulated world, seed after seed: no time passes, and a seed that fails replays exactly.

    .venv/bin/python benchmarks/simulation.py --seeds 1000           # from --first on
    .venv/bin/python benchmarks/simulation.py --hours 8 --jobs 2     # as many as there is time for
    .venv/bin/python benchmarks/simulation.py --seed 17              # one, with every event as it is stored

The host, its supervisor, runner, commands and event log are the real ones; time, who answers, the disk, what
people do and kills of the process come from the seed (`tests/support/simulation`). After every event the
invariants are looked at, and where everything that went wrong should have left no trace, the runs are
compared with their undisturbed twins. What happened is counted by kind. Exit status 1 when a seed failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from tests.support.simulation.running import KINDS, Outcome, simulate  # noqa: E402 - the path is set above

FAST = Path("/dev/shm")
SAY_SECONDS = 10.0
AHEAD = 4


def folder() -> Path | None:
    """Return where the logs are kept: in memory where that is possible, as no power is cut here."""
    return FAST if os.access(FAST, os.W_OK) else None


@dataclass(slots=True)
class Tally:
    """What came of seeds: how many, their events and what happened in them, and why some failed."""

    begun: float = field(default_factory=time.monotonic)
    seeds: int = 0
    events: int = 0
    virtual_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def take(self, seed: int, outcome: Outcome | str) -> None:
        """Add what came of a seed; say so at once where it failed."""
        self.seeds += 1
        if isinstance(outcome, str):
            self.failed[seed] = outcome
            print(f"seed {seed} failed: {outcome}\n{_again(seed)}", flush=True)
            return
        self.events += outcome.events
        self.virtual_seconds += outcome.seconds
        self.counts.update(outcome.counts)

    def again(self) -> str:
        """Return the commands that show the seeds that failed."""
        return "\n".join(map(_again, self.failed))

    def line(self) -> str:
        rate = self.seeds / (time.monotonic() - self.begun)
        return (
            f"{self.seeds:,} seeds ({rate:.1f}/s), {self.events:,} events, {self.virtual_seconds / 3600:.1f} "
            f"hours of virtual time; {len(self.failed)} failed"
        )

    def table(self) -> str:
        """Return how often each thing happened that can; what never did is there with its nought."""
        return "\n".join(f"  {self.counts[kind]:9,} {kind}" for kind in KINDS)


def _again(seed: int) -> str:
    return f"  again: python benchmarks/simulation.py --seed {seed}"


def one(seed: int) -> Outcome | str:
    """Simulate a seed; return what came of it, or why it failed."""
    try:
        return simulate(seed, root=folder())
    except Exception as error:  # noqa: BLE001 - whatever a seed comes to is that seed's result
        return f"{type(error).__name__}: {error}"


def many(seeds: Iterable[int], *, jobs: int, seconds: float) -> Tally:
    """Simulate seeds, `jobs` at a time, until they or the seconds are used up; say how it goes."""
    tally, said = Tally(), time.monotonic()
    for seed, outcome in _outcomes(iter(seeds), jobs, tally.begun + seconds):
        tally.take(seed, outcome)
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            print(tally.line(), flush=True)
    return tally


def _outcomes(seeds: Iterator[int], jobs: int, until: float) -> Iterator[tuple[int, Outcome | str]]:
    with ProcessPoolExecutor(jobs) as pool:
        running: dict[Future[Outcome | str], int] = {}
        while True:
            if time.monotonic() < until:
                for seed in itertools.islice(seeds, AHEAD * jobs - len(running)):
                    running[pool.submit(one, seed)] = seed
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


def trace_seed(seed: int) -> int:
    """Simulate one seed, print every event that it stores and how it ends; return the exit status."""
    try:
        outcome = simulate(seed, root=folder(), say=print)
    except Exception as error:  # noqa: BLE001 - whatever a seed comes to is that seed's result
        print(f"seed {seed} failed: {type(error).__name__}: {error}")
        return 1
    print(f"seed {seed}: {outcome.events} events, log {outcome.head}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, help="this one alone, with its events")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--seeds", type=int, help="how many (default: 100, or as many as --hours allow)")
    parser.add_argument("--hours", type=float, help="for so long at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    asked = parser.parse_args()
    if asked.seed is not None:
        return trace_seed(asked.seed)
    count = asked.seeds if asked.seeds or asked.hours else 100
    seeds = range(asked.first, asked.first + count) if count else itertools.count(asked.first)
    seconds = float("inf") if asked.hours is None else asked.hours * 3600
    tally = many(seeds, jobs=asked.jobs, seconds=seconds)
    print(tally.line(), tally.table(), sep="\n")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
