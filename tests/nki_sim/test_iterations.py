"""Loops whose iterations may run in any order: which accesses of different iterations clash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.frontend import isa, language
from nki_sim.program.ir import Program
from tests.support.sweeps import scale_examples

TRN2 = targets.load("trn2")
P, F = 128, 64


Body = Callable[[Any], None]
Build = Callable[[Body], Program]


def clashes(program: Program) -> list[tuple[str, str]]:
    found = checks.check(program, TRN2)
    assert {item.code for item in found} <= {"unexpected_output_dependencies"}
    return [(item.tensor, str(item.value)) for item in found]


def carried(b: Any) -> None:
    t = b.tile("t")
    b.loop(2, lambda _: isa.tensor_scalar(t, t, language.subtract, 1.0))


def summed(b: Any) -> None:
    t, u = b.tile("t"), b.tile("u")
    b.loop(2, lambda _: isa.tensor_tensor(t, t, u, language.add))


def summed_elsewhere(b: Any) -> None:
    t, u = b.tile("t"), b.tile("u")
    b.loop(2, lambda i: isa.tensor_tensor(t[:, i : i + 32], t[:, i + 1 : i + 33], u[:, 0:32], language.add))


def shifted(step: int) -> Body:
    def body(b: Any) -> None:
        t = b.tile("t")
        b.loop(4, lambda i: isa.memset(t[:, step * i : step * i + 8], 0.0))

    return body


def interleaved(step: int) -> Body:
    def body(b: Any) -> None:
        t = b.tile("t")
        b.loop(2, lambda i: isa.memset(t[:, i : i + 60 : step], 0.0))

    return body


def products(*, restart: bool) -> Body:
    def body(b: Any) -> None:
        t, p = b.tile("t"), b.tile("p", buffer="psum")
        b.loop(3, lambda i: isa.nc_matmul(p[0:F], t, t, accumulate=i > 0 and not restart))

    return body


def read_of_a_sum(b: Any) -> None:
    t, u = b.tile("t"), b.tile("u")

    def step(i: int) -> None:
        isa.tensor_tensor(t, t, u, language.add)
        isa.tensor_copy(b.tile(f"v{i}"), t)

    b.loop(2, step)


def begun(*, late: bool) -> Body:
    """One iteration writes what the others add to: before they do, or after."""

    def body(b: Any) -> None:
        t, u = b.tile("t"), b.tile("u")

        def step(i: int) -> None:
            if i == (2 if late else 0):
                isa.tensor_copy(t, u)
            else:
                isa.tensor_tensor(t, t, u, language.add)

        b.loop(3, step)

    return body


def two_loops(b: Any) -> None:
    t = b.tile("t")
    b.loop(2, lambda i: isa.memset(t[:, 32 * i : 32 * i + 32], 1.0))
    b.loop(2, lambda i: isa.tensor_copy(b.tile("v", 32), t[:, 32 - 32 * i : 64 - 32 * i]))


def nested(*, inner: bool) -> Body:
    """Inner iterations of one outer iteration touch different columns, or those of different ones do."""

    def body(b: Any) -> None:
        t = b.tile("t")

        def outer(i: int) -> None:
            def step(j: int) -> None:
                at = j if inner else i
                isa.memset(t[:, 8 * at : 8 * at + 8], 0.0)

            b.loop(2, step)

        b.loop(2, outer)

    return body


def grid(b: Any) -> None:
    """Blocks whose rows and columns both repeat, while no two overlap."""
    t = b.tile("t")

    def step(i: int) -> None:
        row, column = 64 * (i // 2), 32 * (i % 2)
        isa.memset(t[row : row + 64, column : column + 32], 0.0)

    b.loop(4, step)


def fresh(b: Any) -> None:
    def step(_: int) -> None:
        t = b.tile("t")
        isa.tensor_scalar(t, t, language.subtract, 1.0)

    b.loop(3, step)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (carried, [("t", "0 and 1")]),
        (summed, []),
        (summed_elsewhere, [("t", "0 and 1")]),
        (shifted(8), []),
        (shifted(7), [("t", "0 and 1")]),
        (interleaved(2), []),
        (interleaved(1), [("t", "0 and 1")]),
        (products(restart=False), []),
        (products(restart=True), [("p", "0 and 2")]),
        (read_of_a_sum, [("t", "0 and 1")]),
        (begun(late=False), []),
        (begun(late=True), [("t", "0 and 2")]),
        (two_loops, []),
        (nested(inner=True), [("t", "0 and 1")]),
        (nested(inner=False), [("t", "0 and 1")]),
        (grid, []),
        (fresh, []),
    ],
)
def test_iterations_clash_where_one_writes_what_another_touches(
    body: Any, wanted: list[Any], building: Build
) -> None:
    assert clashes(building(body)) == wanted


ACCESSES = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 10), st.integers(1, 4), st.integers(1, 4)),
    min_size=2,
    max_size=8,
)


@settings(max_examples=scale_examples(60))
@given(accesses=ACCESSES)
def test_clashes_are_those_of_the_elements(
    accesses: list[tuple[int, bool, int, int, int]], building: Build
) -> None:
    """Against sets of elements: some iteration writes an element that another one touches."""

    def body(b: Any) -> None:
        t = b.tile("t")

        def step(i: int) -> None:
            for iteration, write, start, stride, count in accesses:
                part = t[:, start : start + stride * (count - 1) + 1 : stride]
                if iteration == i and write:
                    isa.memset(part, 0.0)
                elif iteration == i:
                    isa.tensor_copy(b.recorder.declare((P, count), "float32", "sbuf", "copy"), part)

        b.loop(3, step)

    touched = [
        (iteration, write, {start + stride * k for k in range(count)})
        for iteration, write, start, stride, count in accesses
    ]
    wanted = any(
        mine != theirs and write and elements & others
        for mine, write, elements in touched
        for theirs, _, others in touched
    )
    assert bool(clashes(building(body))) == wanted


PARTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(1, 2),
        st.integers(0, 6),
        st.integers(1, 3),
        st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=scale_examples(60))
@given(parts=PARTS)
def test_parts_of_three_dimensions_clash_where_they_overlap(parts: list[Any], building: Build) -> None:
    """Rows and columns of planes, contiguous or every other one, against sets of (plane, column)."""

    def touched(part: Any) -> set[tuple[int, int]]:
        _, plane, planes, column, columns, sparse = part
        step = 2 if sparse else 1
        return {
            (a, b)
            for a in range(plane, min(plane + planes, 4))
            for b in range(column, min(column + step * columns, 12), step)
        }

    def body(b: Any) -> None:
        t = b.recorder.declare((P, 4, 12), "float32", "sbuf", "t")

        def step(i: int) -> None:
            for iteration, plane, planes, column, columns, sparse in parts:
                if iteration == i:
                    stride = 2 if sparse else 1
                    end = min(column + stride * columns, 12)
                    isa.memset(t[:, plane : min(plane + planes, 4), column:end:stride], 0.0)

        b.loop(3, step)

    wanted = any(a[0] != b[0] and touched(a) & touched(b) for a in parts for b in parts)
    assert bool(clashes(building(body))) == wanted


def test_iterations_survive_the_bytes_and_those_without_instructions_are_left_out(building: Build) -> None:
    def body(b: Any) -> None:
        def outer(i: int) -> None:
            b.loop(2, lambda j: isa.memset(b.tile("t"), 0.0) if i else None)

        b.loop(3, outer)

    program = building(body)
    assert program.iterations.indices.tolist() == [1, 0, 1, 2, 0, 1]
    assert program.iterations.parents.tolist() == [0, 1, 1, 0, 4, 4]
    assert program.iterations.nodes.tolist() == [2, 2, 3, 3, 5, 5, 6, 6, 0]
    assert Program.from_bytes(program.to_bytes()).to_bytes() == program.to_bytes()
