"""The evaluator that judges kernels on a Ray cluster, either an existing one or one started here.

One actor per CPU of the cluster judges one kernel at a time, with the embedded evaluator and its jail.
Cancelling reaches the actor and ends the jail there. A dead actor is replaced, and its kernel has to be
judged again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from remote.cluster.judge import JudgeSettings, NodeJudge, RemoteFailure
from remote.errors import InfrastructureError, NotReadyError
from remote.evaluation_context import read_blob
from remote.evaluator import BlobReader, EvaluationAnswer, PredictionRequest
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from remote.secret import load_secret
from state.model import Digest, EvaluationRequest, PredictedLatency
from targets.registry import load_target

DEBUGGER_VARIABLE = "PYTHONBREAKPOINT"
CONNECT_S = 60.0
PROBE_S = 5.0
CANCEL_S = 15.0
"""Seconds that a cancelled evaluation may take to end on its node before its actor is killed."""

PROBLEMS = 16
"""Number of problems whose files are kept on the cluster."""

PACKAGES = ("state", "seeds", "remote", "targets")
INSTALL = f"{sys.executable} -m pip install 'ray>=2.50,<3'"
"""The command that installs Ray."""

STORE_BYTES = 128 << 20

_users = 0
"""Number of evaluators that use this process's connection to Ray."""


class RayEvaluator:
    """Judges on a Ray cluster; predictions are made at home.

    `slots` is the number of actors when the cluster is started here.
    """

    name = "ray"

    def __init__(
        self,
        *,
        home: Path,
        target: str,
        address: str | None = None,
        slots: int | None = None,
        allow_weak_jail: bool = False,
    ) -> None:
        self._home = home
        self._address = address
        self._count = slots or os.cpu_count() or 1
        self._allow_weak_jail = allow_weak_jail
        self._target = target
        self._local = LocalEvaluator(
            JudgeService(home=home, slots=slots, allow_weak_jail=allow_weak_jail), target=target
        )
        self._ray: Any = None
        self._joined = False
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        self._actors: list[Any] = []
        self._files: dict[Digest, Any] = {}
        self._preparing = asyncio.Lock()

    @property
    def slots(self) -> int:
        """Number of kernels judged at a time."""
        return len(self._actors)

    def toolchain(self) -> str:
        """Return the simulator's name and versions, once the cluster is known to have the same ones."""
        if self._ray is None:
            raise NotReadyError("the cluster was not reached yet")
        return self._local.toolchain()

    async def prepare(self) -> None:
        """Reach the cluster or start one, and start the actors.

        Raises:
            InfrastructureError: no_ray: the extra is not installed. cluster_unreachable, cluster_failed,
                cluster_toolchain: the cluster does not answer, fails, or has another version of this program.
        """
        async with self._preparing:
            if self._ray is not None:
                return
            ray = _import_ray()
            await asyncio.to_thread(probe_address, self._address)
            try:
                await self._join_cluster(ray)
            except BaseException:
                await self._leave_cluster(ray)  # the next call starts over
                raise
            for one in self._actors:
                self._idle.put_nowait(one)
            self._ray = ray

    async def _join_cluster(self, ray: Any) -> None:
        """Reach the cluster and start the actors; on failure, leave it again.

        Raises:
            InfrastructureError: as for `prepare`.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.to_thread(self._connect_ray, ray)
                count = self._count if self._address is None else _count_cpus(ray)
                self._actors = [self._start_actor(ray) for _ in range(count)]
                there = await _await_ref(self._actors[0].toolchain.remote())
        except TimeoutError as error:
            raise InfrastructureError(
                "cluster_unreachable", f"{self._describe_cluster()} did not answer within {CONNECT_S:g} s"
            ) from error
        except Exception as error:  # Ray also raises plain ones, e.g. for a slow node
            raise InfrastructureError("cluster_failed", f"{self._describe_cluster()}: {error}") from error
        if there != self._local.toolchain():
            text = f"{self._describe_cluster()} has {there}, this machine {self._local.toolchain()}"
            raise InfrastructureError("cluster_toolchain", text, retryable=False)

    async def _leave_cluster(self, ray: Any) -> None:
        """End the actors, and the cluster if it was started here."""
        for one in self._actors:
            ray.kill(one)
        self._actors = []
        if self._joined:
            self._joined = False
            await asyncio.to_thread(_disconnect_ray, ray)

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate on the cluster; cancelling ends its jail there.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        await self.prepare()
        problem = self._store_problem_files(request, blobs)
        source = read_blob(blobs, request.source)
        async with self._borrow_actor() as actor:
            name = uuid4().hex
            ref = actor.evaluate.remote(name, request.model_dump_json().encode(), problem, source)
            answer, where = await self._await_result(ref, lambda: actor.cancel.remote(name))
        if isinstance(answer, RemoteFailure):
            raise InfrastructureError(answer.code, answer.message, retryable=answer.retryable)
        return EvaluationAnswer(answer.evaluation, answer.artefacts, answer.stage_ms, where=where)

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Predict kernels at home.

        Raises:
            InfrastructureError: the kernels could not be predicted.
        """
        return await self._local.predict(request, blobs)

    async def aclose(self) -> None:
        """End the actors and everything they run, and the cluster if it was started here."""
        ray, self._ray = self._ray, None
        if ray is not None:
            with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                async with asyncio.timeout(CANCEL_S):
                    await asyncio.gather(*(_await_ref(one.aclose.remote()) for one in self._actors))
            await self._leave_cluster(ray)
        self._files, self._idle = {}, asyncio.Queue()
        await self._local.aclose()

    def _describe_cluster(self) -> str:
        return f"the Ray cluster at {self._address}" if self._address else "the Ray cluster on this machine"

    def _connect_ray(self, ray: Any) -> None:
        """Join the cluster, or start one on this machine's CPUs."""
        global _users  # noqa: PLW0603 - Ray itself has one connection per process
        if not ray.is_initialized():
            quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
            debugger = os.environ.get(DEBUGGER_VARIABLE)
            if self._address is not None:
                packages = (*PACKAGES, *load_target(self._target).parts.packages)
                modules = [str(Path(import_module(name).__file__ or "").parent) for name in packages]
                ray.init(address=self._address, log_to_driver=False, runtime_env={"py_modules": modules})
            else:
                ray.init(
                    num_cpus=self._count,
                    object_store_memory=STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            # Ray puts its own debugger here, which every child of this process would then start.
            os.environ.pop(DEBUGGER_VARIABLE, None)
            if debugger is not None:
                os.environ[DEBUGGER_VARIABLE] = debugger
        _users += 1
        self._joined = True

    def _start_actor(self, ray: Any) -> Any:
        key = bytes.fromhex(load_secret(self._home))
        secret = hmac.digest(key, b"the secret of a cluster", "sha256").hex()
        setting = JudgeSettings(self._target, secret, self._allow_weak_jail)
        return ray.remote(NodeJudge).options(num_cpus=1, max_concurrency=2).remote(setting)

    @contextlib.asynccontextmanager
    async def _borrow_actor(self) -> AsyncIterator[Any]:
        """Take an actor; replace it if it dies while it is held.

        Raises:
            InfrastructureError: worker_died, cluster_failed.
        """
        actor = await self._idle.get()
        idle, ray = self._idle, self._ray
        try:
            yield actor
        except ray.exceptions.RayActorError as error:
            self._actors.remove(actor)
            actor = self._start_actor(ray)
            self._actors.append(actor)
            raise InfrastructureError("worker_died", f"a judge on the cluster died: {error}") from error
        except ray.exceptions.RayError as error:
            raise InfrastructureError("cluster_failed", f"{self._describe_cluster()}: {error}") from error
        finally:
            idle.put_nowait(actor)

    async def _await_result(self, ref: Any, cancel: Callable[[], Any]) -> Any:
        """Wait for a result; when cancelled, wait until the work has ended on its node."""
        waiting = asyncio.ensure_future(_await_ref(ref))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(_await_ref(cancel()))
            await asyncio.wait({waiting, ending}, timeout=CANCEL_S, return_when=asyncio.ALL_COMPLETED)
            for one in (waiting, ending):
                one.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def _store_problem_files(self, request: EvaluationRequest, blobs: BlobReader) -> Any:
        """Return the problem's files as stored on the cluster; they are sent once."""
        key = request.problem.digest
        if key not in self._files:
            files = {digest: read_blob(blobs, digest) for digest in request.problem.files.values()}
            while len(self._files) >= PROBLEMS:
                self._files.pop(next(iter(self._files)))
            self._files[key] = self._ray.put(files)
        return self._files[key]


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        text = f"evaluating on a cluster needs Ray; install it: {INSTALL}"
        raise InfrastructureError("no_ray", text, retryable=False) from error
    return ray


def probe_address(address: str | None) -> None:
    """Fail within seconds if nobody listens at an address; Ray itself tries for minutes.

    Raises:
        InfrastructureError: cluster_unreachable.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_S).close()
    except OSError as error:
        text = f"the Ray cluster at {address} cannot be reached: {error.strerror or error}"
        raise InfrastructureError("cluster_unreachable", text) from error


def _count_cpus(ray: Any) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


async def _await_ref(ref: Any) -> Any:
    return await ref


def _disconnect_ray(ray: Any) -> None:
    """Leave the cluster when nothing in this process uses it any more; a cluster started here ends then."""
    global _users  # noqa: PLW0603 - Ray itself has one connection per process
    _users -= 1
    if _users == 0:
        ray.shutdown()
