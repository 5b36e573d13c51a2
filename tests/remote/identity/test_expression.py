"""Expressions as data: what is written is read again, and nothing is believed."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from remote.judge.identity.expression import (
    MAX_OPERATIONS,
    ArrayExpression,
    InvalidExpressionError,
    OperationTable,
    align_view,
    load_expression,
    pack_refusal,
)

INPUTS = ((4, 6),)


def pack(nodes, outputs=(0,), **arrays):
    text = np.frombuffer(json.dumps({"nodes": nodes, "outputs": outputs}).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, text=text, **arrays)
    return file.getvalue()


def test_what_is_written_is_read_again():
    table = OperationTable(INPUTS, [np.arange(3)])
    x = table.add("input", (), (0,))
    rows = table.add("take", (x,), (0, 0))
    total = table.add("reduce", (rows,), ("add", 1))
    turned = table.add("view", (total,), ((1, 3), (3, 1), 0))
    table.add("assemble", (x, turned), (((6, 1), 2),))
    expression = load_expression(ArrayExpression(table.nodes, table.arrays, [turned]).to_bytes(), INPUTS)
    assert list(expression.nodes) == table.nodes
    assert expression.nodes[turned].shape == (1, 3)
    assert expression.outputs == [turned]


GOOD, CONSTANT = ["input", [], [0]], ["constant", [], [0]]
WRONG = {
    "no file": b"not an npz",
    "an unknown kind": pack([["output", [], []]]),
    "an input that is not there": pack([["input", [], [1]]]),
    "a negative input": pack([["input", [], [-1]]]),
    "an argument that comes later": pack([["unary", [0], ["exp"]]]),
    "shapes that do not fit": pack([GOOD, CONSTANT, ["binary", [0, 1], ["add"]]], constant0=np.ones(5)),
    "a view beyond its source": pack([GOOD, ["view", [0], [[4, 6], [6, 1], 1]]]),
    "a view before its source": pack([GOOD, ["view", [0], [[4], [-6], 6]]]),
    "an axis that is not there": pack([GOOD, ["reduce", [0], ["add", 2]]]),
    "a reduction that is none": pack([GOOD, ["reduce", [0], ["sort", 1]]]),
    "a name that is none": pack([GOOD, ["unary", [0], [7]]]),
    "numbers beyond the axis": pack([GOOD, ["take", [0], [0, 0]]], constant0=np.array([4])),
    "text for numbers": pack([CONSTANT], constant0=np.array(["a"])),
    "a piece across axes": pack([GOOD, ["view", [0], [[4], [6], 0]], ["assemble", [0, 1], [[[7], 0]]]]),
    "a piece over itself": pack([GOOD, ["view", [0], [[4], [6], 0]], ["assemble", [0, 1], [[[0], 0]]]]),
    "an enormous array": pack([["unknown", [], [1 << 30, 1 << 30]]]),
    "products that do not fit": pack([GOOD, ["matmul", [0, 0], []]]),
    "an output that is none": pack([GOOD], outputs=[1]),
    "too many parameters": pack([["input", [], [0, 0]]]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_expression_is_refused(name):
    with pytest.raises(InvalidExpressionError):
        load_expression(WRONG[name], INPUTS)


def test_a_refusal_says_why():
    with pytest.raises(InvalidExpressionError, match="it sorts"):
        load_expression(pack_refusal("it sorts"), INPUTS)


def test_there_is_an_end_to_operations(monkeypatch):
    monkeypatch.setattr("remote.judge.identity.expression.MAX_OPERATIONS", 2)
    table = OperationTable(INPUTS)
    for _ in range(2):
        table.add("input", (), (0,))
    with pytest.raises(InvalidExpressionError, match="more than 2 operations"):
        table.add("input", (), (0,))
    assert MAX_OPERATIONS > 86_000  # what seven thousand steps of a recurrence take


@pytest.mark.parametrize(
    "movement",
    [
        lambda a: a[1, :, ::2],
        lambda a: a[:, ::-1, 3:1:-1].T,
        lambda a: a.reshape(6, 5)[2:4],
        lambda a: a[:, 1:2, None, 2],
        lambda a: a.reshape(30)[3::7],
        lambda a: np.diagonal(a, axis1=0, axis2=1),
        lambda a: a.reshape(3, 2, 5)[1],
    ],
)
def test_strided_parts_run_along_axes_or_across(movement):
    array = np.arange(30).reshape(2, 3, 5)
    part = movement(array)
    strides = tuple(stride // array.itemsize for stride in part.strides)
    found = align_view(array.shape, part.shape, strides, int(part.reshape(-1)[0]))
    if found is None:
        return
    index = np.indices(part.shape)
    places = [
        start + (index[found.axes[axis][0]] * found.axes[axis][1] if axis in found.axes else 0)
        for axis, start in enumerate(found.starts)
    ]
    assert (array[tuple(np.broadcast_arrays(*places, part)[:3])] == part).all()


def test_parts_across_axes_are_known_as_such():
    assert align_view((4, 6), (4,), (7,), 0) is None
    assert align_view((4, 6), (12,), (1,), 0) is None
    assert align_view((4, 6), (2, 2), (6, 6), 0) is None
