"""Model calls in a run's fold: what is reserved for them, what they cost, and how well their models do.

An effect in flight keeps its calls. After a crash, a new delivery takes the answered ones from here and sends
the others again. The cost of calls remains when the effect has ended; the effect's own outcome then costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import Any

from state.events import (
    AgentEnded,
    AgentStarted,
    BudgetShort,
    BudgetWarned,
    CallCompleted,
    CallEnded,
    CallFailed,
    CallLost,
    CallStarted,
    EffectEnded,
    EvaluationCompleted,
    EvaluationFailed,
    KernelProposed,
)
from state.model import (
    PREFILTER_STAGE,
    AgentHold,
    Attempt,
    EffectKey,
    ModelQuestion,
    ModelRecord,
    Price,
    Role,
    Tokens,
    Usage,
    Verdict,
    round_seconds,
    round_usd,
)
from state.run_state import (
    FIRST_IMPLEMENTATIONS,
    FURTHER_IMPLEMENTATIONS,
    IllegalEvent,
    OpenEffect,
    RunState,
    evolve,
    require_live,
)
from state.session_fold import require_turn


def apply_call_started(state: RunState, event: CallStarted) -> RunState:
    """Reserve the most that an attempt may cost. The price at a model's first call holds for the run."""
    require_live(state, event)
    effect = _require_open_effect(state, event)
    known = effect.calls[event.call] if event.call < len(effect.calls) else None
    if event.call > len(effect.calls) or event.attempt != (known.attempts if known else 0) + 1:
        raise IllegalEvent(f"{event.key}: attempt {event.attempt} of call {event.call} out of order")
    if known is not None and (known.held is not None or known.answer is not None):
        raise IllegalEvent(f"{event.key}: call {event.call} is under way, or has its answer")
    if known is None:
        require_turn(effect, event.key)
    if any(one.answer is None for one in effect.calls[: event.call]):
        raise IllegalEvent(f"{event.key}: call {event.call} before the last one was answered")
    asked = ModelQuestion(
        role=event.role,
        model=event.model,
        request=event.request,
        attempts=event.attempt,
        held=event.reserved,
        failures=known.failures if known else (),
    )
    prices = state.prices if event.model in state.prices else {**state.prices, event.model: event.price}
    return _with_question(evolve(state, prices=prices), event, effect, question=asked)


def apply_call_ended(state: RunState, event: CallEnded) -> RunState:
    """Charge an attempt, and release what was reserved for it."""
    effect = _require_open_effect(state, event)
    known = effect.calls[event.call] if event.call < len(effect.calls) else None
    if known is None or known.held is None or known.attempts != event.attempt:
        raise IllegalEvent(f"{event.key}: attempt {event.attempt} of call {event.call} is not under way")
    said: dict[str, Any] = {"held": None}
    if isinstance(event, CallCompleted):
        said["answer"] = event.answer
        state = _record_answer(state, event)
    elif isinstance(event, CallLost):
        said["lost"] = True
    elif isinstance(event, CallFailed):
        said["failures"] = (*known.failures, event.kind)
    took = state.spent_amount + event.charged_amount
    settled = evolve(
        state,
        spent_usd=took.usd,
        spent_tokens=took.tokens,
        spent_calls=took.calls,
        unknown_cost=state.unknown_cost or event.cost_usd is None,
    )
    return _with_question(settled, event, effect, question=known.model_copy(update=said))


def apply_agent_started(state: RunState, event: AgentStarted) -> RunState:
    """Reserve what a coding agent may cost; what an earlier one of the effect did cost is charged."""
    require_live(state, event)
    effect = _require_open_effect(state, event)
    before = effect.agent
    if before is not None and not before.ended:
        raise IllegalEvent(f"{event.key}: a second coding agent")
    if event.number != (before.number if before is not None else 0) + 1:
        raise IllegalEvent(f"{event.key}: coding agent {event.number} out of order")
    charged = _charge_usd(state, before.usd) if before is not None else state
    return _with_agent(
        charged, event.key, effect, hold=AgentHold(number=event.number, usd=event.reserved_usd)
    )


def apply_agent_ended(state: RunState, event: AgentEnded) -> RunState:
    """Hold what a coding agent says that it cost until the outcome charges it; charge an unknown cost now.

    Logs from before AgentStarted reserved nothing: there the outcome alone charges.
    """
    require_live(state, event)
    effect = _require_open_effect(state, event)
    if effect.agent is None:
        return state
    if effect.agent.ended:
        raise IllegalEvent(f"{event.key}: no coding agent is under way")
    cost = event.usage.cost_usd
    charged = evolve(_charge_usd(state, event.charged_usd), unknown_cost=state.unknown_cost or cost is None)
    ended = AgentHold(number=effect.agent.number, usd=cost or 0.0, ended=True)
    return _with_agent(charged, event.key, effect, hold=ended)


def _charge_usd(state: RunState, usd: float) -> RunState:
    return evolve(state, spent_usd=round_usd(state.spent_usd + usd)) if usd else state


def _with_agent(state: RunState, key: str, effect: OpenEffect, *, hold: AgentHold) -> RunState:
    open_ = {**state.open, key: effect.model_copy(update={"agent": hold})}
    return evolve(state, open=open_, reserved_usd=reserved_usd(open_.values()))


def _require_open_effect(
    state: RunState, event: AgentStarted | AgentEnded | CallStarted | CallEnded
) -> OpenEffect:
    effect = state.open.get(event.key)
    if effect is None:
        raise IllegalEvent(f"{event.key}: {type(event).__name__} of an effect that is not in flight")
    return effect


def _with_question(
    state: RunState, event: CallStarted | CallEnded, effect: OpenEffect, *, question: ModelQuestion
) -> RunState:
    calls = (*effect.calls[: event.call], question, *effect.calls[event.call + 1 :])
    open_ = {**state.open, event.key: effect.model_copy(update={"calls": calls})}
    return evolve(state, open=open_, reserved_usd=reserved_usd(open_.values()))


def reserved_usd(effects: Iterable[OpenEffect]) -> float:
    """Return what is reserved for effects in flight, in US dollars."""
    return round_usd(sum(one.reserved_usd + _calls_usd(one) for one in effects))


def _calls_usd(effect: OpenEffect) -> float:
    asks = effect.calls or effect.agent is not None
    return effect.reserved_amount.usd if asks else 0.0


def _record_answer(state: RunState, event: CallCompleted) -> RunState:
    key = EffectKey.parse(event.key)
    name = role_record_name(key.role, event.model)
    after = _add_answer(state, state.models.get(event.model, ModelRecord()), event)
    own = _add_answer(state, state.roles.get(name, ModelRecord()), event)
    if event.call == 0 and key.repair == 0:
        own = own.model_copy(update={"attempts": own.attempts + 1})
    return evolve(state, models={**state.models, event.model: after}, roles={**state.roles, name: own})


def role_record_name(role: Role, model: str) -> str:
    """Return the name, in a run's `roles`, of what a model did in a role."""
    return f"{role.value} {model}"


def _add_answer(state: RunState, before: ModelRecord, event: CallCompleted) -> ModelRecord:
    tokens = event.tokens or Tokens()
    return before.model_copy(
        update={
            "answers": before.answers + 1,
            "tokens": before.tokens + tokens.total,
            "usd": _add_answer_cost(before.usd, state.prices.get(event.model), tokens),
        }
    )


def _add_answer_cost(sum_usd: float | None, price: Price | None, tokens: Tokens) -> float | None:
    """Add an answer's cost at the uncached price, because what is cached varies from time to time."""
    if sum_usd is None or price is None:
        return None
    return round_usd(sum_usd + price.cost(Tokens(input=tokens.input, output=tokens.output)))


def record_attempts(state: RunState, attempts: Iterable[Attempt]) -> dict[str, ModelRecord]:
    """Return the models' records after a round, from the attempts in the slots that each model had.

    A late attempt counts for the model that had its slot in its own round.
    """
    found = dict(state.models)
    for one in attempts:
        if one.in_session:
            continue
        slot = state.slot_of(EffectKey.parse(f"{one.candidate}.executor"))
        model = slot.model if slot is not None else None
        if model is None:
            continue
        before = found.get(model, ModelRecord())
        counted = before.model_copy(update={"attempts": before.attempts + 1})
        found[model] = _add_result(counted, one, _log_gain(one))
    return found


def _log_gain(one: Attempt) -> float:
    return log(one.speedup) if one.gained and one.speedup else 0.0


def _add_result(before: ModelRecord, one: Attempt, gain: float) -> ModelRecord:
    return before.model_copy(
        update={
            "valid": before.valid + (one.verdict is Verdict.CORRECT),
            "gains": before.gains + one.gained,
            "log_gain": round(before.log_gain + gain, 9),
        }
    )


def record_role_results(state: RunState, attempts: Iterable[Attempt]) -> dict[str, ModelRecord]:
    """Return the roles' records after a round: what the models that wrote kernels gained, and which plans'.

    An executor's attempts were counted with its answers. Of a plan, the first implementation has its own
    gain, and each further one what it gained beyond those before it.
    """
    found, best = dict(state.roles), dict[EffectKey, float]()
    planned = [one for one in attempts if not one.in_session]
    for one in sorted(planned, key=lambda one: EffectKey.parse(f"{one.candidate}.{Role.EXECUTOR}")):
        key = EffectKey.parse(f"{one.candidate}.{Role.EXECUTOR}")
        slot = state.slot_of(key)
        if slot is None or slot.model is None:
            continue
        author = _author_of(state, key)
        if author is not None and (name := role_record_name(Role.EXECUTOR, author)) in found:
            found[name] = _add_result(found[name], one, _log_gain(one))
        plan = key._replace(implementation=0, repair=0)
        name = FURTHER_IMPLEMENTATIONS if plan in best else FIRST_IMPLEMENTATIONS
        before = found.get(name, ModelRecord())
        beyond = max(0.0, _log_gain(one) - best.get(plan, 0.0))
        best[plan] = max(best.get(plan, 0.0), _log_gain(one))
        counted = before.model_copy(update={"attempts": before.attempts + 1})
        found[name] = _add_result(counted, one, beyond)
    return found


def _author_of(state: RunState, key: EffectKey) -> str | None:
    """Return who wrote a kernel of the round, or one that is late; None if there is none."""
    made: object = state.outcomes.get(str(key))
    if made is None and str(key) in state.late:
        made = state.late[str(key)].kernel
    return made.author if isinstance(made, KernelProposed) else None


def apply_budget_short(state: RunState, event: BudgetShort) -> RunState:
    """Record that the run could not get what it needed under this cap."""
    return evolve(state, short={**state.short, event.resource: event.cap})


def apply_budget_warned(state: RunState, event: BudgetWarned) -> RunState:
    """Record the warning, so that it is not given again for this mark."""
    return evolve(state, warned={**state.warned, event.resource: event.percent})


def outcome_charges(state: RunState, event: EffectEnded, effect: OpenEffect | None) -> dict[str, Any]:
    """Return what an effect's end takes from the budgets.

    Calls that are still in flight are charged as lost, because nobody will settle them.
    """
    charges: dict[str, Any] = {}
    if isinstance(event, EvaluationCompleted):
        charges["device_seconds"] = _add_device_seconds(state, event)
    elif isinstance(event, EvaluationFailed):
        charges["device_seconds"] = round_seconds(state.device_seconds + event.device_seconds)
    elif effect is not None and effect.calls and (left := effect.reserved_amount).calls:
        spent = state.spent_amount + left
        charges = {"spent_usd": spent.usd, "spent_tokens": spent.tokens, "spent_calls": spent.calls}
    return charges | usage_charges(charges.get("spent_usd", state.spent_usd), event.usage)


def _add_device_seconds(state: RunState, event: EvaluationCompleted) -> float:
    """Add the device seconds of a verdict; predicted and reused verdicts used no device."""
    timed = event.evaluation.benchmark
    if event.device_seconds is not None:
        return round(state.device_seconds + event.device_seconds, 6)
    if event.cached_from is not None or timed is None or timed.predicted:
        return state.device_seconds
    took = [took for stage, took in event.stage_ms.items() if not stage.startswith(PREFILTER_STAGE)]
    return round(state.device_seconds + sum(took) / 1000, 6)


def usage_charges(spent_usd: float, usage: Usage) -> dict[str, Any]:
    """Return what the cost that an effect's outcome reports changes, after `spent_usd` was spent."""
    if usage.cost_usd is None:
        return {"unknown_cost": True}
    return {"spent_usd": spent_usd + usage.cost_usd} if usage.cost_usd else {}
