"""Endpoints as this process uses them: a provider, its limits, its breaker, and who of a fan-out goes first.

The pure parts are in `agent_core.providers` and `stability.breaker`; here are the clock, the waiting and the
log, in which a breaker's openings are kept: after a restart one question probes an endpoint that was broken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from agent_core.providers import registry, windows
from agent_core.providers.completion import Completion, CompletionRequest, Provider
from agent_core.providers.failures import (
    REMEDIES,
    TRIPS_BREAKER,
    CallError,
    Failure,
    FailureKind,
    Remedy,
)
from agent_core.providers.keys import KeyFault, Secret, find_key, redact
from agent_core.providers.limits import RateLimiter, TurnTimeout
from agent_core.providers.registry import EndpointSettings
from agent_core.providers.windows import ModelWindow
from daemon.calls import model_catalog
from daemon.calls.request_rendering import shared_prefix
from daemon.config import DaemonConfig, EndpointConfig
from stability import breaker
from stability.breaker import CLOSED_BREAKER, BreakerPolicy, CircuitBreaker
from state.events import BreakerClosed, BreakerOpened
from state.log import EventLog
from state.model import SYSTEM_STREAM, ErrorInfo, Price
from state.records import NewEvent

LOOK_SECONDS = 5.0
"""How long somebody waits at a breaker before looking again: a probe may have closed it."""

WARM_SECONDS = 240.0
"""How long what one question put into an endpoint's cache is counted on for the next; caches keep it 300."""

MIN_PREFIX_TOKENS = 1024
"""Tokens that questions must share for the first of them to go alone: caches keep nothing shorter."""

CreateProvider = Callable[[str, EndpointSettings], Provider]

log: structlog.stdlib.BoundLogger = structlog.get_logger("calls")


class EndpointUnavailable(TurnTimeout):
    """A question's turn would come too late because the endpoint's breaker is open."""


class PrefixLeaders:
    """Of questions that begin alike the first goes alone: the others find what it put into the cache."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leading: dict[str, asyncio.Event] = {}
        self._warm: dict[str, float] = {}

    @asynccontextmanager
    async def wait_for_leader(self, shared: str | None, *, wait_seconds: float) -> AsyncIterator[None]:
        """Wait until a question with this beginning is over, or be the one; None waits for nobody.

        Those who waited for a first question that failed go together all the same: one after the other they
        would wait longest where the endpoint is sick.

        Raises:
            TurnTimeout: it takes longer than `wait_seconds`.
        """
        if shared is None or self._is_warm(shared):
            yield
        elif shared in self._leading:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._leading[shared].wait()
            except TimeoutError:
                raise TurnTimeout(wait_seconds) from None
            yield
        else:
            over = self._leading[shared] = asyncio.Event()
            try:
                yield
                self._warm[shared] = self._clock() + WARM_SECONDS
            finally:
                del self._leading[shared]
                over.set()

    def _is_warm(self, shared: str) -> bool:
        now = self._clock()
        self._warm = {one: until for one, until in self._warm.items() if until > now}
        return shared in self._warm


class ModelEndpoint:
    """One endpoint under its settings: any number of questions at a time, of which its limits let in some."""

    def __init__(
        self,
        name: str,
        settings: EndpointConfig,
        event_log: EventLog,
        *,
        env: Mapping[str, str],
        create: CreateProvider,
        policy: BreakerPolicy,
    ) -> None:
        self.name = name
        self.settings = settings
        self.limiter = RateLimiter(settings.calls)
        self._log = event_log
        self._env = env
        self._create = create
        self._policy = policy
        self._provider: Provider | None = None
        self._key: Secret | None = None
        self._mended = False  # perhaps: a person was asked to
        self._replaced: list[Provider] = []
        self._making = asyncio.Lock()
        self._leaders = PrefixLeaders()
        was_open = name in event_log.system_state().breakers
        self._breaker = (
            CircuitBreaker(failures=policy.failures, openings=1, until=0.0) if was_open else CLOSED_BREAKER
        )

    @asynccontextmanager
    async def wait_for_turn(
        self, request: CompletionRequest, price: Price | None, *, wait_seconds: float
    ) -> AsyncIterator[None]:
        """Be let through by the endpoint's limits and breaker, and behind the first of one's fan-out.

        Raises:
            EndpointUnavailable: its breaker is open, and would keep the question longer than `wait_seconds`.
            TurnTimeout: something else would.
        """
        try:
            async with self._pass_limits(request, price, wait_seconds):
                yield
        except TurnTimeout as error:  # whatever it waited for, behind an open breaker nobody gets on
            if self._breaker.until is None:
                raise
            raise EndpointUnavailable(error.seconds) from None

    @asynccontextmanager
    async def _pass_limits(
        self, request: CompletionRequest, price: Price | None, wait_seconds: float
    ) -> AsyncIterator[None]:
        until = time.monotonic() + wait_seconds
        async with self._leaders.wait_for_leader(_shared_prefix(request, price), wait_seconds=wait_seconds):
            left = max(0.0, until - time.monotonic())
            async with self.limiter.take_turn(windows.estimate_request_tokens(request), wait_seconds=left):
                await self._pass_breaker(until)
                admitted = self._breaker
                try:
                    yield
                finally:
                    if self._breaker is admitted:  # a probe told nothing: nothing was sent
                        self._breaker = breaker.record_withdrawal(admitted)

    async def _pass_breaker(self, until: float) -> None:
        while True:
            now = time.monotonic()
            self._breaker, seconds = breaker.admit_request(self._breaker, now, self._policy)
            if seconds == 0.0:
                return
            if now + seconds > until:
                raise TurnTimeout(seconds)
            await asyncio.sleep(min(seconds, LOOK_SECONDS))

    async def send_request(self, request: CompletionRequest) -> Completion:
        """Ask once.

        Raises:
            CallError: no answer came.
        """
        try:
            provider = await self._get_provider()
            completion = await provider.complete(
                request, deadline_seconds=self.settings.deadline_seconds, observe=self.limiter.observe
            )
        except CallError as error:
            self._mended |= REMEDIES[error.failure.kind] is Remedy.PAUSE
            await self._note_failure(error.failure)
            raise
        except BaseException:  # also where this process stops: somebody else may probe
            self._breaker = breaker.record_withdrawal(self._breaker)
            raise
        self.limiter.record_answer()
        await self._set_breaker(breaker.record_answer(self._breaker))
        return completion

    async def ensure_provider(self) -> None:
        """Have the provider.

        Raises:
            CallError: it cannot be made here; nothing was sent.
        """
        await self._get_provider()

    async def _get_provider(self) -> Provider:
        """Return the provider, another one where a person has changed the key since it was refused."""
        async with self._making:
            if self._provider is not None and not self._mended:
                return self._provider
            file = self.settings.key_file
            try:
                key = find_key(self.name, self._env, Path(file) if file else None)
            except KeyFault as error:
                raise CallError(Failure(kind=FailureKind.AUTH, message=str(error))) from error
            if self._provider is None or key != self._key:
                made = await self._create_provider(key)
                if self._provider is not None:
                    self._replaced.append(self._provider)  # others may be under way on it
                self._provider, self._key = made, key
            self._mended = False
            return self._provider

    async def _create_provider(self, key: Secret | None) -> Provider:
        """Make a provider; a vendor's package takes seconds to import, and the loop goes on meanwhile."""
        settings = EndpointSettings(base_url=self.settings.base_url, key=key)
        try:
            return await asyncio.to_thread(self._create, self.name, settings)
        except Exception as error:  # what a package needs, or what the environment says, is missing
            text = redact(f"cannot be set up: {type(error).__name__}: {error}", key)
            raise CallError(Failure(kind=FailureKind.INVALID, message=text)) from error

    async def _note_failure(self, failure: Failure) -> None:
        self.limiter.record_failure(failure)
        if failure.kind not in TRIPS_BREAKER:
            await self._set_breaker(breaker.record_answer(self._breaker))
            return
        now, wanted = time.monotonic(), failure.retry_after_seconds
        after = breaker.record_failure(self._breaker, now, self._policy, retry_after_seconds=wanted)
        await self._set_breaker(after, failure)

    async def _set_breaker(self, after: CircuitBreaker, failure: Failure | None = None) -> None:
        """Go on with another state of the breaker, and tell the log when it opens or closes."""
        before, self._breaker = self._breaker, after
        if (before.until is None) == (after.until is None):
            return
        event: BreakerOpened | BreakerClosed = BreakerClosed(name=self.name)
        if failure is not None and after.until is not None:
            event = BreakerOpened(name=self.name, error=ErrorInfo(code=failure.kind, message=failure.message))
        log.warning("breaker", endpoint=self.name, opened=after.until is not None)
        await self._log.append([NewEvent(SYSTEM_STREAM, event)])

    async def aclose(self) -> None:
        """Close the provider, and those that it replaced."""
        while self._provider is not None or self._replaced:
            closing, self._provider = self._provider or self._replaced.pop(), None
            await closing.aclose()


def _shared_prefix(request: CompletionRequest, price: Price | None) -> str | None:
    """Return what a question begins with like others, where it is cheaper behind one of them."""
    if price is None or price.rates[0].cached >= price.rates[0].input:
        return None
    digest, tokens = shared_prefix(request)
    return digest if tokens >= MIN_PREFIX_TOKENS else None


class EndpointPool:
    """The endpoints by name, each made when it is first asked; and what is known of their models."""

    def __init__(
        self,
        event_log: EventLog,
        config: DaemonConfig,
        *,
        env: Mapping[str, str],
        create: CreateProvider = registry.create_provider,
        policy: BreakerPolicy | None = None,
    ) -> None:
        self._log = event_log
        self._env = env
        self._create = create
        self._policy = policy or BreakerPolicy()
        self._made: dict[str, ModelEndpoint] = {}
        self._replaced: list[ModelEndpoint] = []
        self.config = config

    def apply_config(self, config: DaemonConfig) -> None:
        """Make endpoints anew whose settings are others from now on; what is under way is finished."""
        self.config = config
        for name, endpoint in tuple(self._made.items()):
            if endpoint.settings != config.endpoint(name):
                self._replaced.append(self._made.pop(name))

    def get(self, name: str) -> ModelEndpoint:
        """Return an endpoint; raises UnknownEndpoint."""
        registry.needs_key(name)
        if name not in self._made:
            settings = self.config.endpoint(name)
            self._made[name] = ModelEndpoint(
                name, settings, self._log, env=self._env, create=self._create, policy=self._policy
            )
        return self._made[name]

    def model_price(self, model: str) -> Price | None:
        """Return what ENDPOINT/MODEL costs now, None where nobody knows."""
        return model_catalog.model_price(self.config, model)

    def model_window(self, model: str) -> ModelWindow:
        """Return how much ENDPOINT/MODEL can be asked and can answer."""
        return model_catalog.model_window(self.config, model)

    async def aclose(self) -> None:
        """Close all providers."""
        while self._made or self._replaced:
            endpoint = self._replaced.pop() if self._replaced else self._made.popitem()[1]
            await endpoint.aclose()
