"""A Neuron device on a host: kernels are compiled by the vendor's compiler, measured and profiled.

Outputs are judged as everywhere. The judge also wants the kernel's program, which the simulator traces here.
Where it cannot follow the kernel, the formula is `tested` instead of `proven`, and nothing else changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from nki_sim import targets
from nki_sim.timing.counters import peak_flops
from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext, rejected_outcome, tracer_failure
from remote.jail_backends import JailLimits
from remote.judge.job import JudgeOutcome
from remote.judge_service import JudgeService
from remote.ssh.device_facts import DeviceFacts
from remote.ssh.errors import HostFullError, HostProtocolError
from remote.ssh.job import AnswerReader
from remote.ssh.measure import (
    BadSamplesError,
    TimingProtocol,
    check_samples,
    is_steady,
    spread_ratio,
    summarise_samples,
)
from remote.ssh.steps import (
    DEVICE_S,
    LONG_S,
    SHORT_S,
    CompiledKernel,
    EvaluationSteps,
    KernelFailedError,
    StepAnswer,
    StepEndedError,
    artefact_key,
    call_payload,
    drawing_payload,
)
from seeds.problem_files import KERNEL_FILE
from state.model import ErrorInfo, Verdict
from targets.nki.hosts import profile_summary as summary
from targets.nki.hosts.profile_tables import (
    INSTALL_READER,
    LoadedTensor,
    ProfileTables,
    can_read_tables,
    describe_unread,
    is_table_file,
    read_tables,
)
from targets.nki.inefficiencies import find_inefficiencies
from targets.nki.judge.program import warn_implausible

COMPILER_LIMITS = JailLimits(
    cpu_s=1800, wall_s=3600, memory_bytes=64 << 30, file_bytes=4 << 30, open_files=1024, processes=4096,
    answer_bytes=1 << 20,
)  # fmt: skip
"""Limits for the compiler, which runs the kernel's Python too."""

SPREAD_RATIOS = {"trn1": 0.01, "trn2": 0.04}
"""The device's own spread, up to which a round of samples counts."""

_REMEMBERED = 1024
_TABLE_BYTES = 256 << 20
_log = logging.getLogger(__name__)
_SUMMARY_BYTES = 16 << 20


def protocol_for(target: str) -> TimingProtocol:
    """Return how kernels of a target are timed."""
    return TimingProtocol(spread_ratio=SPREAD_RATIOS.get(target, max(SPREAD_RATIOS.values())))


class NeuronDevice:
    """The vendor's device, on a host with these facts."""

    def __init__(self, facts: DeviceFacts, judge: JudgeService) -> None:
        self._facts = facts
        self._judge = judge
        self._rounds = 0
        self._measured: OrderedDict[tuple[str, str, float], str] = OrderedDict()

    async def compile_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext
    ) -> CompiledKernel | JudgeOutcome:
        """Compile the kernel there and trace it here; return the verdict where it does not compile."""
        request = _compiler_request(run)
        key = artefact_key(steps, repr(request), self._facts.toolchain)
        payload = {
            "artefact": key,
            "request": request,
            "limits": asdict(COMPILER_LIMITS),
            "strength": steps.weakest_jail,
        }
        answer, program = await asyncio.gather(
            steps.run_step("compile", payload, deadline_s=COMPILER_LIMITS.wall_s + SHORT_S),
            self._trace_here(run),
        )
        refused = _compile_failure(AnswerReader(answer.fields, steps.address), answer.fields.get("told"))
        if refused is not None:
            return refused
        digest = str(answer.fields.get("digest"))
        return CompiledKernel(
            key=key,
            digest=digest,
            program=program,
            drawn_by=hashlib.sha256(digest.encode()).digest(),
            call={"artefact": key, **call_payload(run)},
            device=True,
        )

    async def _trace_here(self, run: EvaluationContext) -> bytes:
        """Return the tracer's reply on a kernel; empty where the tracer did not end by itself."""
        async with self._judge.slots:
            result = await self._judge.trace_kernel(run)
        return b"" if tracer_failure(result) else result.answer

    async def _retrace_here(self, run: EvaluationContext, program: bytes) -> JudgeOutcome | None:
        """Trace a kernel in another process; return the verdict if it builds another program there."""
        async with self._judge.slots, run.time_stage("retrace"):
            return await self._judge.retrace_kernel(run, program)

    async def measure_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext, compiled: CompiledKernel, outcome: JudgeOutcome
    ) -> JudgeOutcome:
        """Measure a correct kernel until it is steady, and profile it."""
        if outcome.verdict is not Verdict.CORRECT:
            return outcome
        if compiled.program and (differs := await self._retrace_here(run, compiled.program)) is not None:
            return differs
        protocol = protocol_for(run.request.target)
        async with run.time_stage("benchmark"):
            parent = self._measured.get(_kernel_key(run, run.request.base_ms))
            samples, beside = await self._measure_steadily(steps, run, compiled, parent=parent)
            if is_steady(samples, protocol) and _warn_implausible(samples, run):
                # A bound may be wrong, a measurement too: measure once more before people are told.
                samples, beside = await self._measure_steadily(steps, run, compiled, parent=parent)
        if not is_steady(samples, protocol):
            return outcome.model_copy(update=_unstable_fields(samples, protocol))
        found, warnings = summarise_samples(samples), _warn_implausible(samples, run)
        self._remember_kernel(_kernel_key(run, found.latency_ms), compiled.key)
        async with run.time_stage("profile"):
            profiled = await self._profile_kernel(steps, run, compiled, beside)
        fields = {"stage": "profile", "benchmark": found, "warnings": warnings, **profiled}
        return outcome.model_copy(update=fields)

    async def _measure_steadily(
        self, steps: EvaluationSteps, run: EvaluationContext, compiled: CompiledKernel, *, parent: str | None
    ) -> tuple[tuple[float, ...], float | None]:
        """Take rounds until one is steady; return the last."""
        protocol = protocol_for(run.request.target)
        for _ in range(protocol.rounds):
            samples, beside = await self._run_round(steps, run, compiled, parent)
            if is_steady(samples, protocol):
                break
        return samples, beside

    async def sample_times(
        self,
        steps: EvaluationSteps,
        run: EvaluationContext,
        compiled: CompiledKernel,
        *,
        core: int | None = None,
    ) -> tuple[float, ...]:
        """Return one round of samples."""
        return (await self._run_round(steps, run, compiled, None, core=core))[0]

    async def _run_round(
        self,
        steps: EvaluationSteps,
        run: EvaluationContext,
        compiled: CompiledKernel,
        parent: str | None,
        *,
        core: int | None = None,
    ) -> tuple[tuple[float, ...], float | None]:
        """Take one round on `core`, or on the core after the last one; time the parent too, in turns."""
        spec, protocol = run.problem.spec, protocol_for(run.request.target)
        self._rounds += 1
        artefacts = [compiled.key, *([parent] if parent else [])]
        payload = {
            **drawing_payload(spec, run.request.size), **compiled.call, "set": str(spec.seeds[0]),
            "artefacts": artefacts, "warmups": protocol.warmups, "runs": protocol.runs, "round": self._rounds,
        }  # fmt: skip
        after = self._rounds % self._facts.cores if self._facts.cores else None
        prefer = after if core is None else core
        try:
            answer = await steps.run_step("benchmark", payload, cores=1, prefer=prefer, deadline_s=DEVICE_S)
        except StepEndedError as error:
            if parent is None or error.status != "failed":
                raise
            # The host may have evicted the parent: the candidate alone is enough.
            return await self._run_round(steps, run, compiled, None)
        if "error" in answer.fields:
            if parent is None:
                raise KernelFailedError("benchmark", answer)
            return await self._run_round(steps, run, compiled, None)  # whichever of the two failed
        told = answer.fields.get("samples_ms")
        try:
            listed = told if isinstance(told, list) else []
            rounds = [check_samples(samples, protocol, ran_s=answer.result.ran_s) for samples in listed]
        except BadSamplesError as error:
            raise HostProtocolError(f"{steps.address}: {error}") from error
        if len(rounds) != len(artefacts):
            raise HostProtocolError(f"{steps.address}: a round has samples of {len(rounds)} kernels")
        return rounds[0], median(rounds[1]) if parent else None

    def _remember_kernel(self, place: tuple[str, str, float], key: str) -> None:
        """Remember the key and latency of a kernel, so that its children can be measured next to it."""
        self._measured[place] = key
        while len(self._measured) > _REMEMBERED:
            self._measured.popitem(last=False)

    async def _profile_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext, compiled: CompiledKernel, beside: float | None
    ) -> dict[str, Any]:
        """Return the profile and what bounds the kernel; empty where the host has no working profiler."""
        try:
            answer = await steps.run_step("profile", {"artefact": compiled.key}, cores=1, deadline_s=LONG_S)
        except StepEndedError as error:
            if error.status == "failed":
                return {}
            raise
        text = (await steps.fetch_file(answer, "summary.json", most=_SUMMARY_BYTES)).decode(errors="replace")
        try:
            found = summary.parse_summary(text, str(answer.fields.get("tool")))
        except summary.SummaryError:
            return {}
        tables = await _read_tables(steps, answer)
        more = {**tables.fields, "inefficiencies": _inefficiencies(run, found.counters, tables.tensors)}
        return {
            "profile": found.render_profile(run.request.target, base_ms=beside, more=more),
            "bottleneck": found.bottleneck,
        }


async def _read_tables(steps: EvaluationSteps, answer: StepAnswer) -> ProfileTables:
    """Return what the full profile's tables say; nothing if there are none, and why if they are not read."""
    files = {name: size for name, (_, size) in answer.result.files.items() if is_table_file(name)}
    if not files:
        return ProfileTables({})
    if not can_read_tables():
        return describe_unread(f"they are read with DuckDB, which is not installed here: {INSTALL_READER}")
    if (total := sum(files.values())) > _TABLE_BYTES:
        return describe_unread(f"they have {total >> 20} MiB, the limit is {_TABLE_BYTES >> 20}")
    with tempfile.TemporaryDirectory(prefix="nki-agent-profile-") as folder:
        for name, size in files.items():
            (Path(folder) / name).write_bytes(await steps.fetch_file(answer, name, most=size))
        try:
            return await asyncio.to_thread(read_tables, Path(folder), KERNEL_FILE)
        except summary.SummaryError as error:
            _log.warning("%s: %s", steps.address, error)
            return describe_unread(str(error))


def _inefficiencies(
    run: EvaluationContext, counters: Mapping[str, float], tensors: Sequence[LoadedTensor]
) -> list[dict[str, Any]]:
    """What the kernel does in vain, by its measured counters."""
    spec = run.problem.spec
    found = find_inefficiencies(
        counters,
        input_bytes=sum(item.nbytes(spec.dims(run.request.size)) for item in spec.inputs),
        peak_flops=peak_flops(targets.load(run.request.target)),
        loads={one.name: one.repeats for one in tensors},
    )
    return [item.to_json() for item in found]


def _compiler_request(run: EvaluationContext) -> dict[str, Any]:
    """The request to the compiler: the kernel, and shapes, never data."""
    spec, dims = run.problem.spec, run.problem.spec.dims(run.request.size)
    arguments = spec.call_arguments([None] * len(spec.inputs), lambda value: [value])
    return {
        "source": run.source.decode(),
        "filename": KERNEL_FILE,
        "inputs": [
            {"shape": list(item.resolve_kernel_shape(dims)), "dtype": item.dtype} for item in spec.inputs
        ],
        "outputs": [{"shape": list(item.resolve_shape(dims)), "dtype": item.dtype} for item in spec.outputs],
        "scalars": [[place, item[0]] for place, item in enumerate(arguments) if item is not None],
        "target": run.request.target,
    }


def _kernel_key(run: EvaluationContext, latency_ms: float | None) -> tuple[str, str, float]:
    return run.problem.digest, run.request.size, latency_ms or 0.0


def _compile_failure(reader: AnswerReader, told: Any) -> JudgeOutcome | None:
    """The verdict on a kernel that did not compile."""
    if reader.read_flag("cpu_exhausted"):
        return rejected_outcome(
            Verdict.TIMEOUT, "compile", "cpu_limit", "compiling the kernel used up its CPU time"
        )
    filled = reader.read_text("scratch") if "scratch" in reader.answer else ""  # an older worker compiled it
    if filled == "limit":
        text = "compiling the kernel filled the folder that it may write to"
        return rejected_outcome(Verdict.COMPILE_ERROR, "compile", "limit_scratch", text)
    if filled:
        raise HostFullError(f"{reader.address}: its disk was nearly full while a kernel was compiled there")
    if reader.read_flag("killed"):
        text = f"{reader.address}: the compiler was killed from outside (out of memory?)"
        raise InfrastructureError("jail_killed", text)
    fields = told if isinstance(told, dict) else {}
    if "neff" in fields and reader.read_count("size"):
        return None
    error = fields.get("error")
    if isinstance(error, dict):
        known = AnswerReader(error, reader.address)
        line, code = known.read_count("line") or None, known.read_text("code")
        return rejected_outcome(Verdict.COMPILE_ERROR, "compile", code, known.read_text("message"), line=line)
    last = (reader.read_text("stderr").strip().splitlines() or ["nothing"])[-1]
    text = (
        f"the compiler ended with status {reader.read_integer('exit_status')} and left no NEFF: {last[:500]}"
    )
    return rejected_outcome(Verdict.COMPILE_ERROR, "compile", "no_artefact", text)


def _warn_implausible(samples: tuple[float, ...], run: EvaluationContext) -> tuple[ErrorInfo, ...]:
    """The warning that a measured latency is below what the device's peak rates allow, if it is."""
    latency_ms, asked = summarise_samples(samples).latency_ms, run.request
    found = warn_implausible(latency_ms, run.problem.spec, asked.size, asked.target, said="measured")
    return (found,) if found else ()


def _unstable_fields(samples: tuple[float, ...], protocol: TimingProtocol) -> dict[str, Any]:
    text = (
        f"in none of {protocol.rounds} rounds the samples were within {protocol.spread_ratio:.0%} of each "
        f"other; in the last one they were {spread_ratio(samples):.1%} apart"
    )
    return {
        "verdict": Verdict.UNSTABLE,
        "stage": "benchmark",
        "error": ErrorInfo(code="unsteady", message=text),
        "benchmark": None,
    }
