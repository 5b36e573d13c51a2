"""Money under kills: the daemon killed at every event boundary of a run that buys answers of a faulty model.

`python benchmarks/llm_faults.py [--format NAME] [--every N] [--json]` lets a run ask a scripted server over
real sockets, by the wire format of OpenAI and then by Anthropic's. The server faults at a third of the
requests; where it takes no key or the account has no money, the run pauses, and a person lets it go on. The
daemon is killed at the N-th hit of a crash point, for every N: before and after each commit, and between an
answer and its event. Then the run is finished. Held against the run that nobody killed: no answer that is in
the log was bought again, each kill cost at most one repeat for each call under way, spent and reserved were
within the cap after every event, and the run ends in the same semantic state with the same decisions. The
last full results are kept in `benchmarks/results/llm_faults.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "llm_faults.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.buying.lives import CAP_USD, FORMATS, Format, Lives, submit  # noqa: E402 - the path is set above
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
    pauses: int = 0
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
        self.pauses += story.paused
        self.calls += story.started
        self.answers += story.answered
        self.repeats += story.lost
        self.in_flight += struck.in_flight
        self.most_usd = max(self.most_usd, story.most_usd)
        self.failed += story.failed
        self.recovered += story.recovered
        self.wrong += [f"killed at {struck.point}: {what}" for what in struck.wrong(self.calm)]


def sweep(folder: Path, lives: Lives, wire: Format, points: Iterable[int], *, seed: int = 3) -> Result:
    """Kill a run at each of these points, until it is over before one."""
    with LlmServer(script(0)) as server:
        home = folder / "calm"
        run = submit(home, wire, seed)
        status = lives.live(home, run, wire, server)
        assert status == 0, f"the run that nobody kills ended with {status}"
        result = Result(told(home, run, CAP_USD))
    for point in points:
        struck = _struck(folder / f"at{point}", lives, wire, point, seed)
        if struck is None:
            return result
        result.add(struck)
        shutil.rmtree(folder / f"at{point}")
    return result


def _struck(home: Path, lives: Lives, wire: Format, point: int, seed: int) -> Struck | None:
    """Kill a run once, its faults beginning with another kind at each point; None: it was over before."""
    with LlmServer(script(point)) as server:
        run = submit(home, wire, seed)
        status = lives.live(home, run, wire, server, crash_at=str(point))
        if status == 0:
            return None
        assert status == -signal.SIGKILL, f"a life ended with {status}"
        in_flight = under_way(home, run)
        status = lives.live(home, run, wire, server)
        assert status == 0, f"the life after a kill ended with {status}"
        return Struck(point, in_flight, len(server.asked), told(home, run, CAP_USD))


def lines(result: Result) -> Iterator[str]:
    """Yield the result for people."""
    calm = result.calm
    yield f"undisturbed: {calm.started} calls, {calm.answered} answers, ${calm.spent_usd:.4f} spent"
    yield (
        f"kills {result.kills}, calls {result.calls}, answers {result.answers}; "
        f"repeated {result.repeats} of {result.in_flight} calls that were under way at a kill; "
        f"paused {result.pauses} times"
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
    parser.add_argument("--format", choices=FORMATS, help="this wire format only")
    parser.add_argument("--every", type=int, default=1, help="kill at every N-th point only")
    parser.add_argument("--seed", type=int, default=3, help="seed of the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    results: dict[str, Result] = {}
    lives = Lives()
    try:
        for name, wire in FORMATS.items():
            if options.format in {None, name}:
                points = range(1, MOST_POINTS, options.every)
                with tempfile.TemporaryDirectory() as folder:
                    results[name] = sweep(Path(folder), lives, wire, points, seed=options.seed)
                if not options.json:
                    print("\n".join([f"as {name}:", *lines(results[name])]), flush=True)
    finally:
        lives.close()
    told = {name: {**vars(result), "calm": vars(result.calm)} for name, result in results.items()}
    data = json.dumps(told, indent=1, sort_keys=True)
    if options.every == 1 and options.format is None:
        RESULT.write_text(data + "\n", encoding="utf-8")
    if options.json:
        print(data)
    return int(any(result.wrong for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
