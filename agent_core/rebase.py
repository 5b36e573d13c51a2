"""Rebase: a fork with another problem, target or evaluator first judges its parent's kernels again.

Their old latencies no longer count. From here on, speed-ups are relative to the first correct kernel, in the
order initial kernel, beam. The fastest kernels are the beam, and lineages restart from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_core.effects import Decision, Effect, Record
from agent_core.requests import make_evaluation_request
from agent_core.round_view import executor_key, refusal_error
from agent_core.verification import VERIFICATION_LEVEL
from state.events import (
    BeamSelected,
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    RunCompleted,
)
from state.fold import RunState
from state.model import BeamEntry, BeamRole, Candidate, Checkpoint, EffectKey, Role, StopReason


def rejudge_kernels(state: RunState) -> list[Decision]:
    """Return the missing evaluations, or the record that follows once all are done."""
    wanted = {_evaluation_key(one): one for one in state.rejudge}
    missing = [key for key in sorted(wanted) if str(key) not in state.outcomes]
    if not missing:
        return [_record_new_beam(state)]
    return [
        Effect(
            key,
            make_evaluation_request(
                state, key, wanted[key].source, wanted[key].author, level=VERIFICATION_LEVEL
            ),
        )
        for key in missing
        if str(key) not in state.open
    ]


def _evaluation_key(candidate: Candidate) -> EffectKey:
    return executor_key(candidate.id).for_role(Role.EVALUATOR)


def _record_new_beam(state: RunState) -> Record:
    judged = [_rejudged_candidate(state, one) for one in state.rejudge]
    standing = [one for one in judged if isinstance(one, Candidate)]
    lost = [one for one in judged if isinstance(one, KernelDiscarded)]
    if not standing:
        return Record((*lost, _end_run(state)))
    fastest = sorted(standing, key=lambda one: one.latency_ms)[: state.config.search.beam]
    entries = tuple(BeamEntry(candidate=one, role=BeamRole.ELITE) for one in fastest)
    return Record(
        (
            *lost,
            *_kept_events(standing),
            *_checkpoint_events(fastest),
            BeamSelected(round=state.round, beam=entries),
        )
    )


def _rejudged_candidate(state: RunState, known: Candidate) -> Candidate | KernelDiscarded:
    """Return the kernel with its new verdict, or why it cannot compete any more."""
    outcome = state.outcomes[str(_evaluation_key(known))]
    if isinstance(outcome, EvaluationFailed):
        return KernelDiscarded(candidate=known.id, reason="infrastructure")
    assert isinstance(outcome, EvaluationCompleted)
    found = outcome.evaluation
    if refusal_error(found) is not None:
        return KernelDiscarded(candidate=known.id, reason=found.verdict.value)
    new = {name: getattr(found, name) for name in ("benchmark", "code", "profile", "bottleneck", "level")}
    return known.model_copy(update=new)


def _end_run(state: RunState) -> RunCompleted:
    """End the run: as rejected if the judge refused any kernel, else as an infrastructure failure."""
    outcomes = [state.outcomes[str(_evaluation_key(one))] for one in state.rejudge]
    said = [one.evaluation for one in outcomes if isinstance(one, EvaluationCompleted)]
    errors = [one.error for one in outcomes if isinstance(one, EvaluationFailed)]
    if said:
        error = refusal_error(said[0])
        assert error is not None
        detail = f"no kernel of the beam is correct now: {error.code}: {error.message}"
        return RunCompleted(reason=StopReason.INITIAL_REJECTED, detail=detail)
    return RunCompleted(reason=StopReason.INFRASTRUCTURE, detail=f"{errors[0].code}: {errors[0].message}")


def _kept_events(standing: Sequence[Candidate]) -> Iterator[Event]:
    base = standing[0]
    for one in standing:
        speedup = None if one is base else base.latency_ms / one.latency_ms
        yield KernelKept(candidate=one, role=BeamRole.ELITE, speedup=speedup)


def _checkpoint_events(fastest: Sequence[Candidate]) -> Iterator[Event]:
    """Yield the checkpoint of each lineage: its fastest kernel."""
    first: dict[str, Candidate] = {}
    for one in fastest:
        first.setdefault(one.lineage, one)
    for lineage, one in first.items():
        yield GuardCheckpointed(checkpoint=Checkpoint(lineage=lineage, candidate=one))
