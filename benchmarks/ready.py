"""How soon `agentd` is ready on a long log, and what it uses while it has nothing to do.

`python benchmarks/ready.py [--events N] [--home DIR] [--idle S] [--json] [--keep]` makes a log of N events
(or takes that of DIR), starts `agentd` on it as a service manager would, and measures: seconds from the start
of the process to READY, after a clean stop and after SIGKILL; then, once the proof of the log that runs
behind it has ended, its CPU and memory with no run active. A full run writes
`benchmarks/results/ready.json`; no result is kept in the tree at present.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "ready.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from state.events import RunPaused  # noqa: E402
from state.log import EventLog  # noqa: E402
from state.model import RunStatus  # noqa: E402
from state.reader import LogReader  # noqa: E402
from state.records import NewEvent  # noqa: E402
from tests.support.scripted_runs import ScriptedRun  # noqa: E402 - the path is set above

BATCH = 500
REPEATS = 3
START_SECONDS = 120.0
PROOF_SECONDS = 600.0


class Usage(NamedTuple):
    """What a process used so far: CPU seconds and resident bytes."""

    cpu_seconds: float
    resident_bytes: int


class Agentd:
    """An `agentd` and the socket that it notifies."""

    def __init__(self, process: subprocess.Popen[bytes], notified: socket.socket, log: Path) -> None:
        self.process = process
        self.log = log
        self._ready = threading.Event()
        threading.Thread(target=self._listen, args=(notified,), daemon=True).start()

    def _listen(self, notified: socket.socket) -> None:
        with suppress(OSError):  # closed: nobody listens any more
            while message := notified.recv(4096):
                if b"READY=1" in message.splitlines():
                    self._ready.set()

    def wait_ready(self) -> None:
        """Wait for READY; raises RuntimeError when it does not come."""
        if not self._ready.wait(START_SECONDS):
            raise RuntimeError(f"not ready: {self.log.read_text()}")

    def wait_proved(self) -> None:
        deadline = time.monotonic() + PROOF_SECONDS
        while b"log_verified" not in self.log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the log was not proved: {self.log.read_text()}")
            time.sleep(0.2)

    def usage(self) -> Usage:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=START_SECONDS)


@contextmanager
def agentd(home: Path) -> Iterator[Agentd]:
    """Start `agentd` on a home; it is killed in the end if it still runs."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"{folder}/notify")
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [Path(sys.executable).with_name("agentd"), "--home", home],
                env={**os.environ, "NOTIFY_SOCKET": f"{folder}/notify"},
                stderr=output,
            )
        try:
            yield Agentd(process, heard, log)
        finally:
            process.kill()
            process.wait()


def make(home: Path, events: int) -> None:
    """Write a log of `events` events, all of whose runs but the last have ended."""

    scripts = ((f"run{n}", ScriptedRun(seed=n, rounds=20, slots=8, plans=6)) for n in count())
    rest = islice(((run, step) for run, script in scripts for step in script.steps()), events)

    async def write(log: EventLog) -> None:
        while batch := list(islice(rest, BATCH)):
            news = [NewEvent(run, step.event) for run, step in batch]
            await log.append(news, blobs=[blob for _, step in batch for blob in step.blobs])

    with EventLog.open(home) as log:
        asyncio.run(write(log))


def pause_all(home: Path) -> None:
    """Pause the runs that are under way: they are taken up at a start, and there is nothing to do."""
    with EventLog.open(home) as log:
        for run in log.active_runs():
            if log.run_state(run).status is RunStatus.RUNNING:
                log.append_now([NewEvent(run, RunPaused(reason="benchmark"))])


def seconds_to_ready(home: Path, how: int) -> tuple[float, float]:
    """Return the seconds from the start to READY, by the clock and of CPU, after an end by signal `how`."""
    with agentd(home) as before:
        before.wait_ready()
        before.end(how)
    started = time.monotonic()
    with agentd(home) as again:
        again.wait_ready()
        took = time.monotonic() - started, again.usage().cpu_seconds
        again.end(signal.SIGTERM)
    return took


def idling(home: Path, seconds: float) -> dict[str, float]:
    """Return what a daemon uses in `seconds` without work, its log being proved."""
    with agentd(home) as idle:
        idle.wait_ready()
        idle.wait_proved()
        before = idle.usage()
        time.sleep(seconds)
        after = idle.usage()
        idle.end(signal.SIGTERM)
    share = 100 * (after.cpu_seconds - before.cpu_seconds) / seconds
    return {"idle_cpu_percent": share, "idle_resident_mb": after.resident_bytes / 1e6}


def measure(home: Path, idle_seconds: float) -> dict[str, Any]:
    pause_all(home)
    with LogReader.open(home) as reader:
        events = reader.head.seq
    ready = {}
    for name, number in (("stop", signal.SIGTERM), ("kill", signal.SIGKILL)):
        took = [seconds_to_ready(home, number) for _ in range(REPEATS)]
        ready[f"ready_seconds_after_{name}"], ready[f"ready_cpu_seconds_after_{name}"] = map(
            min, zip(*took, strict=True)
        )
    return {
        "load_average": os.getloadavg()[1],
        "events": events,
        **ready,
        **(idling(home, idle_seconds) if idle_seconds else {}),
    }


def lines(result: dict[str, Any]) -> list[str]:
    took = {
        name: f"{result[f'ready_seconds_{name}']:.2f} s, {result[f'ready_cpu_seconds_{name}']:.2f} s of CPU"
        for name in ("after_stop", "after_kill")
    }
    found = [
        f"events in the log      {result['events']:,}",
        f"ready after a stop     {took['after_stop']}",
        f"ready after SIGKILL    {took['after_kill']}",
    ]
    if "idle_cpu_percent" in result:
        idle = f"{result['idle_cpu_percent']:.2f} % of a core, {result['idle_resident_mb']:.0f} MB"
        found.append(f"idle                   {idle}")
    found.append(f"load average           {result['load_average']:.1f} over the last 5 minutes")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="a home to take, instead of making one")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to watch it idle, 0: not")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help=f"write the result to {RESULT.name}")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ready-") as folder:
        home = given.home or Path(folder) / "home"
        if given.home is None:
            make(home, given.events)
        result = measure(home, given.idle)
    if given.keep:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if given.json else "\n".join(lines(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
