"""What must hold after every event of every run, told apart from how the fold comes to it.

Each check gets the trail of the run before the event, the event and the fold's state after it, and returns
what is wrong. `watch` says what must hold of the whole log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from state.events import (
    CallEnded,
    EffectEnded,
    EffectStarted,
    Event,
    KernelRefuted,
    PlanProposed,
    PlanStarted,
    PredictionBatch,
    RoundCompleted,
    RoundDeadlinePassed,
    RoundStarted,
    RunCompleted,
    RunForked,
    effect_key,
)
from state.model import PERSON_SLOT, EffectKey, Role, RunStatus, SlotAssignment, round_usd
from state.run_state import RunState, is_by_person


class Violation(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Trail:
    """What is known of one run, from its events alone."""

    states: list[RunState] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    started: dict[str, EffectStarted] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    """When each round took no more results, by the event's number."""
    dealt: dict[int, tuple[SlotAssignment, ...]] = field(default_factory=dict)
    """What each round may start."""
    spent_usd: float = 0.0
    generation: int = 0
    """How many forks led here."""

    def cut(self, at: int) -> Trail:
        """Return the trail of a run that continues this one from its event number `at`.

        What came after a cancel was only charged, and the end of a run takes its outcomes away: neither is
        one there.
        """
        kept = {key: seq for key, seq in self.ended.items() if seq <= at and not self._is_cancelled(seq)}
        return Trail(
            states=self.states[:at],
            ended={} if self.states[at - 1].status is RunStatus.COMPLETED else kept,
            over={round_: seq for round_, seq in self.over.items() if seq <= at},
            dealt=dict(self.dealt),
            spent_usd=self.states[at - 1].spent_usd,
            generation=self.generation + 1,
        )

    def _is_cancelled(self, seq: int) -> bool:
        return self.states[seq - 1].status is RunStatus.CANCELLED

    def note(self, event: Event, state: RunState) -> None:
        self.states.append(state)
        number = len(self.states)
        match event:
            case EffectStarted(key=key):
                self.started[key] = event
            case EffectEnded(key=key, usage=usage):
                self.ended[key] = number
                self.spent_usd += usage.cost_usd or 0.0
            case CallEnded(cost_usd=amount):
                self.spent_usd = round_usd(self.spent_usd + (amount or 0.0))
            case RoundStarted(round=round_, slots=slots):
                self.dealt[round_] = slots
            case RoundDeadlinePassed(round=round_) | RoundCompleted(round=round_):
                self.over.setdefault(round_, number)
            case RunForked(rebase=rebase):
                self.spent_usd = state.spent_usd
                if rebase is not None:  # what was judged is history, and the round under way is given up
                    self.ended.clear()
                    self.over = {round_: seq for round_, seq in self.over.items() if round_ <= state.round}


Check = Callable[[Trail, Event, RunState], str | None]


def one_outcome(trail: Trail, event: Event, after: RunState) -> str | None:
    if isinstance(event, EffectEnded) and event.key in trail.ended:
        return f"{event.key} has two outcomes"
    return None


def outcomes_were_asked_for(trail: Trail, event: Event, after: RunState) -> str | None:
    if isinstance(event, EffectEnded) and event.key not in trail.started and not is_by_person(event):
        return f"{event.key} has an outcome and no start"
    return None


def no_outcome_is_lost(trail: Trail, event: Event, after: RunState) -> str | None:
    """A run that is over has an outcome for all that it started, however often that was begun again."""
    left = [key for key in trail.started if key not in trail.ended]
    return f"{', '.join(left)} never ended" if left and isinstance(event, RunCompleted) else None


def redelivered_as_logged(trail: Trail, event: Event, after: RunState) -> str | None:
    if not isinstance(event, EffectStarted):
        return None
    before = trail.started.get(event.key)
    if event.key in trail.ended:
        return f"{event.key} was started after its outcome"
    if event.delivery != (before.delivery if before else 0) + 1:
        return f"{event.key}: delivery {event.delivery} out of order"
    if before is not None and before.request != event.request:
        return f"{event.key} was delivered again with another request"
    return None


def best_only_improves(trail: Trail, event: Event, after: RunState) -> str | None:
    """But for a recorded contradiction: the best was wrong."""
    before = trail.states[-1].best if trail.states else None
    if before is None or isinstance(event, KernelRefuted):
        return None
    if isinstance(event, RunForked) or (after.best and after.best.latency_ms <= before.latency_ms):
        return None
    return f"the best went from {before.latency_ms} ms to {after.best and after.best.latency_ms}"


def late_results_stay_out(trail: Trail, event: Event, after: RunState) -> str | None:
    """A round that is over takes no more results; a late kernel has a place of its own."""
    if not isinstance(event, EffectEnded) or is_by_person(event) or trail.states[-1].rejudge:
        return None
    key = effect_key(event)
    proposing = key.role in (Role.PREDICTOR, Role.PLANNER, Role.EXECUTOR, Role.EVALUATOR)
    if proposing and key.round in trail.over and event.key in after.outcomes:
        return f"{event.key} counts although round {key.round} is over"
    return None


def plans_wait_for_looking_ahead(trail: Trail, event: Event, after: RunState) -> str | None:
    """A slot of a run that looks ahead is planned for when that is over."""
    if not isinstance(event, PlanStarted) or after.config.search.lookahead_predictions == 0:
        return None
    looking = _looking(event)
    return None if looking in trail.ended else f"{event.key} was started before {looking} had ended"


def plans_are_of_what_was_seen(trail: Trail, event: Event, after: RunState) -> str | None:
    """What looking ahead found is planned, and steps only where something was found."""
    if not isinstance(event, PlanProposed) or event.key not in after.outcomes:
        return None
    seen = trail.states[-1].outcomes.get(_looking(event))
    found = seen.count if isinstance(seen, PredictionBatch) and seen.variants is not None else None
    if found is None:
        return f"{event.key} has steps that nobody foresaw" if event.plan.steps else None
    followed = bool(event.plan.steps) and EffectKey.parse(event.key).plan < found
    return None if followed else f"{event.key} is none of the {found} variants that were found"


def _looking(event: EffectStarted | EffectEnded) -> str:
    """Return the key of looking ahead for a plan's slot."""
    return str(EffectKey.parse(event.key)._replace(plan=0, role=Role.PREDICTOR))


def nothing_starts_in_a_run_that_rests(trail: Trail, event: Event, after: RunState) -> str | None:
    if not trail.states or trail.states[-1].status is RunStatus.RUNNING:
        return None
    before = trail.states[-1]
    if isinstance(event, EffectStarted):
        return f"{event.key} was started in a run that is {before.status}"
    if before.status is RunStatus.COMPLETED and not isinstance(event, RunForked):
        return f"{type(event).__name__} in a run that is over"
    return None


def runs_rest_for_a_reason(trail: Trail, event: Event, after: RunState) -> str | None:
    """And so does an end."""
    if after.status is not RunStatus.RUNNING and not after.status_reason:
        return f"the run is {after.status} for no reason"
    return None


def rounds_keep_to_their_budget(trail: Trail, event: Event, after: RunState) -> str | None:
    """No round begins when the money is spent, none with more plans than there are, nor beyond the last."""
    if not isinstance(event, RoundStarted):
        return None
    config, plans = after.config, sum(slot.plans for slot in event.slots)
    if after.spent_usd > 0 and after.spent_usd + after.reserved_usd >= config.cap_usd:
        return f"${after.spent_usd} of ${config.cap_usd} are spent"
    if plans > config.search.beam * config.search.plans:
        return f"{plans} plans for {config.search.beam} kernels, {config.search.plans} each"
    if plans and event.round > config.search.rounds:
        return f"round {event.round} of {config.search.rounds}"
    return None


def only_what_was_dealt_starts(trail: Trail, event: Event, after: RunState) -> str | None:
    """Candidates are counted by place: no place outside of what the round dealt is ever started."""
    if not isinstance(event, EffectStarted) or after.rejudge:
        return None
    key = EffectKey.parse(event.key)
    if key.round == 0 or key.slot == PERSON_SLOT:
        return None
    slot = next((slot for slot in trail.dealt.get(key.round, ()) if slot.slot == key.slot), None)
    if slot is None or key.plan >= slot.plans:
        return f"{key} was not dealt"
    if key.implementation >= slot.implementations or key.repair > slot.repairs:
        return f"{key} is beyond {slot.implementations} implementations and {slot.repairs} repairs"
    return None


def money_adds_up(trail: Trail, event: Event, after: RunState) -> str | None:
    """All that is spent was charged by an event, and all that is reserved is for what is in flight."""
    held = round_usd(sum(one.reserved_usd + one.reserved_amount.usd for one in after.open.values()))
    spent = trail.spent_usd + (event.usage.cost_usd or 0.0 if isinstance(event, EffectEnded) else 0.0)
    if isinstance(event, CallEnded):
        spent = round_usd(spent + (event.cost_usd or 0.0))
    if not isinstance(event, RunForked) and after.spent_usd != spent:
        return f"${spent} was charged, the state says ${after.spent_usd}"
    return None if after.reserved_usd == held else f"${held} is held, the state says ${after.reserved_usd}"


CHECKS: tuple[Check, ...] = (
    one_outcome,
    outcomes_were_asked_for,
    no_outcome_is_lost,
    redelivered_as_logged,
    best_only_improves,
    late_results_stay_out,
    plans_wait_for_looking_ahead,
    plans_are_of_what_was_seen,
    nothing_starts_in_a_run_that_rests,
    runs_rest_for_a_reason,
    rounds_keep_to_their_budget,
    only_what_was_dealt_starts,
    money_adds_up,
)
