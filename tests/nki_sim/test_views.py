"""Views against NumPy: raw patterns, other types, names, layouts; addresses that depend on data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.dtypes import DTYPES
from nki_sim.errors import KernelError
from nki_sim.frontend import language as nl
from nki_sim.frontend.recorder import Recorder, recording
from nki_sim.frontend.tensor import Tensor


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording(Recorder(targets.load("trn2"), "kernel.py", max_instructions=1000)):
        yield


def made(shape: tuple[int, ...], buffer: Any = nl.shared_hbm, dtype: Any = nl.float32) -> Tensor:
    recorder = Recorder(targets.load("trn2"), "kernel.py", max_instructions=10)
    return recorder.declare(shape, dtype, buffer.value, "t")


def walked(view: Tensor) -> Any:
    """The storage elements a view walks, in its shape."""
    found = np.full(view.shape, view.offset)
    for axis, (step, count) in enumerate(view._dims):
        found += step * np.arange(count).reshape([-1 if at == axis else 1 for at in range(view.ndim)])
    return found


def numbered(shape: tuple[int, ...]) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape)


@st.composite
def laid_out(draw: Any) -> tuple[Tensor, Any]:
    """A view after a few moves, and NumPy's after the same ones."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    view, array = made(shape), numbered(shape)
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.integers(0, view.ndim - 1))
        match draw(st.sampled_from(["slice", "permute", "expand", "broadcast"])):
            case "slice":
                step = draw(st.integers(1, 2))
                view = view.slice(axis, 0, view.shape[axis], step)
                array = array.take(range(0, array.shape[axis], step), axis=axis)
            case "permute":
                order = draw(st.permutations(range(view.ndim)))
                view, array = view.permute(order), array.transpose(order)
            case "expand":
                view, array = view.expand_dim(axis), np.expand_dims(array, axis)
            case _:
                if view.shape[axis] == 1:
                    view, array = view.broadcast(axis, 3), np.repeat(array, 3, axis)
    return view, array


def factors(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of that many elements, of one to three dimensions."""
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    triples = [(n, 2, rest // 2) for n, rest in pairs if rest % 2 == 0]
    return st.sampled_from([(size,), *pairs, *triples])


@given(case=laid_out(), data=st.data())
def test_reshaping_is_numpys_or_is_refused(case: tuple[Tensor, Any], data: Any) -> None:
    view, array = case
    assert walked(view).tolist() == array.tolist()
    shape = data.draw(factors(array.size))
    try:
        found = walked(view.reshape(shape))
    except KernelError:
        assert not view.is_contiguous()
    else:
        assert found.tolist() == array.reshape(shape).tolist()


@given(sizes=st.lists(st.integers(1, 4), min_size=3, max_size=3), data=st.data())
def test_rearranging_is_reshape_and_transpose(sizes: list[int], data: Any) -> None:
    a, b, c = sizes
    names = data.draw(st.permutations(["a", "b", "c"]))
    view, array = made((a * b, c)), numbered((a * b, c))
    order = ["abc".index(name) for name in names]
    wanted = array.reshape(a, b, c).transpose(order)
    assert walked(view.rearrange((("a", "b"), "c"), tuple(names), {"a": a})).tolist() == wanted.tolist()


def test_rearranging_joins_what_follows_each_other() -> None:
    view = made((128, 4, 6), nl.sbuf)
    assert view.rearrange(("p", "h", "w"), ("p", ("h", "w"))).shape == (128, 24)
    assert view.rearrange(("p", "h", ("x", "y")), ("p", "y", "h", "x"), {"x": 2}).shape == (128, 3, 4, 2)
    for source, goal in [
        (("p", "h"), ("h", "p")),
        (("p", "h", "w"), ("p", "h", "h")),
        (("p", 3, "w"), ("p",)),
    ]:
        with pytest.raises(KernelError) as caught:
            view.rearrange(source, goal)
        assert caught.value.code == "rearrange"


@given(
    start=st.sampled_from(["float32", "int32", "bfloat16", "uint8"]),
    goal=st.sampled_from(["float32", "uint16", "bfloat16", "int8"]),
    first=st.integers(0, 7), count=st.integers(1, 16),
)  # fmt: skip
def test_another_type_sees_the_same_bytes(start: str, goal: str, first: int, count: int) -> None:
    size, other = DTYPES[start].itemsize, DTYPES[goal].itemsize
    memory = np.arange(4 * 32 * size, dtype=np.uint32).reshape(4, 32, size)
    view = made((4, 32), nl.sbuf, start)[:, first : first + count]
    part = memory[:, first : first + count].reshape(4, -1)
    if part.shape[1] % other or first * size % other:
        with pytest.raises(KernelError, match="reinterpret"):
            view.view(goal)
        return
    found = view.view(goal)
    assert (found.dtype, found.dtype.itemsize) == (goal, other)
    assert (walked(found) * other).tolist() == part.reshape(4, -1, other)[..., 0].tolist()
    assert found.view(start)._dims == view._dims


def test_a_raw_pattern_counts_in_the_type_it_names() -> None:
    tile = made((128, 256), nl.sbuf, nl.int32)
    half = tile.ap([[512, 128], [1, 512]], offset=0, dtype=nl.bfloat16)
    assert (half.shape, half.dtype) == ((128, 512), nl.bfloat16)
    assert tile[:, 8:].ap([[256, 128], [1, 4]]).offset == 8
    assert tile[:, 8:].ap([[512, 128], [1, 4]], dtype=nl.bfloat16).offset == 16
    assert tile[:, 8:].ap([[256, 128], [1, 4]], offset=0).offset == 0


def test_tiles_keep_two_dimensions_and_tensors_in_hbm_one() -> None:
    tile, tensor = made((64, 64, 64), nl.sbuf), made((4, 8, 2))
    assert (tile[0, 0, 10].shape, tile[:, 0, 10].shape, tile[0, ..., :].shape) == (
        (1, 1),
        (64, 1),
        (1, 64, 64),
    )
    assert (tensor[0, 0, 1].shape, tensor[0].shape, tensor[..., 1].shape) == ((1,), (8, 2), (4, 8))
    assert (tensor[:, None].shape, tile[:, None, 3].shape) == ((4, 1, 8, 2), (64, 1, 64))
    assert tile.ap([[5, 1], [1, 3]]).get_pattern() == [[4096, 1], [1, 3]]
    assert (tensor.strides, tensor[1].offset, tensor.size, tensor.ndim) == ((16, 2, 1), 16, 64, 3)


def test_data_types_and_memories_compare_as_kernels_compare_them() -> None:
    tensor = made((4, 4), nl.sbuf, nl.bfloat16)
    for same in (nl.bfloat16, "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
        assert tensor.dtype == same
    assert tensor.dtype in {nl.float16, nl.bfloat16}
    assert tensor.dtype != np.float32
    assert nl.float32 == np.float32 == np.dtype("float32")
    assert str(nl.float8_e4m3) == "float8_e4m3"
    assert tensor.buffer == nl.sbuf
    assert tensor.buffer in (nl.sbuf, nl.psum)
    assert nl.is_on_chip(tensor.buffer)
    for dtype in (np.int32, np.dtype("int32"), "int32", nl.int32):
        assert made((4, 4), nl.sbuf, dtype).dtype == nl.int32


# -- addresses that depend on data ---------------------------------------------------------------


def index(count: int = 1, dtype: Any = nl.int32, buffer: Any = nl.sbuf) -> Tensor:
    return made((count, 1), buffer, dtype)


def test_a_place_found_in_data_moves_by_the_dimensions_stride() -> None:
    tensor, at = made((4, 128, 8)), index()
    for view in (tensor.select(0, at), tensor.ap([[8, 128], [1, 8]], scalar_offset=at)):
        assert view._lookup is not None
        assert (view.shape, view._lookup.step, view.is_indirect()) == ((128, 8), 1024, True)
    tile = made((128, 4, 8), nl.sbuf).select(1, at)
    assert tile._lookup is not None
    assert (tile.shape, tile._lookup.step) == ((128, 8), 8)
    part = tensor[:, nl.ds(nl.NkiScalar(3), 5)]
    assert (part.shape, part.offset, part._lookup) == ((4, 5, 8), 24, None)
    assert tensor.select(0, at)[3:5, 0:2].shape == (2, 2)


def test_rows_found_in_data_replace_the_first_dimension() -> None:
    rows = made((64, 128, 8)).vector_select(0, index(100))
    assert rows._lookup is not None
    assert (rows.shape, rows._dims[0], rows._lookup.step) == ((100, 128, 8), (0, 100), 1024)
    assert rows.reshape((100, 1024)).permute((0, 1)).shape == (100, 1024)


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda: made((4, 8)).select(0, index(2)), "indirect_index_shape"),
        (lambda: made((4, 8)).select(0, index(1, nl.float32)), "indirect_index_type"),
        (lambda: made((4, 8)).select(0, index(1, nl.int32, nl.psum)), "indirect_index_type"),
        (lambda: made((4, 8), nl.sbuf).select(1, index(1, nl.int64)), "indirect_index_type"),
        (lambda: made((4, 8), nl.sbuf).select(0, index()), "indirect_partition"),
        (lambda: made((4, 8), nl.sbuf).vector_select(0, index(4)), "indirect_partition"),
        (lambda: made((4, 8)).vector_select(1, index(4)), "indirect_view"),
        (lambda: made((4, 8)).select(0, index()).select(0, index()), "indirect_view"),
        (lambda: made((4, 8)).vector_select(0, index(4))[0:2], "indirect_view"),
        (lambda: made((4, 8)).vector_select(0, index(4)).flatten_dims(0, 1), "reshape"),
        (lambda: made((4, 8)).select(0, index()).view(nl.bfloat16), "indirect_view"),
        (lambda: made((4, 8)).ap([[8, 4], [1, 8]], vector_offset=index(3)), "indirect_index_shape"),
        (lambda: made((4, 8)).ap([[8, 4], [1, 8]], vector_offset=index(4), indirect_dim=1), "indirect_view"),
        (lambda: made((4, 8)).ap([[8, 4]], vector_offset=index(4), scalar_offset=index()), "argument_pair"),
        (lambda: made((4, 8)).ap([[8, 4]], scalar_offset="a"), "index_type"),
        (lambda: made((4, 8)).ap([[8]]), "access_pattern"),
        (lambda: made((4, 8)).ap([[8, 4]], offset=1.5), "access_pattern"),
        (lambda: made((4, 8)).ap([[8, 4]], dtype="float99"), "dtype"),
        (lambda: made((4, 7), dtype=nl.uint8).ap([[1, 1]], dtype=nl.float32), "reinterpret"),
        (lambda: made((4, 8))[:, 0:1].broadcast(1, 4)[:, nl.ds(index(), 1)], "indirect_view"),
        (lambda: made((4, 8))[nl.ds(index(), 5)], "tensor_access_out_of_bound"),
        (lambda: made((4, 8))[nl.NkiScalar(4)], "tensor_access_out_of_bound"),
    ],
)  # fmt: skip
def test_what_views_refuse(attempt: Any, code: str) -> None:
    with pytest.raises(KernelError) as caught:
        attempt()
    assert caught.value.code == code
