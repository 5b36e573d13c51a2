"""A simulated engineer with tools, and the same one with questions: how many of 20 tasks each solves.

    .venv/bin/python benchmarks/engineer.py                     # the table of docs/llm.md, some minutes
    .venv/bin/python benchmarks/engineer.py --seeds 0 --budgets 100000 --tasks silu@trn2,bmm@trn2

The engineer is simulated (`tests/support/simulated_engineer.py`): it makes mistakes at known rates, and
mends them with known odds when a tool or the judge tells it so. Prompts and tools are the real ones;
kernels are judged by the simulator in this process, on one set of inputs. No model is asked. Three forms
have the same skill, seeds and budget of tokens for each task, plans included: with `question`, plans and
kernels are answers to questions; with `loop`, kernels are written in sessions with tools; with `sessions`,
plans are too. A task is solved by a correct kernel at least 1.02 times as fast as the first one, by predicted
latency. `tokens` counts every token that is sent or answered, by the estimate that budgets use; `priced`
counts a tenth of those that the question before had sent too, which is what vendors charge for them.
Exit status 0.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: both spellings work

from tests.support.engineer_tasks import TASKS, Task, TaskResult, attempt_task  # noqa: E402

CACHED_PARTS = {"tokens": 1.0, "priced": 0.1}
FORMS = ("question", "loop", "sessions")
BUDGETS = (100_000, 200_000, 400_000)


async def attempt_all(
    tasks: Sequence[Task], form: str, *, budget: int, seeds: Sequence[int], cached_part: float
) -> list[TaskResult]:
    """Return what came of each task with each seed."""
    return [
        await attempt_task(task, form, budget=budget, seed=seed, cached_part=cached_part)
        for seed in seeds
        for task in tasks
    ]


def _row(unit: str, budget: int, found: dict[str, list[TaskResult]], seeds: int) -> str:
    solved = {form: sum(one.is_solved for one in found[form]) / seeds for form in FORMS}
    tasks = len(found["loop"]) // seeds
    cells = [f"{solved[form]:.1f} of {tasks}" for form in FORMS]
    times = [f"{solved[form] / solved['question']:.1f}" if solved["question"] else "-" for form in FORMS[1:]]
    drafts = [f"{mean(one.drafts for one in found[form]):.1f}" for form in FORMS]
    return " | ".join([f"| {unit}", f"{budget:,}", *cells, *times, *drafts]) + " |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="tokens for each task")
    parser.add_argument("--seeds", default="0,1,2", help="seeds of all draws")
    parser.add_argument("--tasks", default="", help="PROBLEM@TARGET,...; all of them if empty")
    asked = parser.parse_args()
    seeds = [int(text) for text in asked.seeds.split(",")]
    wanted = set(filter(None, asked.tasks.split(",")))
    tasks = [task for task in TASKS if not wanted or task.name in wanted]
    if unknown := wanted - {task.name for task in TASKS}:
        there = ", ".join(task.name for task in TASKS)
        parser.error(f"no task {', '.join(sorted(unknown))}; there are {there}")
    heads = ["unit", "budget for a task", *FORMS, *(f"{form}, times as many" for form in FORMS[1:])]
    heads += [f"drafts, {form}" for form in FORMS]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for unit, part in CACHED_PARTS.items():
        for budget in map(int, asked.budgets.split(",")):
            found = {
                form: asyncio.run(attempt_all(tasks, form, budget=budget, seeds=seeds, cached_part=part))
                for form in FORMS
            }
            print(_row(unit, budget, found, len(seeds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
