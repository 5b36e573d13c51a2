"""Inputs: a function of spec, size and seed alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import seeds
from seeds.errors import UnknownSizeError
from seeds.inputs import draw_inputs, dtype_of
from seeds.spec import InputSpec, ProblemSpec

SPEC = seeds.load_problem("rmsnorm_matmul").spec


def with_inputs(*inputs: InputSpec) -> ProblemSpec:
    return SPEC.model_copy(update={"inputs": inputs})


def test_the_documented_generator_in_the_documented_order():
    x, w = draw_inputs(SPEC, "reduced", 21)
    generator = np.random.default_rng(21)
    assert np.array_equal(x, generator.standard_normal((256, 256), dtype=np.float32))
    assert np.array_equal(w, generator.standard_normal((256, 1024), dtype=np.float32))
    assert x.dtype == w.dtype == np.float32


def test_same_seed_same_inputs_other_seed_other_inputs():
    first, again, other = (draw_inputs(SPEC, "reduced", seed) for seed in (42, 42, 63))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_inputs_look_standard_normal():
    (x,) = draw_inputs(seeds.load_problem("silu").spec, "reduced", 0)
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1.0) < 0.01


def test_distribution_scale_and_type():
    spec = with_inputs(
        InputSpec(name="v", shape=("M", "N"), distribution="abs_normal", scale=0.05),
        InputSpec(name="b", shape=("K",), dtype="bfloat16"),
    )
    v, b = draw_inputs(spec, "reduced", 0)
    assert v.min() >= 0
    assert abs(float(np.sqrt(np.mean(v**2))) - 0.05) < 0.001
    assert b.dtype == ml_dtypes.bfloat16


def test_unknown_size_is_refused():
    with pytest.raises(UnknownSizeError):
        draw_inputs(SPEC, "huge", 0)


@pytest.mark.parametrize("name", ["float32", "float16", "int32"])
def test_numpy_types_by_name(name):
    assert dtype_of(name) == np.dtype(name)
