"""What it takes to answer people: commands of `agentctl` on a long log and on a short one, by turns.

`python -m benchmarks.faults.soak.query_costs HOME SHORT RUN` owns both homes, as a daemon would, and prints
for each command the least seconds of CPU on each as JSON: by the clock a command mostly waits for its turn
where a machine has other work, and what that does to caches only adds. The short log is the beginning of the
long one, so that RUN, whose events both have, costs the same to show: what differs is the length of the log.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from agentctl.app import agentctl
from state.log import EventLog
from state.reader import LogReader

ROOT = Path(__file__).resolve().parents[3]
REPEATS = 5
"""At least so often by turns, and as often as there is time for."""

ENOUGH_SECONDS = 1.0
SECONDS = 600

COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "status RUN": ("status", "{run}"),
    "tail": ("tail", "-n", "200"),
    "tail --run": ("tail", "-n", "200", "--run", "{run}"),
    "show RUN@SEQ": ("show", "{run}@40"),
    "diff RUN": ("diff", "{run}"),
}
"""What is asked. `diff` goes over all attempts of RUN. `status` lists every run: its seconds are for one."""

Seconds = dict[str, tuple[float, float]]


def measure_queries(home: Path, short: Path, run: str) -> Seconds:
    """Return the least CPU seconds of each command on both homes, from another process.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on stderr.
    """
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults.soak.query_costs", home, short, run],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=SECONDS,
        check=True,
        start_new_session=True,  # Ctrl-C is for whoever waits, who then ends it
    )
    return {name: (here, there) for name, (here, there) in json.loads(told.stdout).items()}


def time_query(home: Path, words: tuple[str, ...]) -> float:
    """Return the CPU seconds of one command; what it says is thrown away."""
    begun = time.process_time()
    with redirect_stdout(io.StringIO()) as said:
        agentctl.main([*words, "--home", str(home)], standalone_mode=False)
    took = time.process_time() - begun
    if not said.getvalue():
        raise ValueError(f"agentctl {' '.join(words)} on {home} said nothing")
    return took


def time_by_turns(homes: tuple[Path, Path], words: tuple[str, ...]) -> tuple[float, float]:
    """Return the least CPU seconds of a command on each home."""
    took: list[list[float]] = []
    while len(took) < REPEATS or sum(map(sum, took)) < ENOUGH_SECONDS:
        took.append([time_query(home, words) for home in homes])
    here, there = map(min, zip(*took, strict=True))
    return here, there


def measure_here(home: Path, short: Path, run: str) -> Seconds:
    homes = (home, short)
    with ExitStack() as stack:
        for one in homes:
            stack.enter_context(EventLog.open(one))
        found = {
            name: time_by_turns(homes, tuple(word.format(run=run) for word in words))
            for name, words in COMMANDS.items()
        }
        listed = [len(stack.enter_context(LogReader.open(one)).run_ids()) for one in homes]
    found["status"] = (found["status"][0] / listed[0], found["status"][1] / listed[1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure_here(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
