"""Scans: a recurrence that a loop takes column by column is one instruction, in whatever way it is spelt."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec
from nki_sim.running import numerics
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

KERNEL = """
@nki.jit
def kernel(a, b):
    m, n = a.shape
    out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    scale = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale, src=a)
    nisa.activation(dst=scale, op=nl.sigmoid, data=scale)
    shift = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=shift, src=b)
    steps = nl.ndarray((128, n), dtype=nl.{dtype}, buffer=nl.sbuf)
    nisa.memset(dst=steps, value=0.0)
    h = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=h, value=0.5)
    # Step by step.
    for t in nl.sequential_range({trips}):
        {body}
    {after}
    nisa.dma_copy(dst=out, src=steps)
    return out
"""
COLUMN = "[:, t : t + 1]"
SCALED = f"nisa.tensor_tensor(dst=h, data1=h, data2=scale{COLUMN}, op=nl.multiply)"
SHIFTED = f"nisa.tensor_tensor(dst=h, data1=h, data2=shift{COLUMN}, op=nl.add)"
KEPT = f"nisa.tensor_copy(dst=steps{COLUMN}, src=h)"
PLAIN = (SCALED, SHIFTED, KEPT)


def scan_step_by_step(a: NDArray[np.float64], b: NDArray[np.float64], first: int = 0) -> NDArray[np.float64]:
    scale, found, h = 1 / (1 + np.exp(-a)), np.zeros_like(a), np.full(a.shape[0], 0.5)
    for t in range(first, a.shape[1]):
        h = h * scale[:, t] + b[:, t]
        found[:, t] = h
    return found


def sample(
    *body: str, trips: str = "n", after: str = "pass", dtype: str = "float32", meaning=scan_step_by_step
) -> Sample:
    text = KERNEL.format(body="\n        ".join(body), trips=trips, after=after, dtype=dtype)
    return Sample(HEADER + text, ((128, 32), (128, 32)), meaning)


FUSED = (
    f"nisa.scalar_tensor_tensor(dst=h, data=h, op0=nl.multiply, operand0=scale{COLUMN}, op1=nl.add, "
    f"operand1=shift{COLUMN})"
)
SWAPPED = (
    "part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)",
    f"nisa.tensor_tensor(dst=part, data1=scale{COLUMN}, data2=h, op=nl.multiply)",
    f"nisa.tensor_tensor(dst=h, data1=shift{COLUMN}, data2=part, op=nl.add)",
    KEPT,
)


@pytest.mark.parametrize(
    "made",
    [
        sample(*PLAIN),
        sample(FUSED, KEPT),
        sample(*SWAPPED),
        sample(*(line.replace(COLUMN, "[:, nl.ds(t, 1)]") for line in PLAIN)),
        sample(*PLAIN, trips="3, n", meaning=lambda a, b: scan_step_by_step(a, b, 3)),
    ],
)
def test_a_recurrence_is_one_scan(made: Sample):
    source = join_wrapped_calls(find_rewrite(made, "scan", "t", {}))
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, source) < 1e-6
    assert "# Step by step.\n    nisa.tensor_tensor_scan(dst=steps" in source
    assert "for t" not in source
    assert "src=steps[:, n - 1 : n])" in source


MINUS = f"nisa.tensor_tensor(dst=h, data1=h, data2=shift{COLUMN}, op=nl.subtract)"
HALVED = "nisa.tensor_scalar(dst=h, data=h, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=0.25)"
RISES = f"nisa.tensor_tensor(dst=h, data1=shift{COLUMN}, data2=h, op=nl.maximum)"
AFTERWARDS = f"nisa.tensor_tensor(dst=steps{COLUMN}, data1=h, data2=scale{COLUMN}, op=nl.subtract)"
RELATIVE = (
    MINUS,
    SCALED,
    f"nisa.tensor_tensor(dst=h, data1=h, data2=shift{COLUMN}, op=nl.add)",
    KEPT,
)


def step_by_step(step, after=lambda h, a, b: h):
    """The meaning of a kernel whose state becomes `step(state, a, b)`, and which keeps `after` of it."""

    def meaning(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        scale, found, h = 1 / (1 + np.exp(-a)), np.zeros_like(a), np.full(a.shape[0], 0.5)
        for t in range(a.shape[1]):
            h = step(h, scale[:, t], b[:, t])
            found[:, t] = after(h, scale[:, t], b[:, t])
        return found

    return meaning


@pytest.mark.parametrize(
    ("body", "step", "written"),
    [
        ((SHIFTED, KEPT), lambda h, a, b: h + b, "memset(dst=h_steps, value=1.0)"),
        ((MINUS, KEPT), lambda h, a, b: h - b, "op1=nl.subtract"),
        ((SCALED, MINUS, KEPT), lambda h, a, b: h * a - b, "op1=nl.subtract"),
        (RELATIVE, lambda h, a, b: (h - b) * a + b, "operand0=1.0, reverse0=True"),
        ((HALVED, SHIFTED, KEPT), lambda h, a, b: 0.5 * h + 0.25 + b, "memset(dst=h_steps, value=0.5)"),
        ((SCALED, RISES, KEPT), lambda h, a, b: np.maximum(h * a, b), "op1=nl.maximum"),
        ((RISES, KEPT), lambda h, a, b: np.maximum(h, b), "op1=nl.maximum"),
        (
            tuple(line.replace(f"scale{COLUMN}", "scale[:, 0:1]") for line in RELATIVE),
            None,
            "operand0=1.0, reverse0=True",
        ),
    ],
)
def test_a_state_may_stand_anywhere_in_its_recurrence(body, step, written: str):
    def constant_scale(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return step_by_step(lambda h, s, x: (h - x) * s + x)(np.broadcast_to(a[:, :1], a.shape), b)

    made = sample(*body, meaning=step_by_step(step) if step else constant_scale)
    source = join_wrapped_calls(find_rewrite(made, "scan", "t", {}))
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, source) < 2e-6
    assert written in source
    assert "for t" not in source


LISTED = """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scale, src=a)
    nisa.activation(dst=scale, op=nl.sigmoid, data=scale)
    shift = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=shift, src=b)
    h = [nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(33)]
    nisa.memset(dst=h[0], value=0.5)
    for t in nl.affine_range(32):
        part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=part, data1=h[t], data2=scale[:, t : t + 1], op=nl.multiply)
        nisa.tensor_tensor(dst=h[t + 1], data1=part, data2=shift[:, t : t + 1], op=nl.add)
        KEPT
    nisa.tensor_copy(dst=shift[:, 0:1], src=h[LAST])
    nisa.dma_copy(dst=out, src=shift)
    return out
"""


@pytest.mark.parametrize("kept", ["nisa.tensor_copy(dst=shift[:, t : t + 1], src=h[t + 1])", "pass"])
def test_states_may_be_the_tiles_of_a_list(kept: str):
    def meaning(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        found = scan_step_by_step(a, b)
        return np.hstack([found[:, -1:], (found if kept != "pass" else b)[:, 1:]])

    text = HEADER + LISTED.replace("KEPT", kept).replace("LAST", "32")
    made = Sample(text, ((128, 32), (128, 32)), meaning)
    source = join_wrapped_calls(find_rewrite(made, "scan", "t", {}))
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, source) < 1e-6
    assert "initial=h[0]" in source
    assert "for t" not in source


STREAMED = """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    h = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=h, value=0.5)
    for t in nl.affine_range(32):
        scale = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=scale, src=a[:, t : t + 1])
        gate = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=gate, op=nl.sigmoid, data=scale)
        shift = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=shift, src=b[:, t : t + 1])
        nisa.tensor_tensor(dst=h, data1=h, data2=gate, op=nl.multiply)
        nisa.tensor_tensor(dst=h, data1=h, data2=shift, op=nl.add)
        nisa.dma_copy(dst=out[:, t : t + 1], src=h)
    return out
"""


def test_columns_that_each_step_loads_and_stores_are_moved_as_rows():
    made = Sample(HEADER + STREAMED, ((128, 32), (128, 32)), scan_step_by_step)
    source = join_wrapped_calls(find_rewrite(made, "scan", "t", {}))
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, source) < 1e-6
    assert source.count("dma_copy") == 3
    assert "for t" not in source


THROUGH_HBM = """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    shift = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=shift, src=b)
    nisa.dma_copy(dst=out[:, 0:1], src=shift[:, 0:1])
    for t in nl.affine_range(31):
        last = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=last, src=out[:, t : t + 1])
        h = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=h, data1=last, data2=shift[:, t + 1 : t + 2], op=nl.add)
        nisa.dma_copy(dst=out[:, t + 1 : t + 2], src=h)
    return out
"""


def test_a_state_that_goes_through_hbm_keeps_its_loop():
    made = Sample(HEADER + THROUGH_HBM, ((128, 32), (128, 32)), scan_step_by_step)
    assert find_refusal(made, "scan", "t") == "out is carried from step to step in HBM"


def test_a_list_of_states_that_is_used_afterwards_keeps_its_loop():
    text = HEADER + LISTED.replace("KEPT", "pass").replace("LAST", "31")
    made = Sample(text, ((128, 32), (128, 32)), scan_step_by_step)
    assert find_refusal(made, "scan", "t") == "h has steps that are used after the loop over t"


def test_what_is_made_of_each_step_is_made_of_all_steps():
    made = sample(
        SCALED, SHIFTED, AFTERWARDS, meaning=step_by_step(lambda h, a, b: h * a + b, lambda h, a, b: h - a)
    )
    source = join_wrapped_calls(find_rewrite(made, "scan", "t", {}))
    assert relative_error(made, source) < 1e-6
    assert "nisa.tensor_tensor(dst=steps, data1=h_steps, data2=scale, op=nl.subtract)" in source


def test_what_the_state_is_used_for_afterwards_stays():
    last = "nisa.tensor_copy(dst=steps[:, 0:1], src=h)"

    def meaning(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        found = scan_step_by_step(a, b)
        return np.hstack([found[:, -1:], found[:, 1:]])

    made = sample(*PLAIN, after=last, meaning=meaning)
    source = find_rewrite(made, "scan", "t", {})
    assert relative_error(made, source) < 1e-6


def test_steps_that_are_not_kept_go_to_a_tile_of_their_own():
    def meaning(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.hstack([scan_step_by_step(a, b)[:, -1:], np.zeros_like(a)[:, 1:]])

    made = sample(SCALED, SHIFTED, after="nisa.tensor_copy(dst=steps[:, 0:1], src=h)", meaning=meaning)
    source = join_wrapped_calls(find_rewrite(made, "scan", "t", {}))
    assert relative_error(made, source) < 1e-6
    assert "h_steps = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)" in source


IN_PLACE = FUSED.replace("=h", f"=steps{COLUMN}")
SQUARED = "nisa.activation(dst=h, op=nl.square, data=h)"
OUTSIDE = f"nisa.tensor_tensor(dst=shift{COLUMN}, data1=shift{COLUMN}, data2=h, op=nl.subtract)"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(SCALED, SQUARED, KEPT), "h does not become (a op0 h) op1 b"),
        (sample(SCALED, KEPT, SHIFTED), "steps holds something else than the steps"),
        (sample(KEPT, SCALED, SHIFTED), "steps holds something else than the steps"),
        (sample(*PLAIN, KEPT.replace(COLUMN, "[:, 0:1]")), "several columns of steps are used in a step"),
        (
            sample(SCALED.replace("data1=h", f"data1=steps{COLUMN}"), SHIFTED, KEPT),
            "the loop over t carries 0 columns",
        ),
        (sample(IN_PLACE), "the loop over t carries 0 columns from step to step, not one"),
        (sample(*PLAIN, dtype="bfloat16"), "tensor_copy is no step of a scan"),
        (sample(*PLAIN, OUTSIDE), "shift holds something else than the steps"),
        (
            sample(*(line.replace(COLUMN, "[:, 2 * t : 2 * t + 1]") for line in PLAIN), trips="n // 2"),
            "iterations over t do not take neighbouring columns",
        ),
        (sample(*PLAIN, "nisa.activation(dst=h, op=nl.tanh, data=h)"), "h does not become (a op0 h) op1 b"),
        (sample("print(t)", *PLAIN), "the loop over t holds more than instructions"),
    ],
)  # fmt: skip
def test_what_is_no_recurrence_stays_a_loop(made: Sample, reason: str):
    assert find_refusal(made, "scan", "t").startswith(reason)


def test_a_temporary_that_is_used_after_the_loop_keeps_it():
    made = sample(*SWAPPED[1:], after="nisa.tensor_copy(dst=steps[:, 0:1], src=part)")
    text = made.source.replace("    # Step", f"    {SWAPPED[0]}\n    # Step")
    assert find_refusal(Sample(text, made.shapes, made.meaning), "scan", "t").startswith(
        "part is used outside"
    )


RUNNING = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        y = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=y, src=t)
        for j in nl.sequential_range(63):
            nisa.tensor_tensor(dst=DST, data1=FIRST, data2=SECOND, op=nl.add)
        nisa.dma_copy(dst=out, src=y)
        return out
"""


@pytest.mark.parametrize(
    ("dst", "first", "second", "applies"),
    [
        ("y[:, j + 1 : j + 2]", "y[:, j + 1 : j + 2]", "y[:, j : j + 1]", True),
        ("y[:, j + 1 : j + 2]", "y[:, j : j + 1]", "t[:, j + 1 : j + 2]", True),
        ("y[:, j + 1 : j + 2]", "t[:, j : j + 1]", "y[:, j : j + 1]", True),
        ("y[:, j + 1 : j + 2]", "y[:, j : j + 1]", "y[:, j : j + 1]", True),
        ("y[:, j : j + 1]", "y[:, j + 1 : j + 2]", "t[:, j : j + 1]", False),
        ("y[:, j + 1 : j + 2]", "y[:, 0:1]", "t[:, j : j + 1]", False),
    ],
)
def test_a_column_that_takes_in_the_one_before_becomes_a_scan(
    dst: str, first: str, second: str, applies: bool
) -> None:
    text = RUNNING.replace("DST", dst).replace("FIRST", first).replace("SECOND", second)
    source, arguments = HEADER + textwrap.dedent(text), [ArrayArgument((128, 64), "float32")]
    made, _ = explore_rewrites(
        read_kernel(source, arguments, TARGET), arguments, TARGET, transforms=[TRANSFORMS["scan"]]
    )
    assert bool(made) is applies
    array = np.random.default_rng(5).standard_normal((128, 64)).astype(np.float32)
    for one in made:
        results = []
        for kernel in (source, one.source):
            program = nki_sim.trace(kernel, args=[ArraySpec((128, 64), "float32")])
            results.append(numerics.run(program, [array])[0])
        assert np.allclose(*results, rtol=1e-5, atol=1e-5)
