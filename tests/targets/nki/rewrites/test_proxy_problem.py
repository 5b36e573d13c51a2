"""Smaller problems that stand for large ones: only outermost loops run less often, and not too rarely."""

from __future__ import annotations

import pytest

import seeds
from nki_sim import targets
from targets.nki.rewrites.proxy_problem import MIN_TRIPS, arguments_at, count_instructions, find_proxy_problem
from targets.nki.rewrites.reader import read_kernel

TRN2 = targets.load("trn2")


def find_proxy(name: str, most: int, source: str | None = None):
    problem = seeds.load_problem(name)
    return find_proxy_problem(source or problem.kernel, problem.spec, problem.spec.dims("full"), TRN2, most)


def count(name: str, dims: dict[str, int]) -> int:
    problem = seeds.load_problem(name)
    return count_instructions(read_kernel(problem.kernel, arguments_at(problem.spec, dims), TRN2))


@pytest.mark.parametrize(("name", "shrunk"), [("matmul", {"M"}), ("bmm", {"B"}), ("gqa_full", {"KH", "QH"})])
def test_the_dimensions_of_outermost_loops_shrink(name, shrunk):
    full = seeds.load_problem(name).spec.dims("full")
    small = find_proxy(name, count(name, full) // 3)
    assert {key for key in full if small.dims[key] != full[key]} == shrunk
    assert small.instructions == count(name, full)
    assert count(name, small.dims) <= count(name, full) // 3


def test_a_small_program_is_its_own():
    assert find_proxy("matmul", 10**6).dims is None


def test_loops_keep_enough_iterations():
    full = seeds.load_problem("bmm").spec.dims("full")
    assert find_proxy("bmm", 1).dims == {**full, "B": MIN_TRIPS}


def test_what_cannot_be_read_has_no_proxy():
    hidden = seeds.load_problem("bmm").kernel.replace("nisa.tensor_copy(", "nisa.tensor_kopy(")
    assert find_proxy("bmm", 1, hidden).dims is None
