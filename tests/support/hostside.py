"""Jobs of a host that is this machine: each step in a process of its own, without a link in between."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from remote.ssh.errors import HostLacksError
from remote.ssh.job import HostFacts, JobResult, JobSpec
from remote.ssh.worker_archive import build_worker_archive

_STEP = """
import sys
from pathlib import Path
from remote.hostside.steps import STEPS
STEPS[sys.argv[1]](Path(sys.argv[2]))
"""


class LocalJobs:
    """Takes jobs as a host's worker does; `asked` are those it took, `sent` the bytes it lacked."""

    def __init__(
        self, workdir: Path, *, environment: dict[str, str] | None = None, python: Path | None = None
    ) -> None:
        self.workdir = workdir
        self.workdir.mkdir(exist_ok=True)
        self._python = str(python or sys.executable)
        self._worker = workdir / "worker.pyz"
        self._worker.write_bytes(build_worker_archive().data)
        self.asked: list[JobSpec] = []
        self.sent = self.fetched = 0
        self._environment = environment or {}
        self._store: dict[str, bytes] = {}
        self._cpus = asyncio.Semaphore(2)

    async def greet_host(self) -> HostFacts:
        return HostFacts(
            worker="0" * 64, hostname="here", system="Linux", python=sys.version.split()[0], boot_id="one",
            cpus=2, memory_bytes=1 << 34, free_disk_bytes=1 << 34, cores=(0, 1), has_device=False,
            walls=(), workdir=str(self.workdir),
        )  # fmt: skip

    def tidy(self) -> None:
        """Throw away what was sent."""
        self._store.clear()

    async def upload_blobs(self, blobs) -> int:
        lacking = {digest: data for digest, data in blobs.items() if digest not in self._store}
        assert all(hashlib.sha256(data).hexdigest() == digest for digest, data in lacking.items())
        self._store |= lacking
        self.sent += sum(map(len, lacking.values()))
        return sum(map(len, lacking.values()))

    async def run_job(self, job: JobSpec) -> JobResult:
        self.asked.append(job)
        folder = self.workdir / "jobs" / job.key / "work"
        (folder / "inputs").mkdir(parents=True)
        if not self._store.keys() >= set(job.inputs.values()):
            shutil.rmtree(folder)
            raise HostLacksError("an input is not in the store")
        for name, digest in job.inputs.items():
            (folder / "inputs" / name).write_bytes(self._store[digest])
        told = {"key": job.key, "step": job.step, "payload": job.payload, "core": job.prefer or 0}
        (folder / "job.json").write_text(json.dumps(told))
        started = time.monotonic()
        async with self._cpus:
            process = await asyncio.create_subprocess_exec(
                self._python, "-c", _STEP, job.step, str(folder), cwd=folder,
                env={**os.environ, **self._environment, "PYTHONPATH": str(self._worker)},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                output, _ = await process.communicate()
            except asyncio.CancelledError:
                os.killpg(process.pid, 9)
                await process.wait()
                raise
        answered = folder / "answer.json"
        files = {path.name: path.read_bytes() for path in (folder / "out").glob("*")}
        return JobResult(
            status="done" if answered.exists() else "failed",
            answer=json.loads(answered.read_text()) if answered.exists() else None,
            files={name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()},
            log_tail=output.decode(errors="replace")[-4000:], core=0, exit_status=process.returncode,
            queued_s=0.0, ran_s=time.monotonic() - started, attempts=1,
        )  # fmt: skip

    async def fetch_files(self, key, names) -> dict[str, bytes]:
        found = {name: (self.workdir / "jobs" / key / "work" / "out" / name).read_bytes() for name in names}
        self.fetched += sum(map(len, found.values()))
        return found

    async def forget_job(self, key) -> None:
        assert (self.workdir / "jobs" / key).is_dir()
