"""What is judged on this machine for every evaluator, wherever its kernels run.

The service owns the trusted workers, the reference's outputs and the jail. An evaluator brings what its
kernels left (a tracer's reply, or the outputs that a host shows) and gets an outcome. It is shared: several
hosts use one service, and its creator closes it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext, make_judge_job, rejected_outcome, tracer_failure
from remote.jail_backends import JailLimits, JailStrength, jail_strength
from remote.judge.job import HostOutputs, JudgeJob, JudgeOutcome, PiecesNeeded
from remote.pool import WorkerLimits, WorkerPool
from remote.references import ReferenceFiles, ReferenceStore
from remote.sandbox import JailResult, run_jailed
from remote.tracing import Tracer, load_tracer
from state.model import TRUSTED_AUTHORS, DeviceCalibration, Digest, Verdict, canonical_json, digest_of
from state.model.calibration import ConstantValue
from state.sealed_files import read_seal
from state.step_keeper import STEP_KEEPER, StepKeeper
from targets.registry import load_target


class _UnusualEndError(Exception):
    def __init__(self, result: JailResult) -> None:
        super().__init__()
        self.result = result


class JudgeService:
    """Workers, references and a jail on this machine.

    `slots` evaluations may use this machine at a time. If only a weak jail is available, kernels that a model
    wrote are refused unless `allow_weak_jail`. `home` holds the cache of reference outputs, and the secret
    that decides where outputs are compared, unless `secret` is given. `calibration` has the constants with
    which kernels of its target are predicted.
    """

    def __init__(
        self,
        *,
        home: Path,
        slots: int | None = None,
        allow_weak_jail: bool = False,
        jail_limits: JailLimits | None = None,
        worker_limits: WorkerLimits | None = None,
        strength: JailStrength | None = None,
        secret: str | None = None,
        calibration: DeviceCalibration | None = None,
    ) -> None:
        count = slots or os.cpu_count() or 1
        self._given_strength = strength
        self._allow_weak_jail = allow_weak_jail
        self.home = home
        self._calibration = calibration
        self.jail_limits = jail_limits or JailLimits()
        self.slots = asyncio.Semaphore(count)
        self.workers = WorkerPool(worker_limits or WorkerLimits.for_slots(count))
        self.references = ReferenceStore(home, strength=strength, secret=secret, jails=count)

    @property
    def strength(self) -> JailStrength:
        """The strength of this machine's jail; the first time it is tried out, which takes a moment."""
        return self._given_strength or jail_strength()

    def constants_of(self, target: str) -> dict[str, ConstantValue]:
        """Return the calibrated constants with which kernels of a target are predicted."""
        found = self._calibration
        return dict(found.constants) if found is not None and found.target == target else {}

    @property
    def calibration_note(self) -> str:
        """The calibration's name and digest, as part of a toolchain; empty without one."""
        if self._calibration is None:
            return ""
        told = canonical_json(self._calibration.model_dump(mode="json", include={"target", "constants"}))
        return f" calibration {self._calibration.name} {digest_of(told)[:12]}"

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the living workers."""
        return self.workers.worker_pids

    def require_trusted(self, author: str) -> None:
        """Refuse a kernel that this machine's jail may not hold.

        Raises:
            InfrastructureError: weak_jail.
        """
        trusted = author in TRUSTED_AUTHORS
        if not trusted and not self._allow_weak_jail and self.strength is JailStrength.WEAK:
            text = (
                f"only a weak jail works here, so kernels written by {author} are not run; "
                "install bubblewrap or set daemon.allow_weak_jail"
            )
            raise InfrastructureError("weak_jail", text, retryable=False)

    async def run_tracer(self, tracer: Tracer, request: bytes, *flags: str) -> JailResult:
        """Run a tracer on a request, in the jail.

        Raises:
            InfrastructureError: the jail failed.
        """
        keeper = STEP_KEEPER.get()
        return await run_jailed(
            tracer.program(self.jail_limits, *flags),
            request,
            strength=self._given_strength,
            on_ready=None if keeper is None else keeper.note_begun,
        )

    async def trace_kernel(self, run: EvaluationContext) -> JailResult:
        """Run a kernel's own code once, in the jail, with the tracer of its target.

        Raises:
            InfrastructureError: the jail failed.
        """
        tracer, target = load_tracer(run.request.target), run.request.target
        dims = run.problem.spec.dims(run.request.size)
        request = tracer.request(run.source.decode(), run.problem, dims, target=target, repeat=True)
        return await self.recall_trace(tracer, request)

    async def recall_trace(self, tracer: Tracer, request: bytes, *flags: str) -> JailResult:
        """Run a tracer, unless an earlier delivery of this task's effect had its whole reply.

        Raises:
            InfrastructureError: the jail failed.
        """
        keeper = STEP_KEEPER.get()
        if keeper is None:
            return await self.run_tracer(tracer, request, *flags)
        asked = "\n".join((tracer.toolchain(), *flags, request.decode()))
        try:
            text = await keeper.recall(asked, lambda: self._trace_to_text(tracer, request, *flags))
        except _UnusualEndError as unusual:
            return unusual.result
        return JailResult(base64.b85decode(text), 0, "", truncated=False, cpu_exhausted=False)

    async def retrace_kernel(self, run: EvaluationContext, reply: bytes) -> JudgeOutcome | None:
        """Trace a kernel in a fresh process, with other hashes and addresses; None if `reply` comes again.

        `trace_kernel` repeats calls in one process, where a set of strings has one order.

        Raises:
            InfrastructureError: the jail failed.
        """
        tracer, target = load_tracer(run.request.target), run.request.target
        dims = run.problem.spec.dims(run.request.size)
        request = tracer.request(run.source.decode(), run.problem, dims, target=target)
        seed, keeper = self.draw_hash_seed(run), STEP_KEEPER.get()
        asked = f"{tracer.toolchain()}\n{seed}\n{digest_of(reply)}\n{request.decode()}"
        if keeper is not None and await keeper.find(asked) is not None:
            return None
        result = await run_jailed(
            replace(tracer.program(self.jail_limits), hash_seed=seed),
            request,
            strength=self._given_strength,
            on_ready=None if keeper is None else keeper.note_begun,
        )
        differs = tracer_failure(result) or (None if result.answer == reply else reject_other_program())
        if differs is None and keeper is not None:
            await keeper.keep(asked, "the same program")
        return differs

    def draw_hash_seed(self, run: EvaluationContext) -> int:
        """Return the seed of the hashes with which a kernel is traced again; no kernel can know it."""
        drawn = digest_of(f"{self.references.secret} {run.request.source}".encode())
        return 1 + int(drawn[-7:], 16)

    async def _trace_to_text(self, tracer: Tracer, request: bytes, *flags: str) -> str:
        """Return a tracer's reply as text that can be kept.

        Raises:
            _UnusualEndError: it did not end well, which another try may see otherwise.
        """
        result = await self.run_tracer(tracer, request, *flags)
        if result.exit_status or result.truncated or not result.answer or result.asleep:
            raise _UnusualEndError(result)
        return base64.b85encode(result.answer).decode()

    async def load_references(
        self, run: EvaluationContext, wholes: Sequence[str], tiles: Sequence[str]
    ) -> ReferenceFiles:
        """Return the reference's outputs on these input sets, whole and in tiles, and its formula.

        Raises:
            InfrastructureError: reference_failed.
        """
        return await self.references.load_files(
            run.problem, run.request.size, wholes=wholes, tiles=tiles, expression=True
        )

    async def judge_outputs(
        self,
        run: EvaluationContext,
        references: ReferenceFiles,
        program: bytes,
        *,
        shown: HostOutputs | None = None,
        device: bool = False,
    ) -> JudgeOutcome | PiecesNeeded:
        """Judge a traced program, or what a host showed of its outputs; `device`: a real device ran it.

        Raises:
            InfrastructureError: no verdict could be reached; bad_pieces: the host showed something else.
        """
        job = make_judge_job(run, references, self.references.secret, shown=shown, device=device)
        keeper = None
        if shown is None:  # else a host has timed the kernel, or predicted it without our calibration
            job = job.model_copy(update={"constants": self.constants_of(run.request.target)})
            keeper = STEP_KEEPER.get()
        try:
            if keeper is None:
                outcome = await self.workers.judge(job, program)
            else:
                outcome = await self._judge_in_parts(
                    job, program, keeper, await _name_job(job, references, program)
                )
        except InfrastructureError as error:
            if error.code == "bad_reference":
                # A cache file may be damaged; the next attempt computes the reference again.
                self.references.delete_files(run.problem, run.request.size)
            raise
        if isinstance(outcome, JudgeOutcome):
            run.stage_ms.update(outcome.stage_ms)
        return outcome

    async def _judge_in_parts(
        self, job: JudgeJob, program: bytes, keeper: StepKeeper, asked: str
    ) -> JudgeOutcome | PiecesNeeded:
        """Judge from where an earlier delivery was cut off, and keep what is judged as it comes.

        Parts and outcome are found only under `asked`, which names all that decides them.
        """
        if (known := await keeper.find(asked)) is not None:
            return JudgeOutcome.model_validate_json(known)
        under_parts = f"parts of {asked}"
        parts: dict[str, Any] = json.loads(await keeper.find(under_parts) or "{}")

        async def keep(fresh: Mapping[str, Any]) -> None:
            await keeper.note_begun()
            if fresh:
                parts.update(fresh)
                await keeper.keep(under_parts, json.dumps(parts))

        outcome = await self.workers.judge(job.model_copy(update={"parts": dict(parts)}), program, keep=keep)
        if isinstance(outcome, JudgeOutcome):
            await keeper.keep(asked, outcome.model_dump_json())
        return outcome

    async def warm_up(self, target: str, problem: Digest, size: str) -> None:
        """Have a worker ready for kernels of a target; a failure shows when there is a kernel.

        Where references are to be computed first, a worker would only take their time.
        """
        if self.references.has_formula(problem, size):
            with suppress(OSError):
                await self.workers.warm_up(target)

    async def aclose(self) -> None:
        """Kill every worker."""
        await self.workers.aclose()


async def _name_job(job: JudgeJob, references: ReferenceFiles, program: bytes) -> str:
    """Return a text of all that decides an outcome: job and secret, program, references, and what judges.

    Raises:
        OSError: a reference has gone.
    """
    seals = await asyncio.to_thread(lambda: [read_seal(path) for path in references.all_paths()])
    judged_by = (load_tracer(job.target).toolchain(), _digest_judge(job.target))
    return "\n".join((*judged_by, job.model_dump_json(), digest_of(program), *seals))


@lru_cache
def _digest_judge(target: str) -> str:
    """Return the digest of the code that judges, which may change while its toolchain keeps its name."""
    place = find_spec((load_target(target).parts.judge or "").partition(":")[0])
    folders = (Path(__file__).with_name("judge"), Path(str(place and place.origin)).parent)
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return digest_of(b"".join(path.read_bytes() for path in paths))


def reject_other_program() -> JudgeOutcome:
    """Return the outcome for a kernel that builds another program in another process."""
    text = "the kernel builds another program in another process"
    hint = "let the program depend on the arguments only; sort a set before you walk through it"
    return rejected_outcome(Verdict.COMPILE_ERROR, "trace", "trace_differs", text, hint=hint)


def select_judged_sets(
    run: EvaluationContext, found: ReferenceFiles, wholes: Sequence[str], sets: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the sets whose tiles are judged, those on which an honest evaluation is meaningful, and all sets
    that must be run: also the seeds that are compared as a whole. It reads files.

    Raises:
        InfrastructureError: bad_reference.
    """
    import numpy as np  # not at the top: a part of the program that starts without it

    from remote.judge.comparison import set_tolerance
    from remote.judge.numerics import BadReferenceError

    judged = []
    for name in sets:
        try:
            with np.load(found.tiles[name], allow_pickle=False) as file:
                honest = float(file["honest"])
            if set_tolerance(name, honest, run.problem.spec.rel_l2) is not None:
                judged.append(name)
        except (OSError, ValueError, EOFError, KeyError, BadReferenceError) as error:
            raise InfrastructureError("bad_reference", f"{found.tiles[name]}: {error}") from error
    # Whole outputs are always compared for seeds, and for other sets if their tiles are.
    return judged, [*judged, *(name for name in wholes if name not in judged and name.isdecimal())]
