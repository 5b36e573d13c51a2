"""Solves linear recurrences over any domain, in about as many steps as the square root of their length."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np

from remote.judge.identity.domain import Array, Planes, ValueDomain


def solve_recurrence(domain: ValueDomain, factors: Planes, terms: Planes, initial: Planes) -> Planes:
    """Return s[t] = factors[t] * s[t - 1] + terms[t] along the first axis, where s[-1] is `initial`.

    `factors` and `terms` have one shape; `initial` has that shape without the first axis. Time is cut into
    blocks that are processed side by side as if each started at zero; then each block's starting state is
    added.
    """
    length = terms.shape[0]
    width = isqrt(length)
    blocks = length // width
    inner_factors, inner_terms = (_split_blocks(value, blocks, width) for value in (factors, terms))
    states, products = [_take_step(inner_terms, 0)], [_take_step(inner_factors, 0)]
    for step in range(1, width):
        factor = _take_step(inner_factors, step)
        states.append(_next_state(domain, factor, states[-1], term=_take_step(inner_terms, step)))
        products.append(domain.apply_binary("multiply", factor, products[-1]))
    carried = [initial.move(lambda array: np.broadcast_to(array, terms.shape[1:]))]
    for block in range(blocks):
        carried.append(
            _next_state(
                domain, _take_step(products[-1], block), carried[-1], term=_take_step(states[-1], block)
            )
        )
    begins = _stack_states(carried[:-1], 0).move(lambda array: array[:, None])
    whole = _next_state(domain, _stack_states(products, 1), begins, term=_stack_states(states, 1))
    found = [whole.move(lambda array: array.reshape(blocks * width, *array.shape[2:]))]
    for step in range(blocks * width, length):
        carried.append(
            _next_state(domain, _take_step(factors, step), carried[-1], term=_take_step(terms, step))
        )
        found.append(carried[-1].move(lambda array: array[None]))
    return found[0].join(found[1:], np.concatenate)


def _next_state(domain: ValueDomain, factor: Planes, state: Planes, *, term: Planes) -> Planes:
    return domain.apply_binary("add", domain.apply_binary("multiply", factor, state), term)


def _split_blocks(value: Planes, blocks: int, width: int) -> Planes:
    """The first steps, as [width, blocks, ...]."""

    def movement(array: Array) -> Array:
        return array[: blocks * width].reshape(blocks, width, *array.shape[1:]).swapaxes(0, 1)

    return value.move(movement)


def _take_step(value: Planes, step: int) -> Planes:
    return value.move(lambda array: array[step])


def _stack_states(values: Sequence[Planes], axis: int) -> Planes:
    def movement(arrays: Sequence[Array]) -> Array:
        return np.stack(arrays, axis)

    return values[0].join(values[1:], movement)
