"""The `nl.*` functions that move, choose, broadcast and draw: values, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from tests.nki_sim.lowered import BF16, FEW, KERNEL, close, draw


@FEW
@given(
    shapes=st.sampled_from([((16, 12), (16, 12)), ((16, 1), (16, 12)), ((16, 12), (16, 1))]),
    seed=st.integers(0, 99), number=st.booleans(),
)  # fmt: skip
def test_where_chooses(shapes: Any, seed: int, number: bool, *, evaluate: Any) -> None:
    test = np.random.default_rng(seed).integers(0, 2, (16, 12)).astype(np.float32)
    b, c = draw(seed, shapes[0]), draw(seed + 1, shapes[1])
    if number:
        np.testing.assert_array_equal(evaluate("fn['where'](a, b, -3.0)", test, b), np.where(test, b, -3.0))
    else:
        np.testing.assert_array_equal(evaluate("fn['where'](a, b, c)", test, b, c), np.where(test, b, c))


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
@pytest.mark.parametrize("shape", [(1, 6), (4, 1), (1, 1), (4, 6)])
def test_broadcast_to_fills_partitions_and_repeats_free_axes(shape: Any, dtype: Any, evaluate: Any) -> None:
    a = np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)
    goal = (4 if shape[0] == 4 else 100, 6)
    found = evaluate(f"fn['broadcast_to'](a, {goal})", a)
    np.testing.assert_array_equal(found, np.broadcast_to(a, goal))


def test_views_cost_no_instruction(tracing: Any) -> None:
    body = "fn['expand_dims'](fn['broadcast_to'](a, (8, 5)), 2)"
    program = tracing(KERNEL.format(names="a", body=body), draw(0, (8, 1)))
    assert {form.op for form in program.forms} == {"dma_copy"}


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
def test_load_transpose2d(dtype: Any, simulate: Any) -> None:
    a = np.arange(96 * 64).reshape(96, 64).astype(dtype)
    text = """
    from nki_sim.frontend.lowering import FUNCTIONS as fn
    @nki.jit
    def kernel(a):
        out = nl.ndarray((64, 96), dtype=a.dtype, buffer=nl.shared_hbm)
        fn["store"](out, fn["load_transpose2d"](a))
        return out
    """
    np.testing.assert_array_equal(simulate(text, a)[0], a.T)


def test_gather_flattened_takes_indices_over_the_free_axes(evaluate: Any) -> None:
    a = draw(1, (32, 4, 10))
    b = np.random.default_rng(2).integers(0, 40, (32, 6)).astype(np.uint32)
    wanted = np.take_along_axis(a.reshape(32, 40), b.astype(np.int64), axis=1)
    np.testing.assert_array_equal(evaluate("fn['gather_flattened'](a, b)", a, b), wanted)


def test_random_numbers_are_uniform_and_repeat_with_their_seed(evaluate: Any) -> None:
    body = "(fn['random_seed'](7), fn['rand']((128, 400), nl.float32))[1]"
    found = evaluate(body, draw(1, (1, 1)))
    assert 0 <= found.min() < 0.001
    assert 0.999 < found.max() < 1
    assert abs(found.mean() - 0.5) < 0.01
    np.testing.assert_array_equal(found, evaluate(body, draw(1, (1, 1))))


def test_dropout_zeroes_its_share(evaluate: Any) -> None:
    a = draw(1, (128, 200))
    found = evaluate("fn['dropout'](a, 0.25)", a)
    assert 0.2 < (found == 0).mean() < 0.3
    kept = found != 0
    np.testing.assert_array_equal(found[kept], a[kept])


STORES = """
from nki_sim.frontend.lowering import FUNCTIONS as fn


@nki.jit
def kernel(a):
    out = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.shared_hbm)
    {body}
    return out
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("fn['exp'](a)", "unsupported_memory"),
        ("fn['store'](out, a)", "unsupported_memory"),
        ("fn['store'](fn['load'](a), fn['load'](a))", "unsupported_memory"),
        ("fn['load'](fn['load'](a))", "unsupported_memory"),
        ("fn['load'](3)", "argument_type"),
        ("fn['store'](out[0:8, 0:1], fn['load'](a))", "store_dst_shape_smaller"),
    ],
)
def test_functions_that_move_know_their_memories(body: str, code: str, tracing: Any) -> None:
    with pytest.raises(KernelError) as refused:
        tracing(STORES.format(shape="(8, 12)", body=body), draw(1, (8, 12)))
    assert refused.value.code == code


def test_stores_repeat_rows_and_copy_psum_first(simulate: Any) -> None:
    a = draw(1, (1, 12))
    (found,) = simulate(STORES.format(shape="(8, 12)", body="fn['store'](out, fn['load'](a))"), a)
    np.testing.assert_array_equal(found, np.broadcast_to(a, (8, 12)))
    b = draw(1, (40, 12))
    body = "fn['store'](out, fn['matmul'](fn['load'](a), fn['load'](a), transpose_x=True))"
    (found,) = simulate(STORES.format(shape="(12, 12)", body=body), b)
    close(found, b.astype(np.float64).T @ b, rtol=1e-5)
