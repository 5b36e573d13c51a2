"""Loops of legacy kernels: numbers that their bodies rebind keep, in every iteration, their first values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nki_sim.frontend.legacy import api as nki
from nki_sim.frontend.legacy import language as nl
from nki_sim.frontend.recorder import recording

LOOPS: list[Callable[..., Any]] = [nl.affine_range, nl.sequential_range]


def recorder_of(kernel: Any) -> Any:
    from nki_sim import targets

    return kernel._recorder(targets.load("trn2"), __file__, max_instructions=1000)


@pytest.fixture(autouse=True)
def _tracing() -> Any:
    with recording(recorder_of(nki.jit(lambda: None))):
        yield


@pytest.mark.parametrize("loop", LOOPS)
def test_every_iteration_finds_the_numbers_of_the_first(loop: Any) -> None:
    address, scale, found = 8, 1.0, []
    for i in loop(3):
        inner = []
        for _ in loop(2):
            inner.append(address)
            address += 100
        found.append((int(i), address, scale, inner))
        address += 16
        scale *= 2
    assert found == [(i, 108, 1.0, [8, 8]) for i in range(3)]
    assert (address, scale) == (124, 2.0)


@pytest.mark.parametrize("loop", LOOPS)
def test_numbers_of_closures_are_kept_as_well(loop: Any) -> None:
    total = 0

    def read() -> int:
        return total

    found = []
    for _ in loop(3):
        total += 1
        found.append(read())
    assert (found, total) == ([1, 1, 1], 1)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_no_number_is_left_alone(loop: Any) -> None:
    names, last, made = "", None, []
    for i in loop(3):
        names += "x"
        last = i
        made.append(names)
    assert (names, last, len(made)) == ("xxx", 2, 3)


def test_loops_that_python_unrolls_change_numbers() -> None:
    address = 0
    for _ in nl.static_range(3):
        address += 4
    for _ in range(3):
        address += 4
    assert address == 24


def test_directives_for_the_compiler_change_nothing() -> None:
    assert [int(i) for i in nl.sequential_range(2, directives=object())] == [0, 1]
