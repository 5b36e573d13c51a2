"""The folders of jobs: submit, inspect, end and forget a job.

A rename makes a job's folder appear complete, so submitting a job twice has the effect of submitting it once.
The process that holds the lock (`try_lock`) runs the job: the runner, until it is gone. A job with neither a
result nor a runner has lost its runner, and starts again when somebody asks for it. Each home that wants the
job has a file in `leases`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from typing import Any

from remote.hostside import process_tree
from remote.hostside.errors import RequestRefused
from remote.hostside.limits import RESERVE_BYTES, RETRIED_STATUSES
from remote.hostside.store import ContentStore
from remote.hostside.workdir import Workdir, read_json, write_json

_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_STEP = re.compile(r"[a-z][a-z0-9_]{0,63}")


class JobFolder:
    """One job's folder; it may not exist."""

    def __init__(self, place: Workdir, key: str) -> None:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise RequestRefused("bad_request", "a job's key must be 64 hexadecimal digits")
        self.key = key
        self.place = place
        self.path = place.jobs / key
        self.work = self.path / "work"
        self.leases = self.path / "leases"

    def exists(self) -> bool:
        return self.path.is_dir()

    def read_spec(self) -> dict[str, Any]:
        found = read_json(self.path / "spec.json")
        if not isinstance(found, dict):
            raise RequestRefused("unknown_job", f"there is no job {self.key[:12]}")
        return found

    def read_job_result(self) -> dict[str, Any] | None:
        """Return the job's result; None if it has not ended."""
        found = read_json(self.path / "result.json")
        return found if isinstance(found, dict) else None

    def try_lock(self) -> int | None:
        """Take the job's lock and return its descriptor; None if another process holds it.

        Raises:
            FileNotFoundError: the job is gone.
        """
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        if not self.path.is_dir():  # removed since it was opened
            os.close(fd)
            raise FileNotFoundError(self.path)
        return fd

    def state(self) -> str:
        """Return `over`, `running`, `vanished` (its runner is gone without a result) or `unknown`."""
        if self.read_job_result() is not None:
            return "over"
        try:
            fd = self.try_lock()
        except FileNotFoundError:
            return "unknown"
        if fd is None:
            return "running"
        os.close(fd)
        return "vanished" if self.read_job_result() is None else "over"

    def renew_lease(self, client: str) -> None:
        """Record that a home still wants the job."""
        with contextlib.suppress(FileNotFoundError):
            (self.leases / client).touch()

    def release_lease(self, client: str) -> None:
        """Record that a home no longer wants the job; without any lease, its runner ends it."""
        with contextlib.suppress(FileNotFoundError):
            (self.leases / client).unlink()

    def lease_holders(self) -> list[str]:
        """Return the homes that want the job."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in self.leases.iterdir())
        return []

    def count_attempts(self) -> int:
        """Return how often the job was started."""
        with contextlib.suppress(FileNotFoundError):
            return (self.path / "attempts").stat().st_size
        return 0

    def begin_attempt(self) -> int:
        """Count one more attempt, end what an earlier one left, and create a fresh work folder."""
        with (self.path / "attempts").open("a", encoding="ascii") as file:
            file.write("+")
        with contextlib.suppress(FileNotFoundError):
            process_tree.kill_marked((self.path / "mark").read_text(encoding="ascii"))
        if self.work.exists():
            self.place.move_to_trash(self.work)
        (self.work / "out").mkdir(parents=True)
        shutil.copytree(self.path / "inputs", self.work / "inputs")
        return self.count_attempts()

    def forget(self, client: str) -> None:
        """Remove the job, unless another home wants it too."""
        self.release_lease(client)
        if not self.lease_holders():
            self.place.move_to_trash(self.path)


def submit_job(
    place: Workdir, store: ContentStore, spec: dict[str, Any], client: str
) -> tuple[JobFolder, int | None]:
    """Create a job or join the existing one; return it, and its lock if this process is to run it.

    Raises:
        RequestRefused: the request is invalid, or an input is not in the store.
    """
    job = JobFolder(place, spec.get("key", ""))
    check_spec(spec)
    for _ in range(3):  # the job may be removed between two looks
        if not job.exists():
            _create_job(job, store, spec)
        job.leases.mkdir(exist_ok=True)
        (job.leases / client).touch()
        try:
            fd = job.try_lock()
        except FileNotFoundError:
            continue
        if fd is None:
            return job, None
        result = job.read_job_result()
        if result is None or result.get("status") in RETRIED_STATUSES:
            (job.path / "result.json").unlink(missing_ok=True)
            return job, fd
        os.close(fd)
        return job, None
    raise RequestRefused("failed", f"job {job.key[:12]} is removed as fast as it is made")


def check_spec(spec: dict[str, Any]) -> None:
    """Refuse an invalid job specification.

    Raises:
        RequestRefused: `bad_request`, with the field.
    """
    inputs = spec.get("inputs")
    spans = [spec.get(name) for name in ("deadline_s", "queue_s", "lease_s")]
    faults = [
        name
        for name, wrong in (
            ("step", not _STEP.fullmatch(str(spec.get("step")))),
            (
                "inputs",
                not isinstance(inputs, dict) or not all(_is_valid_input(*item) for item in inputs.items()),
            ),
            ("cores", spec.get("cores") not in (0, 1)),
            ("deadline_s, queue_s, lease_s", not all(isinstance(s, (int, float)) and s > 0 for s in spans)),
            ("allowed", not isinstance(spec.get("allowed"), (list, type(None)))),
        )
        if wrong
    ]
    if faults:
        raise RequestRefused("bad_request", f"a job's {faults[0]} is not what it must be")


def _is_valid_input(name: Any, digest: Any) -> bool:
    return bool(_NAME.fullmatch(str(name)) and _KEY.fullmatch(str(digest)))


def _create_job(job: JobFolder, store: ContentStore, spec: dict[str, Any]) -> None:
    part = job.place.trash / uuid.uuid4().hex
    try:
        for name in ("inputs", "leases"):
            (part / name).mkdir(parents=True)
        for name, digest in spec["inputs"].items():
            store.copy_content(digest, part / "inputs" / name)
        write_json(part / "spec.json", spec)
        (part / "reserve").write_bytes(bytes(RESERVE_BYTES))
        (part / "lock").touch()
        with contextlib.suppress(OSError):  # another home was first
            part.rename(job.path)
    finally:
        if part.exists():
            shutil.rmtree(part, ignore_errors=True)
