"""Runs a program in a jail on a host, as strong a jail as this machine can build."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remote.jail_backends import JailedProgram, JailStrength
    from remote.sandbox import JailResult

WATCHED_PYTHON = (3, 11)
"""The first Python version with the asyncio features that watching a jailed program needs."""

_STDERR_BYTES = 16 << 10


def run_in_jail(program: JailedProgram, request: bytes, weakest: object) -> JailResult:
    """Run a program in a jail and return how it ended; retry once if it deadlocks.

    `weakest`: "weak" where limits and a system-call filter are enough. Anything else demands a jail with
    namespaces, which may have become unavailable since the host was probed.

    Raises:
        InfrastructureError: weak_jail; jail_start, jail_deadline.
    """
    from remote.errors import InfrastructureError
    from remote.jail_backends import JailStrength, jail_strength
    from remote.sandbox import run_jailed

    strength = jail_strength()
    if strength is JailStrength.WEAK and weakest != JailStrength.WEAK.value:
        text = "only a weak jail works here now, and this kernel's author is not trusted with one"
        raise InfrastructureError("weak_jail", text)
    if sys.version_info < WATCHED_PYTHON:
        return run_unwatched(program, request, strength)
    result = asyncio.run(run_jailed(program, request, strength=strength))
    if result.asleep:
        result = asyncio.run(run_jailed(program, request, strength=strength))
    return result


def run_unwatched(program: JailedProgram, request: bytes, strength: JailStrength) -> JailResult:
    """Run a program in the same jail without watching for deadlocks: then only the clock ends it.

    Raises:
        InfrastructureError: jail_start, jail_deadline.
    """
    from remote.errors import InfrastructureError
    from remote.jail_backends import jail_command
    from remote.jail_init import READY_BYTE
    from remote.sandbox import JailResult, is_cpu_exhausted, normalise_status

    started = time.monotonic()
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
        reader, writer = os.pipe()
        process = subprocess.Popen(
            jail_command(strength, program, writer),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said,
            env={}, cwd="/", pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
        os.close(writer)
        copying = threading.Thread(target=_copy_pipe, args=(reader, told, program.limits.answer_bytes))
        copying.start()
        try:
            process.communicate(request, timeout=program.limits.wall_s)
        except subprocess.TimeoutExpired:
            text = "%s did not end within %d s" % (program.module, program.limits.wall_s)
            raise InfrastructureError("jail_deadline", text) from None
        finally:
            # Processes that it left behind hold the pipe open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            copying.join()
        status = normalise_status(process.returncode)
        answer, errors = _read_all(told), _read_all(said)[-_STDERR_BYTES:].decode(errors="replace")
    if not answer.startswith(READY_BYTE):
        text = "the %s jail did not start (%d): %s" % (strength, status, errors.strip()[-500:])
        raise InfrastructureError("jail_start", text)
    return JailResult(
        answer=answer[len(READY_BYTE) :][: program.limits.answer_bytes],
        exit_status=status,
        stderr=errors,
        truncated=len(answer) > len(READY_BYTE) + program.limits.answer_bytes,
        cpu_exhausted=is_cpu_exhausted(status, time.monotonic() - started, program.limits),
    )


def _copy_pipe(reader: int, to: IO[bytes], most: int) -> None:
    """Copy a pipe to its end; drop everything after `most` bytes, so that the writer never blocks."""
    left = most + 2  # one byte says that the jail is built, one shows that there was more
    with open(reader, "rb", buffering=0) as pipe:
        while data := pipe.read(1 << 16):
            to.write(data[:left])
            left -= min(left, len(data))
    to.flush()


def _read_all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def describe_result(result: JailResult) -> dict[str, Any]:
    """Return how a jailed program ended, in the form of a job's answer."""
    return {
        "exit_status": result.exit_status,
        "stderr": result.stderr[-4000:],
        "truncated": result.truncated,
        "cpu_exhausted": result.cpu_exhausted,
        "asleep": result.asleep,
        "killed": result.was_killed,
    }
