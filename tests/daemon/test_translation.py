"""How long layouts near the fastest one are searched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import seeds
from daemon.translation import KernelTranslator
from state.model import PredictedLatency

ROUNDS = {
    None: [("first", "a"), ("long", "b")],
    "a": [("second", "c")],
    "c": [("third", "d")],
    "d": [("third", "d")],
}
"""Kernels and names of layouts, by the name of the layout that they are near."""
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
    assert translated.kernel == found
