"""Predicted gains that the model is not sure of: kept only when they hold in enough draws."""

from __future__ import annotations

import pytest

from state.events import KernelDiscarded
from state.model import PredictionGrade
from tests.support.path_kernels import ROOT, Paths, judged_by
from tests.support.world import World, small

DRAWS = {
    "k": (10.0, 10.0, 10.0, 10.0),
    "k.0": (9.0, 9.5, 9.0, 9.9),
    "k.1": (8.0, 7.0, 8.0, 10.1),  # the fastest, but slower than it was in one draw of four
    "k.2": (12.0, 12.0, 12.0, 9.0),  # slower, and not kept for the draw in which it is not
}


@pytest.mark.parametrize(
    ("confidence", "best", "uncertain"), [(90.0, "k.0", ["r1.b0.p1.k0.f0"]), (75.0, "k.1", [])]
)
def test_a_predicted_gain_is_kept_only_when_it_holds_in_enough_draws(confidence, best, uncertain):
    table = {ROOT: 10.0, "k.0": 9.0, "k.1": 8.0, "k.2": 12.0}
    config = small(plans=3, implementations=1, beam=3, explorers=0, rounds=1, confidence_percent=confidence)
    world = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by(table, draws=DRAWS)).finish()
    assert world.source(world.state.best.source) == best
    discarded = {event.candidate: event.reason for event in world.of(KernelDiscarded)}
    assert [name for name, reason in discarded.items() if reason == "uncertain"] == uncertain


def test_a_gain_over_its_parent_must_also_hold_against_the_best():
    table = {ROOT: 10.0, "k.0": 9.0, "k.1": 9.5, "k.0.0": 20.0, "k.0.1": 20.0, "k.1.0": 8.9, "k.1.1": 20.0}
    draws = {ROOT: (10.0, 10.0), "k.0": (9.0, 9.0), "k.1": (9.5, 9.5), "k.1.0": (8.0, 9.1)}
    config = small(plans=2, implementations=1, beam=2, explorers=0, rounds=2)
    world = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by(table, draws=draws)).finish()
    assert world.source(world.state.best.source) == "k.0"
    ends = {event.candidate: event for event in world.of(KernelDiscarded)}
    end = ends["r2.b1.p0.k0.f0"]
    assert (end.reason, end.wins_percent) == ("uncertain", 50.0)
    assert end.against == world.state.best.id


def test_an_unsure_gain_teaches_no_success():
    table, draws = {ROOT: 10.0, "k.0": 5.0}, {ROOT: (10.0,) * 4, "k.0": (5.0, 5.0, 11.0, 11.0)}
    config = small(plans=1, implementations=1, beam=2, explorers=0, rounds=1)
    world = World(config, kernel=ROOT, proposer=Paths(), judge=judged_by(table, draws=draws)).finish()
    assert world.state.memory == ()
    (note,) = world.state.reflections
    assert note.grade is PredictionGrade.REFUTED
    assert "uncertain: faster with only 50 % confidence" in note.lesson
    (credit,) = world.state.credits.values()
    assert (credit.tries, credit.gains) == (1, 0)
