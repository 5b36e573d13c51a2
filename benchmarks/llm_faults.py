"""Money under kills: the daemon killed at every event boundary of a run that buys answers of a faulty model.

`python benchmarks/llm_faults.py [--every N] [--json]` lets a run ask a scripted server over real sockets,
which faults at a third of the requests, and kills the daemon at the N-th hit of a crash point, for every N:
before and after each commit, and between an answer and its event. Then the run is finished. Held against the
run that nobody killed: no answer that is in the log was bought again, each kill cost at most one repeat for
each call under way, spent and reserved were within the cap after every event, and the run ends in the same
semantic state with the same decisions. The last full result is kept in `benchmarks/results/llm_faults.json`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "llm_faults.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.buying.lives import CAP_USD, Lives, submit  # noqa: E402 - the path is set above
from benchmarks.buying.story import Story, script, told, under_way  # noqa: E402
from tests.support.llm_server import LlmServer  # noqa: E402

MOST_POINTS = 5000


@dataclass
class Struck:
    """A run whose daemon was killed once: when, with how many calls under way, and what it came to."""

    point: int
    in_flight: int
    requests: int
    story: Story

    def wrong(self, calm: Story) -> Iterator[str]:
        """Yield what must not be."""
        story = self.story
        if not story.ended:
            yield "did not end"
        if (story.hash, story.decisions) != (calm.hash, calm.decisions):
            yield "ended in another state than the run that nobody killed"
        if story.bought_again:
            yield f"{story.bought_again} answers of the log were bought again"
        if story.lost > self.in_flight:
            yield f"{story.lost} calls were repeated, {self.in_flight} were under way"
        if not story.started - self.in_flight <= self.requests <= story.started:
            yield f"{self.requests} requests were sent for {story.started} that were logged"
        if story.over:
            yield f"spent and reserved exceeded the cap after {len(story.over)} events"
        yield from story.faults


@dataclass
class Result:
    """What a sweep came to: kills, and over all their runs calls, repeats, money and faults."""

    calm: Story
    kills: int = 0
    calls: int = 0
    answers: int = 0
    repeats: int = 0
    in_flight: int = 0
    most_usd: float = 0.0
    cap_usd: float = CAP_USD
    failed: Counter[str] = field(default_factory=Counter)
    recovered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, struck: Struck) -> None:
        """Count one killed run."""
        story = struck.story
        self.kills += 1
        self.calls += story.started
        self.answers += story.answered
        self.repeats += story.lost
        self.in_flight += struck.in_flight
        self.most_usd = max(self.most_usd, story.most_usd)
        self.failed += story.failed
        self.recovered += story.recovered
        self.wrong += [f"killed at {struck.point}: {what}" for what in struck.wrong(self.calm)]


def sweep(folder: Path, lives: Lives, *, every: int = 1, first: int = 1, seed: int = 3) -> Result:
    """Kill a run at every `every`-th point from `first` on, until it is over before that."""
    with LlmServer(script) as server:
        home = folder / "calm"
        run = submit(home, seed)
        status = lives.live(home, run, server.openai)
        assert status == 0, f"the run that nobody kills ended with {status}"
        result = Result(told(home, run, CAP_USD))
    for point in range(first, MOST_POINTS, every):
        struck = _struck(folder / f"at{point}", lives, point, seed)
        if struck is None:
            return result
        result.add(struck)
    raise RuntimeError(f"the run is not over after {MOST_POINTS} points")


def _struck(home: Path, lives: Lives, point: int, seed: int) -> Struck | None:
    with LlmServer(script) as server:
        run = submit(home, seed)
        status = lives.live(home, run, server.openai, crash_at=str(point))
        if status == 0:
            return None
        assert status == -signal.SIGKILL, f"a life ended with {status}"
        in_flight = under_way(home, run)
        status = lives.live(home, run, server.openai)
        assert status == 0, f"the life after a kill ended with {status}"
        return Struck(point, in_flight, len(server.asked), told(home, run, CAP_USD))


def lines(result: Result) -> Iterator[str]:
    """Yield the result for people."""
    calm = result.calm
    yield f"undisturbed: {calm.started} calls, {calm.answered} answers, ${calm.spent_usd:.4f} spent"
    yield (
        f"kills {result.kills}, calls {result.calls}, answers {result.answers}; "
        f"repeated {result.repeats} of {result.in_flight} calls that were under way at a kill"
    )
    yield f"spent and reserved at most ${result.most_usd:.4f} of a cap of ${result.cap_usd:.2f}"
    yield "failed attempts, and those after which the same question was answered:"
    yield from (
        f"  {kind:<12} {count:>6} {result.recovered[kind]:>6}"
        for kind, count in sorted(result.failed.items())
    )
    yield from (result.wrong or ["nothing was bought twice, lost or overspent, and every run ended alike"])


def main() -> int:
    """Sweep and print; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="kill at every N-th point only")
    parser.add_argument("--seed", type=int, default=3, help="seed of the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    lives = Lives()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = sweep(Path(folder), lives, every=options.every, seed=options.seed)
    finally:
        lives.close()
    data = json.dumps({**vars(result), "calm": vars(result.calm)}, indent=1, sort_keys=True)
    if options.every == 1:
        RESULT.write_text(data + "\n", encoding="utf-8")
    print(data if options.json else "\n".join(lines(result)))
    return int(bool(result.wrong))


if __name__ == "__main__":
    sys.exit(main())
