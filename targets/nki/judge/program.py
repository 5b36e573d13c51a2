"""Judges a traced program stage by stage, from the tracer's bytes to a timed and profiled verdict.

Runs in the trusted worker. The stages, cheapest first; the first that fails gives the verdict: `trace` (the
jailed tracer's answer), `rules` (of the hardware), `numerics` (`trials`: input sets against the reference),
`identity` (its formula against the reference's), `timing` (predicted), `profile`. Nothing depends on a clock
or on chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from nki_sim import protocol, targets
from nki_sim.calibration import load_calibrated
from nki_sim.checks import program as checks
from nki_sim.errors import InputError, IRError, KernelError, ScheduleError
from nki_sim.program.ir import ArraySpec, Program
from nki_sim.running.work import program_work
from nki_sim.timing import counters, explain, uncertainty
from nki_sim.timing.activity import shares_percent, span_ns
from nki_sim.timing.forecast import Forecast, forecast_program, unknown_latency_error
from nki_sim.timing.schedule import QUEUES, Timeline
from remote.judge import work_limits
from remote.judge.host_trials import BadPiecesError, ReturnedOutputs, UnsureError
from remote.judge.input_cache import InputCache
from remote.judge.job import CheckJob, JudgeJob, JudgeOutcome
from remote.judge.judged_parts import JudgedParts
from remote.judge.numerics import BadReferenceError, output_fault
from remote.judge.rejection import RejectedError, StageFailedError
from seeds import ProblemSpec
from state.model import Benchmark, ErrorInfo, FormulaIdentity, NumericalStability, Verdict, canonical_json
from targets.nki.bounds import physical_bound, products_bound_ms
from targets.nki.inefficiencies import count_input_loads, find_inefficiencies
from targets.nki.judge.declared_shapes import with_declared_shapes
from targets.nki.judge.failures import reject_kernel_error
from targets.nki.judge.identity.stage import IdentityFailedError, identify
from targets.nki.judge.returned import HostTrials
from targets.nki.judge.trials import NumericsTrials

T = TypeVar("T")

_MAX_PROFILE_LINES = 10
"""Parts of the critical path and spilled tiles in a profile, the costliest first."""

TIMELINE_PARTS = 160
"""Number of equal time slices of a run for which a profile lists the busy queues: what a screen can show."""


@dataclass
class _Judgement:
    """One job on its way through the stages."""

    job: JudgeJob
    reply: bytes
    inputs: InputCache
    parts: JudgedParts = field(default_factory=JudgedParts)
    stage: str = "trace"
    stage_ms: dict[str, float] = field(default_factory=dict)
    rel_l2: dict[int, float] = field(default_factory=dict)
    warnings: list[ErrorInfo] = field(default_factory=list)

    @contextmanager
    def time_stage(self, stage: str) -> Iterator[None]:
        self.stage = stage
        started = time.perf_counter()
        try:
            yield
        finally:
            self.stage_ms[stage] = (time.perf_counter() - started) * 1e3

    def run_on_device(self) -> JudgeOutcome:
        """Judge what a device computed; also the program, if the simulator can follow the kernel."""
        try:
            _, declared = self.read_programs(targets.load(self.job.target))
        except RejectedError as rejected:
            identity = FormulaIdentity(
                verdict="tested", reason=f"not followed: {rejected.error.message}"[:500]
            )
            with self.time_stage("numerics"):
                shown = ReturnedOutputs(self.job, self.rel_l2)
                shown.compare()
            return self.make_outcome(Verdict.CORRECT, identity=identity, stability=shown.stability)
        stability = self.run_trials(HostTrials, declared)
        identity = self.compare_formula(declared)
        return self.make_outcome(Verdict.CORRECT, identity=identity, stability=stability)

    def run_trials(self, made: type[NumericsTrials], declared: Program) -> NumericalStability | None:
        """Judge outputs; return how stable they are."""
        with self.time_stage("numerics"):
            trials = made(declared, self.reply, self.job, self.inputs, self.rel_l2, parts=self.parts)
            trials.run()
        return trials.stability

    def compare_formula(self, declared: Program) -> FormulaIdentity:
        """Compare the formula; a fault of that evaluation is no kernel's, but it is told."""
        with self.time_stage("identity"):
            try:
                found = self.parts.recall("identity", self._identify, declared)
                return FormulaIdentity.model_validate(found)
            except IdentityFailedError as error:
                self.warnings.append(ErrorInfo(code="identity_failed", message=str(error)[:500]))
                return FormulaIdentity(verdict="tested", reason=str(error)[:500])

    def _identify(self, declared: Program) -> dict[str, Any]:
        return identify(declared, self.reply, self.job).model_dump(mode="json")

    def run(self) -> JudgeOutcome:
        target = load_calibrated(self.job.target, self.job.constants)
        program, declared = self.read_programs(target)
        stability = self.run_trials(NumericsTrials if self.job.shown is None else HostTrials, declared)
        identity = self.compare_formula(declared)
        with self.time_stage("timing"):
            predicted = run_timing(lambda: forecast_program(program, target))
            untimed = timing_error(program)
            benchmark = None if untimed else _make_benchmark(predicted, self.job)
            if benchmark is not None:
                self.warnings += warn_of_products(benchmark.latency_ms, program, self.job.target)
        with self.time_stage("profile"):
            explanation = explain.explain_latency(predicted)
            found = {
                **counters.profile_counters(predicted),
                "dynamic_loops": predicted.timeline.dynamic_loops,
            }
            profile = _make_profile(found, explanation, predicted)
        return self.make_outcome(
            Verdict.CORRECT,
            identity=identity,
            stability=stability,
            benchmark=benchmark,
            profile=profile,
            bottleneck=explanation.bottleneck,
            error=untimed,
        )

    def read_programs(self, target: targets.Target) -> tuple[Program, Program]:
        """Return the program in the kernel's shapes and in the problem's, after checking the rules."""
        with self.time_stage("trace"):
            program = read_program(self.reply)
        with self.time_stage("rules"):
            _require_rules(program, target, self.job)
            return program, with_declared_shapes(program, self.job.spec, self.job.size)

    def make_outcome(self, verdict: Verdict, **fields: Any) -> JudgeOutcome:
        return JudgeOutcome(
            verdict=verdict,
            stage=self.stage,
            rel_l2=self.rel_l2,
            stage_ms=self.stage_ms,
            warnings=tuple(self.warnings),
            **fields,
        )


def check_program(job: CheckJob, reply: bytes, inputs: InputCache) -> JudgeOutcome | None:
    """Return the outcome for a program that breaks a rule, before anything runs it; None for the others."""
    whole = JudgeJob(spec=job.spec, problem="", size=job.size, target=job.target, references={})
    judgement = _Judgement(whole, reply, inputs)

    def check() -> None:
        judgement.read_programs(targets.load(job.target))

    return _run_stages(judgement, check)


def judge_program(
    job: JudgeJob, reply: bytes, inputs: InputCache, parts: JudgedParts | None = None
) -> JudgeOutcome:
    """Take the tracer's reply through every stage; the outcome names the stage that decided.

    `parts` knows what another worker found out before.

    Raises:
        BadReferenceError: the problem's reference, or a file of it, is at fault.
        UnsureError: the sketches that a host showed cannot decide.
        BadPiecesError: what a host showed is not what home asked for.
        StageFailedError: a stage failed in another way.
    """
    judgement = _Judgement(job, reply, inputs, parts or JudgedParts())
    return _run_stages(judgement, judgement.run_on_device if job.device else judgement.run)


def _run_stages(judgement: _Judgement, run: Callable[[], T]) -> JudgeOutcome | T:
    """Return what stages return; whatever they raise is a verdict, or a failure that names the stage."""
    try:
        return run()
    except RejectedError as rejected:
        return judgement.make_outcome(rejected.verdict, error=rejected.error)
    except KernelError as error:  # a limit that a stage had no use for: the kernel exceeds it all the same
        exceeded = reject_kernel_error(Verdict.RUNTIME_ERROR, error)
        return judgement.make_outcome(exceeded.verdict, error=exceeded.error)
    except MemoryError:
        found = ErrorInfo(code="out_of_memory", message="the kernel's tensors need more memory than allowed")
        return judgement.make_outcome(Verdict.RUNTIME_ERROR, error=found)
    except (BadReferenceError, UnsureError, BadPiecesError):
        raise
    except Exception as error:
        raise StageFailedError(judgement.stage, error) from error


def read_program(reply: bytes) -> Program:
    """Return the program in a tracer's reply.

    Raises:
        RejectedError: there is none, or it is not valid.
    """
    try:
        return protocol.parse_reply(reply)
    except KernelError as error:
        raise reject_kernel_error(Verdict.COMPILE_ERROR, error) from error
    except (IRError, InputError) as error:
        raise RejectedError(Verdict.COMPILE_ERROR, error.code, str(error)) from error


def _require_rules(program: Program, target: targets.Target, job: JudgeJob) -> None:
    expected = [
        ArraySpec(item.resolve_kernel_shape(job.spec.dims(job.size)), item.dtype) for item in job.spec.inputs
    ]
    if program.array_specs(program.inputs) != expected or program.target != job.target:
        raise RejectedError(
            Verdict.COMPILE_ERROR, "invalid_ir", "the program was not traced for this problem"
        )
    fault = output_fault(program.array_specs(program.outputs), job.spec, job.size)
    if fault is not None:
        raise RejectedError(Verdict.INCORRECT, *fault)
    _require_unmodified_inputs(program)
    _require_own_outputs(program)
    cores = len(set(program.cores.tolist()))
    if cores > 1:
        text = f"the kernel is launched on {cores} cores; a problem's bounds are those of one"
        raise RejectedError(Verdict.COMPILE_ERROR, "core_count", text, hint="launch it without [lnc]")
    asked, most = program_work(program), work_limits.work_limit(job.spec, job.size)
    if asked > most:
        text = f"running the kernel takes {asked} units of work, at most {most} are allowed"
        raise RejectedError(Verdict.TIMEOUT, "limit_work", text, hint="is something computed over and over?")
    require_hardware_rules(program, target)


def require_hardware_rules(program: Program, target: targets.Target) -> None:
    """Reject a program that breaks a rule of the hardware, or leaves part of an output unwritten.

    Raises:
        RejectedError: it does; the message names the first offence.
    """
    violations = checks.check(program, target)
    if violations:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise RejectedError(Verdict.COMPILE_ERROR, first.code, first.message + more, first.line, first.hint)


def _require_own_outputs(program: Program) -> None:
    """Reject a program that returns an argument: later changes of the argument would change the result."""
    for number in {*program.outputs} & {*program.inputs}:
        text = f"the kernel returns its input {program.site(number).name}"
        hint = "copy it to a tensor of the kernel's own, in nl.shared_hbm"
        raise RejectedError(Verdict.INCORRECT, "output_is_input", text, hint=hint)


def _require_unmodified_inputs(program: Program) -> None:
    """Reject a program that writes to its arguments; other kernels read them after it."""
    cells = program.cells
    for number in program.inputs:
        writes = cells.instruction[cells.writes & (cells.tensor == number)]
        if len(writes):
            text = f"the kernel writes to its input {program.site(number).name}"
            line = int(program.lines[writes[0]])
            hint = "write to a tensor of the kernel's own, in nl.shared_hbm for an output"
            raise RejectedError(Verdict.INCORRECT, "input_modified", text, line, hint)


def run_timing(compute: Callable[[], T]) -> T:
    """Return the result of a timing step.

    Raises:
        RejectedError: the program does not fit on the chip.
    """
    try:
        return compute()
    except ScheduleError as error:
        raise RejectedError(Verdict.COMPILE_ERROR, error.code, str(error)) from error


def timing_error(program: Program) -> ErrorInfo | None:
    """Return why the model cannot time a program; None if it can."""
    error = unknown_latency_error(program)
    if error is None:
        return None
    return ErrorInfo(code=error.code, message=error.message, line=error.line or None, hint=error.hint)


def _make_benchmark(found: Forecast, job: JudgeJob) -> Benchmark:
    predicted = run_timing(lambda: uncertainty.predict_interval(found))
    require_plausible_prediction(predicted.latency_ms, job.spec, job.size, job.target)
    return Benchmark(
        latency_ms=predicted.latency_ms,
        lo_ms=predicted.lo_ms,
        hi_ms=predicted.hi_ms,
        predicted=True,
        samples=1,
        draws_ms=tuple(float(f"{latency_ms:.6g}") for latency_ms in predicted.draws_ms),
        order_confidence=predicted.order_confidence,
        unlike=predicted.unlike,
    )


def require_plausible_prediction(latency_ms: float, spec: ProblemSpec, size: str, target: str) -> None:
    """Reject a prediction below what the device's peak rates allow in the fastest known way.

    Raises:
        RejectedError: a flaw of the model, or work left out.
    """
    found = warn_implausible(latency_ms, spec, size, target, said="predicted")
    if found is not None:
        raise RejectedError(Verdict.RUNTIME_ERROR, found.code, found.message)


def warn_implausible(
    latency_ms: float, spec: ProblemSpec, size: str, target: str, *, said: str
) -> ErrorInfo | None:
    """Return a warning if a latency is below what the device's peak rates allow, else None."""
    bound = physical_bound(spec.minimal_work(size), target)
    if latency_ms >= bound.ms:
        return None
    text = f"{said} {latency_ms:.6g} ms, no known kernel can be under {bound.ms:.6g} ms ({bound.source})"
    return ErrorInfo(code="faster_than_bound", message=text)


def warn_of_products(latency_ms: float, program: Program, target: str) -> tuple[ErrorInfo, ...]:
    """Return a warning if a prediction is below the time of the program's own products at their peak rate."""
    bound_ms = products_bound_ms(program, target)
    if latency_ms >= bound_ms:
        return ()
    text = (
        f"predicted {latency_ms:.6g} ms, but its products, as it computes them, take {bound_ms:.6g} ms at "
        "the tensor engine's peak rate"
    )
    return (ErrorInfo(code="faster_than_products", message=text),)


def _busy_timeline(timeline: Timeline) -> dict[str, Any]:
    """When each queue is busy, as shares of equal parts of the run; idle queues are left out."""
    shares = {queue: shares_percent(timeline, (queue,), TIMELINE_PARTS) for queue in QUEUES}
    return {
        "span_ms": span_ns(timeline) / 1e6,
        "busy_percent": {queue: parts for queue, parts in shares.items() if any(parts)},
    }


def _make_profile(found: Mapping[str, Any], explanation: explain.Explanation, predicted: Forecast) -> str:
    """The profile for proposers and people; times and counters are predicted."""
    target = predicted.target
    vain = find_inefficiencies(
        found,
        input_bytes=found["inputs_and_weights_size_bytes"],
        peak_flops=counters.peak_flops(target),
        loads=count_input_loads(predicted.compiled.program),
        program=predicted.compiled.program,
    )
    fields = {
        "predicted": True,
        "target": target.name,
        "counters": dict(found),
        "bottleneck": explanation.bottleneck,
        "busy_ms": explanation.busy_ms,
        "top_lines": [
            {"line": part.line, "ms": part.ms, "op": part.op}
            for part in explanation.critical_path[:_MAX_PROFILE_LINES]
        ],
        "waits_ms": {
            track.engine: {f"{wait.cause} {wait.on}".strip(): wait.ms for wait in track.waits}
            for track in explanation.tracks
        },
        "memory": {
            use.memory: {"peak": use.peak, "capacity": use.capacity, "unit": use.unit}
            for use in explanation.occupancy
        },
        "spilled": [asdict(item) for item in explanation.spilled[:_MAX_PROFILE_LINES]],
        "inefficiencies": [item.to_json() for item in vain],
        "timeline": _busy_timeline(predicted.timeline),
    }
    return canonical_json(fields).decode()
