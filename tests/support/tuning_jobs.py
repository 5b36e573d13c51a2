"""What tests of tuning share: a workload's file, and a judge that times rendered kernels by their text."""

from __future__ import annotations

import json
import re
from typing import Any

from remote import code_digest
from remote.evaluator import EvaluationAnswer
from state.model import (
    Benchmark,
    Candidate,
    ErrorInfo,
    Evaluation,
    Level,
    PredictedLatency,
    Verdict,
    digest_of,
)
from tests.support.fakes import TOOLCHAIN, FakeEvaluator

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


def judge_by_text(source: bytes, target: str, level: Level, ms: float) -> EvaluationAnswer:
    """A verdict by the text alone: all are right."""
    code = code_digest(source, "trn2")
    common: dict[str, Any] = {"code": code, "target": target, "toolchain": TOOLCHAIN, "level": level}
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
    return 0.1 + 0.01 * trips + 0.001 * text.count("nisa.") + 0.0001 * text.count("    ")


class TextJudge(FakeEvaluator):
    """Judges and predicts rendered kernels in no time; the one it judges first is slow, so that some gain.

    Those whose digest begins with a digit of `wrong` are wrong, the first aside.
    """

    first: bytes = b""
    wrong: str = ""

    def _ms(self, source: bytes) -> float:
        return latency_ms(source) * (2 if source == self.first else 1)

    async def evaluate(self, request: Any, blobs: Any, /) -> EvaluationAnswer:
        source = blobs.get_blob(request.source)
        self.calls[request.source] = self.calls.get(request.source, 0) + 1
        self.first = self.first or source
        answer = judge_by_text(source, request.target, request.level, self._ms(source))
        if source == self.first or not request.source.startswith(tuple(self.wrong)):
            return answer
        error = ErrorInfo(code="wrong_result", message="relative L2 error 1", line=3)
        changes = {"verdict": Verdict.INCORRECT, "stage": "numerics", "error": error, "rel_l2": {0: 1.0}}
        told = answer.evaluation.model_copy(update={**changes, "benchmark": None, "profile": None})
        return EvaluationAnswer(told, {}, {})

    async def predict(self, request: Any, blobs: Any, /) -> list[PredictedLatency]:
        texts = request.sources
        return [
            predict_by_text(text).model_copy(update={"latency_ms": self._ms(text.encode())}) for text in texts
        ]


def predict_by_text(source: str) -> PredictedLatency:
    """A prediction as `judge_by_text` times it."""
    data = source.encode()
    return PredictedLatency(latency_ms=latency_ms(data), code=code_digest(data, "trn2"), instructions=100)


def kernel(name: str, ms: float) -> Candidate:
    """A kernel that a run has, by its id and latency."""
    timed = Benchmark(latency_ms=ms, lo_ms=ms, hi_ms=ms, predicted=True, samples=1)
    return Candidate(
        id=name, parent=None, lineage="l", round=1, source="0" * 64, code="0" * 64, technique=None, title="t",
        benchmark=timed, profile=None, bottleneck=None,
    )  # fmt: skip
