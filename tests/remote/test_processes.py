"""Child processes: however and whenever their owner is cancelled, none is left and nobody hangs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from remote.processes import kill_process, start_process

PIPES = {
    "stdin": asyncio.subprocess.PIPE,
    "stdout": asyncio.subprocess.PIPE,
    "stderr": asyncio.subprocess.PIPE,
}
SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
FLOOD = (sys.executable, "-S", "-c", "import os\nwhile True: os.write(2, b'x' * 65536)")


@pytest.mark.parametrize("steps", range(12))
async def test_cancelled_at_any_step_of_starting(steps, processes):
    task = asyncio.create_task(start_process(*SLEEP, **PIPES))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        process = await task
    except asyncio.CancelledError:
        pass
    else:  # it had started before the cancellation came
        await kill_process(process)
    assert processes() == set()


async def test_ending_does_not_wait_for_output_that_nobody_reads(processes):
    process = await start_process(*FLOOD, **PIPES)
    # More than the reader takes before it stops reading from the pipe.
    await process.stderr.readexactly(1 << 20)
    await asyncio.sleep(0.05)
    await kill_process(process)
    assert processes() == set()
    assert process.returncode == -9


async def test_ending_takes_children_along(processes):
    fork = "import os, time\nos.fork()\nos.write(1, b'x')\ntime.sleep(600)"
    process = await start_process(sys.executable, "-S", "-c", fork, **PIPES)
    await process.stdout.readexactly(2)
    family = processes()
    assert len(family) == 2
    await kill_process(process)
    async with asyncio.timeout(30):  # a killed process closes its pipes a moment before it is a zombie
        while any(alive(pid) for pid in family):  # noqa: ASYNC110 - nothing tells us but looking
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_ending_twice_is_harmless(processes):
    process = await start_process(*SLEEP, **PIPES)
    await kill_process(process)
    await kill_process(process)
    assert processes() == set()


async def test_what_cannot_be_started_is_an_os_error():
    with pytest.raises(OSError, match="nowhere"):
        await start_process("/nowhere/program", **PIPES)
