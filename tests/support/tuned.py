"""What tests of tuning share: a workload's file, and a judge that times rendered kernels by their text."""

from __future__ import annotations

import json
import re
from typing import Any

from remote import code_digest
from remote.evaluator import EvaluationAnswer
from state.model import Benchmark, Candidate, ErrorInfo, Evaluation, Level, Predicted, Verdict, digest_of
from tests.daemon.fakes import TOOLCHAIN, FakeEvaluator

HEAD = """import numpy as np
from nkigym.ops import NKIMatmul, NKITranspose

SCALE = 1.0


def scaled(x):
    # What the mathematics takes from the module comes along.
    return x * SCALE
"""

FUNCTIONS = """

def f_nkigym(lhs, rhs):
    lhs_T = NKITranspose()(data=lhs)
    output = NKIMatmul()(stationary=lhs_T, moving=rhs)
    return output


def f_numpy(lhs, rhs):
    return scaled(np.matmul(lhs, rhs))
"""

NAMES = """

INPUT_SPECS = {"lhs": ((512, 512), "float32"), "rhs": ((512, 1024), "float32")}
CACHE_ROOT = "cache"
HOSTS = []
TARGET_MFU = 0.25
"""

WORKLOAD = HEAD + FUNCTIONS + NAMES


def judged(source: bytes, target: str, level: Level) -> EvaluationAnswer:
    """A verdict by the text alone: fewer transfers are faster, and one in eleven codes is wrong."""
    code = code_digest(source)
    common: dict[str, Any] = {"code": code, "target": target, "toolchain": TOOLCHAIN, "level": level}
    if int(code[:8], 16) % 11 == 0:
        error = ErrorInfo(code="wrong_result", message="relative L2 error 1", line=3)
        wrong = Evaluation(
            verdict=Verdict.INCORRECT, stage="numerics", error=error, rel_l2={0: 1.0}, **common
        )
        return EvaluationAnswer(wrong, {}, {})
    ms = latency_ms(source)
    profile = json.dumps({"counters": {"mbu_estimated_percent": 10 / ms}}).encode()
    good = Evaluation(
        verdict=Verdict.CORRECT,
        stage="profile",
        rel_l2={0: 1e-7},
        benchmark=Benchmark(
            latency_ms=ms, lo_ms=0.9 * ms, hi_ms=1.1 * ms, predicted=True, samples=1, draws_ms=(ms, 1.1 * ms)
        ),
        profile=digest_of(profile),
        bottleneck="dma",
        **common,
    )
    return EvaluationAnswer(good, {digest_of(profile): profile}, {})


def latency_ms(source: bytes) -> float:
    """Loops cost their trips, a little more where they are deep; instructions cost something each."""
    text = source.decode()
    trips = sum(int(count) for count in re.findall(r" in range\((\d+)\)", text))
    return 0.01 + 0.001 * trips + 0.0001 * text.count("nisa.") + 0.00001 * text.count("    ")


class TextJudge(FakeEvaluator):
    """Judges and predicts rendered kernels in no time."""

    async def evaluate(self, request: Any, blobs: Any, /) -> EvaluationAnswer:
        source = blobs.get_blob(request.source)
        self.calls[request.source] = self.calls.get(request.source, 0) + 1
        return judged(source, request.target, request.level)

    async def predict(self, request: Any, blobs: Any, /) -> list[Predicted]:
        return [predicted(source) for source in request.sources]


def predicted(source: str) -> Predicted:
    """A prediction as `judged` times it."""
    data = source.encode()
    return Predicted(latency_ms=latency_ms(data), code=code_digest(data), instructions=100)


def kernel(name: str, ms: float) -> Candidate:
    """A kernel that a run has, by its id and latency."""
    timed = Benchmark(latency_ms=ms, lo_ms=ms, hi_ms=ms, predicted=True, samples=1)
    return Candidate(
        id=name, parent=None, lineage="l", round=1, source="0" * 64, code="0" * 64, technique=None, title="t",
        benchmark=timed, profile=None, bottleneck=None,
    )  # fmt: skip
