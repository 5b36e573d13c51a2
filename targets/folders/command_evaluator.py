"""Evaluates kernels by a command of the target's folder: it runs them, and their outputs are judged at home.

The command starts in the folder and gets one JSON object on stdin:

    format      1
    kernel      path of the kernel's source
    problem, size, dims, scalars (name and value, in order), inputs and outputs (name, dtype, shape)
    sets        for each input set the paths of its input files, and of the output files to write
    measure     whether the kernel is to be measured; if not, its outputs are enough

Files hold the elements alone, row-major, little-endian. It answers with one JSON object on stdout:

    error       if the kernel failed: code, message, and perhaps line; stage is "compile" or "execute"
    set         with an error: the number of the set on which it failed
    latency_ms  if it was measured; low_ms and high_ms of its interval, samples, predicted (true or false)
    counters    figures for the profile by name, and bottleneck

So a command cannot call a kernel right, and it sees no reference. It is not jailed: it belongs to whoever
made the folder, and must confine what it runs.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field, ValidationError

from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext
from remote.judge.job import JudgeOutcome
from remote.judge.rejection import escape_unprintable
from remote.judge.suite import draw_set
from remote.judge_service import JudgeService
from remote.processes import kill_process, read_bounded, start_process
from state.model import Benchmark, ErrorInfo, FrozenModel, Verdict, canonical_json, validation_reason
from targets.c.compiler import BuiltKernel, read_version
from targets.c.output_evaluator import OutputEvaluator
from targets.c.runner import ComparisonTask, ComputedOutputs, KernelFault, read_piece
from targets.folders.target import EVALUATOR, FolderTarget

_ANSWER_BYTES = 4 << 20
_VERDICTS = {
    "compile": Verdict.COMPILE_ERROR,
    "execute": Verdict.RUNTIME_ERROR,
    "timeout": Verdict.TIMEOUT,
}


class CommandError(FrozenModel):
    """How a kernel failed."""

    code: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    message: str
    stage: Literal["compile", "execute", "timeout"] = "execute"
    line: int | None = None


class CommandAnswer(FrozenModel):
    """What a command answers."""

    error: CommandError | None = None
    set: int = 0
    latency_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    low_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    high_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    samples: int = Field(default=1, ge=1)
    predicted: bool = False
    counters: dict[str, float] = Field(default_factory=dict)
    bottleneck: str | None = None


class CommandEvaluator(OutputEvaluator):
    """Judges kernels that a folder's command runs."""

    name = EVALUATOR

    def __init__(self, judge: JudgeService, target: FolderTarget) -> None:
        super().__init__(judge)
        self._target = target

    def toolchain(self) -> str:
        """Return what the command runs kernels with, and the folder.

        Raises:
            InfrastructureError: no_command.
        """
        return f"{find_command(self._target)}, {self._target.identity}"

    async def build(self, run: EvaluationContext) -> BuiltKernel | JudgeOutcome:
        """Return the kernel as it is: the command compiles it."""
        return BuiltKernel(Path(), run.request.source, 1)

    async def compute(
        self, run: EvaluationContext, built: BuiltKernel, task: ComparisonTask
    ) -> ComputedOutputs:
        """Have the command run a kernel on input sets.

        Raises:
            InfrastructureError: the command failed.
        """
        del built
        found = ComputedOutputs()
        with TemporaryDirectory(prefix="command-") as scratch:
            sets = await asyncio.to_thread(_write_sets, run, Path(scratch), task.sets)
            answer = await self._ask(run, Path(scratch), sets, measure=False)
            done: Sequence[str] = task.sets
            if answer.error is not None:
                done = task.sets[: max(0, answer.set)]
                where = task.sets[min(max(0, answer.set), len(task.sets) - 1)]
                found.fault = _make_fault(answer.error, where)
            for name in done:
                await asyncio.to_thread(_keep_outputs, run, task, name, sets[task.sets.index(name)], found)
        return found

    async def measure(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        outcome: JudgeOutcome,
        kept: Mapping[str, Sequence[bytes]],
    ) -> JudgeOutcome:
        """Have the command measure a kernel, on sets whose outputs are known to be right.

        Raises:
            InfrastructureError: the command failed, or did not measure.
        """
        del built
        names = list(kept)
        with TemporaryDirectory(prefix="command-") as scratch:
            sets = await asyncio.to_thread(_write_sets, run, Path(scratch), names)
            answer = await self._ask(run, Path(scratch), sets, measure=True)
        if answer.error is not None:
            return _make_fault(answer.error, "timing").outcome("benchmark")
        if answer.latency_ms is None:
            raise InfrastructureError("command_failed", "the command did not answer with latency_ms")
        low, high = answer.low_ms or answer.latency_ms, answer.high_ms or answer.latency_ms
        benchmark = Benchmark(
            latency_ms=answer.latency_ms,
            lo_ms=min(low, answer.latency_ms),
            hi_ms=max(high, answer.latency_ms),
            predicted=answer.predicted,
            samples=answer.samples,
        )
        profile = {
            "predicted": answer.predicted,
            "target": run.request.target,
            "counters": {"time_ns": answer.latency_ms * 1e6, **answer.counters},
            "bottleneck": answer.bottleneck,
        }
        fields: dict[str, Any] = {
            "stage": "benchmark",
            "benchmark": benchmark,
            "profile": canonical_json(profile).decode(),
            "bottleneck": answer.bottleneck,
        }
        return outcome.model_copy(update=fields)

    async def _ask(
        self, run: EvaluationContext, scratch: Path, sets: Sequence[Mapping[str, Any]], *, measure: bool
    ) -> CommandAnswer:
        """Ask the command once.

        Raises:
            InfrastructureError: no_command, or command_failed.
        """
        spec, size = run.problem.spec, run.request.size
        dims = spec.dims(size)
        kernel = scratch / self._target.language.kernel_file
        await asyncio.to_thread(kernel.write_bytes, run.source)
        request = {
            "format": 1,
            "kernel": str(kernel),
            "problem": spec.name,
            "size": size,
            "dims": dict(dims),
            "scalars": [{"name": item.name, "value": item.value} for item in spec.scalars],
            "inputs": [_describe_array(item, dims) for item in spec.inputs],
            "outputs": [_describe_array(item, dims) for item in spec.outputs],
            "sets": sets,
            "measure": measure,
        }
        data = await self._run_command(json.dumps(request).encode())
        try:
            return CommandAnswer.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            text = f"the command's answer is wrong: {where}: {validation_reason(first)} ({data[:200]!r})"
            raise InfrastructureError("command_failed", text) from None

    async def _run_command(self, request: bytes) -> bytes:
        told = self._target.folder.description.command
        assert told is not None
        find_command(self._target)
        process = await start_process(
            *_resolve_command(told.run),
            cwd=self._target.folder.path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        try:
            async with asyncio.timeout(told.deadline_s):
                process.stdin.write(request)
                process.stdin.close()
                (output, truncated), (errors, _) = await asyncio.gather(
                    read_bounded(process.stdout, _ANSWER_BYTES), read_bounded(process.stderr, 1 << 14)
                )
                await process.wait()
        except TimeoutError:
            text = f"{told.run[0]} did not end in {told.deadline_s:g} s"
            return _answer_timeout(text)
        finally:
            await kill_process(process)
        if process.returncode or truncated:
            last = errors.decode(errors="replace").strip()[-500:]
            text = f"{' '.join(told.run)} ended with status {process.returncode}: {last}"
            raise InfrastructureError("command_failed", text)
        return output


def _answer_timeout(text: str) -> bytes:
    error = CommandError(code="deadline", message=text, stage="timeout")
    return CommandAnswer(error=error).model_dump_json().encode()


def find_command(target: FolderTarget) -> str:
    """Return what a folder's command runs kernels with.

    Raises:
        InfrastructureError: no_command.
    """
    told = target.folder.description.command
    assert told is not None
    program = _resolve_command(told.run)[0]
    if shutil.which(program, path=None) is None and not (target.folder.path / program).is_file():
        raise InfrastructureError("no_command", f"{program} is not here", retryable=False)
    return read_version(*_resolve_command(told.version)) if told.version else " ".join(told.run)


def _resolve_command(command: Sequence[str]) -> list[str]:
    """`python3` is the interpreter that runs this program: it has what its environment has."""
    return [sys.executable if command[0] == "python3" else command[0], *command[1:]]


def _describe_array(item: Any, dims: Mapping[str, int]) -> dict[str, Any]:
    return {"name": item.name, "dtype": item.dtype, "shape": list(item.resolve_shape(dims))}


def _write_sets(run: EvaluationContext, scratch: Path, names: Sequence[str]) -> list[dict[str, list[str]]]:
    found = []
    for number, name in enumerate(names):
        arrays = draw_set(run.problem.spec, run.request.size, name)
        inputs = [scratch / f"{number}-{item.name}.bin" for item in run.problem.spec.inputs]
        for path, array in zip(inputs, arrays, strict=True):
            path.write_bytes(array.tobytes())
        outputs = [scratch / f"{number}-{item.name}.out" for item in run.problem.spec.outputs]
        found.append({"inputs": list(map(str, inputs)), "outputs": list(map(str, outputs))})
    return found


def _keep_outputs(
    run: EvaluationContext,
    task: ComparisonTask,
    name: str,
    files: Mapping[str, Sequence[str]],
    found: ComputedOutputs,
) -> None:
    """Read the outputs of a set; a file that is missing or has another size is a fault of the kernel."""
    dims = run.problem.spec.dims(run.request.size)
    outputs = []
    for item, path in zip(run.problem.spec.outputs, files["outputs"], strict=True):
        data = Path(path).read_bytes() if Path(path).is_file() else b""
        if len(data) != item.nbytes(dims):
            text = f"the output {item.name} has {len(data)} bytes, {item.nbytes(dims)} are right"
            found.fault = found.fault or KernelFault(
                name, Verdict.INCORRECT, ErrorInfo(code="wrong_size", message=text)
            )
            return
        outputs.append(data)
    for piece in task.pieces:
        if piece.set == name:
            found.shown[piece] = read_piece(run, piece, outputs[piece.output])
    if name in task.kept:
        found.kept[name] = outputs


def _make_fault(error: CommandError, where: str) -> KernelFault:
    message = escape_unprintable(error.message)[:2000]
    return KernelFault(
        where, _VERDICTS[error.stage], ErrorInfo(code=error.code, message=message, line=error.line)
    )
