"""How a run begins: from a kernel, from the translation of its reference, or from both."""

from __future__ import annotations

import pytest

from agent_core.decide import decide
from agent_core.effects import Effect
from state.events import (
    BeamSelected,
    ExecutionFailed,
    KernelDiscarded,
    KernelKept,
    RoundStarted,
    RunCompleted,
)
from state.model import INITIAL_KEY, TRANSLATION_KEY, Role, StopReason
from tests.support.world import KERNEL, World, small

BOTH = ("kernel", "translation")
BETTER = "TILE_M = 32\nTILE_N = 128\nBUFFERS = 1\n"
SLIGHTLY_WORSE = "TILE_M = 8\nTILE_N = 64\nBUFFERS = 1\n"
HOPELESS = "TILE_M = 1\nTILE_N = 1\nBUFFERS = 1\n"
REFUSED = "TILE_M = 4096\n"
TRANSLATED = TRANSLATION_KEY.candidate_id


def finished(**options) -> World:
    world = World(small(rounds=2), **options)
    world.finish()
    return world


def first_beam(world: World) -> list[str]:
    return [entry.candidate.id for entry in world.of(BeamSelected)[0].beam]


def test_both_starts_are_asked_for_at_once():
    world = World(small(), starts=BOTH, translation=BETTER)
    effects = [one for one in decide(world.state) if isinstance(one, Effect)]
    assert [one.key for one in effects] == [INITIAL_KEY, TRANSLATION_KEY]


def test_both_are_in_the_first_beam_and_each_begins_a_lineage():
    world = finished(starts=BOTH, translation=BETTER)
    assert first_beam(world) == [TRANSLATED, INITIAL_KEY.candidate_id]
    lineages = {entry.candidate.lineage for entry in world.of(BeamSelected)[0].beam}
    assert lineages == {TRANSLATED, INITIAL_KEY.candidate_id}
    assert {slot.parent for slot in world.of(RoundStarted)[0].slots} == lineages
    assert world.state.initial.id == INITIAL_KEY.candidate_id
    assert world.of(KernelKept)[1].candidate.author == "translation"


def test_a_translation_that_is_a_little_slower_stays_in_the_beam():
    assert first_beam(finished(starts=BOTH, translation=SLIGHTLY_WORSE)) == [
        INITIAL_KEY.candidate_id,
        TRANSLATED,
    ]


@pytest.mark.parametrize(
    ("translation", "reason"), [(HOPELESS, "slower"), (KERNEL, "duplicate"), (REFUSED, "lint_error")]
)
def test_a_translation_that_gains_nothing_is_left_out(translation, reason):
    world = finished(starts=BOTH, translation=translation)
    assert first_beam(world) == [INITIAL_KEY.candidate_id]
    (first, *_) = world.of(KernelDiscarded)
    assert (first.candidate, first.reason) == (TRANSLATED, reason)


def test_without_a_translation_the_kernel_is_the_start():
    world = finished(starts=BOTH)
    assert first_beam(world) == [INITIAL_KEY.candidate_id]
    assert world.of(ExecutionFailed)[0].error.code == "untranslatable"
    assert world.of(RunCompleted)[0].reason is StopReason.ROUNDS


def test_a_kernel_that_is_refused_is_replaced_by_the_translation():
    world = finished(starts=BOTH, kernel=REFUSED, translation=KERNEL)
    assert first_beam(world) == [TRANSLATED]
    assert world.state.initial.id == TRANSLATED
    assert world.of(KernelDiscarded)[0].candidate == INITIAL_KEY.candidate_id


def test_a_run_needs_no_kernel():
    world = finished(starts=("translation",), kernel=None, translation=KERNEL)
    assert first_beam(world) == [TRANSLATED]
    assert world.state.best.latency_ms < world.state.initial.latency_ms


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"starts": BOTH, "kernel": REFUSED, "translation": REFUSED}, "lint_error"),
        ({"starts": ("translation",), "kernel": None}, "np.sort"),
    ],
)
def test_a_run_without_a_correct_start_ends_and_says_why(options, detail):
    (ended,) = finished(**options).of(RunCompleted)
    assert ended.reason is StopReason.INITIAL_REJECTED
    assert detail in ended.detail


def test_a_fork_from_before_the_beam_asks_again_for_what_was_in_flight():
    world = World(small(), starts=BOTH, translation=BETTER)
    world.finish()
    made = next(n for n, event in enumerate(world.events, 1) if isinstance(event, KernelKept)) - 1
    judged = [event for event in world.events[:made] if getattr(event, "key", "").endswith(Role.EVALUATOR)]
    assert judged
    child = world.fork(2)
    child.finish()
    assert child.state.best.latency_ms == world.state.best.latency_ms
    assert first_beam(child) == first_beam(world)


def test_the_order_in_which_starts_are_judged_changes_nothing():
    first, *others = (World(small(), starts=BOTH, translation=BETTER, order=seed) for seed in range(5))
    for world in (first, *others):
        world.finish()
    assert {world.fingerprint for world in others} == {first.fingerprint}
