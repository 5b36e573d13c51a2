"""What is learnt from a round once its beam is selected: experiences, reflections, attempts and credits.

An **attempt** is one candidate slot (a plan, one implementation of it) in the state of its last kernel. Every
attempt with a plan gets a reflection, failed ones too. If the infrastructure failed to judge a kernel, there
is no attempt, and nothing is learnt. A person's kernel is an attempt without a prediction, so it gets no
reflection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from agent_core import memory
from agent_core.effects import Effect, Record, ReflectRequest, SummarizeRequest
from agent_core.round_view import (
    CandidateSlot,
    KernelAttempt,
    TimedCandidate,
    find_duplicates,
    timed_candidates,
)
from stability import divergence_guard, reflexion
from stability.attempt_history import update_credits
from state.events import (
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    MemoryCurated,
    PlanFailed,
    ReflectionRecorded,
    RoundCompleted,
    effect_key,
)
from state.fold import RunState
from state.model import Attempt, EffectKey, ErrorInfo, Role, RunEnding, StopReason

PERSON_TECHNIQUE = "person"
"""The technique in the attempts of people, who choose from no menu."""


def learning_effects(state: RunState, places: Sequence[CandidateSlot]) -> list[Effect] | None:
    """Return the learning effects to start, in key order; None once all have outcomes."""
    wanted = {**_summary_effects(state, places), **_reflection_effects(state, places)}
    missing = sorted(key for key in wanted if str(key) not in state.outcomes)
    if not missing:
        return None
    return [wanted[key]() for key in missing if str(key) not in state.open]


def complete_round(state: RunState, places: Sequence[CandidateSlot]) -> Record:
    """Return the record that applies what the round taught, in slot order."""
    search = state.config.search
    learnt = [state.outcomes[str(key)] for key in sorted(_summary_effects(state, places))]
    noted = [state.outcomes[str(key)] for key in sorted(_reflection_effects(state, places))]
    attempts = tuple(_build_attempts(state, places))
    queue = memory.append_experiences(
        state.memory,
        (one.experience for one in learnt if isinstance(one, ExperienceRecorded)),
        limit=search.experiences,
    )
    notes = reflexion.merge_reflections(
        state.reflections,
        (one.reflection for one in noted if isinstance(one, ReflectionRecorded)),
        limit=search.reflections,
    )
    completed = RoundCompleted(
        round=state.round,
        attempts=attempts,
        credits=update_credits(state.credits, attempts),
        reflections=notes,
        idle=None if state.expired else _idle_ending(state, places),  # late kernels may still bring a verdict
    )
    return Record((MemoryCurated(round=state.round, memory=queue), completed))


MakeEffect = Callable[[], Effect]
"""Builds an effect when it is due: most calls of `decide` need only its key."""


def _summary_effects(state: RunState, places: Sequence[CandidateSlot]) -> dict[EffectKey, MakeEffect]:
    pairs = memory.curate_pairs(_unique_candidates(state, places), search=state.config.search)
    return {pair.key: partial(_make_summary_effect, pair) for pair in pairs}


def _reflection_effects(state: RunState, places: Iterable[CandidateSlot]) -> dict[EffectKey, MakeEffect]:
    return {
        tried.key.for_role(Role.REFLECTOR): partial(_make_reflection_effect, state, place, tried)
        for place, tried in _last_attempts(places)
        if place.plan is not None
    }


def _make_summary_effect(pair: memory.KernelPair) -> Effect:
    request = SummarizeRequest(
        key=str(pair.key), role=pair.key.role, kind=pair.kind, slow=pair.slow, fast=pair.fast, plan=pair.plan
    )
    return Effect(pair.key, request)


def _make_reflection_effect(state: RunState, place: CandidateSlot, tried: KernelAttempt) -> Effect:
    assert place.plan is not None
    key = tried.key.for_role(Role.REFLECTOR)
    request = ReflectRequest(
        key=str(key),
        role=key.role,
        operator=state.problem.name,
        parent=place.parent,
        plan=place.plan,
        evaluation=tried.evaluation,
        error=tried.error,
        confidence_percent=state.config.search.confidence_percent,
    )
    return Effect(key, request)


def _unique_candidates(state: RunState, places: Iterable[CandidateSlot]) -> list[TimedCandidate]:
    found = timed_candidates(state, places)
    copies = find_duplicates(state, found)
    return [sample for sample in found if sample.candidate.id not in copies]


def _ids_with_gain(state: RunState, places: Iterable[CandidateSlot]) -> frozenset[str]:
    sure = state.config.search.confidence_percent
    return frozenset(
        one.candidate.id
        for one in _unique_candidates(state, places)
        if divergence_guard.is_clearly_faster(one.candidate, one.parent, confidence_percent=sure)
    )


def _last_attempts(places: Iterable[CandidateSlot]) -> Iterator[tuple[CandidateSlot, KernelAttempt]]:
    """Yield each candidate slot with its last kernel, which is the attempt's result."""
    for place in places:
        if place.tries and not place.tries[-1].infrastructure:
            yield place, place.tries[-1]


def _build_attempts(state: RunState, places: Sequence[CandidateSlot]) -> Iterator[Attempt]:
    gained = _ids_with_gain(state, places)
    is_told = state.config.llm.tell_titles
    copies = find_duplicates(state, timed_candidates(state, places)) if is_told else {}
    for place, tried in _last_attempts(places):
        yield Attempt(
            candidate=tried.key.candidate_id,
            parent=place.parent.id,
            technique=place.plan.technique if place.plan else PERSON_TECHNIQUE,
            site=place.plan.site if place.plan else "",
            code=tried.evaluation.code if tried.evaluation else None,
            verdict=tried.evaluation.verdict if tried.evaluation else None,
            error=tried.error,
            speedup=reflexion.speedup_of(place.parent, tried.evaluation),
            gained=tried.key.candidate_id in gained,
            round=tried.key.round,
            shares=place.plan.technique_shares if place.plan and place.plan.steps else {},
            title=place.plan.title if place.plan and is_told else "",
            duplicate_of=copies.get(tried.key.candidate_id),
        )
    for place in places:
        yield from _session_attempts(state, place)


def _session_attempts(state: RunState, place: CandidateSlot) -> Iterator[Attempt]:
    """Yield the kernels that the sessions of a candidate slot had judged and did not submit."""
    known = {place.parent.code} | {tried.evaluation.code for tried in place.tries if tried.evaluation}
    for session in place.tries:
        made = state.outcomes.get(str(session.key))
        for one in made.tried if isinstance(made, KernelProposed | ExecutionFailed) else ():
            if one.code in known or place.plan is None:
                continue
            known.add(one.code)
            yield Attempt(
                candidate=session.key.candidate_id,
                parent=place.parent.id,
                technique=place.plan.technique,
                site=place.plan.site,
                code=one.code,
                verdict=one.verdict,
                error=one.error,
                speedup=place.parent.latency_ms / one.latency_ms if one.latency_ms else None,
                round=session.key.round,
                in_session=True,
            )


def _idle_ending(state: RunState, places: Iterable[CandidateSlot]) -> RunEnding | None:
    """Return why a round without a verdict is the last one: the next round would ask the same again."""
    tries = [tried for place in places for tried in place.tries]
    if any(tried.evaluation for tried in tries):
        return None
    lost = [tried.error for tried in tries if tried.infrastructure and tried.error]
    if lost:
        detail = f"no kernel could be judged: {lost[0].code}: {lost[0].message}"
        return RunEnding(reason=StopReason.INFRASTRUCTURE, detail=detail)
    detail = "a round without a kernel to judge"
    if (error := _first_failure(state)) is not None:
        from agent_core.roles.llm.quoting import single_line

        detail += f": {single_line(error.code)}: {single_line(error.message)}"
    return RunEnding(reason=StopReason.NO_PROPOSALS, detail=detail)


def _first_failure(state: RunState) -> ErrorInfo | None:
    """Return the error of the round's first failed proposal, by key and not by time of arrival."""
    ended = ((effect_key(one), one) for one in state.outcomes.values())
    failed = {
        key: one.error
        for key, one in ended
        if key.round == state.round and isinstance(one, PlanFailed | ExecutionFailed)
    }
    return failed[min(failed)] if failed else None
