"""Random numbers: the generator against its published recurrence, seeds, states, dropout, and their rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.running import numerics
from nki_sim.xorwow import LANES, WORDS, pack_words, seed_state

FEW = settings(max_examples=10)
X = np.zeros((8, 12), np.float32)
FULL = 2**32 - 1


def xorwow(state: list[int], count: int) -> list[int]:
    """Marsaglia's recurrence on (x, y, z, w, v, d); the state moves on in place."""
    drawn = []
    for _ in range(count):
        x, y, z, w, v, d = state
        t = x ^ x >> 2
        v, last = (v ^ (v << 4 & FULL)) ^ (t ^ (t << 1 & FULL)), v
        d = d + 362437 & FULL
        state[:] = y, z, w, last, v, d
        drawn.append(d + v & FULL)
    return drawn


def lanes(seed: int, first: int, count: int) -> list[list[int]]:
    words = seed_state(seed)
    return [words[WORDS * lane : WORDS * (lane + 1)] for lane in range(first, first + count)]


def with_seed(seed: str, body: str) -> str:
    return f"""
    seed = nl.ndarray((1, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.memset(seed, {seed})
    nisa.set_rng_seed(seed)
    {body}
    """


@FEW
@given(
    seed=st.integers(0, FULL),
    partitions=st.integers(1, 32),
    first=st.sampled_from([0, 32, 64, 96]),
    size=st.integers(1, 9),
)
def test_every_lane_draws_its_own_sequence(
    seed: int, partitions: int, first: int, size: int, *, simulate: Any, texts: Any
) -> None:
    body = with_seed(str(seed), f"nisa.rng(dst=r[{first}:{first + partitions}, 0:{size}])")
    body = "nisa.memset(r, 0)\n" + body.replace("\n    ", "\n")
    x = np.zeros((128, 12), np.float32)
    (found,) = simulate(texts.on_chip(["x"], body, dtype="nl.uint32"), x)
    wanted = [xorwow(state, size) for state in lanes(seed, first, partitions)]
    assert found[first : first + partitions, :size].tolist() == wanted


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_the_lowest_bits_are_kept(dtype: str, simulate: Any, texts: Any) -> None:
    (wide,) = simulate(texts.on_chip(["x"], with_seed("7", "nisa.rng(dst=r)"), dtype="nl.uint32"), X)
    (found,) = simulate(texts.on_chip(["x"], with_seed("7", "nisa.rng(dst=r)"), dtype=f"nl.{dtype}"), X)
    size = np.dtype(dtype).itemsize
    assert np.array_equal(found.view(f"u{size}"), (wide & (2 ** (8 * size) - 1)).astype(f"u{size}"))


def test_draws_go_on_where_the_last_ones_ended(simulate: Any, texts: Any) -> None:
    (whole,) = simulate(texts.on_chip(["x"], with_seed("3", "nisa.rng(r)"), dtype="nl.uint32"), X)
    parts = with_seed("3", "nisa.rng(r[:, 0:5])\n    nisa.rng(r[:, 5:])")
    (found,) = simulate(texts.on_chip(["x"], parts, dtype="nl.uint32"), X)
    assert np.array_equal(whole, found)


def test_kernels_without_a_seed_repeat_seed_zero(simulate: Any, tracing: Any, texts: Any) -> None:
    text = texts.on_chip(["x"], "nisa.rng(dst=r)", dtype="nl.uint32")
    (found,) = simulate(text, X)
    assert found.tolist() == [xorwow(state, 12) for state in lanes(0, 0, 8)]
    program = tracing(text, X)
    assert not checks.check(program, targets.load("trn2"))
    # Runs do not see what earlier runs drew.
    assert all(np.array_equal(numerics.run(program, [X])[0], found) for _ in range(2))


def test_states_are_given_and_taken(simulate: Any, texts: Any) -> None:
    body = """
    gpsimd = nisa.engine.gpsimd
    t = nl.ndarray((p, 6), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.rng(r[:, 0:3], engine=gpsimd)
    nisa.rand_get_state(t)
    nisa.rng(r[:, 3:6], engine=gpsimd)
    nisa.rand_set_state(t)
    nisa.rng(r[:, 6:9], engine=gpsimd)
    nisa.tensor_copy(r[:, 9:12], t[:, 0:3])
    """
    (found,) = simulate(texts.on_chip(["x"], body, dtype="nl.uint32"), X)
    states = lanes(0, 0, 8)
    assert found[:, 0:3].tolist() == [xorwow(state, 3) for state in states]
    assert found[:, 9:12].tolist() == [state[:3] for state in states]
    assert found[:, 3:6].tolist() == [xorwow(state, 3) for state in states]
    assert np.array_equal(found[:, 6:9], found[:, 3:6])


def test_engines_have_generators_of_their_own(simulate: Any, texts: Any) -> None:
    body = with_seed("9", "nisa.rng(r[:, 0:6], engine=nisa.engine.gpsimd)\n    nisa.rng(r[:, 6:])")
    (found,) = simulate(texts.on_chip(["x"], body, dtype="nl.uint32"), X)
    assert found[:, :6].tolist() == [xorwow(state, 6) for state in lanes(0, 0, 8)]
    assert found[:, 6:].tolist() == [xorwow(state, 6) for state in lanes(9, 0, 8)]


def test_lanes_and_seeds_differ() -> None:
    words = [tuple(state) for seed in (0, 1, 42, FULL) for state in lanes(seed, 0, LANES)]
    assert len(set(words)) == 4 * LANES
    assert all(any(state[:5]) for state in words)
    assert len(pack_words(seed_state(5))) == 4 * WORDS * LANES


@FEW
@given(
    prob=st.floats(0, 1, width=32),
    tile=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16", "int16"]),
)
def test_dropout_zeroes_where_the_draw_is_below(
    prob: float, tile: bool, dtype: str, *, simulate: Any, texts: Any
) -> None:
    x = np.arange(1, 97, dtype=np.float32).reshape(8, 12)
    p = np.full((8, 1), prob, np.float32)
    body = f"""
    d = nl.ndarray(sx.shape, dtype=nl.{dtype}, buffer=nl.sbuf)
    nisa.tensor_copy(d, sx)
    nisa.dropout(r, d, {"sy" if tile else repr(prob)})
    """
    (found,) = simulate(texts.on_chip(["x", "y"], body, dtype=f"nl.{dtype}"), x, p)
    draws = np.array([xorwow(state, 12) for state in lanes(0, 0, 8)]) / 2.0**32
    assert np.array_equal(found.astype(np.float32), np.where(draws < np.float32(prob), 0.0, x))


@pytest.mark.parametrize(("prob", "left"), [("0.0", 96), ("1.0", 0)])
def test_dropout_keeps_all_or_nothing_at_the_ends(prob: str, left: int, simulate: Any, texts: Any) -> None:
    (found,) = simulate(texts.on_chip(["x"], f"nisa.dropout(r, sx, {prob})"), X + 1)
    assert np.count_nonzero(found) == left


def test_rates_are_met(simulate: Any, texts: Any) -> None:
    x = np.ones((128, 200), np.float32)
    (found,) = simulate(texts.on_chip(["x"], "nisa.dropout(r, sx, 0.3)"), x)
    assert abs(float((found == 0).mean()) - 0.3) < 0.02


SEED = "seed = nl.ndarray({}, buffer=nl.sbuf)\nnisa.memset(seed, 1)\nnisa.set_rng_seed(seed)\n"
STATE = "t = nl.ndarray({}, buffer=nl.sbuf)\n"


@pytest.mark.parametrize(
    ("code", "wrong", "right"),
    [
        ("rng_dtype", "t = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)\nnisa.rng(t)", "nisa.rng(r)"),
        ("rng_seed", SEED.format("(2, 1), dtype=nl.uint32"), SEED.format("(1, 1), dtype=nl.uint32")),
        ("rng_seed", SEED.format("(1, 1), dtype=nl.int16"), SEED.format("(1, 1), dtype=nl.int32")),
        (
            "rng_state", STATE.format("(8, 24), dtype=nl.uint32") + "nisa.rand_get_state(t)",
            STATE.format("(8, 6), dtype=nl.uint32") + "nisa.rand_get_state(t)",
        ),
        (
            "rng_state", STATE.format("(8, 6), dtype=nl.int32") + "nisa.rand_get_state(t)",
            STATE.format("(8, 6), dtype=nl.uint32") + "nisa.rand_get_state(t)",
        ),
        ("dropout_probability", "nisa.dropout(sx, sx, 1.01)", "nisa.dropout(sx, sx, 1.0)"),
        ("dtype_mismatch", "nisa.dropout(r, sx, 0.5)", "nisa.dropout(sx, sx, 0.5)"),
        ("dropout_dtype", "nisa.dropout(sx, sx, r[:, 0:1])", "nisa.dropout(sx, sx, sx[:, 0:1])"),
        ("engine", "nisa.dropout(sx, sx, 0.5, engine=nisa.engine.gpsimd)", "nisa.dropout(sx, sx, 0.5)"),
    ],
)  # fmt: skip
def test_rules_of_random_numbers(code: str, wrong: str, right: str, tracing: Any, texts: Any) -> None:
    filled = "nisa.memset(r, 0)\n"
    with pytest.raises(KernelError) as caught:
        tracing(texts.on_chip(["x"], filled + wrong, dtype="nl.uint32"), X)
    assert caught.value.code == code
    tracing(texts.on_chip(["x"], filled + right, dtype="nl.uint32"), X)


@pytest.mark.parametrize(
    "call", ["rng(r, engine=nisa.engine.gpsimd)", "rand_get_state(r[:, 0:6])", "rand_set_state(r[:, 0:6])"]
)
def test_gpsimd_draws_from_the_third_generation_on(call: str, tracing: Any, texts: Any) -> None:
    text = texts.on_chip(["x"], f"nisa.memset(r, 0)\nnisa.{call}", dtype="nl.uint32")
    tracing(text, X, target="trn2")
    with pytest.raises(KernelError) as caught:
        tracing(text, X, target="trn1")
    assert caught.value.code == "generation"
