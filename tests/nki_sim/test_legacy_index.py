"""Index expressions and masks of the legacy namespace, against NumPy's arange and comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.frontend.entry import trace_bytes
from nki_sim.frontend.legacy.index import Index, LoopIndex, arange, mgrid
from nki_sim.frontend.legacy.masks import NEVER, Box, Condition, Mask

SIZES = st.integers(1, 6)
SMALL = st.integers(-5, 5)


def values(index: Index) -> np.ndarray[Any, Any]:
    """The integer at each position of an index, from its definition."""
    found = np.full(index.shape, index._constant)
    for axis, (count, step) in enumerate(zip(index.shape, index._linear.coefficients, strict=True)):
        shape = [1] * len(index.shape)
        shape[axis] = count
        found = found + step * np.arange(count).reshape(shape)
    return found


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Index, np.ndarray[Any, Any]]:
    """The same random affine expression, as an index and as an array."""
    first, second = draw(SIZES), draw(SIZES)
    start, step = draw(SMALL), draw(st.integers(1, 3))
    ours: Any = arange(start, start + first * step, step)[:, None]
    theirs: Any = np.arange(start, start + first * step, step)[:, None]
    other, array = arange(second)[None, :], np.arange(second)[None, :]
    for kind in draw(st.lists(st.integers(0, 5), max_size=6)):
        number = draw(SMALL)
        change = (
            lambda x, _, n=number: n + x,
            lambda x, _, n=number: x * n,
            lambda x, _, n=number: n - x,
            lambda x, o: x + o,
            lambda x, o: o - x,
            lambda x, o, n=number: n * o + x,
        )[kind]
        ours, theirs = change(ours, other), change(theirs, array)
    return ours, theirs


@given(pairs())
def test_arithmetic_is_numpys(pair: tuple[Index, np.ndarray[Any, Any]]) -> None:
    ours, theirs = pair
    assert ours.shape == theirs.shape
    assert np.array_equal(values(ours), theirs)


@given(st.lists(st.tuples(SMALL, SIZES), min_size=1, max_size=4))
def test_grids_are_numpys(axes: list[tuple[int, int]]) -> None:
    key = tuple(slice(start, start + count) for start, count in axes)
    for ours, theirs in zip(mgrid[key], np.mgrid[key], strict=True):
        assert np.array_equal(values(ours), theirs)


def test_grids_name_their_axes() -> None:
    grid = mgrid[0:4, 0:5, 0:6]
    p, x, y = grid
    assert (grid.p, grid.x, grid.y) == (p, x, y) or grid.p is p
    with pytest.raises(AttributeError):
        _ = grid.z


def test_axes_are_placed_by_none() -> None:
    i = arange(5)
    assert i[:, None].shape == (5, 1)
    assert i[None, :].shape == (1, 5)
    assert i[None, :, None].shape == (1, 5, 1)
    assert i[..., None].shape == (5, 1)
    assert i[:, None] is i[:, None]


def test_linear_parts_of_equal_expressions_are_one_object() -> None:
    for number in range(3):
        made = 128 * LoopIndex._create(number, 0) + arange(128)[:, None]
        assert made._linear is arange(128)[:, None]._linear
        assert type(made._constant) is int


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda i: i // 0, "index_not_affine"),
        (lambda i: 2 // i, "index_not_affine"),
        (lambda i: i * i, "index_not_affine"),
        (lambda i: i + 0.5, "index_not_affine"),
        (lambda i: i + arange(7)[:, None], "index_shapes"),
        (lambda i: i[0:2], "index_subscript"),
        (lambda i: i.__setitem__(0, 1), "cannot_assign_to_index"),
        (list, "iterate_index"),
        (lambda i: 1 if i else 0, "control_flow_condition_depending_on_arange"),
        (lambda i: 1 if i > 2 else 0, "control_flow_condition_depending_on_arange"),
        (lambda _: arange(0), "index_empty"),
        (lambda _: mgrid[3], "index_subscript"),
    ],
)
def test_what_is_no_affine_expression_is_refused(make: Any, code: str) -> None:
    with pytest.raises(KernelError) as found:
        make(arange(4)[:, None])
    assert found.value.code == code


# -- masks ---------------------------------------------------------------------------------------

COMPARISONS = (
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a == b,
)


def painted(boxes: list[Box], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """How many boxes hold each element."""
    counts = np.zeros(shape, dtype=int)
    for box in boxes:
        counts[tuple(slice(*span) for span in box)] += 1
    return counts


@given(
    shape=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    terms=st.lists(st.tuples(st.integers(0, 4), SMALL, SMALL, SMALL), min_size=1, max_size=3),
)
def test_boxes_cover_what_passes_once(shape: tuple[int, int], terms: list[tuple[int, int, int, int]]) -> None:
    p, f = mgrid[0 : shape[0], 0 : shape[1]]
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    mask: Any = None
    wanted = np.ones(shape, dtype=bool)
    for kind, a, b, limit in terms:
        one = COMPARISONS[kind](a * p + b * f, limit)
        mask = one if mask is None else mask & one
        wanted &= COMPARISONS[kind](a * rows + b * columns, limit)
    assert np.array_equal(painted(list(mask._boxes(shape)), shape), wanted.astype(int))


def test_conditions_over_one_axis_are_one_box() -> None:
    p, f = arange(128)[:, None], arange(512)[None, :]
    mask = (p < 64) & (f >= 3) & (f < 300)
    assert list(mask._boxes((128, 512))) == [((0, 64), (3, 300))]
    assert list((-128 * 85 - p + 10943 >= 0)._boxes((128, 512))) == [((0, 64), (0, 512))]


ARGUMENT = [ArraySpec((128, 512), "float32")]
JOINED = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.arange(128)[:, None], nl.arange(512)[None, :]
    whole = 3 and [1] and (count := 512) and count
    nl.store(out[p, f], 0.0)
    nl.store(out[p, f], nl.load(x[p, f], mask=MASK), mask=MASK)
    assert whole == 512
    return out
"""


def test_masks_are_joined_by_and_as_by_ampersand() -> None:
    found = {}
    for word in ("and", "&"):
        source = JOINED.replace("MASK", f"(p < 100) {word} (f >= 3) {word} (p + f < 500)")
        found[word] = trace_bytes(source, args=ARGUMENT)
    assert found["and"] == found["&"]
    assert trace_bytes(JOINED.replace("MASK", "(p < 100)"), args=ARGUMENT) != found["&"]


def test_a_mask_that_nothing_passes_has_no_boxes() -> None:
    assert list((arange(4)[:, None] > 9)._boxes((4, 5))) == []
    assert list((Mask(()) & False)._boxes((4, 5))) == []
    assert (NEVER & (arange(4)[:, None] > 1)) is NEVER


def test_the_opposite_of_a_condition() -> None:
    condition = arange(8)[:, None] < 3
    assert isinstance(condition, Condition)
    assert list((~condition)._boxes((8, 1))) == [((3, 8), (0, 1))]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: (p < 3) | (p > 5),
        lambda p: (p < 3) & 1.5,
        lambda p: ~((p < 3) & (p > 1)),
        lambda p: list((p != 3)._boxes((8, 1))),
        lambda p: list((p < 3)._boxes((9, 1))),
    ],
)
def test_masks_that_are_no_conjunction_of_the_tiles_axes_are_refused(make: Any) -> None:
    with pytest.raises(KernelError) as found:
        make(arange(8)[:, None])
    assert found.value.code == "unsupported_expression_in_mask"
