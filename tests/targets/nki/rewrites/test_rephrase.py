"""Other instructions and other memories for the same value, each judged against what the kernel means."""

from __future__ import annotations

import numpy as np
import pytest

from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

KERNEL = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    b = nl.ndarray((128, 256), dtype={dtype}, buffer=nl.{buffer})
    nisa.activation(dst=b, op=nl.square, data=a)
    c = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    # From here on it differs.
    {body}
    nisa.dma_copy(dst=out, src=c)
    return out
"""


def sample(body: str, meaning, dtype: str = "nl.float32", buffer: str = "sbuf") -> Sample:
    source = HEADER + KERNEL.format(body=body, dtype=dtype, buffer=buffer)
    return Sample(source, ((128, 256),), meaning)


def children(made: Sample, technique: str) -> tuple[list[RewrittenKernel], list[str]]:
    kernel = read_kernel(made.source, made.arguments, TARGET)
    return explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS[technique]])


@pytest.mark.parametrize(
    ("body", "meaning", "way", "line"),
    [
        (
            "nisa.reciprocal(dst=c, data=b)",
            lambda x: x**-2,
            "power",
            "nisa.tensor_scalar(dst=c, data=b, op0=nl.power, operand0=-1.0)",
        ),
        (
            "nisa.tensor_tensor(dst=c, data1=a, data2=a, op=nl.multiply)",
            np.square,
            "square",
            "nisa.activation(dst=c, op=nl.square, data=a)",
        ),
        (
            "nisa.activation(dst=c, op=nl.square, data=a)",
            np.square,
            "product",
            "nisa.tensor_tensor(dst=c, data1=a, data2=a, op=nl.multiply)",
        ),
        (
            "nisa.activation(dst=c, op=nl.rsqrt, data=b, scale=4.0)",
            lambda x: 0.5 / np.abs(x),
            "tensor_scalar",
            "nisa.tensor_scalar(dst=c, data=b, op0=nl.multiply, operand0=4.0, op1=nl.power, operand1=-0.5)",
        ),
        (
            "nisa.activation(dst=c, op=nl.copy, data=a, scale=4.0, bias=1.0)",
            lambda x: 4 * x + 1,
            "tensor_scalar",
            "nisa.tensor_scalar(dst=c, data=a, op0=nl.multiply, operand0=4.0, op1=nl.add, operand1=1.0)",
        ),
        (
            (
                "nisa.scalar_tensor_tensor("
                "dst=c, data=a, op0=nl.multiply, operand0=3.0, op1=nl.subtract, operand1=b, reverse1=True)"
            ),
            lambda x: x * x - 3 * x,
            "scalar product in psum",
            "nisa.tensor_tensor(dst=c, data1=b, data2=c_part, op=nl.subtract)",
        ),
        (
            (
                "nisa.scalar_tensor_tensor("
                "dst=c, data=a, op0=nl.subtract, operand0=3.0, op1=nl.add, operand1=b, reverse0=True)"
            ),
            lambda x: x * x + 3 - x,
            "vector product in sbuf",
            "nisa.tensor_scalar(dst=c_part, data=a, op0=nl.subtract, operand0=3.0, reverse0=True)",
        ),
    ],
)
def test_the_same_value_by_another_instruction(body: str, meaning, way: str, line: str):
    made = sample(body, meaning)
    found, _ = children(made, "rephrase")
    mine = {dict(child.choice)["as"]: child.source for child in found if "to c" in child.site}
    assert line in mine[way]
    assert all("# From here on it differs.\n" in source for source in mine.values())
    for source in mine.values():
        assert relative_error(made, source) < 1e-5, source


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.multiply)",
            "no other instruction computes what this tensor_tensor does",
        ),
        (
            "nisa.activation(dst=c, op=nl.exp, data=a)",
            "no other instruction computes what this activation does",
        ),
        (
            "nisa.activation(dst=c, op=nl.sqrt, data=b, scale=2.0, bias=1.0)",
            "a tensor_scalar has two operators at most",
        ),
        (
            (
                "nisa.activation(dst=c, op=nl.square, data=a, reduce_op=nl.add, reduce_res=b[:, 0:1],"
                " reduce_cmd=nisa.reduce_cmd.reset_reduce)"
            ),
            "activation has arguments that other instructions have no place for",
        ),
    ],
)
def test_rephrasing_says_why_not(body: str, reason: str):
    _, refusals = children(sample(body, np.square), "rephrase")
    (mine,) = [item for item in refusals if "to c" in item]
    assert mine.endswith(f": {reason}")


def test_integers_stay_with_what_keeps_all_their_digits():
    made = sample("nisa.tensor_tensor(dst=c, data1=b, data2=b, op=nl.multiply)", np.square, dtype="nl.int32")
    _, refusals = children(made, "rephrase")
    assert "rephrase tensor_tensor to c: b holds int32, of which others keep other digits" in refusals


SUM = "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)"


@pytest.mark.parametrize(("now", "then"), [("sbuf", "psum"), ("psum", "sbuf")])
def test_a_tile_changes_its_memory(now: str, then: str):
    made = sample(SUM, lambda x: x + x * x, buffer=now)
    found, _ = children(made, "place")
    (source,) = [child.source for child in found if child.site == "b"]
    assert f"b = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.{then})" in source
    assert relative_error(made, source) < 1e-5


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(SUM, np.square, dtype="nl.bfloat16"), "b holds bfloat16"),
        (
            sample(SUM.replace("nl.add", "nl.add, engine=nisa.engine.gpsimd"), np.square),
            "tensor_tensor on GpSimd does not reach PSUM",
        ),
        (
            sample("nisa.tensor_copy(dst=c, src=b)", np.square),
            "no instruction is faster with b in PSUM",
        ),
        (
            sample(SUM.replace("data1=a", "data1=b"), np.square),
            "no instruction is faster with b in PSUM",
        ),
        (sample(f"alias = b\n    {SUM}", np.square), "b has a second name or is used by what cannot be read"),
    ],
)
def test_placement_says_why_not(made: Sample, reason: str):
    found, refusals = children(made, "place")
    assert not [child for child in found if child.site == "b"]
    assert f"place b: {reason}" in refusals


def test_tiles_that_dma_moves_are_no_place_for_it():
    found, refusals = children(sample(SUM, np.square), "place")
    assert {child.site for child in found} == {"b"}
    assert not refusals
