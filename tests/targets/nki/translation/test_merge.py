"""Loops that are split, renamed or merged: what names them, boxes of assembled values too, follows."""

from __future__ import annotations

import numpy as np
import pytest

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.merge import LoopRenaming, split_rows
from targets.nki.translation.stage import Store
from targets.nki.translation.translator import write_kernels, write_variants
from targets.nki.translation.values import Assembled, Buffer, KeptRows, Load, Number, PairedLoad, Part, Scan
from tests.targets.nki.translation.references import softmax
from tests.targets.nki.translation.test_kernels import assert_computes, translate

LOOP, OTHER = Atom("n", 8), Atom("m", 5)
X = Buffer("x", (8, 5))


def load_rows(loop, first=0):
    """Rows of `X` from one on, along a loop."""
    return Load(0, X, make_access(5 * first, [(loop, 5), (OTHER, 1)]))


def split_value(value, loop=LOOP, inner=4):
    """The value over the loop as two."""
    store = Store(value, X, make_access(0, [(LOOP, 5), (OTHER, 1)]))
    ((found,), _, _) = split_rows([store], (LOOP, OTHER), loop, inner)
    return found.value


def test_boxes_follow_a_loop_that_is_split():
    upper, single = Atom("n_4_8", 4), Atom("n_3_4", 1)
    parts = (
        Part(load_rows(upper), ((LOOP, 4, upper),)),
        Part(Number(0, 2.0), ((LOOP, 3, single),)),
    )
    found = split_value(Assembled(0, 0.0, parts, (LOOP,)), inner=2)
    outer, inner = LOOP.split(2)
    assert found.loops == (outer, inner)
    owns = upper.split(2)
    assert found.parts[0].box == ((outer, 2, owns[0]), (inner, 0, owns[1]))
    assert found.parts[0].value.access == make_access(0, [(owns[0], 10), (owns[1], 5), (OTHER, 1)])
    assert [(atom, start, own.size) for atom, start, own in found.parts[1].box] == [
        (outer, 1, 1),
        (inner, 1, 1),
    ]


@pytest.mark.parametrize(
    "value",
    [
        Assembled(0, 0.0, (Part(load_rows(Atom("n_2_8", 6)), ((LOOP, 2, Atom("n_2_8", 6)),)),), (LOOP,)),
        Scan(0, load_rows(LOOP), Number(0, 1.0), Number(0, 0.0), LOOP),
        KeptRows(0, "kept", (LOOP, OTHER)),
        PairedLoad(0, load_rows(Atom("a", 4)), Atom("a", 4), Atom("b", 2), LOOP),
    ],
)
def test_what_needs_a_loop_as_it_is_refuses_a_split(value):
    with pytest.raises(UntranslatableError):
        split_value(value)


def test_boxes_follow_a_loop_that_is_renamed():
    half, name = Atom("n_0_4", 4), Atom("other", 8)
    value = Assembled(0, 0.0, (Part(load_rows(half), ((LOOP, 0, half),)),), (LOOP,))
    found = LoopRenaming({LOOP: name}).value(value)
    assert (found.loops, found.parts[0].box) == ((name,), ((name, 0, half),))


def test_a_load_of_paired_rows_is_split_inside():
    pair = Atom("a", 4), Atom("b", 2), Atom("a+b", 8)
    access = make_access(0, [(pair[0], 40), (pair[1], 8), (LOOP, 1)])
    found = split_value(PairedLoad(0, Load(0, Buffer("y", (4, 5, 8)), access), *pair))
    assert found.load.access.atoms == {*pair[:2], *LOOP.split(4)}
    assert found.atoms == {pair[2], *LOOP.split(4)}


def attend_with_distances(q, k, v):
    """Heads that are stacked, each with its slope."""
    steps = np.arange(q.shape[1])
    distance = np.abs(steps[None, :] - steps[:, None])
    heads = [softmax(q[h] @ k[h].T - 2.0**-h * distance) @ v[h] for h in range(len(q))]
    return np.stack(heads)


def test_each_of_some_stacked_heads_has_its_own_table():
    spec, formula, inputs, outputs = translate(attend_with_distances, [(8, 40, 16)] * 3)
    for source in write_kernels(spec, "full", formula):
        assert_computes(source, inputs, outputs)


def attend_to_sinks(sinks, scores, v):
    """Hidden keys behind some that all rows see: no block of 128 keys ends where these do."""
    seen = np.concatenate([np.ones(sinks.shape, bool), np.tril(np.ones(scores.shape, bool))], axis=1)
    return softmax(np.where(seen, np.concatenate([sinks, scores], axis=1), -np.inf)) @ v


def test_blocks_that_masks_hide_are_left_alone_where_boxes_do_not_fit_them():
    spec, formula, inputs, outputs = translate(attend_to_sinks, [(252, 4), (252, 252), (256, 16)])
    for source in write_kernels(spec, "full", formula):
        assert_computes(source, inputs, outputs)


def shuffle_pixels(x, skip):
    _, _, height, width = x.shape
    spread = x.transpose(2, 0, 3, 1).reshape(2 * height, 2 * width)
    return spread + skip.repeat(2, axis=0).repeat(2, axis=1)


def iterate_powers(w, u):
    v = w.T @ u
    v = v / np.sqrt((v * v).sum())
    u = w @ v
    return u / np.sqrt((u * u).sum())


@pytest.mark.parametrize(
    ("reference", "shapes", "layout"),
    [
        (shuffle_pixels, [(2, 2, 40, 24), (40, 24)], {"parts": 2}),
        (iterate_powers, [(320, 256), (320,)], {}),
    ],
)
def test_layouts_near_one_compute_the_reference(reference, shapes, layout):
    spec, formula, inputs, outputs = translate(reference, shapes)
    for source, _ in write_variants(spec, "full", formula, KernelLayout(**layout).name):
        assert_computes(source, inputs, outputs)
