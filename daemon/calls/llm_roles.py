"""Creates the roles that ask models, one set per effect, with the budgets and endpoints that they use."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from agent_core.ensemble import endpoint_of, model_of, planner_of
from agent_core.prompting import PromptSet, builtin_prompts, prompts_for
from agent_core.providers import registry
from agent_core.providers.retry import RetryPolicy
from agent_core.roles import Proposer
from agent_core.roles.session_protocol import SessionHost
from daemon.calls.budget_ledger import BudgetLedger
from daemon.calls.durable_calls import DurableCalls
from daemon.calls.endpoints import CreateProvider, EndpointPool
from daemon.calls.errors import no_model_error
from daemon.calls.model_checks import find_model_faults, find_unpriced_models
from daemon.config import DaemonConfig
from daemon.optimistic_append import append_if_current
from stability.breaker import BreakerPolicy
from stability.budget import DayCaps
from state.events import RunResumed
from state.fold import RunState
from state.log import EventLog
from state.model import Digest, EffectKey, LlmConfig, PauseCause, RunConfig, RunStatus

LOOK_SECONDS = 30.0
"""How often (seconds) to check runs that wait for a new day."""

OpenSession = Callable[[DurableCalls], SessionHost]
"""Returns the host of an effect's session, whose turns are these calls."""

PATIENT_RETRIES = RetryPolicy(tries=60)


class RoleFactory:
    """Creates the LLM roles for the runs of one log."""

    def __init__(
        self,
        event_log: EventLog,
        config: DaemonConfig,
        *,
        env: Mapping[str, str] = os.environ,
        create: CreateProvider = registry.create_provider,
        retries: RetryPolicy = PATIENT_RETRIES,
        breakers: BreakerPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = event_log
        self._retries = retries
        self._env = env
        self._sets: dict[Digest, PromptSet] = {}
        self.endpoints = EndpointPool(event_log, config, env=env, create=create, policy=breakers)
        self.ledger = BudgetLedger(event_log, _day_caps(config), clock=clock)

    def apply_config(self, config: DaemonConfig) -> None:
        """Apply changed settings of the process."""
        self.endpoints.apply_config(config)
        self.ledger.set_caps(_day_caps(config))

    def find_model_faults(self, config: RunConfig) -> list[str]:
        """Return the faults that keep a run's models from being asked, one line each."""
        return find_model_faults(config, self.endpoints.config, self._env)

    def find_unpriced_models(self, config: RunConfig) -> list[str]:
        """Return why a run's cap in US$ cannot be kept, one line for each model without a known price."""
        return find_unpriced_models(config, self.endpoints.config)

    def create_roles(self, run: str, key: EffectKey, open_session: OpenSession | None = None) -> Proposer:
        """Return the proposer for an effect whose planner asks models; its author is the model's name.

        `open_session` returns the host of a session that asks by the given calls; None: none are held.

        Raises:
            RoleError: no model is set for the planner.
        """
        from agent_core.roles.llm import LlmRoles, PlannerOptions

        state = self._log.run_state(run)
        model = model_of(state, key)
        if model is None or endpoint_of(model) not in self.endpoints.config.endpoint_names:
            raise no_model_error(planner_of(state, key))
        asking = DurableCalls(
            run,
            key,
            model,
            event_log=self._log,
            ledger=self.ledger,
            endpoints=self.endpoints,
            prompts=prompts_for(self._load_prompts(state.prompts), state.config.target),
            policy=self._retries,
        )
        shown = state.config.llm
        options = PlannerOptions(
            metrics=None if shown.metrics == LlmConfig().metrics else shown.metrics,
            dropout_percent=shown.menu_dropout_percent,
            memory_dropout_percent=shown.memory_dropout_percent,
        )
        session = open_session(asking) if open_session is not None else None
        return LlmRoles(model, asking, options, session=session)

    def _load_prompts(self, version: Digest | None) -> PromptSet:
        """Return the prompt set of a run's round; the built-in one if none was recorded."""
        if version is None or version == builtin_prompts().version:
            return builtin_prompts()
        if version not in self._sets:
            self._sets[version] = PromptSet.from_json(self._log.get_blob(version))
        return self._sets[version]

    async def watch_day_budget(
        self, touched: Callable[[str], None], *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        """Resume runs that wait for a day with room in its budget, until cancelled."""
        while True:
            for run in self._log.active_runs():
                if self.ledger.can_resume(run) and _waits_for_day(self._log.run_state(run)):
                    await append_if_current(self._log, [run], _resume_event)
                    touched(run)
            await asyncio.sleep(look_seconds)

    async def aclose(self) -> None:
        """Close all connections; later questions open new ones."""
        await self.endpoints.aclose()


def _waits_for_day(state: RunState) -> bool:
    return state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.DAY


def _resume_event(state: RunState) -> RunResumed | None:
    return RunResumed(reason="the day's budget may have room again") if _waits_for_day(state) else None


def _day_caps(config: DaemonConfig) -> DayCaps:
    return DayCaps(
        usd=config.day_usd,
        tokens=config.day_tokens,
        calls=config.day_calls,
        seconds=config.day_seconds,
        device_seconds=config.day_device_seconds,
    )
