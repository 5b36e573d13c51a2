"""Runs compiled kernels in the jail: draws their inputs, hands over files, and reads what comes back."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import targets
from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext
from remote.jail_backends import JailedProgram, JailLimits, JailStrength
from remote.judge.job import JudgeOutcome, OutputPiece
from remote.judge.rejection import escape_unprintable
from remote.judge.suite import draw_set
from remote.sandbox import JailResult, run_jailed
from seeds.inputs import dtype_of
from state.model import ErrorInfo, Verdict
from targets.c.compiler import BuiltKernel
from targets.c.foreign_runner import ForeignRunner
from targets.c.hardware_counters import lend_counters

CALL_S = 60.0
"""Seconds after which one call of a kernel counts as endless."""

_CHUNK_BYTES = 1 << 30
"""Arrays of the input sets that are in memory at a time."""

_LIMITS = JailLimits(
    cpu_s=1200,
    wall_s=1800,
    memory_bytes=16 << 30,
    file_bytes=8 << 30,
    open_files=1024,
    processes=1 << 15,
    answer_bytes=16 << 20,
)
_TWO_ERRORS = 4.0
"""Two correct kernels differ by at most two tolerances on whole outputs; a window may have twice their
error."""
_VERDICTS = {"deadline": Verdict.TIMEOUT, "cpu_limit": Verdict.TIMEOUT}
_CHEATING = frozenset({"wrote_outside", "works_after_return", "wrong_while_timed"})


@dataclass(frozen=True, slots=True)
class KernelFault:
    """How a kernel failed in the jail: on which input set (`timing` while it was timed), and the verdict."""

    where: str
    verdict: Verdict
    error: ErrorInfo

    def outcome(self, stage: str) -> JudgeOutcome:
        """Return the fault as an outcome."""
        return JudgeOutcome(verdict=self.verdict, stage=stage, error=self.error)


@dataclass(frozen=True, slots=True)
class TimingTask:
    """How much to measure: at most `rounds` of `pairs` runs after `warmups`, and no new round after
    `seconds`."""

    warmups: int = 2
    pairs: int = 10
    rounds: int = 20
    seconds: float = 8.0


@dataclass(frozen=True, slots=True)
class ComparisonTask:
    """What to run and show: input sets, pieces of their outputs, and sets whose outputs are kept whole."""

    sets: Sequence[str]
    pieces: Sequence[OutputPiece]
    kept: Sequence[str]


@dataclass
class ComputedOutputs:
    """What a kernel computed: pieces, whole outputs by set, and the fault that ended it."""

    shown: dict[OutputPiece, bytes] = field(default_factory=dict)
    kept: dict[str, list[bytes]] = field(default_factory=dict)
    fault: KernelFault | None = None


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """Times in ns (or counts) of each kernel, and of the first one: outputs by set, and hardware counters of
    one call where they are allowed.
    """

    samples: Sequence[Sequence[int]]
    outputs: Mapping[str, Sequence[bytes]]
    counters: Mapping[str, float]


class ArrayFiles:
    """Files in memory for the arrays of a problem; the caller closes them."""

    def __init__(self, run: EvaluationContext) -> None:
        spec, dims = run.problem.spec, run.problem.spec.dims(run.request.size)
        self._run = run
        self.input_bytes = [item.nbytes(dims) for item in spec.inputs]
        self.output_bytes = [item.nbytes(dims) for item in spec.outputs]
        self._opened: list[int] = []

    @property
    def set_bytes(self) -> int:
        """Bytes of all arrays of one input set."""
        return sum(self.input_bytes) + sum(self.output_bytes)

    def draw_inputs(self, name: str) -> list[int]:
        """Draw an input set; return a file for each array."""
        return self.store_arrays(draw_set(self._run.problem.spec, self._run.request.size, name))

    def store_arrays(self, arrays: Iterable[Any]) -> list[int]:
        """Return a file for each array."""
        return [self._store(array) for array in arrays]

    def make_outputs(self) -> list[int]:
        """Return an empty file for each output."""
        return [self._open(size) for size in self.output_bytes]

    def _open(self, nbytes: int) -> int:
        fd = os.memfd_create("array")
        self._opened.append(fd)
        os.ftruncate(fd, nbytes)
        return fd

    def _store(self, array: Any) -> int:
        fd = self._open(array.nbytes)
        view, at = memoryview(array).cast("B") if array.dtype.kind != "V" else memoryview(array.tobytes()), 0
        while at < len(view):
            at += os.pwrite(fd, view[at : at + (1 << 26)], at)
        return fd

    def close(self, files: Iterable[int] | None = None) -> None:
        """Close these files, or all."""
        for fd in list(self._opened if files is None else files):
            self._opened.remove(fd)
            os.close(fd)


class KernelRunner:
    """Runs kernels in jails of this strength, one at a time: they would disturb each other's times.

    `foreign` starts kernels that are not for this machine's CPU.
    """

    def __init__(self, strength: JailStrength, foreign: ForeignRunner | None = None) -> None:
        self._strength = strength
        self._foreign = foreign
        self._device = asyncio.Lock()

    async def compute(
        self, built: BuiltKernel, run: EvaluationContext, task: ComparisonTask
    ) -> ComputedOutputs:
        """Run a kernel on input sets, in order, until it fails on one.

        Raises:
            InfrastructureError: the jail failed.
        """
        found, arrays = ComputedOutputs(), ArrayFiles(run)
        for chunk in _split_sets(task.sets, arrays.set_bytes):
            found.fault = await self._compute_chunk(built, run, arrays, task=task, chunk=chunk, found=found)
            if found.fault is not None:
                break
        return found

    async def _compute_chunk(
        self,
        built: BuiltKernel,
        run: EvaluationContext,
        arrays: ArrayFiles,
        *,
        task: ComparisonTask,
        chunk: Sequence[str],
        found: ComputedOutputs,
    ) -> KernelFault | None:
        files = {}
        try:
            for name in chunk:
                drawn = await asyncio.to_thread(arrays.draw_inputs, name)
                files[name] = {"inputs": drawn, "outputs": arrays.make_outputs()}
            again = arrays.make_outputs()
            request = {"compare": {"sets": files, "again": again}}
            used = [fd for one in files.values() for part in one.values() for fd in part]
            told = await self._run([built], arrays, run, request, [*used, *again])
            fault = _read_fault(told)
            ended = list(chunk).index(fault.where) if fault and fault.where in chunk else len(chunk)
            done = chunk[:ended]
            for piece in task.pieces:
                if piece.set in done:
                    found.shown[piece] = _read_piece_of_file(
                        run, piece, files[piece.set]["outputs"][piece.output]
                    )
            for name in task.kept:
                if name in done:
                    found.kept[name] = [_read_all(fd) for fd in files[name]["outputs"]]
            if fault is None:
                fault = _compare_again(run, chunk[0], files[chunk[0]]["outputs"], again=again)
            return fault
        finally:
            arrays.close()

    async def compute_on(
        self, built: BuiltKernel, run: EvaluationContext, inputs: Sequence[Any]
    ) -> list[bytes] | KernelFault:
        """Run a kernel on these arrays; return its outputs.

        Raises:
            InfrastructureError: the jail failed.
        """
        arrays = ArrayFiles(run)
        try:
            drawn = await asyncio.to_thread(arrays.store_arrays, inputs)
            outputs, again = arrays.make_outputs(), arrays.make_outputs()
            sets = {"given": {"inputs": drawn, "outputs": outputs}}
            request = {"compare": {"sets": sets, "again": again}}
            told = await self._run([built], arrays, run, request, [*drawn, *outputs, *again])
            return _read_fault(told) or [_read_all(fd) for fd in outputs]
        finally:
            arrays.close()

    async def time(
        self,
        kernels: Sequence[BuiltKernel],
        run: EvaluationContext,
        *,
        sets: Sequence[str],
        task: TimingTask,
    ) -> TimedCalls | KernelFault:
        """Time kernels in turns.

        Raises:
            InfrastructureError: the jail failed.
        """
        arrays = ArrayFiles(run)
        try:
            pool = [await asyncio.to_thread(arrays.draw_inputs, name) for name in sets]
            checks = [{"pool": number, "outputs": arrays.make_outputs()} for number in range(len(sets))]
            told_task = {
                "pool": pool, "checks": checks, "warmups": task.warmups, "pairs": task.pairs,
                "rounds": task.rounds, "seconds": task.seconds, "seed": os.urandom(16).hex(),
                "dtypes": [item.dtype for item in run.problem.spec.outputs],
                "tolerance": _TWO_ERRORS * run.problem.spec.rel_l2,
            }  # fmt: skip
            used = [fd for files in (*pool, *(check["outputs"] for check in checks)) for fd in files]  # type: ignore[attr-defined]
            with lend_counters() if self._foreign is None else nullcontext() as counters:
                lent = [] if counters is None else [counters]
                request = {"time": told_task, "counters": counters}
                told = await self._run(kernels, arrays, run, request, [*used, *lent])
            fault = _read_fault(told)
            if fault is not None:
                return fault
            outputs = {
                sets[number]: [_read_all(fd) for fd in checks[number]["outputs"]]
                for number in told["checked"]
            }
            return TimedCalls(told["samples"], outputs, told["counters"])
        finally:
            arrays.close()

    async def _run(
        self,
        kernels: Sequence[BuiltKernel],
        arrays: ArrayFiles,
        run: EvaluationContext,
        task: Mapping[str, Any],
        files: Sequence[int],
    ) -> dict[str, Any]:
        spec = run.problem.spec
        arguments = spec.call_arguments([None] * len(spec.inputs), lambda value: [value])
        threads = [kernel.threads for kernel in kernels]
        started = await self._foreign.start(run) if self._foreign is not None else None
        request = {
            "libraries": [str(kernel.library) for kernel in kernels],
            "threads": threads,
            "scalars": [[place, item[0]] for place, item in enumerate(arguments) if item is not None],
            "inputs": arrays.input_bytes,
            "outputs": arrays.output_bytes,
            "cores": choose_cores(max(threads)),
            "deadline_s": CALL_S,
            "runner": started.request() if started else None,
            "counters": None,
            **task,
        }
        folders = [*(kernel.folder for kernel in kernels), *(started.folders if started else ())]
        program = JailedProgram(
            "targets.c.jailed.run_kernel",
            packages=(Path(targets.__file__).parent, *folders),
            threads=True,
            programs=started is not None,
            limits=_LIMITS,
        )
        async with self._device, _timed(run):
            result = await run_jailed(
                program, json.dumps(request).encode(), strength=self._strength, files=files
            )
        return _read_answer(result)


@asynccontextmanager
async def _timed(run: EvaluationContext) -> AsyncIterator[None]:
    """Add the time that the device is used to the evaluation's."""
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        yield
    finally:
        run.device_s = (run.device_s or 0.0) + clock() - began


def choose_cores(threads: int) -> list[int]:
    """Return the cores for a kernel of so many threads: the last ones, and never the first if there are
    others."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-min(threads, max(1, len(cores) - 1)) :]


def _split_sets(sets: Sequence[str], set_bytes: int) -> list[Sequence[str]]:
    count = max(1, _CHUNK_BYTES // set_bytes)
    return [sets[start : start + count] for start in range(0, len(sets), count)]


def _read_answer(result: JailResult) -> dict[str, Any]:
    """Parse what the jail answered.

    Raises:
        InfrastructureError: jail_killed, run_failed.
    """
    if result.cpu_exhausted or result.asleep:
        return {"error": {"set": "", "code": "cpu_limit", "message": "the kernel used up its CPU time"}}
    if result.was_killed:
        raise InfrastructureError("jail_killed", "the kernel's jail was killed from outside (out of memory?)")
    try:
        told = json.loads(result.answer)
    except ValueError:
        last = result.stderr.strip()[-500:]
        text = f"the process that runs kernels ended with status {result.exit_status}: {last}"
        raise InfrastructureError("run_failed", text) from None
    assert isinstance(told, dict)
    return told


def _read_fault(told: Mapping[str, Any]) -> KernelFault | None:
    error = told.get("error")
    if error is None:
        return None
    code, message = str(error["code"]), escape_unprintable(str(error["message"]))
    if code == "no_filter":
        raise InfrastructureError("no_filter", message, retryable=False)
    default = Verdict.INCORRECT if code in _CHEATING else Verdict.RUNTIME_ERROR
    verdict = _VERDICTS.get(code, default)
    return KernelFault(str(error["set"]), verdict, ErrorInfo(code=code, message=message))


def _compare_again(
    run: EvaluationContext, name: str, first: Sequence[int], *, again: Sequence[int]
) -> KernelFault | None:
    """The fault of a kernel whose outputs depend on what it was called with before."""
    outputs = [_read_all(fd) for fd in again]
    if have_same_outputs(run, [_read_all(fd) for fd in first], outputs):
        return None
    text = f"the same inputs (set {name}) gave other outputs in a later call"
    return KernelFault(name, Verdict.INCORRECT, ErrorInfo(code="depends_on_calls", message=text))


def have_same_outputs(run: EvaluationContext, first: Sequence[bytes], again: Sequence[bytes]) -> bool:
    """Whether outputs are the same up to the problem's tolerance: sums of threads may differ in their
    order."""
    import numpy as np

    from remote.judge.numerics import BadReferenceError, rel_l2

    if all(one == other for one, other in zip(first, again, strict=True)):
        return True
    arrays = [
        [
            np.frombuffer(data, dtype_of(item.dtype))
            for data, item in zip(found, run.problem.spec.outputs, strict=True)
        ]
        for found in (again, first)
    ]
    try:
        return rel_l2(*arrays) < run.problem.spec.rel_l2
    except BadReferenceError:  # not finite, or zero everywhere, and not the same
        return False


def _read_all(fd: int) -> bytes:
    size, data = os.fstat(fd).st_size, bytearray()
    while len(data) < size:
        data += os.pread(fd, size - len(data), len(data))
    return bytes(data)


def read_piece(run: EvaluationContext, piece: OutputPiece, data: bytes | mmap.mmap) -> bytes:
    """Return the bytes of a part of an output."""
    import numpy as np

    item, dims = run.problem.spec.outputs[piece.output], run.problem.spec.dims(run.request.size)
    array = np.frombuffer(data, dtype_of(item.dtype)).reshape(item.resolve_shape(dims))
    box = () if piece.box is None else tuple(slice(first, end) for first, end in piece.box)
    return array[box].tobytes()


def _read_piece_of_file(run: EvaluationContext, piece: OutputPiece, fd: int) -> bytes:
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
        return read_piece(run, piece, mapping)
