"""Beam selection: elites, explorers, lineages, and the corners of B and X."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.beam import BeamSelection, select_beam
from stability import divergence_guard
from state.model import BeamEntry, BeamRole, Candidate, Checkpoint, SearchConfig, digest_of
from tests.support.path_kernels import make_candidate

INITIAL = make_candidate("initial", 10.0)


def search(beam: int = 4, explorers: int = 1, **numbers: float) -> SearchConfig:
    return SearchConfig(beam=beam, explorers=explorers, **numbers)


def child(
    name: str,
    latency_ms: float,
    *,
    parent: Candidate = INITIAL,
    technique: str | None = None,
    **numbers: float,
) -> Candidate:
    """Return a new kernel in its parent's lineage, by a technique of its own unless said."""
    return make_candidate(
        name, latency_ms, parent=parent.id, lineage=parent.lineage, technique=technique or name, **numbers
    )


def first(*fresh: Candidate, config: SearchConfig, tried: frozenset[str] = frozenset()) -> BeamSelection:
    """Select after a first round from the initial kernel."""
    return follow((BeamEntry(candidate=INITIAL, role=BeamRole.ELITE),), fresh, config=config, tried=tried)


def follow(
    beam: tuple[BeamEntry, ...],
    fresh: tuple[Candidate, ...],
    *,
    config: SearchConfig,
    marks: tuple[Checkpoint, ...] = (),
    tried: frozenset[str] = frozenset(),
) -> BeamSelection:
    checkpoints = {INITIAL.lineage: Checkpoint(lineage=INITIAL.lineage, candidate=INITIAL)}
    checkpoints |= {mark.lineage: mark for mark in marks}
    return select_beam(beam, fresh, checkpoints=checkpoints, tried=tried, search=config)


def spell_beam(selection: BeamSelection) -> str:
    """Spell a beam as names, an explorer in brackets."""
    return " ".join(
        f"[{entry.candidate.id}]" if entry.role is BeamRole.EXPLORER else entry.candidate.id
        for entry in selection.beam
    )


@pytest.mark.parametrize(
    ("beam", "explorers", "expected"),
    [
        (4, 1, "a b c [d]"),
        (4, 0, "a b c d"),
        (4, 2, "a b [c] [d]"),
        (1, 1, "a"),
        (1, 64, "a"),
        (2, 9, "a [b]"),
        (3, 3, "a [b] [c]"),
    ],
)
def test_slots_are_dealt_to_elites_and_explorers(beam, explorers, expected):
    fresh = [child("a", 5.0), child("b", 5.5), child("c", 6.0), child("d", 7.0)]
    assert spell_beam(first(*fresh, config=search(beam, explorers))) == expected


def test_without_new_kernels_the_beam_stays():
    assert spell_beam(first(config=search())) == "initial"


def test_a_beam_that_is_not_full_has_no_explorers():
    assert spell_beam(first(child("a", 12.0), child("b", 9.0), config=search(4, 2))) == "b initial [a]"
    assert spell_beam(first(child("a", 12.0), config=search(4, 2))) == "initial a"


def test_ties_go_to_the_beam_and_then_to_the_lowest_slot():
    same = [child("a", 10.0), child("b", 10.0)]
    assert spell_beam(first(*same, config=search(2, 0))) == "initial a"


@pytest.mark.parametrize(
    ("explorer", "expected"),
    [
        (child("x", 7.0), "a b [x]"),
        (child("x", 7.5), "a b [x]"),
        (child("x", 7.51), "a b x"),  # slower than the slack allows
        (child("x", 5.0), "a b x"),  # as fast as an elite
        (child("x", 7.0, technique="a"), "a b x"),  # the technique of an elite, on the same parent
        (child("x", 7.0, code="tried"), "a b x"),  # an earlier round tried it
        (child("x", 11.0), "a b initial"),
    ],
)
def test_what_does_not_qualify_as_explorer_leaves_the_slot_to_the_next_elite(explorer, expected):
    elites = [child("a", 5.0), child("b", 5.0)]
    selection = first(*elites, explorer, config=search(3, 1), tried=frozenset({digest_of(b"tried")}))
    assert spell_beam(selection) == expected


def test_an_explorer_within_the_noise_of_an_elite_is_not_another_kernel():
    elites = [child("a", 5.0, noise=0.05), child("b", 5.1, noise=0.05)]
    near, far = child("x", 5.4, noise=0.05), child("y", 6.5, noise=0.05)
    assert spell_beam(first(*elites, near, far, config=search(3, 1))) == "a b [y]"


def test_a_technique_that_the_beam_lacks_is_explored_before_a_faster_known_one():
    parent = child("p", 9.0)
    beam = (
        BeamEntry(candidate=INITIAL, role=BeamRole.ELITE),
        BeamEntry(candidate=parent, role=BeamRole.ELITE),
    )
    fresh = (
        child("a", 5.0, technique="widen"),
        child("b", 5.5, technique="hoist"),
        child("x", 7.0, parent=parent, technique="widen"),
        child("y", 7.4, technique="interchange"),
    )
    assert spell_beam(follow(beam, fresh, config=search(3, 1))) == "a b [y]"
    assert spell_beam(follow(beam, fresh[:3], config=search(3, 1))) == "a b [x]"


def test_an_explorer_begins_its_own_lineage_with_the_checkpoint_of_the_one_it_left():
    elites = [child("a", 5.0), child("b", 6.0)]
    selection = first(*elites, child("x", 7.0), config=search(3, 1))
    assert [entry.candidate.lineage for entry in selection.beam] == ["initial", "initial", "x"]
    assert selection.checkpoints == (
        Checkpoint(lineage="initial", candidate=elites[0]),
        Checkpoint(lineage="x", candidate=elites[0]),
    )


EXPLORER = make_candidate("x", 12.0, parent="initial", technique="x")
ELITES = (child("a", 5.0), child("b", 6.0))
BEAM = (
    *(BeamEntry(candidate=one, role=BeamRole.ELITE) for one in ELITES),
    BeamEntry(candidate=EXPLORER, role=BeamRole.EXPLORER),
)


def explore(*fresh: Candidate, depth: int = 0, config: SearchConfig | None = None) -> BeamSelection:
    """Select after a round that improved two elites and the explorer `x`, which had left `initial`."""
    marks = (
        Checkpoint(lineage="initial", candidate=ELITES[0]),
        Checkpoint(lineage="x", candidate=INITIAL, depth=depth),
    )
    return follow(BEAM, fresh, config=config or search(3, 1), marks=marks)


def test_an_explorer_lineage_goes_on_with_its_fastest_new_kernel():
    selection = explore(child("y", 14.0, parent=EXPLORER), child("z", 13.0, parent=EXPLORER))
    assert spell_beam(selection) == "a b [z]"
    assert selection.beam[2].candidate.lineage == "x"
    assert selection.checkpoints == (Checkpoint(lineage="x", candidate=INITIAL, depth=1),)
    assert selection.reverts == ()


def test_an_explorer_lineage_without_new_kernels_goes_on_with_the_old_one():
    assert spell_beam(explore()) == "a b [x]"


def test_a_gain_of_an_explorer_that_is_no_elite_moves_its_checkpoint():
    better = child("y", 9.0, parent=EXPLORER)
    selection = explore(better, depth=2)
    assert spell_beam(selection) == "a b [y]"
    assert selection.checkpoints == (Checkpoint(lineage="x", candidate=better, depth=0),)


def test_an_explorer_lineage_that_reaches_the_elites_frees_its_slot():
    selection = explore(child("y", 4.0, parent=EXPLORER), child("n", 7.0))
    assert spell_beam(selection) == "y a [n]"
    assert Checkpoint(lineage="x", candidate=selection.beam[0].candidate) in selection.checkpoints
    assert selection.reverts == ()


def test_a_reverted_lineage_leaves_the_beam_and_its_checkpoint_competes_again():
    selection = explore(child("y", 20.0, parent=EXPLORER))
    assert spell_beam(selection) == "a b initial"
    (revert,) = selection.reverts
    assert (revert.lineage, revert.dropped, revert.restored) == ("x", "y", "initial")


def test_no_kernel_of_a_reverted_lineage_stays_as_a_filler():
    marks = (
        Checkpoint(lineage="initial", candidate=ELITES[0]),
        Checkpoint(lineage="x", candidate=ELITES[0], depth=2),
    )
    assert (
        spell_beam(follow(BEAM, (child("y", 7.0, parent=EXPLORER),), config=search(3, 1), marks=marks))
        == "a b"
    )


def test_a_new_explorer_takes_the_slot_of_a_reverted_one():
    selection = explore(child("y", 20.0, parent=EXPLORER), child("n", 7.0))
    assert spell_beam(selection) == "a b [n]"
    assert selection.checkpoints[-1] == Checkpoint(lineage="n", candidate=ELITES[0])


def test_a_restored_kernel_that_was_found_again_is_in_the_beam_once():
    again = child("again", 10.0, code="initial", technique="b")
    selection = explore(child("y", 20.0, parent=EXPLORER), again, config=search(4, 1))
    codes = [entry.candidate.code for entry in selection.beam]
    assert len(codes) == len(set(codes))


def test_a_restored_kernel_whose_lineage_had_left_the_beam_gets_a_checkpoint():
    lost = make_candidate("lost", 10.0, lineage="gone")
    marks = (
        Checkpoint(lineage="initial", candidate=ELITES[0]),
        Checkpoint(lineage="x", candidate=lost, depth=2),
    )
    selection = follow(BEAM, (), config=search(3, 1), marks=marks)
    assert spell_beam(selection) == "a b lost"
    assert selection.checkpoints == (Checkpoint(lineage="gone", candidate=lost),)


def test_fewer_explorer_slots_than_before_keep_the_first_lineages():
    assert spell_beam(explore(config=search(2, 0))) == "a b"


latencies = st.sampled_from([4.0, 5.0, 5.5, 6.0, 7.0, 9.0, 12.0, 14.0, 19.0])
rounds = st.lists(
    st.lists(st.tuples(latencies, st.integers(0, 5), st.sampled_from("tuv")), max_size=6), max_size=6
)


@given(rounds, st.integers(1, 5), st.integers(0, 5), st.integers(1, 3))
def test_whatever_rounds_bring_the_beam_is_sound(history, beam, explorers, depth):
    config = search(beam, explorers, explorer_depth=depth)
    current = first(config=config).beam
    marks = {INITIAL.lineage: Checkpoint(lineage=INITIAL.lineage, candidate=INITIAL)}
    best = INITIAL.latency_ms
    for number, found in enumerate(history):
        fresh = [
            child(
                f"c{number}-{index}",
                latency,
                parent=current[parent % len(current)].candidate,
                technique=technique,
            )
            for index, (latency, parent, technique) in enumerate(found)
        ]
        selection = select_beam(current, fresh, checkpoints=marks, tried=frozenset(), search=config)
        pool = {entry.candidate.code for entry in current} | {one.code for one in fresh}
        marks |= {mark.lineage: mark for mark in selection.checkpoints}
        current = selection.beam
        best = min([best, *(one.latency_ms for one in fresh)])
        _is_sound(current, config, pool | {mark.candidate.code for mark in marks.values()})
        assert current[0].candidate.latency_ms == best
        alive = {entry.candidate.lineage for entry in current}
        assert alive <= set(marks)
        restored = {revert.restored for revert in selection.reverts}
        lost = {revert.lineage for revert in selection.reverts}
        assert {one.candidate.id for one in current if one.candidate.lineage in lost} <= restored
        marks = {lineage: mark for lineage, mark in marks.items() if lineage in alive}
        assert all(mark.depth < depth for mark in marks.values())


def _is_sound(beam: tuple[BeamEntry, ...], config: SearchConfig, known: set[str]) -> None:
    codes = [entry.candidate.code for entry in beam]
    assert 1 <= len(codes) == len(set(codes)) <= config.beam
    assert set(codes) <= known
    roles = [entry.role for entry in beam]
    elites = [entry.candidate for entry in beam if entry.role is BeamRole.ELITE]
    assert roles == sorted(roles, key=[BeamRole.ELITE, BeamRole.EXPLORER].index)
    assert elites
    assert len(beam) - len(elites) <= min(config.explorers, config.beam - 1)
    assert elites == sorted(elites, key=lambda one: one.latency_ms)
    assert not any(
        divergence_guard.is_clearly_faster(entry.candidate, elites[0], confidence_percent=90.0)
        for entry in beam
    )
