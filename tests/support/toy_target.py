"""A whole target in one file: kernels of two settings that scale an array, on a made-up device.

It shows what a target owes (`targets/base.py`), and CONTRIBUTING walks through it. A kernel is two lines:

    scale = 2.0     what every element is multiplied by
    unroll = 1      elements per step; 8 is the fastest
"""

from __future__ import annotations

import re

from agent_core.effects import ImplementRequest, PlanRequest
from agent_core.roles import KernelAnswer, PlanAnswer, ReadBlob, RoleError
from agent_core.roles.mechanical import MechanicalLearner
from remote.evaluation_context import read_blob, read_problem
from remote.evaluator import BlobReader, EvaluationAnswer, PredictionRequest
from remote.judge.numerics import rel_l2
from remote.registry import EvaluatorResources, EvaluatorSpec
from seeds.inputs import draw_inputs
from seeds.spec import ProblemWork
from state import model
from targets.base import Parts, PeakRates, ProfileVocabulary, ProposerEntry, SourceError, Technique

_SETTING = re.compile(r"^(scale|unroll) = ([0-9.]+)$")
UNROLLS = (1, 2, 4, 8, 16)


def parse_kernel(source: str) -> dict[str, float]:
    lines = [_SETTING.match(line) for line in source.split("\n") if line.strip()]
    found = {line[1]: float(line[2]) for line in lines if line}
    if not all(lines) or found.keys() != {"scale", "unroll"}:
        raise SourceError("not_toy", "a kernel is two lines, scale = NUMBER and unroll = NUMBER")
    return found


class ToyLanguage:
    name, fence, kernel_file = "Toy", "text", "kernel.toy"

    def lint(self, source: bytes) -> model.ErrorInfo | None:
        try:
            parse_kernel(source.decode(errors="replace"))
        except SourceError as error:
            return model.ErrorInfo(code=error.code, message=str(error))
        return None

    def code_digest(self, source: bytes) -> model.Digest:
        return model.digest_of(b"\n".join(line.strip() for line in source.splitlines() if line.strip()))

    def kernel_names(self, source: str) -> frozenset[str]:
        parse_kernel(source)
        return frozenset({"scale"})

    def operators(self, source: str) -> frozenset[str]:
        return frozenset() if self.lint(source.encode()) else frozenset({"scale"})


class ToyTarget:
    name, family, title, roofline_name = "toy", "toy", "Toy device", "toy roofline"
    language, published, prediction_error, caveat = ToyLanguage(), None, None, ""
    peaks = PeakRates(bandwidth_gb_s=1.0, matmul_tflops=1.0, other_gflops=1.0)
    profile = ProfileVocabulary(counters=("steps",))
    parts = Parts(
        proposers={"unroll": ProposerEntry("tests.support.toy_target")},
        evaluators={"toy": "tests.support.toy_target:ToyEvaluator"},
    )

    def describe_toolchain(self) -> str:
        return "toy 1"

    def tight_bound_ms(self, work: ProblemWork) -> float:
        return self.peaks.roofline_ms(work)

    def engine_peaks(self) -> dict[str, float]:
        return {}

    def rewrites(self) -> tuple[str, ...]:
        return ("unroll",)

    def menu(self) -> dict[str, Technique]:
        return {"unroll": Technique("unroll", "Unroll", "Take more elements a step.", frozenset({"steps"}))}


class ToyEvaluator:
    """Runs a kernel with NumPy, compares it with the reference, and adds up what its steps would take."""

    name = "toy"

    def __init__(self, spec: EvaluatorSpec, resources: EvaluatorResources) -> None: ...

    def toolchain(self) -> str:
        return "toy 1"

    async def prepare(self) -> None: ...

    async def evaluate(self, request: model.EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        source, problem = read_blob(blobs, request.source), read_problem(blobs, request.problem)
        settings = parse_kernel(source.decode())
        exec(problem.files["reference.py"], names := dict[str, object]())
        (x,) = draw_inputs(problem.spec, request.size, problem.spec.seeds[0])
        error = rel_l2([x * x.dtype.type(settings["scale"])], [names["reference"](x)])  # type: ignore[operator]
        right, ms = error < problem.spec.rel_l2, x.size / 1e4 * (10 + abs(settings["unroll"] - 8))
        draws = (ms, 1.1 * ms)
        timed = model.Benchmark(latency_ms=ms, lo_ms=ms, hi_ms=ms, predicted=True, samples=1, draws_ms=draws)
        evaluation = model.Evaluation(
            verdict=model.Verdict.CORRECT if right else model.Verdict.INCORRECT,
            stage="timing" if right else "numerics",
            code=ToyTarget.language.code_digest(source),
            rel_l2={problem.spec.seeds[0]: error},
            error=None if right else model.ErrorInfo(code="wrong_result", message=f"error {error:.3g}"),
            benchmark=timed if right else None,
            bottleneck="steps" if right else None,
            target=request.target,
            toolchain=self.toolchain(),
            level=request.level,
        )
        return EvaluationAnswer(evaluation, {}, {"numerics": 0.0})

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> list[model.PredictedLatency]:
        return [model.PredictedLatency(latency_ms=1.0, instructions=1) for _ in request.sources]

    async def aclose(self) -> None: ...


class UnrollProposer(MechanicalLearner):
    """Plan number n sets the n-th unroll factor."""

    name, repairs = "unroll", False

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        if (number := model.EffectKey.parse(request.key).plan) >= len(UNROLLS):
            raise RoleError(model.ErrorInfo(code="nothing_applies", message="every factor was tried"))
        prediction = model.Prediction(speedup=1.5, reason="fewer steps")
        title = f"unroll = {UNROLLS[number]}"
        return PlanAnswer(model.Plan(technique="unroll", site="loop", title=title, prediction=prediction))

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        settings = parse_kernel(read(request.parent.source).decode())
        return KernelAnswer(f"scale = {settings['scale']}\n{request.plan.title}\n", request.plan.title)

    async def aclose(self) -> None: ...


def create() -> UnrollProposer:
    return UnrollProposer()


def load(name: str) -> ToyTarget:
    return ToyTarget()
