"""Grades are arithmetic; the list of notes is bounded and keeps what is seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stability import reflexion
from state.model import ErrorInfo, Prediction, PredictionGrade, Reflection, Verdict
from tests.support.path_kernels import make_candidate, make_plan
from tests.support.world import correct_evaluation, refused_evaluation

PARENT = make_candidate("parent", 1.0)


def grade_prediction(predicted: float, latency_ms: float) -> PredictionGrade:
    return reflexion.grade_prediction(
        Prediction(speedup=predicted), PARENT, correct_evaluation("k", latency_ms)
    )


@pytest.mark.parametrize(
    ("predicted", "actual", "expected"),
    [
        (1.5, 1.5, PredictionGrade.CONFIRMED),
        (1.5, 1.3, PredictionGrade.CONFIRMED),
        (1.5, 1.7, PredictionGrade.CONFIRMED),
        (1.5, 1.1, PredictionGrade.OVERSTATED),
        (1.5, 2.5, PredictionGrade.UNDERSTATED),
        (1.5, 1.0, PredictionGrade.REFUTED),
        (1.5, 0.7, PredictionGrade.REFUTED),
        (1.01, 1.02, PredictionGrade.CONFIRMED),  # within the floor of the band
        (1.01, 1.2, PredictionGrade.UNDERSTATED),
        (1.0, 1.0, PredictionGrade.CONFIRMED),  # no gain was promised: an enabling step
        (1.0, 0.8, PredictionGrade.OVERSTATED),
        (0.9, 1.3, PredictionGrade.UNDERSTATED),
    ],
)
def test_the_grade_follows_from_prediction_and_outcome(predicted, actual, expected):
    assert grade_prediction(predicted, 1 / actual) is expected


def test_a_gain_within_noise_confirms_nothing():
    parent = make_candidate("parent", 1.0, noise=0.02)
    measured = correct_evaluation("k", 1 / 1.03, noise=0.02)
    assert reflexion.grade_prediction(Prediction(speedup=1.05), parent, measured) is PredictionGrade.REFUTED
    assert (
        reflexion.grade_prediction(
            Prediction(speedup=1.05), parent, correct_evaluation("k", 1 / 1.06, noise=0.02)
        )
        is PredictionGrade.CONFIRMED
    )


def test_a_miss_that_noise_explains_is_no_miss():
    assert grade_prediction(1.05, 1 / 1.1) is PredictionGrade.UNDERSTATED
    parent = make_candidate("parent", 1.0, noise=0.03)
    measured = correct_evaluation("k", 1 / 1.1, noise=0.03)
    assert reflexion.grade_prediction(Prediction(speedup=1.05), parent, measured) is PredictionGrade.CONFIRMED


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.CORRECT])
def test_a_kernel_that_is_not_correct_failed_whatever_was_predicted(verdict):
    assert (
        reflexion.grade_prediction(Prediction(speedup=1.5), PARENT, refused_evaluation("k", verdict, "no"))
        is PredictionGrade.FAILED
    )


def test_no_kernel_is_a_failure():
    assert reflexion.grade_prediction(Prediction(speedup=1.5), PARENT, None) is PredictionGrade.FAILED


@given(st.floats(min_value=1.001, max_value=50), st.floats(min_value=0.02, max_value=50))
def test_only_a_gain_can_confirm_a_predicted_gain(predicted, actual):
    grade = grade_prediction(predicted, 1 / actual)
    if grade in (PredictionGrade.CONFIRMED, PredictionGrade.UNDERSTATED, PredictionGrade.OVERSTATED):
        assert 1.0 / (1 / actual) > 1
    else:
        assert grade is PredictionGrade.REFUTED


def test_a_note_states_prediction_result_and_reason():
    error = ErrorInfo(code="sbuf_overflow", message="200 KiB of 192")
    note = reflexion.make_reflection(
        operator="matmul", parent=PARENT, plan=make_plan("widen"), evaluation=None, error=error, candidate="c"
    )
    assert (note.operator, note.bottleneck, note.technique) == ("matmul", "memory", "widen")
    assert note.grade is PredictionGrade.FAILED
    assert note.actual_speedup is None
    assert note.cites == ("c",)
    assert "sbuf_overflow: 200 KiB of 192" in note.lesson
    gained = reflexion.make_reflection(
        operator="matmul",
        parent=PARENT.model_copy(update={"bottleneck": None}),
        plan=make_plan("widen"),
        evaluation=correct_evaluation("k", 0.9),
        error=None,
        candidate="c",
    )
    assert gained.bottleneck == reflexion.UNKNOWN_BOTTLENECK
    assert gained.actual_speedup == pytest.approx(1 / 0.9)
    assert "predicted 1.100x, got 1.111x (confirmed)" in gained.lesson


def note(technique: str, *, lesson: str = "", seen: int = 1, cites: tuple[str, ...] = ()) -> Reflection:
    return Reflection(
        operator="matmul",
        bottleneck="memory",
        technique=technique,
        predicted_speedup=1.1,
        actual_speedup=1.0,
        grade=PredictionGrade.REFUTED,
        lesson=lesson,
        seen=seen,
        cites=cites,
    )


def test_a_newer_note_replaces_the_lesson_and_adds_to_what_was_seen():
    old = note("a", lesson="old", seen=3, cites=("x",))
    first, second = note("a", lesson="first", cites=("y",)), note("a", lesson="second", cites=("z",))
    (merged,) = reflexion.merge_reflections([old], [first, second], limit=8)
    assert (merged.lesson, merged.seen, merged.cites) == ("second", 5, ("x", "y", "z"))


def test_citations_are_bounded_to_the_newest():
    notes = [note("a", cites=(f"c{number}",)) for number in range(20)]
    (merged,) = reflexion.merge_reflections([], notes, limit=8)
    assert merged.cites == tuple(f"c{number}" for number in range(12, 20))
    assert merged.seen == 20


def test_notes_on_another_bottleneck_or_operator_are_other_notes():
    base = note("a")
    others = [base.model_copy(update=change) for change in ({"bottleneck": "compute"}, {"operator": "silu"})]
    assert len(reflexion.merge_reflections([base], others, limit=8)) == 3


def test_what_is_pushed_out_is_seen_least_and_oldest_first_and_never_new():
    known = [note("newer", seen=1), note("often", seen=5), note("oldest", seen=1)]
    merged = reflexion.merge_reflections(known, [note("fresh")], limit=3)
    assert [one.technique for one in merged] == ["fresh", "newer", "often"]
    assert [one.technique for one in reflexion.merge_reflections(known, [note("fresh")], limit=2)] == [
        "fresh",
        "often",
    ]
    assert [one.technique for one in reflexion.merge_reflections(known, [note("fresh")], limit=1)] == [
        "fresh"
    ]
    assert reflexion.merge_reflections(known, [note("fresh")], limit=0) == ()


names = st.sampled_from("abcdefgh")


@given(st.lists(st.lists(names, max_size=6), max_size=6), st.integers(min_value=0, max_value=5))
def test_the_list_has_no_two_notes_of_one_key_and_stays_bounded(rounds, limit):
    kept: tuple[Reflection, ...] = ()
    for techniques in rounds:
        kept = reflexion.merge_reflections(kept, [note(technique) for technique in techniques], limit=limit)
        keys = [one.technique for one in kept]
        assert len(keys) == len(set(keys)) <= limit
        newest = list(dict.fromkeys(reversed(techniques)))
        assert keys[: len(newest)] == newest[:limit]


# --- decay ----------------------------------------------------------------------------------------


def seen_in(round_: int, technique: str, seen: int) -> Reflection:
    return note(technique, seen=seen, cites=(f"r{round_}.b0.p0.k0.f0",))


def test_a_note_weighs_half_after_every_half_life_in_which_nothing_renewed_it():
    one = seen_in(3, "hoist", 8)
    later = [reflexion.reflection_weight(one, 3 + times * reflexion.HALF_LIFE_ROUNDS) for times in range(3)]
    assert later == [8.0, 4.0, 2.0]
    assert reflexion.reflection_weight(one, 1) == 8.0
    assert reflexion.reflection_weight(note("hoist", cites=("person",)), 0) == 1.0


def test_what_was_seen_long_ago_makes_room_for_what_was_seen_lately():
    old, lately = seen_in(1, "hoist", 4), seen_in(12, "fuse", 2)
    kept = reflexion.merge_reflections([lately, old], [seen_in(13, "place", 1)], limit=2)
    assert [one.technique for one in kept] == ["place", "fuse"]
    soon = reflexion.merge_reflections([lately, seen_in(11, "hoist", 4)], [seen_in(13, "place", 1)], limit=2)
    assert [one.technique for one in soon] == ["place", "hoist"]


def test_what_is_renewed_weighs_all_that_was_seen_of_it():
    (renewed,) = reflexion.merge_reflections([seen_in(1, "hoist", 4)], [seen_in(13, "hoist", 1)], limit=8)
    assert reflexion.reflection_weight(renewed, 13) == 5.0
