"""Algorithm 2 and its corners, by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.memory import KernelPair, append_experiences, curate_pairs
from agent_core.round_view import TimedCandidate
from state.model import EffectKey, Experience, ExperienceKind, Role, SearchConfig, digest_of
from tests.support.path_kernels import make_candidate, make_plan

PARENT = make_candidate("c", 1.0)


def samples(groups: dict[tuple[int, int], list[float]]) -> list[TimedCandidate]:
    """Return kernels by (slot, plan), as speed-ups over the parent, in slot order."""
    found = []
    for (slot, plan), speedups in groups.items():
        for implementation, speedup in enumerate(speedups):
            key = EffectKey(1, slot, plan, implementation, 0, Role.EXECUTOR)
            candidate = make_candidate(key.candidate_id, 1.0 / speedup)
            found.append(TimedCandidate(key, candidate, PARENT, make_plan(f"t{plan}")))
    return found


def spell_pairs(pairs: tuple[KernelPair, ...]) -> list[str]:
    """Spell each pair as its sign and the place (slot, plan, implementation) of its kernel."""
    sign = {ExperienceKind.POSITIVE: "+", ExperienceKind.NEGATIVE: "-"}
    return [f"{sign[pair.kind]}{pair.key.slot}{pair.key.plan}{pair.key.implementation}" for pair in pairs]


CASES = {
    "nothing correct": ({}, 8, []),
    "the fastest of a group stands for it": ({(0, 0): [1.1, 1.5, 1.2]}, 8, ["+001"]),
    "a group is positive by its maximum, whatever else is in it": ({(0, 0): [0.1, 1.05]}, 8, ["+001"]),
    "the slowest of a bad group": ({(0, 0): [0.8, 0.5, 0.7]}, 8, ["-001"]),
    "one good enough kernel makes a group no bad one": ({(0, 0): [0.2, 0.9]}, 8, []),
    "the positive threshold itself is no gain": ({(0, 0): [1.04], (0, 1): [1.0401]}, 8, ["+010"]),
    "the negative threshold itself is no loss": ({(0, 0): [1 / 1.15], (0, 1): [1 / 1.1501]}, 8, ["-010"]),
    "in between teaches nothing": ({(0, 0): [1.0], (0, 1): [1.03], (1, 0): [0.9]}, 8, []),
    "strongest first": ({(0, 0): [1.1], (0, 1): [1.9], (1, 0): [1.5]}, 8, ["+010", "+100", "+000"]),
    "strongest slow-down first": ({(0, 0): [0.8], (0, 1): [0.2], (1, 0): [0.5]}, 8, ["-010", "-100", "-000"]),
    "ties by slot": ({(0, 1): [1.5], (1, 0): [1.5], (2, 0): [1.5]}, 4, ["+010", "+100"]),
    "positive before negative": ({(0, 0): [0.1], (0, 1): [1.1]}, 8, ["+010", "-000"]),
    "half for positive ones, what is left for negative": (
        {(0, 0): [1.5], (0, 1): [1.4], (0, 2): [1.3], (1, 0): [0.5], (1, 1): [0.4], (1, 2): [0.3]},
        4,
        ["+000", "+010", "-120", "-110"],
    ),
    "negative ones take what positive ones leave": (
        {(0, 0): [1.5], (1, 0): [0.5], (1, 1): [0.4], (1, 2): [0.3]},
        4,
        ["+000", "-120", "-110", "-100"],
    ),
    "positive ones never take more than half": (
        {(0, 0): [1.5], (0, 1): [1.4], (0, 2): [1.3]},
        4,
        ["+000", "+010"],
    ),
    "an odd TopK rounds the positive half down": (
        {(0, 0): [1.5], (0, 1): [1.4], (1, 0): [0.5], (1, 1): [0.4], (1, 2): [0.3]},
        3,
        ["+000", "-120", "-110"],
    ),
    "a TopK of one is for a negative pair": ({(0, 0): [1.5], (1, 0): [0.5]}, 1, ["-100"]),
    "a TopK of nothing": ({(0, 0): [1.5], (1, 0): [0.5]}, 0, []),
}


@pytest.mark.parametrize(("groups", "top_k", "expected"), CASES.values(), ids=CASES.keys())
def test_curation(groups, top_k, expected):
    assert spell_pairs(curate_pairs(samples(groups), search=SearchConfig(top_k=top_k))) == expected


def test_pairs_say_which_kernel_is_slow():
    good, bad = curate_pairs(samples({(0, 0): [2.0], (0, 1): [0.5]}), search=SearchConfig())
    assert (good.slow, good.fast.id, good.strength) == (PARENT, "r1.b0.p0.k0.f0", 2.0)
    assert (bad.slow.id, bad.fast, bad.strength) == ("r1.b0.p1.k0.f0", PARENT, 2.0)
    assert good.key.role is Role.SUMMARIZER
    assert bad.plan.technique == "t1"


def test_kernels_without_a_plan_are_in_no_group():
    (sample,) = samples({(0, 0): [9.0]})
    unplanned = TimedCandidate(sample.key, sample.candidate, PARENT, None)
    assert curate_pairs([unplanned], search=SearchConfig()) == ()


def test_a_run_that_keeps_no_experiences_pays_for_none():
    assert curate_pairs(samples({(0, 0): [9.0]}), search=SearchConfig(experiences=0)) == ()


speedups = st.floats(min_value=0.1, max_value=10)
groupings = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 3)), st.lists(speedups, min_size=1, max_size=3), max_size=12
)


@given(groupings, st.integers(0, 9))
def test_at_most_top_k_pairs_one_per_group_each_beyond_its_threshold(groups, top_k):
    config = SearchConfig(top_k=top_k)
    pairs = curate_pairs(samples(dict(sorted(groups.items()))), search=config)
    places = [(pair.key.slot, pair.key.plan) for pair in pairs]
    assert len(pairs) <= top_k
    assert len(places) == len(set(places))
    assert sum(pair.kind is ExperienceKind.POSITIVE for pair in pairs) <= top_k // 2
    for pair in pairs:
        limit = config.t_pos if pair.kind is ExperienceKind.POSITIVE else config.t_neg
        assert pair.strength > limit


def experience(name: str) -> Experience:
    return Experience(
        kind=ExperienceKind.POSITIVE,
        technique=name,
        slow=digest_of(b"slow"),
        fast=digest_of(b"fast"),
        speedup=1.5,
        summary=name,
        cites=(),
    )


@pytest.mark.parametrize(
    ("old", "new", "limit", "expected"),
    [
        ("ab", "cd", 4, "abcd"),
        ("ab", "cd", 3, "bcd"),
        ("ab", "cd", 1, "d"),
        ("ab", "cd", 0, ""),
        ("ab", "", 1, "b"),
        ("", "", 4, ""),
        ("ab", "-c-", 4, "abc"),
        ("ab", "--", 2, "ab"),
    ],
)
def test_the_queue_drops_the_oldest_and_none_adds_nothing(old, new, limit, expected):
    found = [None if name == "-" else experience(name) for name in new]
    queue = append_experiences([experience(name) for name in old], found, limit=limit)
    assert "".join(one.summary for one in queue) == expected
