"""The desk: puts roles together that ask models, effect by effect, with what their questions go through."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from agent_core.ensemble import endpoint_of, model_of, planner_of
from agent_core.prompting import Prompts, builtin
from agent_core.providers import registry
from agent_core.providers.retry import RetryPolicy
from agent_core.roles import Proposer
from daemon.calls.asking import Asking
from daemon.calls.checks import faults
from daemon.calls.endpoints import CreateProvider, Endpoints
from daemon.calls.errors import no_model
from daemon.calls.till import Till
from daemon.config import DaemonConfig
from daemon.looking import append_seen
from stability.breaker import BreakerPolicy
from stability.budget import DayCaps
from state.events import RunResumed
from state.fold import RunState
from state.log import EventLog
from state.model import Digest, EffectKey, PauseCause, RunConfig, RunStatus

LOOK_SECONDS = 30.0
"""How often runs are looked at that wait for a new day."""

PATIENT = RetryPolicy(tries=60)


class Desk:
    """Where runs of one log ask models."""

    def __init__(
        self,
        event_log: EventLog,
        config: DaemonConfig,
        *,
        env: Mapping[str, str] = os.environ,
        create: CreateProvider = registry.create,
        retries: RetryPolicy = PATIENT,
        breakers: BreakerPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = event_log
        self._retries = retries
        self._env = env
        self._sets: dict[Digest, Prompts] = {}
        self.endpoints = Endpoints(event_log, config, env=env, create=create, policy=breakers)
        self.till = Till(event_log, _caps(config), clock=clock)

    def change(self, config: DaemonConfig) -> None:
        """Go by other settings of the process from now on."""
        self.endpoints.change(config)
        self.till.change(_caps(config))

    def faults(self, config: RunConfig) -> list[str]:
        """Return what keeps the models of a run's configuration from being asked, a line each."""
        return faults(config, self.endpoints.config, self._env)

    def roles(self, run: str, key: EffectKey) -> Proposer:
        """Return who answers an effect whose planner asks models; its author is the model's name.

        Raises:
            RoleError: no model is given for it.
        """
        from agent_core.roles.llm import LlmRoles, PlannerOptions

        state = self._log.state(run)
        model = model_of(state, key)
        if model is None or endpoint_of(model) not in registry.names():
            raise no_model(planner_of(state, key))
        asking = Asking(
            run,
            key,
            model,
            event_log=self._log,
            till=self.till,
            endpoints=self.endpoints,
            prompts=self._prompts(state.prompts),
            policy=self._retries,
        )
        shown = state.config.llm
        options = PlannerOptions(
            metrics=shown.metrics,
            dropout_percent=shown.menu_dropout_percent,
            memory_dropout_percent=shown.memory_dropout_percent,
        )
        return LlmRoles(model, asking, options)

    def _prompts(self, version: Digest | None) -> Prompts:
        """Return the set that holds in a run's round; the program's own where none was recorded."""
        if version is None or version == builtin().version:
            return builtin()
        if version not in self._sets:
            self._sets[version] = Prompts.from_json(self._log.get_blob(version))
        return self._sets[version]

    async def watch(self, touched: Callable[[str], None], *, look_seconds: float = LOOK_SECONDS) -> None:
        """Let runs go on that wait for a day with room in its budget, until cancelled."""
        while True:
            for run in self._log.runs():
                if self.till.may_go_on(run) and _for_day(self._log.state(run)):
                    await append_seen(self._log, [run], _resumed)
                    touched(run)
            await asyncio.sleep(look_seconds)

    async def aclose(self) -> None:
        """Close all connections; who asks later gets new ones."""
        await self.endpoints.aclose()


def _for_day(state: RunState) -> bool:
    return state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.DAY


def _resumed(state: RunState) -> RunResumed | None:
    return RunResumed(reason="the day's budget may have room again") if _for_day(state) else None


def _caps(config: DaemonConfig) -> DayCaps:
    return DayCaps(
        usd=config.day_usd,
        tokens=config.day_tokens,
        calls=config.day_calls,
        seconds=config.day_seconds,
        device_seconds=config.day_device_seconds,
    )
