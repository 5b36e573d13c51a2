"""Translated kernels compute what their reference does, in every layout that is written for them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote.judge.identity.expression import pack_refusal
from remote.judge.identity.tracing.arrays import UntraceableError
from remote.judge.identity.tracing.recording import record_reference
from seeds.spec import ProblemSpec
from targets.base import UntranslatableError
from targets.nki.translation import kernel
from targets.nki.translation.translator import estimate_work, write_kernels
from tests.support.workloads import run_kernel
from tests.targets.nki.translation.references import REFERENCES


def make_spec(shapes, outputs, dtype="float32"):
    names = "abcdefgh"[: len(shapes)]
    return ProblemSpec.model_validate(
        {
            "name": "translated",
            "formula": "a reference",
            "rel_l2": 2e-5,
            "seeds": (0,),
            "shape_generic": False,
            "sizes": {"full": {"UNIT": 1}},
            "inputs": [
                {"name": name, "shape": shape, "dtype": dtype}
                for name, shape in zip(names, shapes, strict=True)
            ],
            "outputs": [
                {"name": f"out_{at}", "shape": array.shape or (1,)} for at, array in enumerate(outputs)
            ],
            "work": {},
        }
    )


def translate(reference, shapes):
    """The spec, the formula, inputs, and what the reference returns for them."""
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = reference(*(array.astype(np.float64) for array in inputs))
    outputs = [np.asarray(item) for item in (found if isinstance(found, tuple) else (found,))]
    types = [(shape, np.dtype(np.float32)) for shape in shapes]
    formula = record_reference(reference, types, [array.shape for array in outputs])
    return make_spec(shapes, outputs), formula.to_bytes(), inputs, outputs


def assert_computes(source, inputs, outputs):
    found = run_kernel(source, inputs)
    assert len(found) == len(outputs)
    for own, expected in zip(found, outputs, strict=True):
        assert own.shape == (expected.shape or (1,))
        np.testing.assert_allclose(own, expected.reshape(own.shape), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_every_layout_computes_the_reference(name):
    spec, formula, inputs, outputs = translate(*REFERENCES[name])
    kernels = write_kernels(spec, "full", formula)
    assert kernels
    for source in kernels:
        assert_computes(source, inputs, outputs)


@pytest.mark.parametrize(
    ("reference", "shapes", "reason"),
    [
        (np.floor, ((8, 8),), "np.floor"),
    ],
)
def test_what_has_no_translation_is_named(reference, shapes, reason):
    spec, formula, _, _ = translate(reference, shapes)
    with pytest.raises(UntranslatableError, match=reason):
        write_kernels(spec, "full", formula)


def raise_once(x):
    return np.exp(x)


def raise_twice(x):
    return np.exp(np.exp(x))


@pytest.mark.parametrize(("reference", "first"), [(raise_once, ""), (raise_twice, "first used in ")])
def test_what_does_not_fit_on_the_chip_has_its_line(monkeypatch, reference, first):
    monkeypatch.setattr(kernel, "SBUF_BYTES", 16)
    spec, formula, _, _ = translate(reference, [(256, 64)])
    text = rf"tiles of \d+ bytes .*, for the result \[256, 64\] of `exp` \({first}line \d+: "
    with pytest.raises(UntranslatableError, match=text):
        write_kernels(spec, "full", formula)


def sort_after_product(x):
    halved = x @ x / 2
    return np.sort(halved, axis=1)[:, :2]


def round_down(x):
    return np.floor(np.exp(x)) + 1


def round_twice(x):
    return np.sort(np.floor(x))


@pytest.mark.parametrize(
    ("reference", "line", "rest"),
    [
        (sort_after_product, "np.sort (line N: return np.sort(halved, axis=1)[:, :2])", "can be translated"),
        (round_down, "np.floor (line N: return np.floor(np.exp(x)) + 1)", "can be translated"),
        (
            round_twice,
            "np.sort (line N: return np.sort(np.floor(x)))",
            "np.floor",
        ),
    ],
)
def test_what_is_in_the_way_has_its_line_and_what_comes_before_it_is_tried(reference, line, rest):
    types = [((8, 8), np.dtype(np.float32))]
    spec = make_spec([(8, 8)], [np.zeros((8, 8))])
    try:
        formula = record_reference(reference, types, [(8, 8)]).to_bytes()
    except UntraceableError as error:
        formula = error.part.pack_as_part(str(error))
    with pytest.raises(UntranslatableError) as found:
        write_kernels(spec, "full", formula)
    message = re.sub(r"line [0-9]+", "line N", str(found.value))
    assert line in message
    assert message.endswith(rest)


def test_a_reference_that_cannot_be_followed_has_no_translation():
    spec, _, _, _ = translate(np.abs, ((8, 8),))
    with pytest.raises(UntranslatableError, match=r"it uses np\.sort"):
        write_kernels(spec, "full", pack_refusal("it uses np.sort"))


def test_the_work_of_a_formula_is_counted():
    spec, formula, _, _ = translate(lambda a, b: np.exp(a @ b), ((16, 32), (32, 8)))
    found = estimate_work(spec, "full", formula)
    assert found == {
        "matmul_flops": 2 * 16 * 32 * 8,
        "other_flops": 128,
        "activation_elements": 128,
        "elementwise_elements": 128,
    }


@pytest.mark.parametrize(
    ("reference", "computed"),
    [
        (lambda a: a.T[:, ::-1], 0),
        (lambda a: np.where(np.tri(8, 8) > 0, a, -1.0), 0),
        (lambda a: np.where(a > 0, a, -1.0), 64),  # which of the two it is only the data say
        (lambda a: np.concatenate([a[:2], np.exp(a[2:4]), np.zeros((4, 8))]), 16),
        (lambda a: np.repeat(np.exp(a), 3, axis=0), 64),
        (lambda a: np.broadcast_to(a.sum(axis=1, keepdims=True), (8, 8)), 8),
        (lambda a: np.tril(a @ a), 36),
        (lambda a: (a @ a)[:3, 1:], 21),
        (lambda a: np.roll(np.exp(a), 3, axis=1), 64),
        (lambda a: (a + 1.0, a.T, a + 1.0), 64),
    ],
)
def test_elements_that_only_move_may_be_copies(reference, computed):
    spec, formula, _, _ = translate(reference, ((8, 8),))
    assert estimate_work(spec, "full", formula)["elementwise_elements"] == computed


def test_products_behind_a_mask_are_not_counted():
    spec, formula, _, _ = translate(lambda a, b: np.tril(a @ b), ((16, 32), (32, 16)))
    assert estimate_work(spec, "full", formula)["matmul_flops"] == 0


# --- random references ---------------------------------------------------------------------------------

_STEPS = {
    "double": lambda x: x + x,
    "square": lambda x: x * x * 0.5,
    "tanh": np.tanh,
    "exp": lambda x: np.exp(-np.abs(x)),
    "clip": lambda x: np.clip(x, -0.5, 0.75),
    "centre rows": lambda x: x - x.mean(axis=-1, keepdims=True),
    "divide rows": lambda x: x / (np.abs(x).max(axis=-1, keepdims=True) + 1.0),
    "centre columns": lambda x: x - x.max(axis=0, keepdims=True),
    "transpose": lambda x: np.ascontiguousarray(x.T),
    "gram": lambda x: (x @ x.T) / x.shape[1],
    "crop": lambda x: x[1:, 2:],
    "halves": lambda x: np.concatenate([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], axis=1),
    "pad": lambda x: np.pad(x, ((1, 0), (0, 2))),
    "mask": lambda x: np.where(np.arange(x.shape[1])[None] <= np.arange(x.shape[0])[:, None], x, 0.25),
    "running": lambda x: np.cumsum(x, axis=1) * 0.1,
}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=4),
    shape=st.tuples(st.integers(10, 140), st.integers(10, 40)),
)
def test_random_references_are_translated_or_refused(names, shape):
    def reference(x):
        for name in names:
            x = _STEPS[name](x)
        return x

    spec, formula, inputs, outputs = translate(reference, (shape,))
    try:
        kernels = write_kernels(spec, "full", formula)
    except UntranslatableError:
        return
    assert_computes(kernels[0], inputs, outputs)
