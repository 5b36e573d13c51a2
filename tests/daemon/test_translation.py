"""How long layouts near the fastest one are searched, and what is taken or left out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

import seeds
from agentctl.translation import TranslatedProblem
from agentctl.verbs.translate import describe_translation
from daemon.translation import (
    KernelTranslator,
    TranslatedKernel,
    Translation,
    choose_by_verdict,
    write_kernels,
)
from state.model import ErrorInfo, Evaluation, FormulaIdentity, PredictedLatency, Verdict, digest_of
from targets.nki.translation.kernel import KernelWriter
from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.translator import write_variants
from tests.targets.nki.translation.test_kernels import translate

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
        return ROUNDS[request["near"]], [f"near {request['near']}", "often"]

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
    assert translated.left_out[:2] == ("near None", "often")
    assert translated.left_out.count("often") == 1
    assert [one.kernel for one in translated.candidates[1:]] == (["long"] if long_ms < 1.5 else [])


def write_with_fault(monkeypatch, tmp_path, fails):
    """What the process that writes kernels answers if layouts of which `fails` holds cannot be written."""
    write = KernelWriter.write

    def write_or_fail(self):
        if fails(self.layout):
            raise AssertionError("no such\nloop")
        return write(self)

    monkeypatch.setattr(KernelWriter, "write", write_or_fail)
    spec, formula, _, _ = translate(np.exp, [(256, 64)])
    path = tmp_path / "formula"
    path.write_bytes(formula)
    asked = {
        "target": "trn2",
        "spec": spec.model_dump_json(),
        "size": "full",
        "formula": str(path),
        "near": None,
    }
    return json.loads(write_kernels(json.dumps(asked)))


def test_a_layout_that_a_fault_keeps_from_being_written_is_left_out_and_named(monkeypatch, tmp_path):
    answer = write_with_fault(monkeypatch, tmp_path, lambda layout: layout != KernelLayout())
    assert len(answer["kernels"]) == 1
    (fault,) = answer["left_out"]
    assert fault.startswith("AssertionError: no such loop (test_translation.py, line ")
    kernels = (TranslatedKernel("0", 1.0),)

    async def judge(kernel):
        return evaluate("proven")

    judged = asyncio.run(choose_by_verdict(Translation(kernels, (1.0,), (fault,)), judge))
    assert judged.left_out == (fault,)
    found = TranslatedProblem(seeds.load_problem("silu"), judged, (1.0,), b"")
    assert f"  a layout was left out by a fault of this program: {fault}" in describe_translation(
        found, None, None
    )


def test_a_fault_in_the_first_layout_is_raised(monkeypatch, tmp_path):
    with pytest.raises(AssertionError):
        write_with_fault(monkeypatch, tmp_path, lambda layout: True)


def test_a_fault_is_raised_where_nobody_is_told(monkeypatch):
    spec, formula, _, _ = translate(np.exp, [(256, 64)])
    monkeypatch.setattr(KernelLayout, "neighbours", lambda self, choices, *, is_first: [None])
    with pytest.raises(AttributeError):
        write_variants(spec, "full", formula)


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
