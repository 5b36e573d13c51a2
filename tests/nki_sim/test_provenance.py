"""Provenance: input regions of tiles and elements, precisions on the way, instructions nobody needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec
from nki_sim.errors import InputError
from nki_sim.flow import provenance
from nki_sim.flow.element_flow import find_input_elements, group_into_boxes
from nki_sim.flow.provenance import TensorRegion
from nki_sim.running import numerics
from tests.support.sweeps import scale_examples

SPECS = [ArraySpec((256, 384), "float32"), ArraySpec((384, 1024), "float32")]

NARROW = """
@nki.jit
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    s, t = (nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    low = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    unused = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=x)
    nisa.dma_copy(dst=t, src=y)
    nisa.tensor_copy(dst=low, src=t)
    nisa.activation(dst=unused, op=nl.exp, data=s)
    nisa.tensor_tensor(dst=s, data1=s, data2=low, op=nl.add)
    nisa.dma_copy(dst=out, src=s)
    return out
"""


def test_tiles_of_a_matmul(tracing: Any, texts: Any) -> None:
    tiles = provenance.find_tile_sources(tracing(texts.matmul, *SPECS))
    assert [tile.output for tile in tiles] == [
        TensorRegion("out", (i, i + 128), (j, j + 512)) for i in (0, 128) for j in (0, 512)
    ]
    for tile in tiles:
        assert tile.inputs == (
            TensorRegion("lhs", tile.output.rows, (0, 384)),
            TensorRegion("rhs", (0, 384), tile.output.columns),
        )
        assert tile.precision == {"lhs": "float32", "rhs": "float32"}


def test_inputs_read_in_too_many_regions_count_whole(
    tracing: Any, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_REGIONS", 3)
    first = provenance.find_tile_sources(tracing(texts.matmul, *SPECS))[0]
    assert first.inputs == (TensorRegion("lhs", (0, 128), (0, 384)), TensorRegion("rhs", (0, 384), (0, 1024)))


def test_the_coarsest_type_on_the_best_way(tracing: Any) -> None:
    x = ArraySpec((8, 16), "float32")
    (tile,) = provenance.find_tile_sources(tracing(NARROW, x, x))
    assert tile.precision == {"x": "float32", "y": "bfloat16"}


def test_instructions_nobody_needs(tracing: Any) -> None:
    x = ArraySpec((8, 16), "float32")
    program = tracing(NARROW, x, x)
    assert [
        program.forms[program.form_ids[number]].op for number in provenance.find_dead_instructions(program)
    ] == ["activation"]


def test_types_that_operands_are_computed_in(tracing: Any) -> None:
    x = ArraySpec((8, 16), "float32")
    found = provenance.list_operand_precisions(tracing(NARROW, x, x))
    assert ("tensor_tensor", "data2", "bfloat16", "float32") in {
        (item.instruction, item.operand, item.dtype, item.computed) for item in found
    }


ELEMENTS = """
@nki.jit
def kernel(x, w):
    p, f = x.shape
    out = nl.ndarray((f, f), dtype=x.dtype, buffer=nl.shared_hbm)
    s = nl.ndarray((p, f), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=x)
    weights = nl.ndarray((p, f), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights[:, 0:f // 2], src=w[:, 0:f // 2])
    nisa.dma_copy(dst=weights[:, f // 2:], src=x[:, f // 2:])
    total = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
    if {reduce}:
        nisa.tensor_reduce(dst=total, op=nl.add, data=s[:, 0:2], axis=1)
        nisa.tensor_scalar(dst=s[0:2], data=s[0:2], op0=nl.multiply, operand0=total[0:2])
    acc = nl.ndarray((f, f), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=s, moving=weights)
    res = nl.ndarray((f, f), dtype=x.dtype, buffer=nl.sbuf)
    nisa.activation(dst=res, op=nl.copy, data=acc)
    flip = nl.ndarray((f, f), dtype=x.dtype, buffer=nl.sbuf)
    if {flip}:
        nisa.nc_transpose(dst=flip, data=res, engine=nisa.engine.vector)
        res = flip
    nisa.dma_copy(dst=out, src=res)
    return out
"""


@settings(max_examples=12)
@given(reduce=st.booleans(), flip=st.booleans(), index=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_single_elements(reduce: bool, flip: bool, index: tuple[int, int], *, tracing: Any) -> None:
    """An element depends on an input element if, and only if, making that NaN makes it NaN."""
    x, w = np.ones((4, 6), np.float32), np.ones((4, 6), np.float32)
    program = tracing(ELEMENTS.format(reduce=reduce, flip=flip), x, w)
    found = find_input_elements(program, 0, index)
    for name, arrays in (("x", (x, w)), ("w", (w, x))):
        wanted = []
        for number in range(arrays[0].size):
            spoilt = arrays[0].copy()
            spoilt.flat[number] = np.nan
            inputs = [spoilt, w] if name == "x" else [x, spoilt]
            (out,) = numerics.run(program, inputs)
            if np.isnan(out[index]):
                wanted.append(number)
        assert found.get(name, np.zeros(0)).tolist() == wanted


@pytest.mark.parametrize(("output", "index"), [(1, (0, 0)), (0, (0,)), (0, (0, 6))])
def test_what_is_no_element_is_refused(output: int, index: tuple[int, ...], tracing: Any) -> None:
    x = ArraySpec((4, 6), "float32")
    with pytest.raises(InputError):
        find_input_elements(tracing(ELEMENTS.format(reduce=False, flip=False), x, x), output, index)


@settings(max_examples=scale_examples(60), deadline=None)
@given(st.data())
def test_boxes_hold_just_the_elements_that_they_are_made_of(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    size = int(np.prod(shape))
    numbers = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1)))), dtype=np.int64)
    seen = np.zeros(shape, dtype=np.int64)
    for box in group_into_boxes(numbers, shape):
        seen[tuple(slice(first, end) for first, end in box)] += 1
    assert np.array_equal(np.flatnonzero(seen == 1), numbers)
    assert seen.max() <= 1


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (np.s_[:, :, :], [((0, 4), (0, 6), (0, 5))]),
        (np.s_[1, 2, 3], [((1, 2), (2, 3), (3, 4))]),
        (np.s_[1:3, 2:4, 1:5], [((1, 3), (2, 4), (1, 5))]),
        (np.s_[:, ::3, 2], [((0, 4), (0, 1), (2, 3)), ((0, 4), (3, 4), (2, 3))]),
    ],
)
def test_blocks_are_one_box(part: Any, wanted: list[Any]) -> None:
    marked = np.zeros((4, 6, 5), dtype=bool)
    marked[part] = True
    assert group_into_boxes(np.flatnonzero(marked), marked.shape) == wanted
