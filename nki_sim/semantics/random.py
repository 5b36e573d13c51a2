"""Random numbers: every lane draws for its own row, element after element, from xorwow's state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nki_sim import xorwow
from nki_sim.semantics.arrays import Array, store
from nki_sim.semantics.common import Semantics, Values, Views, read_operand, store_bits

Words = npt.NDArray[np.uint32]


def _draw_words(states: Array, count: int) -> Words:
    """The next `count` numbers of each lane, [P, count]; its states [P, 6 or more] take turns and advance."""
    several = states.shape[1] // xorwow.WORDS
    drawn = np.empty((len(states), count), np.uint32)
    for number in range(several):
        turns = drawn[:, number::several]
        first = number * xorwow.WORDS
        turns[...] = _advance_state(states[:, first : first + xorwow.WORDS], turns.shape[1])
    return drawn


def _advance_state(state: Array, count: int) -> Words:
    """The next `count` numbers of one state of each lane; advances `state` [P, 6] by as many."""
    x, y, z, w, v, counter = (np.ascontiguousarray(state[:, word]) for word in range(xorwow.WORDS))
    drawn = np.empty((count, len(state)), np.uint32)
    for place in drawn:
        t = x ^ x >> np.uint32(2)
        x, y, z, w = y, z, w, v
        v = v ^ v << np.uint32(4) ^ t ^ t << np.uint32(1)
        counter += np.uint32(xorwow.STEP)
        np.add(v, counter, out=place)
    state[...] = np.stack([x, y, z, w, v, counter], axis=1)
    return drawn.T


def _rng(views: Views, values: Values) -> None:
    """Draw 32 random bits for each element and keep the lowest ones that fit."""
    del values
    dst = views["dst"]
    store_bits(dst, _draw_words(views["rng_state"], dst[0].size).reshape(dst.shape))


def _dropout(views: Views, values: Values) -> None:
    """Zero where a number drawn from [0, 1) is below the probability; other elements are unchanged."""
    data, dst = views["data"], views["dst"]
    drawn = _draw_words(views["rng_state"], data[0].size).astype(np.float64) * 2.0**-32
    kept = drawn >= np.float64(read_operand(views, values, "prob"))
    store(dst, np.where(kept.reshape(data.shape), data, np.zeros((), data.dtype)))


def _set_rng_seed(views: Views, values: Values) -> None:
    """Seed all lanes' states from one 32-bit value of any type."""
    del values
    seed, states = int(views["src_seeds"].copy().view(np.uint32).reshape(-1)[0]), views["rng_state"]
    words = xorwow.seed_state(seed, states.shape[1] // xorwow.WORDS)
    states[...] = np.array(words, np.uint32).reshape(xorwow.LANES, -1)


def _rand2(views: Views, values: Values) -> None:
    """min + (max - min) u, with u the upper 24 bits of a number as a fraction [I]."""
    dst = views["dst"]
    drawn = _draw_words(views["rng_state"], dst[0].size) >> np.uint32(8)
    least, most = (read_operand(views, values, role) for role in ("min", "max"))
    store(dst, least + (most - least) * (drawn.astype(np.float32) * np.float32(2.0**-24)))


def _rand_set_state(views: Views, values: Values) -> None:
    del values
    np.copyto(views["rng_state"], views["src_seeds"])


def _rand_get_state(views: Views, values: Values) -> None:
    del values
    np.copyto(views["dst"], views["rng_state"])


SEMANTICS: dict[str, Semantics] = {
    "rng": _rng,
    "dropout": _dropout,
    "rand2": _rand2,
    "set_rng_seed": _set_rng_seed,
    "rand_set_state": _rand_set_state,
    "rand_get_state": _rand_get_state,
}
