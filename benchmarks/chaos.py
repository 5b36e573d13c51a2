"""Chaos: the daemon under a real systemd, struck at random while runs go on, beside an undisturbed twin.

`python benchmarks/chaos.py [--seconds S | --hours H] [--runs N] [--seed S] [--json]` boots a machine
(`tests.support.booted_systemd`; needs root), installs the service, keeps N runs active and strikes the daemon
at random moments: SIGKILL, SIGTERM, a freeze that the watchdog ends, `systemctl restart`. Every event that
was seen in the log before a strike must be there in the end, no effect may have two outcomes, the log must
prove itself, and every run must end in the semantic state, and with the best kernel, of the same run in a
home of its own that nobody struck. A strike costs what the service was down, and what was under way and is
done anew. The last full result is kept in `benchmarks/results/chaos.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "chaos.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

import seeds  # noqa: E402 - the path is set above
from agentctl.systemd_unit import UNIT_NAME, ServiceScope, ServiceUnit  # noqa: E402
from daemon.command_models import Submit, run_id  # noqa: E402
from daemon.config import DaemonConfig  # noqa: E402
from daemon.home_owner import create_workers, serve_runs  # noqa: E402
from daemon.inbox import put_command  # noqa: E402
from daemon.process_logging import configure_logging  # noqa: E402
from daemon.stop_signal import StopSignal  # noqa: E402
from state.events import EffectEnded, EffectStarted  # noqa: E402
from state.fold import state_hash  # noqa: E402
from state.log import EventLog  # noqa: E402
from state.model import RunConfig, SearchConfig  # noqa: E402
from state.reader import LogReader  # noqa: E402
from state.records import RecordedEvent  # noqa: E402
from state.verify import verify_log  # noqa: E402
from tests.support.booted_systemd import BootedSystem, boot_systemd, find_obstacle, wait_until  # noqa: E402
from tests.support.home_users import acting_as_owner  # noqa: E402

PROBLEMS = ("silu", "swiglu", "matmul")
SEARCH = SearchConfig(beam=2, plans=2, rounds=2, within_percent=0, reuse=False)
"""A run is to end as its twin, which has a home to itself: none begins with what others learnt."""
SETTINGS = """[Unit]
StartLimitIntervalSec=0
[Service]
RestartSec=100ms
WatchdogSec=8
TimeoutAbortSec=1
"""
"""As often as it is struck here, the service would not be started again."""

PAUSE_SECONDS = (0.5, 6.0)
PATIENCE_SECONDS = 900.0
PAGE = 2000

STRIKES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "SIGKILL": (("kill", "--kill-who=main", "--signal=KILL", UNIT_NAME),),
    # Whoever ends the daemon politely has to start it again: that is no failure.
    "SIGTERM": (("stop", UNIT_NAME), ("start", UNIT_NAME)),
    "watchdog": (("kill", "--kill-who=main", "--signal=STOP", UNIT_NAME),),
    "restart": (("restart", UNIT_NAME),),
}
"""What systemctl is told."""


@dataclass
class Strike:
    """One strike: how, when (UNIX seconds), until the service was ready again, and what was done anew."""

    kind: str
    at: float
    down_seconds: float
    repeated_seconds: float = 0.0


@dataclass
class Seen:
    """The hashes of all events that were in the log when it was looked at."""

    hashes: list[str] = field(default_factory=list)

    def look(self, reader: LogReader) -> None:
        while page := reader.read(after=len(self.hashes), limit=PAGE):
            self.hashes += [item.hash for item in page]

    def count_lost(self, reader: LogReader) -> int:
        """Return how many of them are not there any more."""
        now = Seen()
        now.look(reader)
        kept = sum(old == new for old, new in zip(self.hashes, now.hashes, strict=False))
        return len(self.hashes) - kept


def config(number: int) -> RunConfig:
    """Return the configuration of run number `number`."""
    return RunConfig(problem=PROBLEMS[number % len(PROBLEMS)], size="reduced", seed=number, search=SEARCH)


def submit(home: Path, chosen: RunConfig) -> str:
    problem = seeds.load_problem(chosen.problem)
    command = Submit.model_construct(
        verb="submit", config=chosen, files=dict(problem.files), kernel=problem.kernel
    )
    with acting_as_owner(home):
        return run_id(put_command(home, command), chosen.problem)


class Chaos:
    """One booted machine whose service is struck while it works on runs, each by `configs` of its number."""

    def __init__(
        self,
        machine: BootedSystem,
        *,
        runs: int,
        seed: int,
        pause_seconds: tuple[float, float] = PAUSE_SECONDS,
        configs: Callable[[int], RunConfig] = config,
    ) -> None:
        self.machine = machine
        self.home = machine.root / str(ServiceUnit(ServiceScope.SYSTEM).state_directory).lstrip("/")
        self.runs: list[str] = []
        self.strikes: list[Strike] = []
        self.seen = Seen()
        self._at_a_time = runs
        self._pause_seconds = pause_seconds
        self._configs = configs
        self._random = random.Random(seed)

    def install(self) -> None:
        self.machine.write(f"/etc/systemd/system/{UNIT_NAME}.d/chaos.conf", SETTINGS)
        self.machine.run(Path(sys.executable).with_name("agentctl"), "service", "install")
        wait_until(self._up, "the service is up")

    def go_on(self, kinds: Iterator[str], *, seconds: float) -> None:
        """Strike with each of `kinds`, as long as `seconds` last; then let all runs end."""
        deadline = time.monotonic() + seconds
        for kind in kinds:
            if time.monotonic() > deadline:
                break
            self._keep_busy()
            time.sleep(self._random.uniform(*self._pause_seconds))
            self._strike(kind)
        wait_until(lambda: not self._active(), "all runs end", seconds=PATIENCE_SECONDS)

    def _keep_busy(self) -> None:
        while self._active() < self._at_a_time:
            self.runs.append(submit(self.home, self._configs(len(self.runs))))

    def submitted_configs(self) -> list[RunConfig]:
        """Return the configurations of all runs."""
        return [self._configs(number) for number in range(len(self.runs))]

    def _active(self) -> int:
        with LogReader.open(self.home) as reader:
            ended = {row["run"] for row in reader.run_summaries() if row["ended"]}
        return len(set(self.runs) - ended)

    def _strike(self, kind: str) -> None:
        with LogReader.open(self.home) as reader:
            self.seen.look(reader)
        before = self._invocation()
        started, at = time.monotonic(), time.time()
        for arguments in STRIKES[kind]:
            self.machine.run("systemctl", *arguments)
        wait_until(lambda: self._up() and self._invocation() != before, f"up again after {kind}")
        self.strikes.append(Strike(kind, at, time.monotonic() - started))

    def _invocation(self) -> str:
        return self.machine.show(UNIT_NAME, "InvocationID")["InvocationID"]

    def _up(self) -> bool:
        return self.machine.show(UNIT_NAME, "ActiveState", "SubState") == {
            "ActiveState": "active", "SubState": "running",
        }  # fmt: skip


def outcomes(items: Sequence[RecordedEvent]) -> Counter[tuple[str, str]]:
    """Return how many outcomes each effect has."""
    return Counter((item.stream, item.event.key) for item in items if isinstance(item.event, EffectEnded))


def charge(strikes: Sequence[Strike], items: Sequence[RecordedEvent]) -> int:
    """Add to each strike how long the effects that it cut off had been at work; return how many they were."""
    began: dict[tuple[str, str], float] = {}
    again = 0
    for item in items:
        if not isinstance(item.event, EffectStarted):
            continue
        place, at = (item.stream, item.event.key), item.ts_us / 1e6
        if place in began:
            again += 1
            blow = next((one for one in strikes if began[place] <= one.at <= at), None)
            if blow is not None:
                blow.repeated_seconds += blow.at - began[place]
        began[place] = at
    return again


def everything(reader: LogReader) -> list[RecordedEvent]:
    items: list[RecordedEvent] = []
    while page := reader.read(after=items[-1].seq if items else 0, limit=PAGE):
        items += page
    return items


def ends(reader: LogReader, runs: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return of each run the hash of its semantic state and the digest of its best kernel."""
    states = [reader.run_state(run) for run in runs]
    return [(state_hash(state), state.best.source if state.best else None) for state in states]


def _all_ended(log: EventLog, runs: Sequence[str]) -> bool:
    return all(log.run_seq(run) > 0 and log.run_state(run).has_ended for run in runs)


def run_undisturbed(configs: Sequence[RunConfig], home: Path) -> list[tuple[str, str | None]]:
    """Return the ends of the same runs in `home`, one of their own, hosted by this process."""

    async def host(runs: Sequence[str]) -> None:
        stop, daemon = StopSignal(), DaemonConfig()
        with EventLog.open(home) as log:
            work = serve_runs(log, daemon, stop=stop, workers=create_workers(home, daemon))
            working = asyncio.create_task(work)
            while not working.done() and not _all_ended(log, runs):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.05)
            stop.request()
            await working

    runs = [submit(home, chosen) for chosen in configs]
    asyncio.run(host(runs))
    with LogReader.open(home) as reader:
        return ends(reader, runs)


def report(chaos: Chaos, twins: Path) -> dict[str, Any]:
    """Return what came of it; `same` counts the runs that ended as those of the home `twins` did."""
    home = chaos.home
    with LogReader.open(home) as reader:
        items, lost = everything(reader), chaos.seen.count_lost(reader)
        found = ends(reader, chaos.runs)
    again = charge(chaos.strikes, items)
    wanted = run_undisturbed(chaos.submitted_configs(), twins)
    down = [one.down_seconds for one in chaos.strikes]
    repeated = [one.repeated_seconds for one in chaos.strikes]
    return {
        "strikes": dict(Counter(one.kind for one in chaos.strikes)),
        "runs": len(chaos.runs),
        "same_state": sum(ours[0] == theirs[0] for ours, theirs in zip(found, wanted, strict=True)),
        "same_best_kernel": sum(ours[1] == theirs[1] for ours, theirs in zip(found, wanted, strict=True)),
        "events": len(items),
        "lost_events": lost,
        "effects": len(outcomes(items)),
        "effects_delivered_again": again,
        "duplicate_effects": sum(count > 1 for count in outcomes(items).values()),
        "findings": [str(finding) for finding in verify_log(home).findings],
        "down_seconds": {"median": statistics.median(down), "max": max(down)},
        "repeated_seconds": {"median": statistics.median(repeated), "max": max(repeated)},
        "load_average": os.getloadavg()[2],
        "struck": [asdict(one) for one in chaos.strikes],
    }


def sound(result: Mapping[str, Any]) -> bool:
    """Return whether nothing was lost, doubled or changed."""
    same = result["same_state"] == result["same_best_kernel"] == result["runs"]
    return same and not (result["lost_events"] or result["duplicate_effects"] or result["findings"])


def lines(result: Mapping[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result["strikes"].items()))
    down, repeated, runs = result["down_seconds"], result["repeated_seconds"], result["runs"]
    same = f"same semantic state {result['same_state']}, same best kernel {result['same_best_kernel']}"
    again = f"{result['effects_delivered_again']} of {result['effects']} effects delivered again"
    return [
        f"strikes                 {len(result['struck'])}: {kinds}",
        f"runs                    {runs}; {same}",
        f"down per strike         {down['median']:.1f} s median, {down['max']:.1f} s at most",
        f"work redone per strike  {repeated['median']:.1f} s median, {repeated['max']:.1f} s at most",
        f"                        {again}",
        f"duplicate effects       {result['duplicate_effects']}",
        f"lost events             {result['lost_events']} of {result['events']}",
        f"findings of verify      {len(result['findings'])}",
        f"load average            {result['load_average']:.1f} over the last 15 minutes",
    ]


def kinds_of(chosen: random.Random) -> Iterator[str]:
    """Yield kinds of strikes without end: each once, in some order, again and again."""
    while True:
        yield from chosen.sample(sorted(STRIKES), len(STRIKES))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--hours", type=float, help="instead of --seconds")
    parser.add_argument("--runs", type=int, default=3, help="runs active at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help=f"write the result to {RESULT.name}")
    parser.add_argument("--evidence", type=Path, help="a new folder for both homes, should it be unsound")
    given = parser.parse_args(arguments)
    if reason := find_obstacle():
        print(f"chaos: {reason}", file=sys.stderr)
        return 2
    configure_logging("warning")
    seconds = given.hours * 3600 if given.hours else given.seconds
    with boot_systemd() as machine, tempfile.TemporaryDirectory(prefix="twins-") as folder:
        chaos = Chaos(machine, runs=given.runs, seed=given.seed)
        chaos.install()
        chaos.go_on(kinds_of(random.Random(given.seed)), seconds=seconds)
        result = report(chaos, Path(folder) / "home")
        if given.evidence is not None and not sound(result):
            shutil.copytree(chaos.home, given.evidence / "struck")
            shutil.copytree(Path(folder) / "home", given.evidence / "twins")
    if given.keep:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if given.json else "\n".join(lines(result)))
    return 0 if sound(result) else 1


if __name__ == "__main__":
    sys.exit(main())
