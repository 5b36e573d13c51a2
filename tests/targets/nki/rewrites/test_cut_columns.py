"""Cutting columns: the body of a loop goes through whole rows in pieces, and scans carry their state on."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

KERNEL = """
@nki.jit
def kernel(x, u, a, b):
    out = nl.ndarray((256, 1024), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        total = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for s in nl.affine_range(3):
            decay = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=decay, src=x[i * 128 : (i + 1) * 128, :])
            factor = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=factor, src=a[i * 128 : (i + 1) * 128, s])
            nisa.activation(dst=decay, op=nl.sigmoid, data=decay, scale=factor)
            gain = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=gain, src=b[s : s + 1, :].broadcast(0, 128))
            nisa.tensor_tensor(dst=gain, data1=gain, data2=decay, op=nl.multiply)
            # What is left of all steps so far.
            state = nl.ndarray((128, 1024), dtype=nl.{state}, buffer=nl.sbuf)
            nisa.tensor_tensor_scan(
                dst=state, data0=decay, data1=gain, initial={initial}, op0=nl.multiply, op1=nl.add
            )
            {inside}
            nisa.tensor_tensor(dst=total, data1=total, data2=state, op=nl.add)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=total)
    return out
"""


def meaning(
    x: NDArray[np.float64], u: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]
) -> NDArray[np.float64]:
    del u
    total = np.zeros_like(x)
    for s in range(3):
        decay = 1 / (1 + np.exp(-x * a[:, s : s + 1]))
        state = np.full(len(x), 0.5)
        for t in range(x.shape[1]):
            state = decay[:, t] * state + decay[:, t] * b[s, t]
            total[:, t] += state
    return total


def sample(**changes: str) -> Sample:
    lines = {"inside": "pass", "state": "float32", "initial": "0.5"}
    source = HEADER + KERNEL.format(**lines | changes).replace("pass\n", "\n")
    return Sample(source, ((256, 1024), (256, 1024), (256, 3), (3, 1024)), meaning)


def test_a_scan_goes_on_where_the_piece_before_ended() -> None:
    made = sample()
    source = join_wrapped_calls(find_rewrite(made, "cut_columns", "i", {"columns": 512}))
    assert relative_error(made, made.source) < 1e-5
    assert relative_error(made, source) < 1e-5
    source = source.replace(" : ", ":")
    assert "state_last = nl.ndarray((128, 3), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert "nisa.memset(dst=state_last, value=0.5)\n        for piece in nl.sequential_range(2):" in source
    assert "src=b[s:s + 1, piece * 512:(piece + 1) * 512].broadcast(0, 128))" in source
    assert "# What is left of all steps so far." in source
    assert "initial=state_last[:, s:s + 1]" in source
    assert "nisa.tensor_copy(dst=state_last[:, s:s + 1], src=state[:, 511:512])" in source
    assert "1024" not in source.split("for i in")[1]


def test_pieces_without_a_scan_need_no_order() -> None:
    made = sample()
    plain = made.source.replace(
        "nisa.tensor_tensor_scan(\n                dst=state, data0=decay, data1=gain, initial=0.5, "
        "op0=nl.multiply, op1=nl.add\n            )",
        "nisa.tensor_tensor(dst=state, data1=decay, data2=gain, op=nl.add)",
    )
    kernel = read_kernel(plain, made.arguments, TARGET)
    found, _ = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["cut_columns"]])
    assert [(one.site, dict(one.choice)) for one in found] == [("i", {"columns": 512})]
    assert "for piece in nl.affine_range(2):" in found[0].source


PART = "nisa.tensor_copy(dst=total[:, 0:512], src=state[:, 0:512])"
SUM = "nisa.tensor_reduce(dst=factor, op=nl.add, data=state, axis=1)"
TURNED = "nisa.nc_transpose(dst=total, data=state)"
RELOADED = "nisa.dma_copy(dst=gain, src=out[i * 128 : (i + 1) * 128, :])"


@pytest.mark.parametrize(
    ("site", "changes", "reason"),
    [
        ("i", {"state": "bfloat16"}, "does not leave its state in a tile of float32"),
        ("i", {"initial": "factor"}, "goes on from a state that is not a number"),
        ("i", {"inside": PART}, "uses a part of the columns"),
        ("i", {"inside": SUM}, "uses factor, which has other columns"),
        ("i", {"inside": TURNED}, "does not compute column by column"),
        ("i", {"inside": RELOADED}, "is stored and loaded"),
        ("i", {"inside": "assert s < 9"}, "holds more than tiles and instructions"),
        ("s", {}, "uses total, which has other columns"),
    ],
)
def test_what_is_in_the_way_is_named(site: str, changes: dict[str, str], reason: str) -> None:
    assert reason in find_refusal(sample(**changes), "cut_columns", site)
