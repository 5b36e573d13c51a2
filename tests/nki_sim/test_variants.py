"""What an optimiser will try: pairs of kernels for one problem, where hardware rewards the second.

Each variant is checked, computes the right thing on both targets, and the better one is predicted faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from nki_sim.timing.bounds import MinimalWork, tight_bound
from nki_sim.timing.schedule import schedule


@dataclass(frozen=True)
class Pair:
    """Two kernels, the arguments' shapes, the reference, and the largest ratio better / worse allowed."""

    worse: str
    better: str
    shapes: tuple[tuple[int, ...], ...]
    reference: Any
    ratio: float


def kernel(parameters: str, shape: str, body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"""
@nki.jit
def kernel({parameters}):
    out = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.shared_hbm)
{lines}
    return out
"""


MATMUL_BODY = """
m, k = a_t.shape[1], a_t.shape[0]
n = b.shape[1]
{before}
for i in range(m // 128):
    {per_row}
    for j in range(n // 512):
        acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for q in range(k // 128):
            {inner}
            nisa.nc_matmul(acc, {left}, {right})
        r = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(r, acc)
        nisa.dma_copy(out[i * 128:i * 128 + 128, j * 512:j * 512 + 512], r)
"""

NAIVE = """
            sa = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(sa, a_t[q * 128:q * 128 + 128, i * 128:i * 128 + 128])
            sb = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(sb, b[q * 128:q * 128 + 128, j * 512:j * 512 + 512])"""

ROW = """
    sa = nl.ndarray((128, k // 128, 128), dtype=nl.float32, buffer=nl.sbuf)
    for q in range(k // 128):
        nisa.dma_copy(sa[:, q, :], a_t[q * 128:q * 128 + 128, i * 128:i * 128 + 128])"""

RESIDENT = """
sb = nl.ndarray((128, k // 128, n), dtype=nl.float32, buffer=nl.sbuf)
for q in range(k // 128):
    nisa.dma_copy(sb[:, q, :], b[q * 128:q * 128 + 128, :])
"""


def matmul(
    before: str = "", per_row: str = "pass", inner: str = "pass", left: str = "sa", right: str = "sb"
) -> str:
    body = MATMUL_BODY.format(before=before, per_row=per_row, inner=inner, left=left, right=right)
    return kernel("a_t, b", "(a_t.shape[1], b.shape[1])", body)


def tiles(body: str, *, width: int = 512, declared: str = "x, y, z", inputs: str = "x_in, y_in") -> str:
    """Tile by tile over [m, n]: load the inputs, do the body's lines, store z."""
    names = [name.strip() for name in declared.split(",")]
    lines = ["m, n = x_in.shape", "for i in range(0, m, 128):", f"    for j in range(0, n, {width}):"]
    lines.append(f"        part = (slice(i, i + 128), slice(j, j + {width}))")
    lines += [f"        {x} = nl.ndarray((128, {width}), dtype=nl.float32, buffer=nl.sbuf)" for x in names]
    lines += [f"        nisa.dma_copy({x.removesuffix('_in')}, {x}[part])" for x in inputs.split(", ")]
    lines += [f"        {line}" for line in body.strip().splitlines()]
    lines.append("        nisa.dma_copy(out[part], z)")
    return kernel(inputs, "x_in.shape", "\n".join(lines))


def silu(x: Any) -> Any:
    return x / (1.0 + np.exp(-x))


SILU_BY_PARTS = """
nisa.activation(z, nl.exp, x, scale=-1.0)
nisa.tensor_scalar(z, z, nl.add, 1.0)
nisa.reciprocal(z, z)
nisa.tensor_tensor(z, x, z, nl.multiply)
"""

RMS_BY_PARTS = """
squares = nl.ndarray((128, 2048), dtype=nl.float32, buffer=nl.sbuf)
total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_tensor(squares, x, x, nl.multiply)
nisa.tensor_reduce(total, nl.add, squares, axis=-1)
nisa.tensor_scalar(total, total, nl.multiply, 1.0 / 2048)
nisa.activation(total, nl.rsqrt, total)
nisa.tensor_scalar(z, x, nl.multiply, total)
"""

RMS_FUSED = """
total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.activation(z, nl.square, x, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce)
nisa.activation(total, nl.rsqrt, total, scale=1.0 / 2048)
nisa.tensor_scalar(z, x, nl.multiply, total)
"""


def rmsnorm(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True))


MM = ((512, 2048), (512, 1024))
"""Float32 takes four passes: the products alone take 0.78 of the naive kernel's time, in any variant."""


def product(a_t: Any, b: Any) -> Any:
    return a_t.T @ b


EW = ((512, 4096), (512, 4096))
ONE = ((512, 4096),)

PAIRS = {
    "hoist the left operand": Pair(
        matmul(inner=NAIVE.strip()),
        matmul(per_row=ROW.strip(), inner=NAIVE.partition("\n            sb")[2].join(("sb", "")),
               left="sa[:, q, :]"),
        MM, product, 0.93,
    ),
    "keep the right operand resident": Pair(
        matmul(inner=NAIVE.strip()),
        matmul(before=RESIDENT, per_row=ROW.strip(), left="sa[:, q, :]",
               right="sb[:, q, j * 512:j * 512 + 512]"),
        MM, product, 0.9,
    ),
    "wider transfers": Pair(
        tiles("nisa.tensor_tensor(z, x, y, nl.add)", width=128),
        tiles("nisa.tensor_tensor(z, x, y, nl.add)", width=1024),
        EW, np.add, 0.55,
    ),
    "one activation instead of four instructions": Pair(
        tiles(SILU_BY_PARTS, declared="x, z", inputs="x_in"),
        tiles("nisa.activation(z, nl.silu, x)", declared="x, z", inputs="x_in"),
        ONE, silu, 0.8,
    ),
    "square and sum in one activation": Pair(
        tiles(RMS_BY_PARTS, width=2048, declared="x, z", inputs="x_in"),
        tiles(RMS_FUSED, width=2048, declared="x, z", inputs="x_in"),
        ((512, 2048),), rmsnorm, 0.8,
    ),
    "two scalars in one instruction": Pair(
        tiles("nisa.tensor_scalar(z, x, nl.multiply, 2.0)\nnisa.tensor_scalar(z, z, nl.add, 1.0)\n" * 3,
              declared="x, z", inputs="x_in"),
        tiles("nisa.tensor_scalar(z, x, nl.multiply, 2.0, op1=nl.add, operand1=1.0)\n" * 3,
              declared="x, z", inputs="x_in"),
        ONE, lambda x: 2 * x + 1, 0.85,
    ),
    "share elementwise work between engines": Pair(
        tiles("nisa.tensor_scalar(x, x, nl.add, 1.0)\nnisa.tensor_scalar(z, x, nl.multiply, 2.0)\n"
              "nisa.tensor_tensor(z, x, z, nl.add)", declared="x, z", inputs="x_in"),
        tiles("nisa.activation(x, nl.copy, x, bias=1.0)\nnisa.activation(z, nl.copy, x, scale=2.0)\n"
              "nisa.tensor_tensor(z, x, z, nl.add)", declared="x, z", inputs="x_in"),
        ONE, lambda x: 3 * (x + 1), 0.95,
    ),
}  # fmt: skip


def inputs(pair: Pair) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype(np.float32) for shape in pair.shapes]


@pytest.mark.parametrize("name", PAIRS)
def test_both_variants_are_legal_and_right(name: str, tracing: Any) -> None:
    pair = PAIRS[name]
    arrays = inputs(pair)
    wanted = pair.reference(*[array.astype(np.float64) for array in arrays])
    for text in (pair.worse, pair.better):
        program = tracing(text, *arrays)
        assert checks.check(program, targets.load("trn2")) == []
        (found,) = numerics.run(program, arrays)
        assert np.linalg.norm(found - wanted) < 2e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", PAIRS)
def test_the_better_variant_is_predicted_faster(name: str, tracing: Any) -> None:
    pair = PAIRS[name]
    target = targets.load("trn2")
    spans = []
    for text in (pair.worse, pair.better):
        timeline = schedule(tracing(text, *inputs(pair)), target)
        spans.append(float(timeline.end_ns.max()))
    assert spans[1] < pair.ratio * spans[0]


@pytest.mark.parametrize("name", [name for name in PAIRS if PAIRS[name].shapes is MM])
@pytest.mark.parametrize("target", targets.names())
def test_no_variant_of_a_product_beats_its_bound(name: str, target: str, tracing: Any) -> None:
    pair = PAIRS[name]
    (k, m), (_, n) = pair.shapes
    work = MinimalWork(
        read_bytes=4 * (k * m + k * n),
        write_bytes=4 * m * n,
        matmul_flops=2 * m * n * k,
        elementwise_elements=m * n,
    )
    loaded = targets.load(target)
    bound = tight_bound(work, loaded)
    worse, better = (
        schedule(tracing(text, *inputs(pair), target=target), loaded).latency_ms
        for text in (pair.worse, pair.better)
    )
    assert bound <= better < worse
