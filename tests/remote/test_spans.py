"""Inputs made in parts are those made at once, where anybody reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seeds
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import ArraySpec, Program
from remote.judge import seed_stream, suite
from remote.judge.input_cache import InputCache
from remote.judge.job import JudgeJob
from remote.judge.spans import InputSource
from seeds.inputs import draw_inputs, dtype_of
from targets.nki.judge.trials import find_boxes_read
from tests.support.sweeps import parametrize_sweep, scale_examples

SPECS = [seeds.load_problem(name).spec for name in ("adamw", "mamba", "gqa_full")]
BOXES = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4
)


def boxes_in(shape, parts):
    """Boxes of rows and columns from fractions of both."""
    width = shape[-1]
    lines = int(np.prod(shape)) // width
    found = []
    for top, height, left, extent in parts:
        row, column = int(top * (lines - 1)), int(left * (width - 1))
        rows, columns = 1 + int(height * (lines - row - 1)), 1 + int(extent * (width - column - 1))
        found.append((row, row + rows, column, column + columns))
    return np.array(found, dtype=np.int64)


def assert_same(found, whole, boxes):
    found, whole = (array.reshape(-1, array.shape[-1]) for array in (found, whole))
    for top, bottom, left, right in boxes.tolist():
        assert np.array_equal(found[top:bottom, left:right], whole[top:bottom, left:right])


def whole_of(spec, name):
    return suite.draw_set(spec, "reduced", name)


def sources_of(spec, name):
    if not name.isdecimal():
        return suite.set_sources(spec, "reduced", name)
    _, marks = seed_stream.draw_with_states(spec, "reduced", int(name))
    return seed_stream.seed_sources(spec, "reduced", int(name), marks)


@settings(max_examples=scale_examples(15), deadline=None)
@given(data=st.data())
@parametrize_sweep("spec", SPECS, ids=[spec.name for spec in SPECS])
def test_parts_of_any_set_are_what_the_whole_has_there(spec, data):
    name = data.draw(st.sampled_from(suite.all_sets(spec)))
    for source, whole in zip(sources_of(spec, name), whole_of(spec, name), strict=True):
        boxes = boxes_in(whole.shape, data.draw(BOXES))
        part = source.read_boxes(boxes)
        assert (part.shape, part.dtype) == (whole.shape, whole.dtype)
        assert_same(part, whole, boxes)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_noting_states_changes_no_number(spec):
    arrays, marks = seed_stream.draw_with_states(spec, "reduced", 42)
    for one, other, states in zip(arrays, draw_inputs(spec, "reduced", 42), marks, strict=True):
        assert np.array_equal(one, other)
        assert len(states) == -(-one.size // seed_stream.CHUNK)


def test_elements_that_nobody_reads_are_not_made():
    asked = []

    def span(first, end):
        asked.append((first, end))
        return np.ones(end - first, np.float32)

    source = InputSource((1 << 10, 1 << 12), dtype_of("float32"), span)
    array = source.read_boxes(np.array([[0, 1, 0, 8], [5, 7, 0, 1 << 12], [6, 9, 0, 1 << 12]]))
    assert asked == [(0, 8), (5 << 12, 9 << 12)]
    assert array.sum() == 8 + (4 << 12)


def test_marks_are_found_again_by_their_names():
    _, marks = seed_stream.draw_with_states(SPECS[0], "reduced", 0)
    file = {"0": None, "honest": None, **seed_stream.name_states(marks)}
    found = [file[name] for name in seed_stream.find_state_names(list(file))]
    assert all(one is other for one, other in zip(found, marks, strict=True))


KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[128:256, 64:128])
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def test_what_a_program_reads_of_its_inputs():
    program = Program.from_bytes(trace_bytes(KERNEL, args=[ArraySpec((256, 2048), "float32")]))
    assert [boxes.tolist() for boxes in find_boxes_read(program)] == [[[128, 256, 64, 128]]]


def job_of(spec, excerpts):
    return JudgeJob(spec=spec, problem="p", size="reduced", target="trn2", references={}, excerpts=excerpts)


@parametrize_sweep("name", ["0", "wide"], quick=["wide"])
def test_only_sets_that_cannot_be_kept_are_made_in_parts(name):
    spec = SPECS[0]
    whole = whole_of(spec, name)
    _, marks = seed_stream.draw_with_states(spec, "reduced", 0)
    nbytes = sum(array.nbytes for array in whole)
    parts = [np.array([[0, 1, 0, 4]])] * len(spec.inputs)
    job = job_of(spec, {"0": "", "wide": ""})
    kept = InputCache(2 * nbytes).get(job, name, parts, marks)
    assert all(np.array_equal(one, other) for one, other in zip(kept, whole, strict=True))
    cache = InputCache(2 * nbytes - 1)
    for one, other in zip(cache.get(job, name, parts, marks), whole, strict=True):
        assert np.array_equal(one[0, :4], other[0, :4])
        assert not one[2:].any()
        assert not one.flags.writeable
    assert all(
        np.array_equal(one, other) for one, other in zip(cache.get(job, name), whole, strict=True)
    )  # a part is never taken for the whole
