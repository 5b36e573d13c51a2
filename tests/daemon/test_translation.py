"""How long layouts near the fastest one are searched, and which one is taken if the judge refuses it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import seeds
from daemon.translation import KernelTranslator, TranslatedKernel, Translation, choose_by_verdict
from state.model import ErrorInfo, Evaluation, FormulaIdentity, PredictedLatency, Verdict, digest_of

ROUNDS = {
    None: [("first", "a", "rows"), ("long", "b", "columns")],
    "a": [("second", "c", "rows")],
    "c": [("third", "d", "rows")],
    "d": [("third", "d", "rows")],
}
"""Kernels, names of layouts and of how they round, by the name of the layout that they are near."""
LATENCIES_MS = {"first": 1.0, "second": 0.9, "third": 0.8}


@pytest.mark.parametrize(("long_ms", "found"), [(9.0, "third"), (1.1, "first")])
def test_only_layouts_that_are_about_as_fast_use_up_the_budget(monkeypatch, tmp_path, long_ms, found):
    translator = KernelTranslator(tmp_path)

    async def load_formula(problem, size):
        return Path("formula")

    async def ask(request):
        return ROUNDS[request["near"]]

    async def predict(kernels):
        return [
            PredictedLatency(
                latency_ms=LATENCIES_MS.get(kernel, long_ms), instructions=60_000 if kernel == "long" else 100
            )
            for kernel in kernels
        ]

    monkeypatch.setattr(translator, "load_formula", load_formula)
    monkeypatch.setattr(translator, "_ask", ask)
    problem = seeds.load_problem("silu")
    translated = asyncio.run(translator.translate(problem, "reduced", "trn2", predict=predict))
    assert translated.candidates[0].kernel == found
    assert [one.kernel for one in translated.candidates[1:]] == (["long"] if long_ms < 1.5 else [])


def evaluate(verdict):
    """The judge's answer: refused, tested or proven."""
    refused = verdict == "refused"
    return Evaluation(
        verdict=Verdict.INCORRECT if refused else Verdict.CORRECT,
        stage="compare",
        code=digest_of(b"code"),
        error=ErrorInfo(code="mismatch", message="they differ") if refused else None,
        identity=None if refused else FormulaIdentity(verdict=verdict),
        target="trn2",
        toolchain="none",
    )


TESTED = "it was tested, and not proven"


@pytest.mark.parametrize(
    ("verdicts", "chosen", "passed_over"),
    [
        (["proven"], 0, []),
        (["refused", "proven"], 1, ["they differ"]),
        (["tested", "proven"], 1, [TESTED]),
        (["tested", "tested", "proven"], 0, []),
        (["refused", "tested", "refused", "proven"], 3, ["they differ", TESTED, "they differ"]),
        (["refused", "refused", "refused", "refused", "proven"], 0, []),
    ],
)
def test_the_fastest_layout_that_is_proven_is_taken_of_a_bounded_number(verdicts, chosen, passed_over):
    asked = []

    async def judge(kernel):
        asked.append(kernel)
        return evaluate(verdicts[int(kernel)])

    kernels = tuple(TranslatedKernel(str(at), 1.0 + 0.01 * at) for at in range(len(verdicts)))
    found = asyncio.run(choose_by_verdict(Translation(kernels, ()), judge))
    assert found.kernel is kernels[chosen]
    assert found.evaluation == evaluate(verdicts[chosen])
    assert list(found.passed_over) == passed_over
    assert len(asked) <= 4


def test_a_proof_is_worth_a_quarter_of_the_latency():
    kernels = (TranslatedKernel("0", 1.0), TranslatedKernel("1", 1.3))

    async def judge(kernel):
        return evaluate(["tested", "proven"][int(kernel)])

    assert asyncio.run(choose_by_verdict(Translation(kernels, ()), judge)).kernel is kernels[0]
