"""Unpeeling: a first iteration before its loop, which begins a total, joins the loop."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_rewrite

KERNEL = """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    {declared}
    first = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=first, src=a[:, 0:64])
    {begun}
    {between}
    # The others.
    for k in nl.affine_range(3):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=a[:, (k + 1) * 64 : (k + 2) * 64])
        part = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=part, op=nl.exp, data=tile)
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.{op})
    {after}
    nisa.dma_copy(dst=out, src=total)
    return out
"""
TOTAL = "total = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)"
PART = "part_0 = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)"
DIRECTLY = "nisa.activation(dst=total, op=nl.exp, data=first)"
COPIED = (
    PART,
    "nisa.activation(dst=part_0, op=nl.exp, data=first)",
    "nisa.tensor_copy(dst=total, src=part_0)",
)
SAVED = "nisa.dma_copy(dst=b[:, 0:64], src={})"


def sample(*begun: str, op: str = "add", between: str = "pass", after: str = "pass") -> Sample:
    def meaning(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        del b
        parts = np.exp(a).reshape(128, 4, 64)
        found = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
        return np.asarray(found[op].reduce(parts, axis=1))

    lines = {"declared": TOTAL, "begun": "\n    ".join(begun), "between": between, "after": after}
    return Sample(HEADER + KERNEL.format(op=op, **lines), ((128, 256), (128, 256)), meaning)


@pytest.mark.parametrize("begun", [(DIRECTLY,), COPIED, (*COPIED[:2], COPIED[2].replace("src=", "src="))])
@pytest.mark.parametrize(
    ("op", "number"),
    [("add", "0.0"), ("multiply", "1.0"), ("maximum", "-3.4028234663852886e+38"),
     ("minimum", "3.4028234663852886e+38")],
)  # fmt: skip
def test_the_first_iteration_joins_its_loop(begun: tuple[str, ...], op: str, number: str) -> None:
    made = sample(*begun, op=op)
    source = join_wrapped_calls(find_rewrite(made, "unpeel", "all loops", {}))
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, source) < 1e-6
    assert (
        f"nisa.memset(dst=total, value={number})\n    # The others.\n    for k in nl.affine_range(4):"
        in source
    )
    assert "src=a[:, k * 64:(k + 1) * 64])" in source
    assert "first" not in source
    assert "part_0" not in source


def refuses(made: Sample) -> bool:
    kernel = read_kernel(made.source, made.arguments, TARGET)
    found, _ = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["unpeel"]])
    return not found


@pytest.mark.parametrize(
    "made",
    [
        sample("nisa.activation(dst=total, op=nl.tanh, data=first)"),
        sample("nisa.memset(dst=total, value=1.0)"),
        sample("nisa.activation(dst=total, op=nl.exp, data=first, scale=0.5)"),
        sample(DIRECTLY, op="subtract"),
        sample(DIRECTLY, between=SAVED.format("total")),
        sample(DIRECTLY, after="nisa.tensor_copy(dst=total, src=first)"),
        sample(DIRECTLY, between="print(b)"),
    ],
)
def test_what_is_no_first_iteration_stays_before_the_loop(made: Sample) -> None:
    assert refuses(made)


def test_a_window_that_is_not_the_one_before_the_first_is_no_iteration() -> None:
    made = sample(DIRECTLY)
    assert refuses(Sample(made.source.replace("a[:, 0:64]", "a[:, 64:128]"), made.shapes, made.meaning))
    assert refuses(Sample(made.source.replace("a[:, 0:64]", "b[:, 0:64]"), made.shapes, made.meaning))


def test_what_stands_between_and_uses_other_tiles_stays() -> None:
    other = "nisa.dma_copy(dst=out[0:1, :], src=b[0:1, 0:64])"
    made = sample(DIRECTLY, between=other)
    source = join_wrapped_calls(find_rewrite(made, "unpeel", "all loops", {}))
    assert source.index(other) < source.index("for k")
    assert relative_error(made, source) < 1e-6
