"""Legacy tiles of more dimensions than engines walk: the same numbers, in as few instructions as it takes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from tests.support.sweeps import scale_examples

KERNEL = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np

@nki.jit
def kernel(x):
    sizes = {sizes}
    out = nl.ndarray((4, {width}), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x).reshape((4, *sizes))
    r = nl.ndarray((nl.par_dim(4), *{goal}), dtype=x.dtype, buffer=nl.sbuf)
    column = nl.load(x[0:4, 0:1])
    i = tuple(nl.mgrid[(slice(0, 4), *(slice(0, size) for size in {goal}))])
    {body}
    nl.store(out, r.reshape((4, {width})))
    return out
"""


def traced(body: str, sizes: tuple[int, ...], goal: tuple[int, ...]) -> tuple[Program, Any]:
    """The program, and its input [4, elements of sizes]."""
    x = np.arange(4 * prod(sizes), dtype=np.float32).reshape(4, -1) + 1
    text = KERNEL.format(sizes=sizes, goal=goal, width=prod(goal), body=body)
    return nki_sim.trace(text, args=[ArraySpec(x.shape, "float32")]), x


@given(st.permutations(range(6)), st.lists(st.integers(1, 3), min_size=6, max_size=6))
@settings(max_examples=scale_examples(30), deadline=None)
def test_any_order_of_dimensions(order: list[int], sizes: list[int]) -> None:
    goal = tuple(sizes[axis] for axis in order)
    places = ", ".join(f"i[{order.index(axis) + 1}]" for axis in range(6))
    program, x = traced(f"r[i] = nl.add(t[i[0], {places}], column)", tuple(sizes), goal)
    assert all(len(item.dims) <= 5 for item in program.operands)
    wanted = x.reshape(4, *sizes).transpose(0, *(axis + 1 for axis in order)).reshape(4, -1) + x[:, 0:1]
    assert np.array_equal(numerics.run(program, [x])[0], wanted)


@pytest.mark.parametrize(
    ("places", "parts"),
    [
        # One walk, one backwards; five dimensions, of which one has two places; six, two of them have two.
        ("i[1], i[2], i[3], i[4], i[5], i[6]", 1),
        ("2 - i[1], 1 - i[2], 2 - i[3], 1 - i[4], 2 - i[5], 1 - i[6]", 1),
        ("i[1], i[2], i[6], i[5], i[4], i[3]", 2),
        ("2 - i[1], i[2], 2 - i[3], i[4], 2 - i[5], i[6]", 4),
    ],
)
def test_dimensions_are_joined_and_the_shortest_are_split(places: str, parts: int) -> None:
    sizes = (3, 2, 3, 2, 3, 2)
    goal = sizes if "6], i[5" not in places else (3, 2, 2, 3, 2, 3)
    program, _ = traced(f"r[i] = nl.multiply(t[i[0], {places}], 2.0)", sizes, goal)
    ops = [program.forms[form].op for form in program.form_ids]
    assert ops.count("tensor_scalar") + ops.count("activation") == parts


@pytest.mark.parametrize(
    ("sizes", "axes", "shape"),
    [
        ((2, 1, 2, 3, 2), (2, 4), (2, 1, 3)),
        ((2, 1, 2, 3, 1), (2, 4), (2, 1, 3)),
        ((1, 1, 2, 3, 2), (0, 1), (2, 3, 2)),
        ((3, 2, 3, 2, 3, 2), (3, 4, 5), (3, 2, 3)),
        ((3, 2, 1, 2, 1, 2), (2, 4), (3, 2, 2, 2)),
        ((1, 1, 1, 1, 1), (0, 4), (1, 1, 1)),
    ],
)
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_reduction_needs_no_dimension_for_one_element(
    sizes: tuple[int, ...], axes: tuple[int, ...], shape: tuple[int, ...], *, keepdims: bool
) -> None:
    goal = tuple(1 if at in axes else size for at, size in enumerate(sizes)) if keepdims else shape
    on = [axis + 1 for axis in axes]
    body = f"r = nisa.tensor_reduce(np.max, t, axis={on}, keepdims={keepdims})"
    program, x = traced(body, sizes, goal)
    assert all(len(item.dims) <= 5 for item in program.operands)
    wanted = x.reshape(4, *sizes).max(axis=tuple(on)).reshape(4, -1)
    assert np.array_equal(numerics.run(program, [x])[0], wanted)


def test_what_is_not_computed_place_by_place_is_refused() -> None:
    sizes = (3, 2, 3, 2, 3, 2)
    body = (
        "nisa.tensor_reduce(np.add, t[i[0], 2 - i[1], i[2], 2 - i[3], i[4], 2 - i[5], i[6]], axis=[4, 5, 6])"
    )
    with pytest.raises(KernelError) as caught:
        traced(body, sizes, sizes)
    assert caught.value.code == "access_rank"
