"""Reflexion: what an attempt taught, as a prediction written down before the result and graded after it.

The grade is arithmetic, whoever wrote the prediction: no role can talk a failure into a success. Notes are
keyed by (operator, bottleneck, technique); a newer note replaces the lesson of an older one and adds to
how often it was seen. A note weighs as much as it was seen, and half of that with every few rounds in which
nothing renewed it. The list is bounded: a new note pushes out the one that weighs least, oldest first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable

from state.model import Candidate, ErrorInfo, Evaluation, Plan, Prediction, PredictionGrade, Reflection

BAND_SHARE = 0.5
"""A prediction is confirmed when ln(actual) is within this share of ln(predicted) ..."""

BAND_FLOOR = 0.02
"""... or within this much of it (2 %), so that predictions of small effects can be confirmed at all."""

MAX_CITES = 8
"""How many candidates a note cites at most, the newest."""

HALF_LIFE_ROUNDS = 4
"""Rounds in which a note that nothing renews loses half of its weight."""

UNKNOWN_BOTTLENECK = "unknown"
_ROUND = re.compile(r"r(\d+)\.")


def speedup_of(parent: Candidate, evaluation: Evaluation | None) -> float | None:
    """Return the parent's latency over the evaluated one's; None when there is no correct, timed kernel."""
    if evaluation is None or not evaluation.is_correct or evaluation.benchmark is None:
        return None
    return parent.latency_ms / evaluation.benchmark.latency_ms


def doubtful_wins(
    parent: Candidate, evaluation: Evaluation | None, *, confidence_percent: float
) -> tuple[float, int] | None:
    """Return in how many of how many draws a gain holds that the model is not sure of; else None."""
    actual = speedup_of(parent, evaluation)
    if actual is None or evaluation is None or evaluation.benchmark is None or actual <= 1:
        return None
    share = evaluation.benchmark.wins_percent(parent.benchmark)
    if share is None or share >= confidence_percent:
        return None
    draws = min(len(evaluation.benchmark.draws_ms), len(parent.benchmark.draws_ms))
    return share * draws / 100, draws


def grade_prediction(
    prediction: Prediction,
    parent: Candidate,
    evaluation: Evaluation | None,
    *,
    confidence_percent: float = 0.0,
) -> PredictionGrade:
    """Grade a prediction against what happened; `evaluation` is None when no kernel came of the plan.

    FAILED without a correct kernel. REFUTED when a gain was predicted and none exceeds the noise of the
    two latencies. CONFIRMED within the band around ln(predicted speed-up); outside of it OVERSTATED
    or UNDERSTATED. A gain that the model is not sure of counts as none.
    """
    doubt = doubtful_wins(parent, evaluation, confidence_percent=confidence_percent)
    actual = 1.0 if doubt else speedup_of(parent, evaluation)
    if actual is None or evaluation is None or evaluation.benchmark is None:
        return PredictionGrade.FAILED
    noise = parent.benchmark.noise_ratio + evaluation.benchmark.noise_ratio
    if prediction.speedup > 1 and actual <= 1 + noise:
        return PredictionGrade.REFUTED
    expected = math.log(prediction.speedup)
    miss = math.log(actual) - expected
    if abs(miss) <= max(BAND_SHARE * abs(expected), BAND_FLOOR, noise):
        return PredictionGrade.CONFIRMED
    return PredictionGrade.OVERSTATED if miss < 0 else PredictionGrade.UNDERSTATED


def make_reflection(
    *,
    operator: str,
    parent: Candidate,
    plan: Plan,
    evaluation: Evaluation | None,
    error: ErrorInfo | None,
    candidate: str,
    confidence_percent: float = 0.0,
) -> Reflection:
    """Return the note that needs no model: the grade, and a lesson in one sentence."""
    actual = speedup_of(parent, evaluation)
    graded = grade_prediction(plan.prediction, parent, evaluation, confidence_percent=confidence_percent)
    doubt = doubtful_wins(parent, evaluation, confidence_percent=confidence_percent)
    return Reflection(
        operator=operator,
        bottleneck=parent.bottleneck or UNKNOWN_BOTTLENECK,
        technique=plan.technique,
        predicted_speedup=plan.prediction.speedup,
        actual_speedup=actual,
        grade=graded,
        lesson=_write_lesson(plan, graded, actual, error) + (_describe_doubt(*doubt) if doubt else ""),
        cites=(candidate,),
    )


def merge_reflections(
    known: Iterable[Reflection], new: Iterable[Reflection], *, limit: int
) -> tuple[Reflection, ...]:
    """Return the whole list after `new` (in slot order), newest first, at most `limit` notes.

    A note of this round, which `new` are of, is never pushed out by an older one.
    """
    fresh: dict[tuple[str, str, str], Reflection] = {}
    old = {_reflection_key(note): note for note in known}
    for note in new:
        before = fresh.pop(_reflection_key(note), None) or old.pop(_reflection_key(note), None)
        fresh[_reflection_key(note)] = note if before is None else _renew_reflection(before, note)
    newest = tuple(reversed(fresh.values()))[:limit]
    now = max((round_of(note) for note in newest), default=0)
    return newest + _select_weightiest(tuple(old.values()), limit - len(newest), now)


def reflection_weight(note: Reflection, now: int) -> float:
    """Return how much a note counts in round `now`: by how often it was seen, and how long ago."""
    age = max(0, now - round_of(note))
    return float(note.seen * 0.5 ** (age / HALF_LIFE_ROUNDS))


def round_of(note: Reflection) -> int:
    """Return the round of the newest attempt that a note cites, 0 where it cites none."""
    found = _ROUND.match(note.cites[-1]) if note.cites else None
    return int(found[1]) if found else 0


def forget_reflections(notes: Iterable[Reflection], candidates: Collection[str]) -> tuple[Reflection, ...]:
    """Return the list without the notes whose lesson one of `candidates` taught."""
    return tuple(note for note in notes if not note.cites or note.cites[-1] not in candidates)


def _reflection_key(note: Reflection) -> tuple[str, str, str]:
    return (note.operator, note.bottleneck, note.technique)


def _renew_reflection(before: Reflection, note: Reflection) -> Reflection:
    cites = tuple(dict.fromkeys(before.cites + note.cites))[-MAX_CITES:]
    return note.model_copy(update={"seen": before.seen + note.seen, "cites": cites})


def _select_weightiest(notes: tuple[Reflection, ...], room: int, now: int) -> tuple[Reflection, ...]:
    """Keep the `room` weightiest notes in their order (newest first), so that ties drop the oldest."""
    ranked = sorted(range(len(notes)), key=lambda index: -reflection_weight(notes[index], now))
    return tuple(notes[index] for index in sorted(ranked[: max(room, 0)]))


def _describe_doubt(wins: float, draws: int) -> str:
    return f"; uncertain: faster in {wins:g} of {draws} draws, counted as no gain"


def _write_lesson(plan: Plan, graded: PredictionGrade, actual: float | None, error: ErrorInfo | None) -> str:
    said = f"{plan.technique} at {plan.site}: predicted {plan.prediction.speedup:.3f}x"
    if actual is not None:
        return f"{said}, got {actual:.3f}x ({graded.value})"
    why = f"{error.code}: {error.message}" if error else "no kernel"
    return f"{said}, failed ({why})"
