"""Predicted runs of kernels for tracing tools: as long as the judge says, and of kernels in the jail only."""

from __future__ import annotations

import json

import pytest

from remote.errors import InfrastructureError, NoTimelineError
from remote.jail_backends import JailStrength


@pytest.mark.slow
async def test_a_timeline_is_as_long_as_the_judges_latency(make_evaluator, silu):
    evaluator = make_evaluator()
    made = json.loads(await evaluator.predict_timeline(silu.request(), silu.blobs))
    judged = (await evaluator.evaluate(silu.request(), silu.blobs)).evaluation
    assert made["otherData"]["predicted"] is True
    assert made["otherData"]["latency_ms"] == judged.benchmark.latency_ms
    runs = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in runs) / 1e3 == pytest.approx(
        judged.benchmark.latency_ms
    )
    named = {event["args"]["name"] for event in made["traceEvents"] if event["name"] == "thread_name"}
    assert {"critical path", "Scalar", "DMA loads"} <= named
    lines = {event["args"]["source"] for event in runs if "source" in event["args"]}
    assert all(line.startswith("kernel.py:") for line in lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("nisa.dma_copy(", "nisa.dma_kopy(", 1), "dma_kopy"),
        (lambda text: f"import os\n{text}", "os"),
        (lambda text: "not python(", ""),
    ],
)
async def test_a_kernel_that_breaks_a_rule_has_no_timeline_and_says_why(make_evaluator, silu, change, said):
    with pytest.raises(NoTimelineError) as caught:
        await make_evaluator().predict_timeline(silu.request(change(silu.kernel)), silu.blobs)
    assert said in str(caught.value)
    assert str(caught.value)


async def test_models_kernels_are_not_run_where_only_a_weak_jail_holds_them(make_evaluator, silu):
    evaluator = make_evaluator(strength=JailStrength.WEAK, allow_weak_jail=False)
    with pytest.raises(InfrastructureError) as caught:
        await evaluator.predict_timeline(silu.request(author="anthropic/some"), silu.blobs)
    assert caught.value.code == "weak_jail"
