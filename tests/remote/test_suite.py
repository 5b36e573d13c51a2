"""Input sets, tiles, and the reference on parts of its inputs and in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seeds
from remote.judge import comparison, suite, tiles
from remote.judge import tiled_reference as parts
from remote.judge.rounding_noise import run_in_float32, run_in_narrow_type, run_with_mx_products
from remote.judge.tiled_reference import SeparableAxis, make_tiled_reference
from seeds.inputs import draw_inputs
from seeds.spec import ProblemSpec, parse_spec
from tests.support.sweeps import parametrize_sweep, scale_examples

ADAMW = seeds.load_problem("adamw").spec


@parametrize_sweep("name", suite.all_sets(ADAMW), quick=3)
def test_every_set_is_what_the_problem_takes_and_always_the_same(name):
    arrays = suite.draw_set(ADAMW, "reduced", name)
    again = suite.draw_set(ADAMW, "reduced", name)
    dims = ADAMW.dims("reduced")
    for item, one, other in zip(ADAMW.inputs, arrays, again, strict=True):
        assert (one.shape, one.dtype.name) == (item.resolve_shape(dims), item.dtype)
        assert np.isfinite(one).all()
        assert np.array_equal(one, other)
    assert (arrays[3] >= 0).all()


def test_sets_are_what_their_names_say():
    found = {name: suite.draw_set(ADAMW, "reduced", name) for name in suite.adversarial_sets(ADAMW)}
    assert np.ptp(found["equal"][0]) == 0
    assert (np.count_nonzero(found["one_hot"][0], axis=1) == 1).all()
    assert (np.diff(found["sorted"][1], axis=1) >= 0).all()
    assert not found["masked"][2][-1].any()
    assert not found["masked"][2][:, -1].any()
    assert (found["flipped"][0] <= 0).all()
    assert (found["flipped"][1] >= 0).all()
    assert not found["without_g"][1].any()
    assert found["without_g"][0].any()
    wide = np.abs(found["wide"][0])
    assert wide.max() / wide.min() > 1e6


def test_shifted_lines_lie_on_both_sides_far_from_zero_for_their_spread():
    lines = suite.draw_set(seeds.load_problem("silu").spec, "reduced", "shifted")[0]
    means, spreads = lines.mean(axis=1), lines.std(axis=1)
    assert np.allclose(np.abs(means), 100, atol=1)
    assert (means[::2] > 0).all()
    assert (means[1::2] < 0).all()
    assert np.allclose(spreads, 1, atol=0.1)


def test_the_secret_decides_about_one_set_and_no_other():
    one, again, other = (suite.draw_set(ADAMW, "reduced", suite.secret_set(secret)) for secret in "aab")
    assert all(np.array_equal(*pair) for pair in zip(one, again, strict=True))
    assert not any(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    assert not any(map(suite.is_secret_set, suite.all_sets(ADAMW)))


def test_the_name_of_the_secret_set_does_not_give_the_secret_away():
    name = suite.secret_set("a secret of tests")
    assert suite.is_secret_set(name)
    assert "a secret of tests" not in name
    assert comparison.describe_set(name) == "the input set that the home's secret decides"


@pytest.mark.parametrize(
    ("distribution", "scale", "least", "most"),
    [("normal", 1000.0, -4000, 4000), ("integers:0:4096", 1.0, 0, 4095), ("integers:-3:6", 1.0, -3, 5)],
)
def test_made_integers_lie_where_drawn_ones_may_and_reach_their_ends(distribution, scale, least, most):
    first, *rest = ADAMW.inputs
    item = first.model_copy(update={"dtype": "int32", "distribution": distribution, "scale": scale})
    spec = ADAMW.model_copy(update={"inputs": (item, *rest)})
    made = [suite.draw_set(spec, "reduced", name)[0] for name in suite.adversarial_sets(spec)]
    assert min(array.min() for array in made) == least
    assert max(array.max() for array in made) == most


def test_a_seed_is_drawn_as_it_always_was():
    for one, other in zip(
        suite.draw_set(ADAMW, "reduced", "21"), draw_inputs(ADAMW, "reduced", 21), strict=True
    ):
        assert np.array_equal(one, other)


@given(st.binary(min_size=1, max_size=40))
def test_a_program_is_judged_on_the_first_and_last_tile_and_some_others(program):
    pool = tiles.make_tile_pool(ADAMW, "full", "")
    at = tiles.choose_tiles(pool, program)
    assert at == tiles.choose_tiles(pool, program)
    assert len(set(at)) == tiles.JUDGED_TILES
    shape = ADAMW.outputs[0].resolve_shape(ADAMW.dims("full"))
    assert pool[at[0]].box == ((0, 64), (0, 256))
    assert [end for _, end in pool[at[1]].box] == list(shape)
    assert all(
        0 <= first < end <= size
        for one in at
        for (first, end), size in zip(pool[one].box, shape, strict=True)
    )


def test_programs_are_judged_on_different_tiles():
    pool = tiles.make_tile_pool(ADAMW, "full", "")
    assert len({tuple(sorted(tiles.choose_tiles(pool, bytes([number])))) for number in range(20)}) > 10


def test_a_tile_of_zeros_is_measured_by_the_size_of_its_output():
    one, none = np.full((2, 2), 3.0, np.float32), np.zeros((2, 2), np.float32)
    pool = [tiles.OutputTile(0, ((0, 2), (0, 2))), tiles.OutputTile(0, ((2, 4), (0, 2)))]
    floor = tiles.norm_floors(pool, [one, none])
    assert floor[1] == pytest.approx(np.sqrt(36 / 8 * 4))
    assert tiles.worst_tile_error([one, none], [one, none], floor, [0, 1]) == 0.0
    assert tiles.worst_tile_error([one, none + 1], [one, none], floor, [0, 1]) == pytest.approx(2 / floor[1])
    assert tiles.worst_tile_error([one, none * np.nan], [one, none], floor, [0, 1]) == np.inf


def reference(name: str):
    names = {}
    exec(seeds.load_problem(name).files["reference.py"], names)
    return names["reference"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("matmul", [SeparableAxis(0, ((0, 0),)), SeparableAxis(1, ((1, 1),))]),
        ("silu", [SeparableAxis(0, ((0, 0),)), SeparableAxis(1, ((0, 1),))]),
        (
            "bmm_softmax",
            [SeparableAxis(0, ((0, 0), (1, 0))), SeparableAxis(1, ((0, 1),))],
        ),  # not along the rows' columns
        # Queries, though keys have an axis of that name; then heads, two of which share one of keys.
        ("gqa_full", [SeparableAxis(2, ((0, 1),)), SeparableAxis(1, ((0, 2),), ((1, 2), (2, 2)))]),
        ("add_rmsnorm_matmul", [SeparableAxis(0, ((0, 0), (2, 0))), SeparableAxis(1, ((1, 1),))]),
        ("mamba", [SeparableAxis(0, ((0, 0), (1, 0), (2, 0)))]),  # channels, not the sequence
    ],
)
def test_axes_along_which_a_reference_falls_apart_are_found(name, axes, monkeypatch):
    monkeypatch.setattr(parts, "_SMALL", 0)
    spec = seeds.load_problem(name).spec
    found = make_tiled_reference(reference(name), spec, "reduced")
    assert list(found.axes[0]) == axes
    monkeypatch.setattr(tiles, "MAX_WHOLE_ELEMENTS", 0)
    inputs = suite.draw_set(spec, "reduced", "0")
    pool = tiles.make_tile_pool(spec, "reduced", "")[:3]
    whole = reference(name)(*inputs)
    for tile, part in zip(pool, found.evaluate(inputs, pool), strict=True):
        assert np.allclose(part, whole[tile.index], rtol=1e-5, atol=1e-7)


def attention(head_of):
    """Linear attention whose heads of queries share those of keys and values as `head_of` says."""

    def reference(q, k, v):
        few = [head_of(head, q.shape[2], k.shape[2]) for head in range(q.shape[2])]
        scores = np.einsum("bnhd,bmhd->bhnm", q.astype(np.float64), k[:, :, few])
        return np.einsum("bhnm,bmhd->bhnd", scores, v[:, :, few]).astype(np.float32)

    return reference


def small_heads(q_heads: int, k_heads: int):
    dims = {"B": 1, "N": 32, "QH": q_heads, "KH": k_heads, "D": 8}
    return seeds.load_problem("gqa_full").spec.model_copy(update={"sizes": {"full": dims, "reduced": dims}})


GROUPED = attention(lambda head, many, few: head * few // many)


def test_a_box_of_several_elements_is_not_cut_along_an_axis_whose_inputs_are_shared(monkeypatch):
    monkeypatch.setattr(parts, "_SMALL", 0)
    spec = small_heads(8, 2)
    found = make_tiled_reference(GROUPED, spec, "full")
    heads = next(item for item in found.axes[0] if item.shared)
    assert (heads.axis, heads.shared) == (1, ((1, 2), (2, 2)))
    inputs = suite.draw_set(spec, "full", "0")
    whole = GROUPED(*inputs)
    for first, end in ((0, 8), (3, 5), (4, 8), *((at, at + 1) for at in range(8))):
        tile = tiles.OutputTile(0, ((0, 1), (first, end), (3, 20), (0, 8)))
        assert found.reproduces_tile(inputs, tile, whole[tile.index]), (first, end)


@pytest.mark.parametrize(
    ("head_of", "q_heads", "k_heads"),
    [
        (lambda head, _, few: head % few, 8, 2),  # first, last and third head are as if neighbours shared
        (lambda head, _, few: few - 1 - head % few, 8, 4),
        (lambda head, many, few: head * few // many if head != many - 2 else 0, 8, 2),
        (lambda head, many, few: head * few // many, 32, 2),  # too many to try each
        (lambda head, many, few: head * few // many, 8, 1),  # says nothing of how several are shared
    ],
)
def test_heads_that_are_shared_otherwise_are_not_cut(head_of, q_heads, k_heads, monkeypatch):
    monkeypatch.setattr(parts, "_SMALL", 0)
    reference = attention(head_of)
    spec = small_heads(q_heads, k_heads)
    found = make_tiled_reference(reference, spec, "full")
    assert not any(item.shared for item in found.axes[0])
    inputs = suite.draw_set(spec, "full", "0")
    tile = tiles.OutputTile(0, ((0, 1), (1, 2), (3, 20), (0, 8)))
    assert np.allclose(
        found.evaluate_tile(inputs, tile), reference(*inputs)[tile.index], rtol=1e-5, atol=1e-6
    )


@settings(max_examples=scale_examples(20))
@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_honest_float32_is_float32_in_another_order(length, seed):
    generator = np.random.default_rng(seed)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((3, length), (length, 2)))
    seen = []

    def product(x, w):
        out = np.sqrt(np.square(np.matmul(x.astype(np.float64), w)).sum(axis=1) + x.mean(axis=1) ** 2)
        seen.append(out.dtype)
        return out

    exact = product(x.astype(np.float64), w.astype(np.float64))
    found = run_in_float32(product, [x, w], 1)
    assert seen == [np.float64, np.float32]
    assert np.allclose(found, exact, rtol=1e-4, atol=1e-5)


def test_orders_of_addition_differ():
    x = np.random.default_rng(0).standard_normal((1, 4096)).astype(np.float32) * 1e3
    sums = {float(run_in_float32(lambda x: x.sum(axis=1), [x], seed)[0]) for seed in range(8)}
    assert len(sums) > 1


# --- types of two bytes ---

SCORES = """
name = "scores"
formula = "softmax(x @ y.T)"
rel_l2 = 0.02
seeds = [0, 1]
shape_generic = false
[sizes.full]
M = 128
K = 64
N = 512
[[inputs]]
name = "x"
shape = ["M", "K"]
dtype = "DTYPE"
[[inputs]]
name = "y"
shape = ["N", "K"]
dtype = "DTYPE"
[[outputs]]
name = "out"
shape = ["M", "N"]
dtype = "float32"
[work]
matmul_flops = "2 * M * K * N"
other_flops = "0"
activation_elements = "0"
elementwise_elements = "M * N"
matmul_dtype = "float32"
"""


def products(x, y):
    return x.astype(np.float32) @ y.astype(np.float32).T


def weights(x, y):
    scores = products(x, y)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def gate_product(x, y):
    product = products(x, y)
    return product / (1 + np.exp(-product))


@parametrize_sweep(("dtype", "function", "name", "is_lost"), [
    ("bfloat16", weights, "huge", True), ("bfloat16", products, "huge", False),
    ("bfloat16", weights, "one_hot", False), ("float32", weights, "huge", False),
    ("float16", products, "outliers", False),
    ("float16", lambda x, y: gate_product(x * 4, y * 4), "outliers", True),
], quick=2)  # fmt: skip
def test_what_a_type_of_two_bytes_loses_is_no_set_to_judge_by(dtype, function, name, is_lost):
    spec, faults = parse_spec(SCORES.replace("DTYPE", dtype).encode())
    assert isinstance(spec, ProblemSpec), faults
    found, pool = make_tiled_reference(function, spec, "full"), tiles.make_tile_pool(spec, "full", "")
    inputs = suite.draw_set(spec, "full", name)
    with np.errstate(all="ignore"):
        error = found.narrow_type_error(inputs, pool, found.evaluate(inputs, pool))
    assert (error > spec.rel_l2) == is_lost
    assert (error == 0) == (dtype == "float32")


def covariances(x, y):
    return products(x, y) - x.shape[1] * np.outer(x.mean(axis=1), y.mean(axis=1))


@pytest.mark.parametrize(("product", "name", "is_lost"), [
    (covariances, "shifted", True), (products, "shifted", False), (products, "sorted", False),
    (lambda x, y: np.einsum("mk,nk->mn", x, y), "outliers", False),
])  # fmt: skip
def test_where_products_of_mx_operands_cancel_is_no_set_to_judge_by(product, name, is_lost):
    text = SCORES.replace("DTYPE", "float32")
    named = next(line for line in text.splitlines() if line.startswith("rel_l2"))
    errors = []
    for keys in (named, "rel_l2 = 0.06\nmx = true"):
        spec, faults = parse_spec(text.replace(named, keys).encode())
        assert isinstance(spec, ProblemSpec), faults
        found, pool = make_tiled_reference(product, spec, "full"), tiles.make_tile_pool(spec, "full", "")
        inputs = suite.draw_set(spec, "full", name)
        errors.append(found.mx_error(inputs, pool, found.evaluate(inputs, pool)))
    assert errors[0] == 0
    assert errors[1] > 1e-4
    assert (errors[1] > 0.06) == is_lost


def test_operands_of_bfloat16_are_rounded_for_mx_products_too():
    rng = np.random.default_rng(4)
    narrow = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((8, 64), (64, 8))]
    wide = [array.astype(np.float32) for array in narrow]
    found, expected = (run_with_mx_products(np.matmul, arrays) for arrays in (narrow, wide))
    assert np.array_equal(found.astype(np.float32), expected)
    assert not np.array_equal(expected, run_in_float32(np.matmul, wide, 3))


def test_what_is_computed_in_a_narrow_type_is_rounded_after_each_step():
    one, small = (np.array([value], dtype=np.float32) for value in (1.0, 2.0**-10))
    found = run_in_narrow_type(lambda x, y: (x + y) - x, [one, small], ml_dtypes.bfloat16)
    assert found.tolist() == [0.0]
    assert run_in_float32(lambda x, y: (x + y) - x, [one, small], 0).tolist() == [2.0**-10]
