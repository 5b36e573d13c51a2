"""Reflexion: the lesson of an attempt, from a prediction made before the result and graded after it.

The grade is arithmetic, whoever made the prediction: no role can declare a failure a success. Notes are keyed
by (operator, bottleneck, technique). A newer note replaces the lesson of an older one and adds to how often
it was seen. A note's weight is how often it was seen, halved every few rounds without renewal. The list is
bounded: a new note displaces the one with the least weight, oldest first.
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
"""After this many rounds without renewal, a note has lost half of its weight."""

UNKNOWN_BOTTLENECK = "unknown"
_ROUND = re.compile(r"r(\d+)\.")


def speedup_of(parent: Candidate, evaluation: Evaluation | None) -> float | None:
    """Return the parent's latency divided by the evaluated one's; None without a correct, timed kernel."""
    if evaluation is None or not evaluation.is_correct or evaluation.benchmark is None:
        return None
    return parent.latency_ms / evaluation.benchmark.latency_ms


def doubtful_percent(
    parent: Candidate, evaluation: Evaluation | None, *, confidence_percent: float
) -> float | None:
    """Return how sure an uncertain gain is, in percent; None if no gain is uncertain."""
    actual = speedup_of(parent, evaluation)
    if actual is None or evaluation is None or evaluation.benchmark is None or actual <= 1:
        return None
    share = evaluation.benchmark.wins_percent(parent.benchmark)
    return None if share is None or share >= confidence_percent else share


def grade_prediction(
    prediction: Prediction,
    parent: Candidate,
    evaluation: Evaluation | None,
    *,
    confidence_percent: float = 0.0,
) -> PredictionGrade:
    """Grade a prediction against the result; `evaluation` is None if the plan led to no kernel.

    FAILED: no correct kernel. REFUTED: a gain was predicted, and none exceeds the noise of the two latencies.
    CONFIRMED: within the band around ln(predicted speed-up). Outside the band: OVERSTATED or UNDERSTATED. An
    uncertain gain counts as none.
    """
    doubt = doubtful_percent(parent, evaluation, confidence_percent=confidence_percent)
    actual = 1.0 if doubt is not None else speedup_of(parent, evaluation)
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
    doubt = doubtful_percent(parent, evaluation, confidence_percent=confidence_percent)
    return Reflection(
        operator=operator,
        bottleneck=parent.bottleneck or UNKNOWN_BOTTLENECK,
        technique=plan.technique,
        predicted_speedup=plan.prediction.speedup,
        actual_speedup=actual,
        grade=graded,
        lesson=_write_lesson(plan, graded, actual, error=error) + _describe_doubt(doubt),
        cites=(candidate,),
    )


def merge_reflections(
    known: Iterable[Reflection], new: Iterable[Reflection], *, limit: int
) -> tuple[Reflection, ...]:
    """Return the list with `new` (in slot order) added, newest first, at most `limit` notes.

    An older note never displaces one of the current round, which `new` belongs to.
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
    """Return a note's weight in round `now`, from how often and how recently it was seen."""
    age = max(0, now - round_of(note))
    return float(note.seen * 0.5 ** (age / HALF_LIFE_ROUNDS))


def round_of(note: Reflection) -> int:
    """Return the round of the newest attempt that a note cites, 0 if it cites none."""
    found = _ROUND.match(note.cites[-1]) if note.cites else None
    return int(found[1]) if found else 0


def forget_reflections(notes: Iterable[Reflection], candidates: Collection[str]) -> tuple[Reflection, ...]:
    """Return the list without notes whose lesson comes from one of `candidates`."""
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


def _describe_doubt(percent: float | None) -> str:
    if percent is None:
        return ""
    return f"; uncertain: faster with only {percent:.0f} % confidence, counted as no gain"


def _write_lesson(
    plan: Plan, graded: PredictionGrade, actual: float | None, *, error: ErrorInfo | None
) -> str:
    said = f"{plan.technique} at {plan.site}: predicted {plan.prediction.speedup:.3f}x"
    if actual is not None:
        return f"{said}, got {actual:.3f}x ({graded.value})"
    why = f"{error.code}: {error.message}" if error else "no kernel"
    return f"{said}, failed ({why})"
