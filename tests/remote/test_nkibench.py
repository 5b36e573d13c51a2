"""NKIBench's files judged as they are: legacy kernels, shapes of their own, numbers among the arguments."""

from __future__ import annotations

import pytest

import seeds
from state.model import Verdict
from tests.seeds.nkibench_files import KERNEL, REFERENCE, write
from tests.support.sweeps import parametrize_sweep

CURRENT = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, eps, g):
    out = nl.ndarray((256, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    weight = nl.ndarray((128, 64), dtype=g.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weight, src=g.broadcast(0, 128))
    for i in nl.affine_range(2):
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i, :, :])
        squares = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=tile, data2=tile, op=nl.multiply)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
        mean = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=mean, data=total, op0=nl.multiply, operand0=1.0 / 64, op1=nl.add, operand1=eps
        )
        inverse = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=inverse, op=nl.rsqrt, data=mean)
        scaled = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=tile, op0=nl.multiply, operand0=inverse)
        nisa.tensor_tensor(dst=scaled, data1=scaled, data2=weight, op=nl.multiply)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:64], src=scaled)
    return out
"""


@pytest.fixture
def rows(tmp_path, bench):
    return bench(seeds.load_problem(write(tmp_path)))


@parametrize_sweep("source", [KERNEL, CURRENT], ids=["legacy", "current"], quick=["current"])
async def test_kernels_of_either_namespace_are_judged_in_shapes_of_their_own(rows, evaluator, source):
    answer = await evaluator.evaluate(rows.request(source, size="full"), rows.blobs)
    assert answer.evaluation.verdict is Verdict.CORRECT, answer.evaluation.error
    assert answer.evaluation.benchmark.latency_ms > 0
    assert set(answer.evaluation.rel_l2) == set(rows.problem.spec.seeds)


@parametrize_sweep(
    ("old", "new", "code"),
    [
        ("nl.add(mean, eps)", "nl.add(mean, 0.001)", "wrong_result"),
        ("/ 64", "/ 32", "wrong_result"),
        ("(2, 128, 64), dtype", "(1, 128, 64), dtype", "output_shape"),
    ],
    quick=1,
)
async def test_wrong_ones_are_refused(rows, evaluator, old, new, code):
    source = KERNEL.replace(old, new, 1)
    source = source.replace("out[i, p, f]", "out[0, p, f]") if code == "output_shape" else source
    answer = await evaluator.evaluate(rows.request(source, size="full"), rows.blobs)
    assert (answer.evaluation.verdict, answer.evaluation.error.code) == (Verdict.INCORRECT, code)


async def test_outputs_in_another_order_are_wrong_under_any_shape(rows, evaluator):
    source = KERNEL.replace("(2, 128, 64), dtype", "(128, 2, 64), dtype").replace(
        "out[i, p, f]", "out[p, i, f]"
    )
    answer = await evaluator.evaluate(rows.request(source, size="full"), rows.blobs)
    assert answer.evaluation.error.code == "wrong_result"


@pytest.mark.slow
async def test_a_large_output_is_judged_in_tiles_whatever_its_shape(tmp_path, bench, evaluator):
    """More elements than are compared whole; rows of kernel and problem have different lengths."""
    reference = REFERENCE.replace("M = 256", "M = 32768").replace("(2, 128, 64)", "(16, 128, 1024)")
    kernel = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, eps, g):
    out = nl.ndarray((16, 128, 1024), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(16):
        tile = nl.ndarray((128, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i, :, :])
        made = nl.ndarray((128, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=made, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[i, :, :], src=made)
    return out
"""
    simple = reference.replace("return x / np.sqrt(mean + eps) * g", "return x * 2.0")
    made = bench(seeds.load_problem(write(tmp_path, summary=False, reference=simple)))
    right = await evaluator.evaluate(made.request(kernel, size="full", level="one_seed"), made.blobs)
    assert right.evaluation.verdict is Verdict.CORRECT, right.evaluation.error
    shifted = kernel.replace("src=x[i, :, :]", "src=x[15 - i, :, :]")
    wrong = await evaluator.evaluate(made.request(shifted, size="full", level="slices"), made.blobs)
    assert wrong.evaluation.error.code == "wrong_result"
