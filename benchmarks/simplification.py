"""What the last pass makes of winners: their rewrites, lines and predicted latency before and after.

    python benchmarks/simplification.py silu softmax_rows --size reduced --rounds 2
    python benchmarks/simplification.py benchmarks/user_kernels/mamba-step_by_step.py --size reduced

Each problem, or kernel file PROBLEM-WHAT.py, is one `agentctl run` in a home of its own. It prints a table in
Markdown. Latencies are predicted, in ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agent_core.sequences import HISTORY_EVENTS, trace_rewrites
from state.events import ExecutionFailed, KernelKept, KernelProposed, effect_key
from state.model import Candidate, EffectKey, is_simplification
from state.reader import LogReader
from targets.nki.rewrites.source_simplification import measure_complexity
from targets.registry import load_target

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One winner, and what was made of it; `after` is None if it stayed as it was, and `note` says why."""

    name: str
    rewrites: int
    before: str
    before_ms: float
    after: str | None
    after_ms: float | None
    note: str
    seconds: float


def main() -> None:
    """Run each, and print a line of the table as soon as there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="+", help="problems, or kernel files PROBLEM-WHAT.py")
    parser.add_argument("--size", default="reduced", choices=("reduced", "full"))
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--rounds", default="2")
    parser.add_argument("--seed", default="7")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    told = parser.parse_args()
    print("| winner of | rewrites | lines | statements | predicted ms | seconds | what is gone |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for problem in told.problems:
        with tempfile.TemporaryDirectory() as home:
            print(format_row(run_problem(problem, Path(home), told)), flush=True)


def run_problem(problem: str, home: Path, told: argparse.Namespace) -> Row:
    """Carry out one run to its end."""
    path = Path(problem)
    own = ["--problem", problem] if not path.is_file() else []
    given = own or ["--problem", path.stem.partition("-")[0], "--kernel", str(path)]
    command = [
        sys.executable, "-m", "agentctl", "--home", str(home), "run", *given, "--size", told.size,
        "--target", told.target, "--rounds", told.rounds, "--seed", told.seed, "--json",
        *(word for setting in told.settings for word in ("--set", setting)),
    ]  # fmt: skip
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not answer.stdout:
        sys.exit(f"{problem}: {answer.stderr}")
    with LogReader.open(home) as reader:
        return read_row(reader, json.loads(answer.stdout)["id"], path.stem)


def read_row(reader: LogReader, run: str, name: str) -> Row:
    """Read what a run's log says of its winner before it was simplified, and of that."""
    wanted = (KernelKept, KernelProposed, ExecutionFailed)
    items = list(reader.iterate_events(run, [kind.__name__ for kind in wanted]))
    kept = {item.event.candidate.id: item.event for item in items if isinstance(item.event, KernelKept)}
    best = reader.run_state(run).best
    assert best is not None
    is_simpler = kept[best.id].replaces is not None
    winner = kept[str(kept[best.id].replaces)].candidate if is_simpler else best
    history = reader.iterate_events(run, [kind.__name__ for kind in HISTORY_EVENTS])
    menu = load_target(reader.run_state(run).config.target).menu()
    leg = trace_rewrites(history, winner, menu)
    return Row(
        name=name,
        rewrites=len(leg.steps) if leg else 0,
        before=read_source(reader, winner),
        before_ms=winner.latency_ms,
        after=read_source(reader, best) if is_simpler else None,
        after_ms=best.latency_ms if is_simpler else None,
        note=next((text for item in items if (text := note_of(item.event))), "not simplified"),
        seconds=seconds_of(reader, run),
    )


def read_source(reader: LogReader, one: Candidate) -> str:
    return reader.get_blob(one.source).decode()


def note_of(event: object) -> str:
    """Return what an event says of the simplification; empty for another event."""
    match event:
        case KernelProposed(key=key, note=note) if is_simplification(EffectKey.parse(key)):
            return note
        case ExecutionFailed(key=key, error=error) if is_simplification(EffectKey.parse(key)):
            return f"{error.code}: {error.message}"
    return ""


def seconds_of(reader: LogReader, run: str) -> float:
    """Return how long the proposing of the simpler kernel took."""
    types = ("ExecutionStarted", "KernelProposed", "ExecutionFailed")
    times = [
        item.ts_us for item in reader.iterate_events(run, types) if is_simplification(effect_key(item.event))
    ]
    return (times[-1] - times[0]) / 1e6 if times else 0.0


def format_row(row: Row) -> str:
    """Return a winner as a line of the table."""

    def pair(one: object, other: object | None) -> str:
        return f"{one}" if other is None else f"{one} to {other}"

    after = row.after
    lines = pair(count_lines(row.before), None if after is None else count_lines(after))
    statements = pair(
        measure_complexity(row.before)[0], None if after is None else measure_complexity(after)[0]
    )
    latency = pair(f"{row.before_ms:.4g}", None if row.after_ms is None else f"{row.after_ms:.4g}")
    cells = (f"`{row.name}`", row.rewrites, lines, statements, latency, f"{row.seconds:.0f}", row.note)
    return f"| {' | '.join(map(str, cells))} |"


def count_lines(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())


if __name__ == "__main__":
    main()
