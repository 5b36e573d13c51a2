"""Judges the outputs of a kernel that ran on a host, from the parts that the host shows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext, select_input_sets
from remote.judge.job import HostOutputs, JudgeOutcome, OutputPiece, PiecesNeeded
from remote.judge.rejection import RejectedError, escape_unprintable
from remote.judge_service import JudgeService, select_judged_sets
from remote.references import ReferenceFiles
from remote.ssh.errors import HostProtocolError
from remote.ssh.host_inputs import HostInputs
from remote.ssh.steps import (
    DEVICE_S,
    LONG_S,
    CompiledKernel,
    EvaluationSteps,
    KernelFailedError,
    drawing_payload,
)
from state.model import ErrorInfo, Verdict

_DIGEST_CHARS = 64
_INPUT_ERROR, _LIMIT_ERROR = "InputError", "LimitError"
"""A host's names for inputs on which a kernel cannot run, and for exceeding the limit of work."""


@dataclass(frozen=True)
class _Execution:
    """A kernel that ran: digests of its outputs by set, and the set on which it failed, if any."""

    outputs: Mapping[str, list[str]]
    ended: dict[str, tuple[Verdict, ErrorInfo]]


class OutputComparer:
    """Judges what kernels computed on hosts, with the references and the workers of `judge`."""

    def __init__(self, judge: JudgeService) -> None:
        self._judge = judge
        self._draws = HostInputs(judge.home, judge.workers)

    async def judge(
        self, run: EvaluationContext, steps: EvaluationSteps, compiled: CompiledKernel
    ) -> JudgeOutcome:
        """Run the kernel on the host as its level requires, and judge the parts that the host shows.

        Raises:
            KernelFailedError: the device did not load the kernel.
            InfrastructureError: no verdict could be reached.
        """
        wholes, sets = select_input_sets(run, self._judge.references.secret)
        async with run.time_stage("references"):
            found = await self._judge.load_references(run, wholes, sets)
            judged, wanted = await asyncio.to_thread(select_judged_sets, run, found, wholes, sets)
        async with run.time_stage("draw"):
            await self._draws.verify_inputs(steps, run.problem.spec, size=run.request.size, sets=wanted)
        async with run.time_stage("execute"):
            ran = await _execute_sets(run, steps, compiled=compiled, sets=wanted)
        async with run.time_stage("compare"):
            pieces, seed = self._select_pieces(run, compiled, ran=ran, asked=(judged, wholes))
            with TemporaryDirectory(prefix="nki-shown-") as folder:
                path = Path(folder) / "pieces.bin"
                while True:
                    path.write_bytes(await _fetch_pieces(run, steps, ran=ran, seed=seed, pieces=pieces))
                    told = HostOutputs(file=str(path), pieces=tuple(pieces), seed=seed, ended=ran.ended)
                    outcome = await self._judge_pieces(
                        run, found, told=told, compiled=compiled, address=steps.address
                    )
                    if isinstance(outcome, JudgeOutcome):
                        return outcome
                    pieces = _request_full_pieces(run, pieces, outcome.places)

    def _select_pieces(
        self,
        run: EvaluationContext,
        compiled: CompiledKernel,
        *,
        ran: _Execution,
        asked: tuple[Sequence[str], Sequence[str]],
    ) -> tuple[list[OutputPiece], str]:
        """The pieces that the host must show, of tiles and of whole outputs, and the seed of its sketches."""
        from remote.judge import host_outputs

        spec, size, secret = run.problem.spec, run.request.size, self._judge.references.secret
        sets, wholes = ([name for name in names if name in ran.outputs] for names in asked)
        pieces = host_outputs.request_pieces(
            spec, size, secret=secret, artefact=compiled.drawn_by, sets=sets, wholes=wholes
        )
        return pieces, host_outputs.derive_sketch_seed(secret, compiled.digest, ran.outputs)

    async def _judge_pieces(
        self,
        run: EvaluationContext,
        found: ReferenceFiles,
        *,
        told: HostOutputs,
        compiled: CompiledKernel,
        address: str,
    ) -> JudgeOutcome | PiecesNeeded:
        try:
            return await self._judge.judge_outputs(
                run, found, compiled.program, shown=told, device=compiled.device
            )
        except InfrastructureError as error:
            if error.code == "bad_pieces":
                raise HostProtocolError(f"{address}: {error.message}") from error
            raise


def _request_full_pieces(
    run: EvaluationContext, pieces: Sequence[OutputPiece], places: Sequence[int]
) -> list[OutputPiece]:
    """The same pieces; those at `places` as bytes instead of sketches."""
    from remote.judge import host_outputs

    full = host_outputs.request_full_pieces(run.problem.spec, run.request.size, [pieces[at] for at in places])
    others = dict(zip(places, full, strict=True))
    return [others.get(at, piece) for at, piece in enumerate(pieces)]


async def _execute_sets(
    run: EvaluationContext, steps: EvaluationSteps, *, compiled: CompiledKernel, sets: Sequence[str]
) -> _Execution:
    """Run the kernel on these sets on the host, in order, until it fails on one."""
    from remote.judge import work_limits

    payload = {
        **drawing_payload(run.problem.spec, run.request.size),
        **compiled.call,
        "sets": list(sets),
        "sizes": _output_sizes(run),
        "work": work_limits.work_limit(run.problem.spec, run.request.size),
    }
    deadline_s = DEVICE_S if compiled.device else LONG_S
    answer = await steps.run_step("execute", payload, cores=1, deadline_s=deadline_s)
    if compiled.device and "error" in answer.fields:
        raise KernelFailedError("execute", answer)
    told = answer.fields.get("sets")
    outputs: dict[str, list[str]] = {}
    for name in sets:
        item = told.get(name) if isinstance(told, Mapping) else None
        if not isinstance(item, Mapping):
            raise HostProtocolError(f"{steps.address}: it says nothing of input set {name}")
        if "error" in item:
            return _Execution(outputs, {name: parse_kernel_fault(item["error"])})
        digests = item.get("outputs")
        if not isinstance(digests, list) or not all(_is_digest(digest) for digest in digests):
            raise HostProtocolError(f"{steps.address}: outputs of input set {name} have no digests")
        outputs[name] = digests
    return _Execution(outputs, {})


def _output_sizes(run: EvaluationContext) -> list[int]:
    """The size of each output in bytes."""
    from seeds.inputs import dtype_of

    spec, dims = run.problem.spec, run.problem.spec.dims(run.request.size)
    return [dtype_of(item.dtype).itemsize * prod(item.resolve_shape(dims)) for item in spec.outputs]


def _is_digest(text: Any) -> bool:
    return isinstance(text, str) and len(text) == _DIGEST_CHARS


def parse_kernel_fault(told: Any) -> tuple[Verdict, ErrorInfo]:
    """The verdict on a kernel that failed while it ran, in the judge's words."""
    fields = told if isinstance(told, Mapping) else {}
    code, message, hint = (str(fields.get(name, ""))[:4000] for name in ("code", "message", "hint"))
    line = fields.get("line")
    place = line if isinstance(line, int) and 0 < line < 1 << 31 else 0
    kind = fields.get("type")
    if kind == _INPUT_ERROR:
        rejected = RejectedError(Verdict.RUNTIME_ERROR, code, message)
    else:
        endless = kind == _LIMIT_ERROR and code != "limit_memory"
        rejected = RejectedError(
            Verdict.TIMEOUT if endless else Verdict.RUNTIME_ERROR,
            code or "runtime_error",
            escape_unprintable(message),
            place,
            escape_unprintable(hint),
        )
    return rejected.verdict, rejected.error


async def _fetch_pieces(
    run: EvaluationContext,
    steps: EvaluationSteps,
    *,
    ran: _Execution,
    seed: str,
    pieces: Sequence[OutputPiece],
) -> bytes:
    """Fetch pieces from the host; they are requested by output, whichever job computed it."""
    if not pieces:
        return b""
    spec, dims = run.problem.spec, run.problem.spec.dims(run.request.size)
    payload = {
        "seed": seed,
        "outputs": dict(ran.outputs),
        "dtypes": [item.dtype for item in spec.outputs],
        "shapes": [list(item.resolve_shape(dims)) for item in spec.outputs],
        "pieces": [
            {"set": item.set, "output": item.output, "box": item.box and [list(edge) for edge in item.box],
             "bins": item.bins}
            for item in pieces
        ],
    }  # fmt: skip
    answer = await steps.run_step("compare", payload, deadline_s=LONG_S)
    return await steps.fetch_file(answer, "pieces.bin", most=sum(piece.nbytes for piece in pieces))
