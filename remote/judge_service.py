"""What is judged on this machine for every evaluator, wherever its kernels run.

The service owns the trusted workers, the reference's outputs and the jail. An evaluator brings what its
kernels left (a tracer's reply, or the outputs that a host shows) and gets an outcome. It is shared: several
hosts use one service, and its creator closes it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext, make_judge_job, rejected_outcome, tracer_failure
from remote.jail_backends import JailLimits, JailStrength, jail_strength
from remote.judge.job import HostOutputs, JudgeOutcome, PiecesNeeded
from remote.pool import WorkerLimits, WorkerPool
from remote.references import ReferenceFiles, ReferenceStore
from remote.sandbox import JailResult, run_jailed
from remote.tracing import Tracer, load_tracer
from state.model import TRUSTED_AUTHORS, DeviceCalibration, Verdict, canonical_json, digest_of
from state.model.calibration import ConstantValue
from state.step_keeper import STEP_KEEPER


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
        self.strength = strength or jail_strength()
        self._allow_weak_jail = allow_weak_jail
        self.home = home
        self._calibration = calibration
        self.jail_limits = jail_limits or JailLimits()
        self.slots = asyncio.Semaphore(count)
        self.workers = WorkerPool(worker_limits or WorkerLimits.for_slots(count))
        self.references = ReferenceStore(home, strength=self.strength, secret=secret, jails=count)

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
        if self.strength is JailStrength.WEAK and not trusted and not self._allow_weak_jail:
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
            strength=self.strength,
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
        keeper = STEP_KEEPER.get()
        if keeper is None:
            return await self.run_tracer(tracer, request)
        try:
            text = await keeper.recall(
                f"{tracer.toolchain()}\n{request.decode()}", lambda: self._trace_to_text(tracer, request)
            )
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
        program = replace(tracer.program(self.jail_limits), hash_seed=self.draw_hash_seed(run))
        result = await run_jailed(program, request, strength=self.strength)
        return tracer_failure(result) or (None if result.answer == reply else reject_other_program())

    def draw_hash_seed(self, run: EvaluationContext) -> int:
        """Return the seed of the hashes with which a kernel is traced again; no kernel can know it."""
        drawn = digest_of(f"{self.references.secret} {run.request.source}".encode())
        return 1 + int(drawn[-7:], 16)

    async def _trace_to_text(self, tracer: Tracer, request: bytes) -> str:
        """Return a tracer's reply as text that can be kept.

        Raises:
            _UnusualEndError: it did not end well, which another try may see otherwise.
        """
        result = await self.run_tracer(tracer, request)
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
        if shown is None:  # else a host has timed the kernel, or predicted it without our calibration
            job = job.model_copy(update={"constants": self.constants_of(run.request.target)})
        try:
            outcome = await self.workers.judge(job, program)
        except InfrastructureError as error:
            if error.code == "bad_reference":
                # A cache file may be damaged; the next attempt computes the reference again.
                self.references.delete_files(run.problem, run.request.size)
            raise
        if isinstance(outcome, JudgeOutcome):
            run.stage_ms.update(outcome.stage_ms)
        return outcome

    async def aclose(self) -> None:
        """Kill every worker."""
        await self.workers.aclose()


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
