"""Balance: several moves at once, none that breaks a rule, and nothing where nothing helps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targets.nki.rewrites.estimate import estimate_kernel
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import ROWS, TARGET, TILE, Sample, join_wrapped_calls, relative_error

POLYNOMIAL = (
    TILE.format("b"), "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)",
    TILE.format("c"), "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.multiply)",
    TILE.format("d"), "nisa.tensor_tensor(dst=d, data1=c, data2=b, op=nl.multiply)",
    "nisa.tensor_tensor(dst=a, data1=d, data2=c, op=nl.add)",
)  # fmt: skip


def sample(*body: str) -> Sample:
    source = ROWS.format(body="\n        ".join(body))
    return Sample(source, ((512, 512),), lambda x: 4 * x**3 + 2 * x**2)


def balance_engines(made: Sample) -> tuple[dict[str, RewrittenKernel], list[str]]:
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["balance"]])
    return {str(child.choice["move"]): child for child in children}, refusals


def test_engines_share_what_one_of_them_did():
    made = sample(*POLYNOMIAL)
    found, _ = balance_engines(made)
    before = estimate_kernel(read_kernel(made.source, made.arguments, TARGET), TARGET).busy_ns["vector"]
    busiest = {}
    for move, child in found.items():
        assert relative_error(made, child.source) < 1e-6
        busy = estimate_kernel(child.kernel, TARGET).busy_ns
        busiest[move] = max(busy[name] for name in ("vector", "scalar", "gpsimd"))
    # GpSimd takes 4 N for two inputs, VectorE N: whole, only the instruction of one input moves with a gain.
    assert busiest["engines and memories"] < 0.85 * before
    assert busiest["engines and parts"] < 0.7 * before
    source = found["engines and parts"].source
    assert "op0=nl.multiply, operand0=2.0, engine=nisa.engine.scalar)" in source
    assert "engine=nisa.engine.gpsimd" in source


def test_tiles_go_to_psum_where_that_helps():
    found, _ = balance_engines(sample(*POLYNOMIAL))
    source = found["engines and memories"].source
    assert "buffer=nl.psum" in source
    assert "a = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)" in source


SCALED = (
    TILE.format("b"), "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)",
    "for j in nl.sequential_range(8):",
    "    row = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)",
    "    nisa.dma_copy(dst=row, src=x[i * 128 + j : i * 128 + j + 1, :].broadcast(0, 128))",
    "    c = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)",
    "    nisa.tensor_tensor(dst=c, data1=b, data2=row, op=nl.multiply)",
    "    nisa.tensor_scalar(dst=c, data=c, op0=nl.maximum, operand0=0.1)",
    "    nisa.tensor_scalar(dst=a, data=c, op0=nl.minimum, operand0=1.0)",
)  # fmt: skip
"""A tile that never changes times rows, clipped by VectorE, which others could not do."""


LARGER = [line.replace("data2=row, op=nl.multiply", "data2=row, op=nl.maximum") for line in SCALED]
"""The same with the larger of both: from SBUF alone VectorE takes 2 N for it, and N for a product."""


def scaled_sample() -> Sample:
    def clipped(x: NDArray[np.float32]) -> NDArray[np.float32]:
        tiles = x.reshape(4, 128, 512)
        made: NDArray[np.float32] = np.clip(2 * tiles * tiles[:, 7:8], 0.1, 1.0)  # the last row's
        return made.reshape(x.shape)

    made = sample(*SCALED)
    return Sample(made.source, made.shapes, clipped)


def larger_sample() -> Sample:
    def clipped(x: NDArray[np.float32]) -> NDArray[np.float32]:
        tiles = x.reshape(4, 128, 512)
        made: NDArray[np.float32] = np.clip(np.maximum(2 * tiles, tiles[:, 7:8]), 0.1, 1.0)
        return made.reshape(x.shape)

    made = sample(*LARGER)
    return Sample(made.source, made.shapes, clipped)


def test_instructions_are_cut_between_two_engines():
    made = scaled_sample()
    child = balance_engines(made)[0]["engines and parts"]
    assert relative_error(made, child.source) < 1e-6
    busy = estimate_kernel(child.kernel, TARGET).busy_ns
    assert child.source.count("nisa.tensor_tensor(") == 2
    assert abs(busy["vector"] - busy["gpsimd"]) < 0.1 * busy["vector"]


def test_vector_reads_a_copy_in_psum_where_others_read_the_tile():
    made = larger_sample()
    found, _ = balance_engines(made)
    child = found["engines, memories and parts"]
    assert relative_error(made, child.source) < 1e-6
    assert "nisa.tensor_copy(dst=b_psum, src=b, engine=nisa.engine.scalar)" in child.source
    assert child.source.index("dst=b_psum") < child.source.index("for j in")
    kept, moved = join_wrapped_calls(child.source).split("nisa.tensor_tensor(")[1:]
    assert "data1=b_psum[" in kept
    assert "data1=b[" in moved
    assert "engine=nisa.engine.gpsimd" in moved
    without = estimate_kernel(found["engines and parts"].kernel, TARGET)
    assert estimate_kernel(child.kernel, TARGET).busy_ns["vector"] < 0.95 * without.busy_ns["vector"]


def test_a_tile_that_changes_has_no_copy():
    made = sample(
        *SCALED[:2], "nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=1.0)", *SCALED[2:]
    )
    found, _ = balance_engines(made)
    assert all("b_psum" not in child.source for child in found.values())


def test_nothing_moves_where_nothing_helps():
    made = sample("nisa.activation(dst=a, op=nl.exp, data=a)")
    assert balance_engines(made) == (
        {},
        ["balance all instructions: no two moves together even out the engines"],
    )


def test_integers_stay_where_they_are_exact():
    integers = [line.replace("nl.float32", "nl.int32") for line in POLYNOMIAL]
    found, _ = balance_engines(sample(*integers))
    assert all("engine=" not in child.source for child in found.values())
