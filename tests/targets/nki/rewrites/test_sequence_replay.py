"""Sequences that paid elsewhere: found again by what places are for, whatever they are called."""

from __future__ import annotations

import re
from random import Random

import pytest

import seeds
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kernel_ir import Kernel, KernelArgument
from targets.nki.rewrites.proxy_problem import arguments_at, count_instructions
from targets.nki.rewrites.random_walk import walk_randomly
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.sequence_replay import (
    ReplayedStep,
    follow_sequence,
    replay_sequence,
    select_similar_choice,
)
from targets.nki.rewrites.site_similarity import describe_site, similarity
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import TARGET
from tests.support.sweeps import parametrize_sweep

BOUND = re.compile(r"^\s*(?:for )?(\w+)(?: = | in )", re.MULTILINE)


def problem(name: str) -> tuple[str, list[KernelArgument]]:
    found = seeds.load_problem(name)
    return found.kernel, arguments_at(found.spec, found.spec.dims("reduced"))


def kernel(name: str) -> Kernel:
    return read_kernel(*problem(name), TARGET)


def rename_locals(source: str) -> str:
    """The same kernel with every local name spelt otherwise."""
    for number, name in enumerate(sorted(set(BOUND.findall(source)))):
        source = re.sub(rf"\b{name}\b", f"v{number}_{name[::-1]}", source)
    return source


def leg(source: str, *steps: tuple[str, str, dict]) -> dict:
    return {
        "source": source,
        "steps": [{"technique": name, "site": site, "choice": choice} for name, site, choice in steps],
    }


def replay_legs(
    donor: str, legs: list[dict], source: str, arguments: list[KernelArgument]
) -> list[ReplayedStep]:
    return replay_sequence(source, arguments, TARGET, follow_sequence(legs, problem(donor)[1], TARGET))


# --- what places are ---


def loops(of: Kernel) -> dict[str, object]:
    return {of.unique_label(loop): describe_site(of, loop) for loop in of.loops}


def test_a_loop_is_what_varies_with_it():
    mine, theirs = loops(kernel("matmul")), loops(kernel("bmm"))
    nearest = {
        name: max(mine, key=lambda other: similarity(words, mine[other])) for name, words in theirs.items()
    }
    assert (nearest["i_m"], nearest["i_n"]) == ("i_m", "i_n")


def test_a_tile_is_what_writes_and_reads_it():
    mine, theirs = kernel("bmm_softmax"), kernel("matmul")
    tiles = {
        of: {item.tensor.name: describe_site(of, item.tensor) for item in of.declarations.values()}
        for of in (mine, theirs)
    }
    moving = next(name for name, words in tiles[mine].items() if "nc_matmul moving" in words)
    best = max(tiles[theirs], key=lambda name: similarity(tiles[mine][moving], tiles[theirs][name]))
    assert best == "rhs_tile"


@pytest.mark.parametrize("name", ["matmul", "bmm_softmax", "mamba"])
def test_names_have_no_part_in_what_a_place_is(name):
    source, arguments = problem(name)
    one, other = read_kernel(source, arguments, TARGET), read_kernel(rename_locals(source), arguments, TARGET)
    for transform in TRANSFORMS.values():
        here, there = (transform.find_sites(of, TARGET) for of in (one, other))
        assert len(here) == len(there)
        for (site, place), twin in zip(here.items(), there.values(), strict=True):
            assert similarity(describe_site(one, place), describe_site(other, twin)) == 1, (
                f"{transform.id} {site}"
            )


# --- sequences ---


@parametrize_sweep("name", ["matmul", "bmm_softmax", "rope_single_freq_apply"], quick=1)
@pytest.mark.parametrize("seed", range(3))
def test_on_the_same_kernel_by_other_names_a_sequence_comes_to_the_same(name, seed):
    source, arguments = problem(name)
    drawn = walk_randomly(source, arguments, TARGET, 4, Random(seed))
    legs = [leg(source, *((one.transform.id, one.site, dict(one.choice)) for one in drawn))]
    made = replay_legs(name, legs, rename_locals(source), arguments)
    assert [one.number for one in made] == list(range(len(drawn)))
    assert [one.technique for one in made] == [one.transform.id for one in drawn]
    whole = read_kernel(drawn[-1].source, arguments, TARGET)
    assert count_instructions(made[-1].kernel) == count_instructions(whole)
    ops = [[item.op, item.engine] for item in canonicalize_kernel(whole, TARGET).operations()]
    assert [
        [item.op, item.engine] for item in canonicalize_kernel(made[-1].kernel, TARGET).operations()
    ] == ops


def test_a_sequence_is_carried_over_to_a_kernel_that_is_alike():
    source, _ = problem("matmul")
    steps = [
        ("engine", "tensor_copy to out_tile", {"engine": "scalar"}),
        ("interchange", "i_n and i_k#2", {}),
        ("hoist", "rhs_tile out of i_n", {"one transfer for": "i_n"}),
    ]
    target, arguments = problem("bmm")
    made = replay_legs("matmul", [leg(source, *steps)], target, arguments)
    assert made
    assert (made[0].technique, made[0].site, made[0].choice) == (
        "engine",
        "tensor_copy to out_tile",
        {"engine": "scalar"},
    )
    assert "engine=nisa.engine.scalar" in made[-1].source


def test_steps_whose_like_is_not_there_are_left_out():
    source, _ = problem("bmm_softmax")
    steps = [
        ("engine", "tensor_copy to lhs_t", {"engine": "scalar"}),
        ("hoist", "neg_max out of i_m", {"one transfer for": "i_m"}),
        ("fuse_reduction", "activation and tensor_reduce to total", {"by": "activation_reduce"}),
    ]
    other, arguments = problem("adamw")
    made = replay_legs("bmm_softmax", [leg(source, *steps)], other, arguments)
    assert {one.technique for one in made} <= {"engine", "hoist"}
    assert all(read_kernel(one.source, arguments, TARGET) for one in made)


def test_what_cannot_be_taken_again_ends_its_leg_and_no_other():
    source, arguments = problem("matmul")
    copy = ("engine", "tensor_copy to out_tile", {"engine": "scalar"})
    broken = [leg(source, ("engine", "no such site", {}), copy), leg(source, ("forgotten", "x", {}), copy)]
    assert [one.number for one in replay_legs("matmul", broken, source, arguments)] == [3]
    assert replay_legs("matmul", [leg("no kernel", copy)], source, arguments) == []


@pytest.mark.parametrize("choice", [{"engine": "no such engine"}, {"engine": "a b"}, {"engine": 3}, {}])
def test_parameters_that_are_none_any_more_end_the_leg(choice):
    source, arguments = problem("matmul")
    assert (
        replay_legs("matmul", [leg(source, ("engine", "tensor_copy to out_tile", choice))], source, arguments)
        == []
    )


def test_each_leg_is_followed_on_the_kernel_that_it_is_from():
    source, arguments = problem("matmul")
    first = ("engine", "tensor_copy to out_tile", {"engine": "scalar"})
    (after,) = replay_legs("matmul", [leg(source, first)], source, arguments)
    second = ("engine", "tensor_copy to lhs_t", {"engine": "scalar"})
    made = replay_legs(
        "matmul", [leg(source, first), leg(after.source, second)], rename_locals(source), arguments
    )
    assert [one.number for one in made] == [0, 1]
    assert made[-1].source.count("engine=nisa.engine.scalar") == 2


@pytest.mark.parametrize(
    ("mine", "theirs", "taken", "wanted"),
    [
        ([{"engine": "vector"}, {"engine": "scalar"}], [{"engine": "scalar"}], {"engine": "scalar"}, 1),
        ([{"n": 2}, {"n": 4}, {"n": 8}], [{"n": 2}, {"n": 4}], {"n": 4}, 2),
        ([{"n": 64}, {"n": 2}], [{"n": 16}, {"n": 8}, {"n": 2}], {"n": 16}, 0),
        ([{"for": "i"}, {"for": "i j"}], [{"for": "m"}, {"for": "m n"}], {"for": "m n"}, 1),
        (
            [{"engine": "gpsimd", "n": 1}, {"engine": "scalar", "n": 1}, {"engine": "scalar", "n": 9}],
            [{"engine": "scalar", "n": 5}],
            {"engine": "scalar", "n": 5},
            1,
        ),
        ([{}], [{}], {}, 0),
        ([{"n": 1}, {"n": 2}], [], {"n": 7}, 0),
    ],
)
def test_parameters_are_what_they_were_among_those_to_choose_from(mine, theirs, taken, wanted):
    assert select_similar_choice(mine, theirs, taken) == mine[wanted]
