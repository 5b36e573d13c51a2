"""Descriptors made ahead: transfers do not wait for them where the hardware would make them on the way."""

from __future__ import annotations

import pytest

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.timing.forecast import forecast_program
from targets.nki.rewrites.estimate import form_ns
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import ROWS, TARGET, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

SITE = "all transfers"
SCALED = "nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)"
SUMMED = "nisa.dma_compute(dst=a, srcs=[a, a], reduce_op=nl.add)"


def sample(body: str, mode: str = "") -> Sample:
    source = ROWS.format(body=body).replace(
        "dma_copy(", f"dma_copy(dge_mode=nisa.dge_mode.{mode}, " if mode else "dma_copy("
    )
    return Sample(source, ((256, 64),), lambda x: 2.0 * x)


def latency_ms(made: Sample, source: str) -> float:
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in made.shapes])
    return forecast_program(program, TARGET).latency_ms


@pytest.mark.parametrize("mode", ["", "hwdge", "swdge"])
def test_every_transfer_has_its_descriptors_before_the_launch(mode: str):
    made = sample(SCALED, mode)
    source = find_rewrite(made, "descriptors", SITE, {"dge_mode": "none"})
    assert source.count("dge_mode=nisa.dge_mode.none") == source.count("dge_mode=") == 2
    assert relative_error(made, source) == 0.0
    assert latency_ms(made, source) < latency_ms(made, made.source)


def test_a_kernel_whose_transfers_do_not_wait_is_left_alone():
    reason = "no transfer waits for descriptors that could be made ahead"
    assert find_refusal(sample(SCALED, "none"), "descriptors", SITE) == reason
    older = targets.load("trn1")
    kernel = read_kernel(sample(SCALED).source, sample(SCALED).arguments, older)
    made, refusals = explore_rewrites(
        kernel, sample(SCALED).arguments, older, transforms=[TRANSFORMS["descriptors"]]
    )
    assert (made, refusals) == ([], [f"descriptors {SITE}: {reason}"])


@pytest.mark.parametrize(
    ("mode", "busy"),
    [("", {"descriptor": 245.0}), ("none", {"descriptor": 0.0}), ("swdge", {"gpsimd": 880.0})],
)
def test_the_estimate_tells_who_makes_them(mode: str, busy: dict[str, float]):
    made = sample(SCALED, mode)
    first = next(
        item
        for item in read_kernel(made.source, made.arguments, TARGET).operations()
        if item.op == "dma_copy"
    )
    assert first.form is not None
    found = form_ns(first.form, TARGET)
    assert {name: value for name, value in found.items() if name != "dma"} == busy
