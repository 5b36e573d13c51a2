"""Steps per second, recovery and lost work per kill beside DBOS Transact on SQLite: same work, disk and run.

`python -m benchmarks.vs_dbos [--quick] [--workflows N] [--step-ms MS] [--repeats N] [--kills N] [--seed S]
[--directory DIR] [--out FILE]` gives this project and DBOS the same work in processes of their own: N
workflows at once, of steps one after the other, each of which waits and returns a text of its own. First they
work undisturbed, for steps per second; then they get SIGKILL at random moments, time and again. A journal
that the bodies of the steps write beside the stores (`benchmarks/vs_dbos`) tells what ran. A result counts
as acknowledged once a later step of its workflow has begun. Exit status 1 when this project lost one, or
what it stored is not what a step returned. DBOS is not among the project's locked packages, as it needs one
whose licence is not permissive; `pip install 'dbos>=3.4,<4'` adds it, and without it its columns are empty.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.vs_dbos.lives import Side, Story, struck, undisturbed
from benchmarks.vs_dbos.steps import Work

OURS = Side("this project", "benchmarks.vs_dbos.runs")
OTHERS = (
    Side("DBOS", "benchmarks.vs_dbos.workflows"),
    Side("DBOS on WAL", "benchmarks.vs_dbos.workflows", "wal"),
)
HAVE_DBOS = importlib.util.find_spec("dbos") is not None

ROUNDS = 10
"""Of each of the runs whose steps per second are measured, some 44 steps; of one alone as many as of all."""

STEPS_PER_ROUND = 4
"""At least: plan, kernel, verdict, note."""

STEPS_PER_KILL = 6
"""Of one workflow, more than go by from one kill to the next."""

SYNCS = 300

Numbers = dict[str, float]


def spread(values: Iterable[float]) -> Numbers:
    """Return median, least and most; of no values nothing."""
    found = sorted(values)
    return {"median": statistics.median(found), "min": found[0], "max": found[-1]} if found else {}


# --- measuring -------------------------------------------------------------------------------------


def sides() -> tuple[Side, ...]:
    """Return who takes part here; this project is the first, and decides how many steps there are."""
    return (OURS, *OTHERS) if HAVE_DBOS else (OURS,)


def alike(work: Work, story: Story) -> Work:
    """Return the work of workflows that have as many steps as the runs of `story` had."""
    return replace(work, length=round(len(story.steps) / work.workflows))


def rates(place: Path, work: Work, *, repeats: int) -> dict[str, Any]:
    """Return each side's steps per second, measured in turn."""
    measured: dict[str, list[float]] = {side.name: [] for side in sides()}
    asked = work
    for number in range(repeats):
        for side in sides():
            story = undisturbed(side, asked if side is not OURS else work, place / f"{side.name}-{number}")
            measured[side.name].append(story.steps_per_second())
            asked = alike(work, story) if side is OURS else asked
    by_side = {name: spread(found) for name, found in measured.items()}
    return {
        "workflows": work.workflows,
        "step_ms": work.step_ms,
        "steps": asked.length,
        "steps_per_s": by_side,
    }


def kills(place: Path, work: Work, *, count: int, seed: int) -> dict[str, Any]:
    """Return what `count` kills cost each side: the same draws decide when they come."""
    found: dict[str, Any] = {}
    asked = work
    for side in sides():
        say(f"{count} kills: {side.name}")
        chosen = random.Random(seed)
        story = struck(side, asked, place / f"{side.name} struck", kills=count, chosen=chosen)
        found[side.name] = cost(story)
        asked = alike(work, story) if side is OURS else asked
    return {"workflows": work.workflows, "step_ms": work.step_ms, "kills": count, "sides": found}


def cost(story: Story) -> dict[str, Any]:
    """Return what the kills of a story cost, times in seconds."""
    back, again = story.recoveries(), story.repeated()
    return {
        "loaded_s": spread(one.loaded for one in back),
        "first_step_s": spread(one.first for one in back),
        "all_workflows_s": spread(one.every for one in back),
        "steps_again": spread(len(one) for one in again),
        "work_again_s": spread(sum(one) for one in again),
        "steps": len(story.steps),
        "lost": sorted(" ".join(place) for place in story.lost()),
        "pragmas": story.pragmas,
    }


def sync_ms(place: Path) -> Numbers:
    """Return what a 4 KiB overwrite with fdatasync takes on this disk now."""
    times = []
    with (place / "syncs").open("wb", buffering=0) as file:
        file.write(bytes(4096 * 64))
        for number in range(SYNCS):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), bytes([number % 256]) * 4096, 4096 * (number % 64))
            os.fdatasync(file.fileno())
            times.append(1000 * (time.perf_counter() - begun))
    return spread(times)


def machine(place: Path) -> dict[str, Any]:
    """Return what the numbers depend on."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "dbos": importlib.metadata.version("dbos") if HAVE_DBOS else None,
        "sync_ms": sync_ms(place),
    }


def measure(
    place: Path, *, workflows: int, step_ms: float, rounds: int, repeats: int, kill_count: int, seed: int
) -> dict[str, Any]:
    """Return `machine`, `rates` (a row per number of workflows and length of a step) and `kills`."""
    result: dict[str, Any] = {"machine": machine(place), "rates": []}
    for at_once in sorted({1, workflows}):
        for wait in (0.0, step_ms):
            say(f"steps per second: {at_once} at once, {wait:g} ms")
            folder = place / f"{at_once}-{wait:g}"
            folder.mkdir()
            work = Work(at_once, rounds * workflows // at_once, wait)
            result["rates"].append(rates(folder, work, repeats=repeats))
    length = 2 + kill_count * STEPS_PER_KILL // STEPS_PER_ROUND
    result["kills"] = kills(place, Work(workflows, length, step_ms), count=kill_count, seed=seed)
    return result


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- telling ---------------------------------------------------------------------------------------


def lost(result: Mapping[str, Any]) -> list[str]:
    """Return the steps of which this project lost what it had acknowledged."""
    found: list[str] = result["kills"]["sides"][OURS.name]["lost"]
    return found


ROWS: Sequence[tuple[str, str, str]] = (
    ("program loaded, s", "loaded_s", ".2f"),
    ("first step begins, s", "first_step_s", ".2f"),
    ("all workflows go on, s", "all_workflows_s", ".2f"),
    ("steps done again", "steps_again", ".0f"),
    ("time in those steps, s", "work_again_s", ".3f"),
)
"""What is told of a kill: words, key, format."""


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result as text: median and, in brackets, least and most."""
    about, struck_ = result["machine"], result["kills"]
    names = list(struck_["sides"])
    yield f"{about['system']}, {about['cpus']} CPUs, load average {about['load_average']:.1f}"
    yield f"Python {about['python']}, SQLite {about['sqlite']}, DBOS {about['dbos'] or 'not installed'}"
    yield f"4 KiB and fdatasync: {_told(about['sync_ms'], '.2f')} ms"
    for name, side in struck_["sides"].items():
        yield f"{name}: " + ", ".join(f"{key} {value}" for key, value in side["pragmas"].items())
    if not HAVE_DBOS:
        yield "dbos is not installed: pip install 'dbos>=3.4,<4'; its columns are empty"
    yield ""
    yield _row("steps per second", names)
    for row in result["rates"]:
        words = f"{row['workflows']} at once, {row['step_ms']:g} ms"
        yield _row(words, _compared([row["steps_per_s"][name] for name in names], ".0f"))
    yield ""
    yield _row(f"per kill, {struck_['kills']} of them", names)
    for words, key, form in ROWS:
        yield _row(words, _compared([struck_["sides"][name][key] for name in names], form))
    yield _row("steps in all", [str(struck_["sides"][name]["steps"]) for name in names])
    yield _row("acknowledged and lost", [str(len(struck_["sides"][name]["lost"])) for name in names])


def _row(words: str, cells: Iterable[str]) -> str:
    return f"{words:<24}" + "".join(f"{cell:>28}" for cell in cells).rstrip()


def _compared(found: Sequence[Numbers], form: str) -> Iterator[str]:
    """Yield the first one's numbers, then the others' with how many times the first one's they are."""
    first, *rest = found
    yield _told(first, form)
    for other in rest:
        ratio = other["median"] / first["median"] if other and first and first["median"] else None
        yield _told(other, form) + ("" if ratio is None else f" x{ratio:.2f}")


def _told(numbers: Numbers, form: str) -> str:
    if not numbers:
        return "-"
    return f"{numbers['median']:{form}} ({numbers['min']:{form}}-{numbers['max']:{form}})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short measurement of each, three kills")
    parser.add_argument("--workflows", type=int, default=8, help="at once")
    parser.add_argument("--step-ms", type=float, default=5.0, help="what a step waits")
    parser.add_argument("--repeats", type=int, help="of each rate (default 5)")
    parser.add_argument("--kills", type=int, help="of each side (default 12)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="where to write, to choose the disk")
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="vs-dbos-") as scratch:
        result = measure(
            Path(scratch),
            workflows=given.workflows,
            step_ms=given.step_ms,
            rounds=2 if given.quick else ROUNDS,
            repeats=given.repeats or (1 if given.quick else 5),
            kill_count=given.kills or (3 if given.quick else 12),
            seed=given.seed,
        )
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines(result)))
    for place in lost(result):
        say(f"lost: {place}")
    return 1 if lost(result) else 0
