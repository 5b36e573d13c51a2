"""How a run begins: its starting kernels are made and judged, and the correct ones are the first beam.

A run begins from a kernel, from the translation of its reference, or from both. Each is a kernel of its own,
the first of its lineage. The first correct one, in the order of `RunState.starts`, is the run's initial
kernel, with which later ones are compared. So a kernel that the judge refuses is replaced by the translation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_core.effects import Decision, Effect, Record, TranslateRequest
from agent_core.requests import make_evaluation_request
from agent_core.round_view import make_candidate, refusal_error
from state.events import (
    BeamSelected,
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    RunCompleted,
)
from state.fold import RunState
from state.model import (
    INITIAL_KEY,
    PERSON,
    TRANSLATION_KEY,
    BeamEntry,
    BeamRole,
    Candidate,
    Checkpoint,
    Digest,
    EffectKey,
    ErrorInfo,
    Evaluation,
    Level,
    Role,
    StartName,
    StopReason,
)


@dataclass(frozen=True, slots=True)
class _Start:
    """A starting kernel, as far as the run has come with it.

    `waits_for` is the effect that it needs next. Without one, `error` says why it cannot be used, with
    `infrastructure` if that is no fault of the kernel.
    """

    key: EffectKey
    source: Digest | None = None
    author: str = PERSON
    title: str = "initial kernel"
    waits_for: EffectKey | None = None
    evaluation: Evaluation | None = None
    error: ErrorInfo | None = None
    infrastructure: bool = False

    def make_candidate(self) -> Candidate:
        assert self.source is not None
        assert self.evaluation is not None
        return make_candidate(
            self.key,
            source=self.source,
            author=self.author,
            evaluation=self.evaluation,
            parent=None,
            technique=None,
            title=self.title,
        )


def begin_run(state: RunState) -> list[Decision]:
    """Return the effects that the starting kernels wait for, the first beam, or the run's end without one."""
    starts = [_read_start(state, name) for name in state.starts]
    waiting = [one for one in starts if one.waits_for is not None]
    if waiting:
        return [_effect_of(state, one) for one in waiting if str(one.waits_for) not in state.open]
    correct = [one for one in starts if one.error is None]
    return [_select_first_beam(state, starts)] if correct else [_end_run(starts[0])]


def _read_start(state: RunState, name: StartName) -> _Start:
    if name == "kernel":
        return _with_verdict(state, _Start(INITIAL_KEY, state.kernel))
    made = state.outcomes.get(str(TRANSLATION_KEY))
    key = TRANSLATION_KEY.for_role(Role.EVALUATOR)
    if made is None:
        return _Start(key, waits_for=TRANSLATION_KEY)
    if isinstance(made, ExecutionFailed):
        return _Start(key, error=made.error)
    assert isinstance(made, KernelProposed)
    return _with_verdict(state, _Start(key, made.source, made.author, made.note))


def _with_verdict(state: RunState, start: _Start) -> _Start:
    """Return a start that has a source with its verdict, or with the evaluation that it waits for."""
    judged = state.outcomes.get(str(start.key))
    known = start.key, start.source, start.author, start.title
    if judged is None:
        return _Start(*known, waits_for=start.key)
    if isinstance(judged, EvaluationFailed):
        return _Start(*known, error=judged.error, infrastructure=True)
    assert isinstance(judged, EvaluationCompleted)
    evaluation = judged.evaluation
    return _Start(*known, evaluation=evaluation, error=refusal_error(evaluation))


def _effect_of(state: RunState, start: _Start) -> Effect:
    if start.waits_for == TRANSLATION_KEY:
        request = TranslateRequest(
            key=str(TRANSLATION_KEY),
            problem=state.problem,
            size=state.config.size,
            target=state.config.target,
            toolchain=state.toolchain,
        )
        return Effect(TRANSLATION_KEY, request)
    assert start.source is not None
    judging = make_evaluation_request(state, start.key, start.source, start.author, level=Level.ONE_SEED)
    return Effect(start.key, judging)


def _end_run(start: _Start) -> Record:
    """End a run that has no correct kernel to begin from; its first start says why."""
    error = start.error
    assert error is not None
    detail = f"{error.code}: {error.message}"
    if start.infrastructure:
        return Record((RunCompleted(reason=StopReason.INFRASTRUCTURE, detail=detail),))
    if start.evaluation is not None:
        detail = f"{start.evaluation.verdict.value}: {detail}"
    return Record((RunCompleted(reason=StopReason.INITIAL_REJECTED, detail=detail),))


def _select_first_beam(state: RunState, starts: Sequence[_Start]) -> Record:
    """Keep the correct starts: they are the beam of round 0, each the first of its lineage.

    A translation that is slower than an explorer may be is not worth a slot, and neither is a copy.
    """
    kept: list[Candidate] = []
    discarded: list[KernelDiscarded] = []
    for start in starts:
        if start.error is not None:
            discarded += _discard_refused(start)
            continue
        one = start.make_candidate()
        slack = state.config.search.explorer_slack_ratio
        if kept and one.code == kept[0].code:
            discarded.append(KernelDiscarded(candidate=one.id, reason="duplicate", duplicate_of=kept[0].id))
        elif kept and one.latency_ms > slack * kept[0].latency_ms:
            discarded.append(KernelDiscarded(candidate=one.id, reason="slower"))
        else:
            kept.append(one)
    ranked = sorted(kept, key=lambda one: one.latency_ms)
    return Record(
        (
            *(KernelKept(candidate=one, role=BeamRole.ELITE, speedup=None) for one in kept),
            *discarded,
            *_first_checkpoints(kept),
            BeamSelected(
                round=0, beam=tuple(BeamEntry(candidate=one, role=BeamRole.ELITE) for one in ranked)
            ),
        )
    )


def _first_checkpoints(kept: Sequence[Candidate]) -> Iterator[Event]:
    for one in kept:
        yield GuardCheckpointed(checkpoint=Checkpoint(lineage=one.lineage, candidate=one))


def _discard_refused(start: _Start) -> Iterator[KernelDiscarded]:
    """Yield the discarding of a start that cannot be used; a translation that failed is no kernel."""
    name = start.key.candidate_id
    if start.infrastructure:
        yield KernelDiscarded(candidate=name, reason="infrastructure")
    elif start.evaluation is not None:
        verdict = start.evaluation.verdict
        yield KernelDiscarded(candidate=name, reason=verdict.value, verdict=verdict)
