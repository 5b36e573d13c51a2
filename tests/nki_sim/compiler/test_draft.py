"""A program while it is rewritten: tables that grow, instructions that come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.compiler.compiled_program import LOAD_AGAIN
from nki_sim.compiler.program_draft import DraftStep, ProgramDraft
from nki_sim.forms import Form, Site
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.support.sweeps import scale_examples

Build = Callable[..., Program]


@pytest.fixture
def draft(building: Build) -> ProgramDraft:
    def body(b: Any) -> None:
        tiles = [b.recorder.declare((128, 64), "float32", "sbuf", f"t{i}") for i in range(3)]
        for place, tile in enumerate(tiles):
            isa.memset(tile, float(place))
            isa.tensor_tensor(tile, tile, tiles[0], nl.add)

    return ProgramDraft(building(body, target="trn1"))


def rows(draft: ProgramDraft) -> list[tuple[int, list[int], list[int], int]]:
    cells = draft.cells
    ends = zip(cells.first, cells.first[1:], strict=False)
    return [
        (form, cells.tensor[a:b].tolist(), cells.offset[a:b].tolist(), origin)
        for form, (a, b), origin in zip(draft.form_ids.tolist(), ends, draft.origins.tolist(), strict=True)
    ]


def test_a_draft_that_nobody_changes_is_the_program(draft: ProgramDraft) -> None:
    made = draft.build_program().program
    for name in ("form_ids", "tensors", "offsets", "lines", "cores", "tensor_sites"):
        assert np.array_equal(getattr(made, name), getattr(draft.program, name))
    cells, own = draft.program.cells, draft.cells
    assert all(
        np.array_equal(getattr(cells, name), getattr(own, name)) for name in ("writes", "reads", "first")
    )


@settings(max_examples=scale_examples(50), deadline=None)
@given(data=st.data())
def test_splicing_is_what_it_is_on_lists(data: Any, building: Build) -> None:
    draft = draft_of(building)
    count = len(draft)
    kept = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    at = data.draw(st.lists(st.integers(0, count), max_size=6))
    forms = [data.draw(st.integers(0, len(draft.forms) - 1)) for _ in at]
    steps = [
        DraftStep(
            form,
            (7,) * len(draft.forms[form].operands),
            (n,) * len(draft.forms[form].operands),
            0,
            LOAD_AGAIN,
        )
        for n, form in enumerate(forms)
    ]
    wanted = []
    for number, row in enumerate([*rows(draft), None]):
        for place, step in zip(at, steps, strict=True):
            if place == number:
                wanted.append((step.form, list(step.tensors), list(step.offsets), step.origin))
        if row is not None and kept[number]:
            wanted.append(row)
    draft.splice(np.array(kept, dtype=bool), at, steps)
    assert rows(draft) == wanted


def draft_of(building: Build) -> ProgramDraft:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 64), "float32", "sbuf", "t")
        isa.memset(tile, 1.0)
        isa.tensor_tensor(tile, tile, tile, nl.add)
        isa.dma_copy(b.out, tile)

    return ProgramDraft(building(body, target="trn1"))


def test_equal_forms_have_one_number_and_zeros_have_signs(draft: ProgramDraft) -> None:
    form = Form("memset", "vector", draft.forms[0].operands, (("value", 0.0),))
    number = draft.add_form(form)
    assert draft.add_form(replace(form)) == number
    assert draft.add_form(replace(form, params=(("value", -0.0),))) != number


def test_sites_that_move_are_not_found_under_what_they_were(draft: ProgramDraft) -> None:
    site = Site("added", (128, 64), "float32", "sbuf", 1)
    first = draft.add_tensor(site)
    draft.move_sites({draft.tensor_sites[first]}, "psum")
    second = draft.add_tensor(site)
    assert (draft.site(first).buffer, draft.site(second).buffer) == ("psum", "sbuf")
    assert draft.site(draft.add_tensor_like(first)) == draft.site(first)


def test_spans_are_first_and_last_touch(draft: ProgramDraft) -> None:
    first, last = draft.tensor_spans()
    names = {draft.site(t).name: (int(first[t]), int(last[t])) for t in range(len(first))}
    assert [names[name] for name in ("t0", "t1", "t2")] == [(0, 5), (2, 3), (4, 5)]
