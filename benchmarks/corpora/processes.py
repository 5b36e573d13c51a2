"""Child processes with limits on time and memory, a few at once."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

_POLL_S = 0.02
_GRACE_S = 10.0
_TAIL_BYTES = 1 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes that one child may use; threads is what it is told to compute with."""

    seconds: float
    data_bytes: int
    threads: int = 1


@dataclass(frozen=True)
class Command:
    """What to start: arguments, variables beside the inherited ones, and the folder to start it in."""

    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class Ended:
    """How a child ended; `status` is None when its time was over."""

    status: int | None
    out: str
    err: str
    seconds: float
    peak_mib: float


def run(command: Command, limits: Limits, progress: Path | None = None) -> Ended:
    """Run a child and everything it starts to its end, or until its time is over.

    With `progress` its time begins anew, with some grace, whenever it writes to that file.
    """
    # The shell sets the limit: doing it between fork and exec is not safe beside other threads.
    limited = ["/bin/sh", "-c", 'ulimit -d "$0" && exec "$@"', str(limits.data_bytes >> 10), *command.argv]
    threads = {name: str(limits.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            limited,
            cwd=command.folder,
            env={**os.environ, **threads, **command.variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status, peak = _wait(child, limits.seconds, progress)
        return Ended(status, _tail(out), _tail(err), time.monotonic() - begun, peak)


def _wait(child: subprocess.Popen[bytes], seconds: float, progress: Path | None) -> tuple[int | None, float]:
    """Exit status and peak memory in MiB."""
    status: int | None = None
    until = time.monotonic() + seconds
    try:
        while True:
            pid, code, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                status = os.waitstatus_to_exitcode(code)
                break
            if time.monotonic() > until and progress is not None:
                until = max(until, time.monotonic() + seconds + _GRACE_S - _age(progress))
            if time.monotonic() > until:
                _kill_group(child.pid)
                _, _, usage = os.wait4(child.pid, 0)
                break
            time.sleep(_POLL_S)
    except BaseException:
        _kill_group(child.pid)
        raise
    child.returncode = -signal.SIGKILL if status is None else status
    return status, usage.ru_maxrss / 1024


def _age(file: Path) -> float:
    """Seconds since something was written to a file; without end where there is none."""
    return time.time() - file.stat().st_mtime if file.exists() else float("inf")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return file.read().decode(errors="replace")


def each(function: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> list[Result]:
    """The function's results in the items' order, `jobs` at a time."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return list(pool.map(function, items))
