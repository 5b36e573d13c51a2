"""How soon `agentctl status` and `agentctl tail` answer, as whole processes, on logs of growing length.

`python benchmarks/looking.py [--events N,N] [--home DIR] [--repeats R] [--json]` makes a log of each length
(in DIR, where it stays and is taken again; else in a folder that goes), runs each command R times and prints
the median and the worst time from the start of the process to its end, and the median of the CPU it used, as
a table of Markdown. Aim: at 10^6 events each answers in under 300 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.ready import make  # noqa: E402 - the path is set above
from state.errors import NoLog  # noqa: E402
from state.reader import LogReader  # noqa: E402

AIM_MS = 300

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", "LAST"),
    ("status", "--json"),
    ("tail",),
    ("tail", "--run", "LAST"),
    ("tail", "--type", "decision", "-n", "50"),
    ("tail", "--json"),
)
"""What is timed; LAST stands for the newest run, which has not ended."""


class Time(NamedTuple):
    """How long a command took on a log of so many events: ms by the clock, ms of CPU, lines that it wrote."""

    events: int
    command: str
    median_ms: float
    worst_ms: float
    cpu_ms: float
    lines: int


def home_of(folder: Path, events: int) -> Path:
    """Return a home with so many events, made now unless it is there."""
    home = folder / f"events-{events}"
    try:
        with LogReader.open(home) as reader:
            if reader.head.seq >= events:
                return home
    except NoLog:
        pass
    print(f"making a log of {events} events", file=sys.stderr)
    make(home, events)
    return home


def time_command(home: Path, command: Sequence[str], repeats: int) -> Iterator[tuple[float, float, int]]:
    """Yield the ms of each run of a command, by the clock and of CPU, and how many lines it wrote."""
    program = Path(sys.executable).with_name("agentctl")
    # As for who uses it: modules compiled once, by the run that is not counted, and not at every start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(repeats):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        words = [program, "--home", home, *command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield 1e3 * took, 1e3 * cpu, len(done.stdout.splitlines())


def measure_home(home: Path, events: int, repeats: int) -> Iterator[Time]:
    """Yield how long each command takes on a home; a first run, which fills caches, is not counted."""
    with LogReader.open(home) as reader:
        last = reader.run_ids()[-1]
    for command in COMMANDS:
        words = [last if word == "LAST" else word for word in command]
        took, cpu, lines = zip(*list(time_command(home, words, repeats + 1))[1:], strict=True)
        yield Time(
            events, " ".join(command), statistics.median(took), max(took), statistics.median(cpu), lines[0]
        )


def table(found: Sequence[Time]) -> Iterator[str]:
    """Yield the times as a table of Markdown."""
    yield "| events | command | median | worst | CPU | lines |"
    yield "|---:|---|---:|---:|---:|---:|"
    for one in found:
        yield (
            f"| {one.events:,} | `agentctl {one.command}` | {one.median_ms:.0f} ms | {one.worst_ms:.0f} ms | "
            f"{one.cpu_ms:.0f} ms | {one.lines} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", default="1000,1000000", help="lengths of logs, with commas")
    parser.add_argument("--home", type=Path, help="where logs are made and kept")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.home or Path(temporary)
        found = [
            one
            for events in map(int, options.events.split(","))
            for one in measure_home(home_of(folder, events), events, options.repeats)
        ]
    if options.json:
        print(json.dumps([one._asdict() for one in found]))
        return 0
    print("\n".join(table(found)))
    load = os.getloadavg()[0]
    slow = [one.command for one in found if one.median_ms > AIM_MS]
    aim = f"above the aim of {AIM_MS} ms: {', '.join(slow)}" if slow else f"all below the aim of {AIM_MS} ms"
    print(f"\n{aim}; {os.cpu_count()} CPUs, load {load:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
