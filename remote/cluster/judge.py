"""Runs on a node of the cluster: one slot of the embedded evaluator, in its own process."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remote.errors import InfrastructureError
from remote.evaluator import EvaluationAnswer
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from remote.tracing import load_tracer
from state.errors import BlobMissing
from state.model import Digest, EvaluationHost, EvaluationRequest


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How a node judges kernels of a target's family.

    `secret` is the cluster's own and reveals nothing about home's.
    """

    target: str
    secret: str
    allow_weak_jail: bool


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """An InfrastructureError in the form in which a node sends it home."""

    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class RequestBlobs:
    """The blobs that came with a request."""

    blobs: Mapping[Digest, bytes]

    def get_blob(self, digest: Digest, /) -> bytes:
        if digest not in self.blobs:
            raise BlobMissing(f"no blob {digest}")
        return self.blobs[digest]


class NodeJudge:
    """Judges one kernel at a time. Cancelling a call ends its jail and its worker, as at home."""

    def __init__(self, setting: JudgeSettings) -> None:
        judge = JudgeService(
            home=_node_cache_folder(setting.secret),
            slots=1,
            allow_weak_jail=setting.allow_weak_jail,
            secret=setting.secret,
        )
        self._evaluator = LocalEvaluator(judge, target=setting.target)
        self._device = load_tracer(setting.target).name
        self._node = os.uname().nodename
        self._under_way: dict[str, asyncio.Task[EvaluationAnswer]] = {}

    def toolchain(self) -> str:
        """Return this node's simulator and its version."""
        return self._evaluator.toolchain()

    async def evaluate(
        self, name: str, request: bytes, problem: Mapping[Digest, bytes], source: bytes
    ) -> tuple[EvaluationAnswer | RemoteFailure, EvaluationHost]:
        """Judge a candidate; `problem` holds its problem's files, and `source` is the kernel.

        `name` identifies the evaluation for `cancel`.
        """
        asked = EvaluationRequest.from_json(request)
        where = EvaluationHost(host=f"ray {self._node}", device=self._device)
        blobs = RequestBlobs({**problem, asked.source: source})
        work = self._under_way[name] = asyncio.create_task(self._evaluator.evaluate(asked, blobs))
        try:
            return await work, where
        except InfrastructureError as error:
            return RemoteFailure(error.code, error.message, error.retryable), where
        except asyncio.CancelledError:
            return RemoteFailure("cancelled", "it was cancelled", retryable=True), where
        finally:
            del self._under_way[name]

    async def cancel(self, name: str) -> None:
        """End an evaluation, and wait until its jail and its worker are gone."""
        work = self._under_way.get(name)
        if work is not None:
            work.cancel()
            await asyncio.wait({work})

    async def aclose(self) -> None:
        """End all processes."""
        await self._evaluator.aclose()


def _node_cache_folder(secret: str) -> Path:
    """Return the node's cache of reference outputs, used by this user and this secret only.

    Raises:
        OSError: the folder cannot be made, or belongs to another user.
    """
    name = hashlib.sha256(secret.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"nki-kernel-agent-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's alone")
    return folder
