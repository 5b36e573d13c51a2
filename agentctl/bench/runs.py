"""One run of the benchmark: an `agentctl run` in a fresh home.

The home is deleted afterwards, so that runs do not learn from each other, and a kernel that a run judges
twice counts twice. Only an arm that reuses sequences starts with what runs on other problems learnt.
When a run's time is up, it is stopped as Ctrl-C would stop it; what it has kept by then counts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from agent_core.strategies import STRATEGIES, rounds_within
from agentctl.bench import lessons
from agentctl.bench.lessons import Lesson
from daemon import exits
from state.model import EffectKey, Role, SearchConfig, StopReason, Verdict

ROOT = Path(__file__).resolve().parents[2]
"""Where runs are started, so that they use this checkout."""

BLIND = "-blind"
"""The suffix of an arm whose strategy works without predictions."""
REUSE = "-reuse"
"""The suffix of the arm that is offered what runs on other problems have learnt."""
CAP_SHARE = 0.7
"""The share of a run's time after which it closes its round, so that the round's results can still be
kept.
"""
AUDIT_SHARE = 0.6
"""How much longer, relative to its minutes, a run may take until it is ended: it only compares its best
kernels on whole outputs then, and without that, its result may be wrong.
"""
CLOSING_SECONDS = 60.0
"""How long a run may take to end after its time is up; the kernel that is being judged is dropped."""

KEPT_FIELDS = (
    "reason", "initial_ms", "initial_lo_ms", "initial_hi_ms", "best_ms", "best_lo_ms", "best_hi_ms",
    "best_level", "speedup", "best_wins_percent", "plain_bound_ms", "model_bound_ms", "tight_bound_ms",
    "percent_of_peak", "percent_of_model_bound", "percent_of_tight_bound", "evaluated", "looked_at", "given",
    "decision_digest",
)  # fmt: skip
"""The stored fields of a run's status; latencies and bounds in ms, all predicted. The model bound was once
called tight: it has both names, of which older files have the older."""

_ENDED = (exits.OK, exits.FAILURE)
"""How `agentctl run` exits if its run has ended; the second if it found nothing faster, which counts too."""

ARMS = (*(name + end for name in STRATEGIES for end in ("", BLIND)), f"beam{REUSE}")
"""The strategies, each with and without predictions, and the beam with lessons of other runs."""

EventDicts = Sequence[Mapping[str, Any]]
"""A run's events as `agentctl tail --json` writes them, oldest first."""


KERNEL_ONLY = "kernel"
"""What runs start from by default: gains are then those of the search, from the kernel that is named."""


@dataclass(frozen=True, slots=True)
class BenchJob:
    """One run: a problem at a size for a target, an arm, and a seed.

    `problem` is the name of a built-in one, or an absolute path. The run starts from the problem's own
    kernel, or from the one in the file `kernel`; by `starts`, also from the reference's translation.
    """

    problem: str
    size: str
    target: str
    seed: int
    arm: str = "beam"
    kernel: str = ""
    starts: str = KERNEL_ONLY

    @property
    def name(self) -> str:
        """What the run starts from: the problem, or the kernel file without its suffix.

        A problem that is a path has the name of the folder around it too, so that it is not taken for a
        built-in one.
        """
        if self.kernel:
            return Path(self.kernel).stem
        return f"{Path(self.problem).parent.name}/{Path(self.problem).stem}" if self.is_path else self.problem

    @property
    def is_path(self) -> bool:
        return Path(self.problem).is_absolute()

    @property
    def key(self) -> str:
        """The run's name in the results file, without the defaults: `beam`, and from the kernel alone."""
        end = "" if self.arm == "beam" else f" {self.arm}"
        start = "" if self.starts == KERNEL_ONLY else f" from {self.starts}"
        return f"{self.name} {self.size} {self.target} seed {self.seed}{end}{start}"


@dataclass(frozen=True, slots=True)
class JobBudget:
    """What each run may use: judged kernels (including the initial one) and minutes.

    With `whole`, a run that finds nothing for some rounds goes on.
    """

    candidates: int
    minutes: float
    whole: bool = False


def arm_settings(arm: str, budget: JobBudget) -> dict[str, float | str]:
    """Return the keys below `run.search` that make a run one of an arm within a budget of kernels.

    Rounds are whole, so an arm judges as many kernels as its rounds allow and at most
    `budget.candidates` (but at least one round).
    """
    strategy = arm.removesuffix(BLIND).removesuffix(REUSE)
    search = SearchConfig.model_validate({"strategy": strategy})
    rounds = rounds_within(budget.candidates, search)
    reuse = "true" if arm.endswith(REUSE) else "false"
    made: dict[str, float | str] = {"strategy": strategy, "rounds": rounds, "reuse": reuse}
    if arm.endswith(BLIND):
        made["lookahead_predictions"] = 0
    if budget.whole:
        made["plateau_rounds"] = rounds
    return made


def run_job(job: BenchJob, budget: JobBudget, offered: Sequence[Lesson] = ()) -> dict[str, Any]:
    """Run one job to its end, or until the time for its search and its audit is up, and return its results.

    `offered` are lessons of other runs, which its home has from the start.

    Raises:
        RuntimeError: the run did not begin, or left no result.
    """
    with tempfile.TemporaryDirectory(prefix="search-") as home:
        if offered:
            lessons.store_lessons(Path(home), offered)
        began = time.monotonic()
        in_time = _run_to_end(job, home, budget)
        seconds = time.monotonic() - began
        found = json.loads(_run_agentctl("status", "--home", home))["runs"]
        if not found or found[0]["best_ms"] is None:
            raise RuntimeError(f"{job.key}: the run left no result")
        status = found[0]
        since = ("--since", "1970-01-01T00:00:00Z")
        lines = _run_agentctl("tail", "--home", home, "--run", status["id"], *since).splitlines()
        events = [json.loads(line) for line in lines]
        return {
            **{name: status[name] for name in KEPT_FIELDS},
            "seconds": round(seconds, 1),
            "in_time": in_time and status["reason"] != StopReason.BUDGET,
            "techniques": winning_techniques(events, status["best"]),
            "curve": latency_curve(events),
            "lesson": lessons.read_lesson(Path(home), status["id"]),
        }


def _run_to_end(job: BenchJob, home: str, budget: JobBudget) -> bool:
    """Return whether the run ended by itself within its time."""
    command = [
        *_agentctl_command("run", "--home", home, "--json"), "--problem", job.problem, "--size", job.size,
        "--target", job.target, "--seed", str(job.seed),
    ]  # fmt: skip
    command += ["--kernel", job.kernel] if job.kernel else []
    command += ["--set", f"run.starts={job.starts}"]
    for name, value in arm_settings(job.arm, budget).items():
        command += ["--set", f"run.search.{name}={value}"]
    log = Path(home, "run.err")
    command += ["--set", f"run.cap_seconds={60 * budget.minutes * CAP_SHARE:.1f}"]
    with log.open("wb") as errors, _start_command(command, errors) as child:
        try:
            status = child.wait(60 * budget.minutes * (1 + AUDIT_SHARE))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            _stop_child(child)
            return False
    if status not in _ENDED:
        raise RuntimeError(f"{job.key}: {_last_line(log)}")
    return True


def _stop_child(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(CLOSING_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]


def _start_command(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)


def _agentctl_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentctl", *arguments]


def _run_agentctl(*arguments: str) -> str:
    return subprocess.run(
        [*_agentctl_command(*arguments), "--json"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout


def winning_techniques(events: EventDicts, best: str) -> list[str]:
    """Return the rewrites that led to the kernel `best`, first to last, by menu id."""
    plans = {
        item["event"]["key"].removesuffix(".planner"): item["event"]["plan"]
        for item in events
        if item["type"] == "PlanProposed"
    }
    kept = [item["event"]["candidate"] for item in events if item["type"] == "KernelKept"]
    parents = {one["id"]: one["parent"] for one in kept}
    names: list[str] = []
    candidate: str | None = best
    while candidate is not None:
        plan = plans.get(_plan_key(candidate))
        if plan is not None:
            names[:0] = [step["technique"] for step in plan.get("steps", ())] or [plan["technique"]]
        candidate = parents.get(candidate)
    return names


def _plan_key(candidate: str) -> str:
    """Return the key of a candidate's plan: its first implementation, not repaired."""
    return candidate.split(".k", maxsplit=1)[0] + ".k0.f0"


def latency_curve(events: EventDicts) -> list[tuple[int, float]]:
    """Return (number of judged kernels, latency in ms) whenever a correct kernel became the fastest.

    Kernels are counted in their order in the search, not of their arrival. Kernels that were refuted
    later do not count as correct.
    """
    verdicts = [
        (EffectKey.parse(item["event"]["key"]), item["event"]["evaluation"])
        for item in events
        if item["type"] == "EvaluationCompleted"
    ]
    wrong = {one["code"] for _, one in verdicts if one["verdict"] != Verdict.CORRECT}
    first = sorted(((key, one) for key, one in verdicts if key.role is Role.EVALUATOR), key=itemgetter(0))
    points: list[tuple[int, float]] = []
    for number, (_, one) in enumerate(first, start=1):
        if one["code"] in wrong or one["benchmark"] is None:
            continue
        latency_ms = one["benchmark"]["latency_ms"]
        if not points or latency_ms < points[-1][1]:
            points.append((number, latency_ms))
    return points
