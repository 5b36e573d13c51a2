"""What the search finds: all problems, one after the other, from their initial kernels, without an LLM.

    .venv/bin/python benchmarks/search.py --out search.json                  # the headline: full size, trn2
    .venv/bin/python benchmarks/search.py --out search.json --target trn1    # added to the same file
    .venv/bin/python benchmarks/search.py --problems silu,bmm --size reduced --seeds 0,1,2

Each run is an `agentctl run` of its own, in a home that nothing else has used and that is deleted after it,
so nothing is remembered from one run to the next. `--minutes` ends a run as Ctrl-C does; what it had found by
then counts. With `--out` the results are kept after each run, and what the file holds is not run again.
All latencies are predicted by the simulator's model; no hardware is timed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

import seeds  # noqa: E402 - the path is set above
from agent_core.builtin.menu import menu  # noqa: E402
from state.model import SearchConfig  # noqa: E402

PUBLISHED = {"trn1": (49, 61), "trn2": (45, 59)}
"""Percent of peak before and after, over NKIBench's problems, as AccelOpt's paper reports it for an LLM."""

CLOSING_SECONDS = 60.0
"""How long a run may take to end after its time is up: the kernel being judged is let go."""

KEPT = (
    "reason", "initial_ms", "initial_lo_ms", "initial_hi_ms", "best_ms", "best_lo_ms", "best_hi_ms",
    "best_level", "speedup", "best_wins_percent", "plain_bound_ms", "tight_bound_ms", "percent_of_peak",
    "percent_of_tight_bound", "evaluated", "looked_at", "decision_digest",
)  # fmt: skip
"""What is kept of a run's status; latencies and bounds in ms, all predicted."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the benchmark."""

    problem: str
    size: str
    target: str
    seed: int

    @property
    def key(self) -> str:
        """What it is called in the file of results."""
        return f"{self.problem} {self.size} {self.target} seed {self.seed}"


def run(job: Job, *, minutes: float, settings: Mapping[str, int]) -> dict[str, Any]:
    """Run one job to its end, or until its time is up, and return what came of it.

    Raises:
        RuntimeError: the run did not begin, or left no status.
    """
    with tempfile.TemporaryDirectory(prefix="search-") as home:
        began = time.monotonic()
        in_time = _agentctl_run(job, home, minutes * 60, settings)
        seconds = time.monotonic() - began
        found = _json("status", "--home", home)["runs"]
        if not found or found[0]["best_ms"] is None:
            raise RuntimeError(f"{job.key}: the run left no result")
        status = found[0]
        made = {name: status[name] for name in KEPT}
        return made | {
            "seconds": round(seconds, 1),
            "in_time": in_time,
            "techniques": _techniques(home, status["id"], status["best"]),
        }


def _agentctl_run(job: Job, home: str, limit_s: float, settings: Mapping[str, int]) -> bool:
    """Whether the run ended by itself within `limit_s` seconds."""
    command = [
        *_agentctl("run", "--home", home, "--json"), "--problem", job.problem, "--size", job.size,
        "--target", job.target, "--seed", str(job.seed),
    ]  # fmt: skip
    for name, value in settings.items():
        command += ["--set", f"run.search.{name}={value}"]
    log = Path(home, "run.err")
    with log.open("wb") as errors, _started(command, errors) as child:
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            child.wait(CLOSING_SECONDS)
            return False
    if status:
        raise RuntimeError(f"{job.key}: {_last_line(log)}")
    return True


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]


def _started(command: Sequence[str], errors: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)


def _agentctl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "daemon.ctl", *arguments]


def _json(*arguments: str) -> Any:
    done = subprocess.run([*_agentctl(*arguments), "--json"], cwd=ROOT, capture_output=True, check=True)
    return json.loads(done.stdout)


def _techniques(home: str, run_id: str, best: str) -> list[str]:
    """The rewrites that led to the best kernel, first to last, by menu id."""
    done = subprocess.run(
        [*_agentctl("tail", "--home", home, "--run", run_id, "--since", "1970-01-01T00:00:00Z", "--json")],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    plans = {
        item["event"]["key"].removesuffix(".planner"): item["event"]["plan"]
        for item in events
        if item["type"] == "PlanProposed"
    }
    parents = {
        item["event"]["candidate"]["id"]: item["event"]["candidate"]["parent"] for item in _kept(events)
    }
    names: list[str] = []
    candidate: str | None = best
    while candidate is not None:
        plan = plans.get(_place(candidate))
        if plan is not None:
            names[:0] = [step["technique"] for step in plan.get("steps", ())] or [plan["technique"]]
        candidate = parents.get(candidate)
    return names


def _kept(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (item for item in events if item["type"] == "KernelKept")


def _place(candidate: str) -> str:
    """The key of the plan that a candidate came of: its first implementation, not repaired."""
    return candidate.split(".k", maxsplit=1)[0] + ".k0.f0"


def summary(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means over the problems at full size, by target; None where none was run."""
    made: dict[str, Any] = {}
    for target in PUBLISHED:
        rows = [row for row in runs.values() if (row["target"], row["size"]) == (target, "full")]
        made[f"{target}_problems"] = len({row["problem"] for row in rows})
        for name in ("percent_of_peak", "percent_of_tight_bound", "speedup"):
            made[f"{target}_{name}"] = statistics.geometric_mean(row[name] for row in rows) if rows else None
        made[f"{target}_initial_percent_of_peak"] = (
            statistics.geometric_mean(100 * row["plain_bound_ms"] / row["initial_ms"] for row in rows)
            if rows
            else None
        )
    return made


def used(runs: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    """In how many winners' lines of descent each technique of the menu is, with the zeros."""
    counts = Counter(dict.fromkeys(menu(), 0))
    for row in runs.values():
        counts.update(set(row["techniques"]))
    return counts


_HEAD = (
    f"{'problem':24}{'initial ms':>22}{'best ms':>26}{'speed-up':>9}{'% peak':>8}{'% tight':>8}"
    f"{'wins %':>8}{'judged':>8}{'looked at':>10}{'s':>7}"
)


def table(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The results as lines, a problem each; every latency is predicted."""
    yield "Latencies are predicted by the simulator's model, with the interval of its uncertain constants."
    for size, target in sorted({(row["size"], row["target"]) for row in runs.values()}):
        yield ""
        yield f"{size} size, {target}"
        yield _HEAD
        rows = [row for row in runs.values() if (row["size"], row["target"]) == (size, target)]
        yield from map(_row, sorted(rows, key=lambda row: (row["problem"], row["seed"])))


def _row(row: Mapping[str, Any]) -> str:
    initial = f"{row['initial_ms']:.4g} ({row['initial_lo_ms']:.4g}-{row['initial_hi_ms']:.4g})"
    best = f"{row['best_ms']:.4g} ({row['best_lo_ms']:.4g}-{row['best_hi_ms']:.4g})"
    wins = row["best_wins_percent"]
    late = "" if row["in_time"] else " (time up)"
    return (
        f"{row['problem']:24}{initial:>22}{best:>26}{row['speedup']:8.2f}x{row['percent_of_peak']:8.1f}"
        f"{row['percent_of_tight_bound']:8.1f}{wins if wins is not None else 0:8.1f}{row['evaluated']:8}"
        f"{row['looked_at']:10}{row['seconds']:7.0f}{late}"
    )


def _overall(found: Mapping[str, Any]) -> Iterator[str]:
    for target, (before, after) in PUBLISHED.items():
        if found[f"{target}_percent_of_peak"] is None:
            continue
        yield ""
        yield (
            f"{target}, geometric means over {found[f'{target}_problems']} problems: "
            f"{found[f'{target}_initial_percent_of_peak']:.1f} % of peak at first, "
            f"{found[f'{target}_percent_of_peak']:.1f} % at last, "
            f"{found[f'{target}_percent_of_tight_bound']:.1f} % of the tight bound"
        )
        yield f"  (published for AccelOpt, measured, mean over its problems: {before} % to {after} %)"


def _jobs(options: argparse.Namespace) -> list[Job]:
    names = options.problems.split(",") if options.problems else seeds.problems()
    numbers = [int(seed) for seed in options.seeds.split(",")]
    return [Job(name, options.size, options.target, seed) for name in names for seed in numbers]


def _stored(path: Path | None) -> dict[str, Any]:
    return json.loads(path.read_text())["runs"] if path is not None and path.exists() else {}


def _store(path: Path | None, runs: Mapping[str, Any]) -> None:
    """Replace the file whole, so that an interruption leaves the old or the new one."""
    if path is None:
        return
    text = json.dumps({"predicted": True, "overall": summary(runs), "runs": runs}, indent=1) + "\n"
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _settings(candidates: int) -> dict[str, int]:
    """As many whole rounds as fit into `candidates` judged kernels, the initial one included."""
    search = SearchConfig()
    each = search.beam * search.plans * search.implementations
    first = search.plans * search.implementations
    return {"rounds": max(1, 1 + (candidates - 1 - first) // each)}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--problems", help="names, with commas (default: all)")
    made.add_argument("--target", choices=sorted(PUBLISHED), default="trn2")
    made.add_argument("--size", choices=("full", "reduced"), default="full")
    made.add_argument("--seeds", default="0", help="seeds of the runs, with commas (default: 0)")
    made.add_argument("--candidates", type=int, default=100, help="kernels judged at most (default: 100)")
    made.add_argument("--minutes", type=float, default=5.0, help="for each run (default: 5)")
    made.add_argument("--out", type=Path, help="results as JSON; runs that it holds are not run again")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run what is missing and print the table; exit status 1 when a run failed."""
    options = parser().parse_args(argv)
    runs, failed = _stored(options.out), 0
    jobs = _jobs(options)
    for number, job in enumerate(jobs, start=1):
        if job.key in runs:
            continue
        print(f"{number} of {len(jobs)}: {job.key}", file=sys.stderr, flush=True)
        try:
            found = run(job, minutes=options.minutes, settings=_settings(options.candidates))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        runs[job.key] = {
            "problem": job.problem, "size": job.size, "target": job.target, "seed": job.seed, **found
        }  # fmt: skip
        print(_row(runs[job.key]), file=sys.stderr, flush=True)
        _store(options.out, runs)
    if not runs:
        return 1
    print(*table(runs), *_overall(summary(runs)), sep="\n")
    print("\ntechniques in the winners' lines of descent:")
    print(*(f"  {name:18}{count:4}" for name, count in used(runs).most_common()), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
