"""Inputs: a function of spec, size and seed alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import seeds
from seeds.errors import UnknownSizeError
from seeds.inputs import draw_elements, draw_inputs, dtype_of
from seeds.spec import InputSpec, ProblemSpec, parse_spec

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


DISTRIBUTIONS = {
    "zero_one": (0.0, 1.0, 0.5),
    "positive": (0.0625, 6.0, 0.8),
    "shifted": (94.0, 106.0, 100.0),
    "integers:0:256": (0.0, 255.0, 127.5),
    "integers:-8:8": (-8.0, 7.0, -0.5),
}
"""Least, greatest and mean."""


@pytest.mark.parametrize(("name", "expected"), DISTRIBUTIONS.items())
def test_distributions_are_what_their_names_say(name, expected):
    least, greatest, mean = expected
    item = InputSpec(name="x", shape=(512, 512), distribution=name)
    (values,) = draw_inputs(with_inputs(item), "reduced", 3)
    assert values.dtype == np.float32
    assert values.min() >= least
    assert values.max() <= greatest
    assert abs(values.mean() - mean) < 0.01 * (greatest - least)
    if name == "zero_one":
        assert set(np.unique(values)) == {0.0, 1.0}
    if name.startswith("integers"):
        assert np.array_equal(np.unique(values), np.arange(least, greatest + 1))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_drawing_in_parts_gives_the_same_numbers(name):
    item = InputSpec(name="x", shape=(7, 5), distribution=name, scale=2.0)
    (whole,) = draw_inputs(with_inputs(item), "reduced", 3)
    generator = np.random.default_rng(3)
    parts = [draw_elements(item, (count,), generator) for count in (1, 2, 13, 19)]
    assert np.array_equal(np.concatenate(parts), whole.reshape(-1))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("uniform", "there is no distribution 'uniform'; there are normal, abs_normal, positive,"),
        ("integers:5", "integers:FIRST:END"),
        ("integers:5:5", "FIRST must be below END"),
    ],
)
def test_another_distribution_is_one_clear_fault(name, said):
    text = seeds.load_problem("silu").files["problem.toml"].decode()
    spec, faults = parse_spec(text.replace('name = "x"', f'name = "x"\ndistribution = "{name}"', 1).encode())
    assert spec is None
    (fault,) = faults
    assert fault.startswith("problem.toml: inputs.0.distribution: ")
    assert said in fault
