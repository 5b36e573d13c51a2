"""Endpoints as this process uses them: provider, rate limits, circuit breaker, and prefix leaders.

The pure parts are in `agent_core.providers` and `stability.breaker`. This module adds the clock, the
waiting and the log. The log records when breakers open, so after a restart one question probes an
endpoint that was broken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.providers import registry, windows
from agent_core.providers.addresses import public_address
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
from daemon.config import DaemonConfig
from daemon.endpoint_config import NamedEndpointConfig
from daemon.structured_log import structlog
from stability import breaker
from stability.breaker import CLOSED_BREAKER, BreakerPolicy, CircuitBreaker
from state.events import BreakerClosed, BreakerOpened, ModelTraitsLearnt
from state.log import EventLog
from state.model import SYSTEM_STREAM, ErrorInfo, ModelTraits, Price
from state.records import NewEvent
from state.system import SystemState

LOOK_SECONDS = 5.0
"""How long (seconds) a question waits at a breaker before it checks again; a probe may have closed it."""

WARM_SECONDS = 240.0
"""How long (seconds) a prompt prefix counts as cached at an endpoint; caches keep it for 300."""

TRAIT_DAYS = 30
"""How long what was learnt of a model is believed; then it is found out anew, as servers change."""

MIN_PREFIX_TOKENS = 1024
"""The first question goes alone only if others share this many tokens; caches keep no shorter prefix."""

CreateProvider = Callable[[str, EndpointSettings], Provider]

log: structlog.stdlib.BoundLogger = structlog.get_logger("calls")


class EndpointUnavailable(TurnTimeout):
    """A question's turn would come too late because the endpoint's breaker is open."""


class PrefixLeaders:
    """Of questions with the same prefix, the first goes alone; the others then find the prefix in the
    cache.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leading: dict[str, asyncio.Event] = {}
        self._warm: dict[str, float] = {}

    @asynccontextmanager
    async def wait_for_leader(self, shared: str | None, *, wait_seconds: float) -> AsyncIterator[None]:
        """Wait until a question with this prefix is over, or be the first; None waits for nobody.

        If the first question fails, those that waited for it all go at once: one by one they would wait
        longest just when the endpoint is sick.

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
    """One endpoint with its settings; any number of questions may come, and its limits admit some at a
    time.
    """

    def __init__(
        self,
        name: str,
        settings: NamedEndpointConfig,
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
        self._mended = False  # True after a failure that a person must mend; the key may have changed since
        self._replaced: list[Provider] = []
        self._learnt: dict[str, ModelTraits] = {}
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
        """Wait for the endpoint's limits and breaker, and for the first question with the same prefix.

        Raises:
            EndpointUnavailable: its breaker is open, and would delay the question by more than
                `wait_seconds`.
            TurnTimeout: something else would.
        """
        try:
            async with self._pass_limits(request, price, wait_seconds):
                yield
        except TurnTimeout as error:  # whatever it waited for, an open breaker is the cause
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
                    if self._breaker is admitted:  # nothing was sent, so a probe has shown nothing
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
        """Send the request once.

        Raises:
            CallError: no answer came.
        """
        try:
            provider = await self._get_provider()
            completion = await provider.complete(
                request, deadline_seconds=self.settings.deadline_seconds, observe=self.limiter.observe
            )
        except CallError as error:
            await self._record_traits()
            self._mended |= REMEDIES[error.failure.kind] is Remedy.PAUSE
            await self._note_failure(error.failure)
            raise
        except BaseException:  # also if this process stops: another question may probe
            self._breaker = breaker.record_withdrawal(self._breaker)
            raise
        await self._record_traits()
        self.limiter.record_answer()
        await self._set_breaker(breaker.record_answer(self._breaker))
        return completion

    async def ensure_provider(self) -> None:
        """Create the provider if there is none.

        Raises:
            CallError: it cannot be created here; nothing was sent.
        """
        await self._get_provider()

    async def _get_provider(self) -> Provider:
        """Return the provider; create a new one if the key has changed since it was refused."""
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
                    self._replaced.append(self._provider)  # other questions may still use it
                self._provider, self._key = made, key
            self._mended = False
            return self._provider

    async def _create_provider(self, key: Secret | None) -> Provider:
        """Create a provider in a thread, because a vendor's package takes seconds to import."""
        settings = self.settings.settings(
            key=key,
            traits=known_traits(self._log.system_state(), self.name, self.settings),
            learnt=self._learnt.__setitem__,
        )
        try:
            return await asyncio.to_thread(self._create, self.name, settings)
        except Exception as error:  # a package, or a setting of the environment, is missing
            text = redact(f"cannot be set up: {type(error).__name__}: {error}", key)
            raise CallError(Failure(kind=FailureKind.INVALID, message=text)) from error

    async def _record_traits(self) -> None:
        """Log what the last request taught of a model, so that the next process knows it."""
        while self._learnt:
            model, traits = self._learnt.popitem()
            named = f"{self.name}/{model}"
            event = ModelTraitsLearnt(
                model=named, address=traits_address(self.name, self.settings), day=_today(), traits=traits
            )
            log.warning("model_traits_learnt", model=named, **traits.model_dump())
            await self._log.append([NewEvent(SYSTEM_STREAM, event)])

    async def _note_failure(self, failure: Failure) -> None:
        self.limiter.record_failure(failure)
        if failure.kind not in TRIPS_BREAKER:
            await self._set_breaker(breaker.record_answer(self._breaker))
            return
        now, wanted = time.monotonic(), failure.retry_after_seconds
        after = breaker.record_failure(self._breaker, now, self._policy, retry_after_seconds=wanted)
        await self._set_breaker(after, failure)

    async def _set_breaker(self, after: CircuitBreaker, failure: Failure | None = None) -> None:
        """Set the breaker's state, and log when it opens or closes."""
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


def known_traits(system: SystemState, endpoint: str, settings: NamedEndpointConfig) -> dict[str, ModelTraits]:
    """Return what the log knows of an endpoint's models, by name: of its address, and not too old."""
    address = traits_address(endpoint, settings)
    oldest = (datetime.now(UTC) - timedelta(days=TRAIT_DAYS)).date().isoformat()
    return {
        named.partition("/")[2]: one.traits
        for named, one in system.traits.items()
        if named.partition("/")[0] == endpoint and one.address == address and one.day >= oldest
    }


def traits_address(endpoint: str, settings: NamedEndpointConfig) -> str:
    """Return the address that an endpoint's traits are kept for."""
    return public_address(registry.listed_address(endpoint, settings.settings()))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _shared_prefix(request: CompletionRequest, price: Price | None) -> str | None:
    """Return the digest of the shared prefix, if caching it makes the later questions cheaper."""
    if price is None or price.rates[0].cached >= price.rates[0].input:
        return None
    digest, tokens = shared_prefix(request)
    return digest if tokens >= MIN_PREFIX_TOKENS else None


class EndpointPool:
    """The endpoints by name, each created on first use, and the prices and windows of their models."""

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
        """Replace endpoints whose settings changed; questions under way on the old ones are finished."""
        self.config = config
        for name, endpoint in tuple(self._made.items()):
            if name not in config.endpoint_names or endpoint.settings != config.endpoint(name):
                self._replaced.append(self._made.pop(name))

    def get(self, name: str) -> ModelEndpoint:
        """Return an endpoint.

        Raises:
            UnknownEndpoint: there is none of this name.
        """
        if name not in self._made:
            settings = self.config.endpoint(name)
            self._made[name] = ModelEndpoint(
                name, settings, self._log, env=self._env, create=self._create, policy=self._policy
            )
        return self._made[name]

    def model_price(self, model: str) -> Price | None:
        """Return the current price of ENDPOINT/MODEL, None if it is unknown."""
        return model_catalog.model_price(self.config, model)

    def model_window(self, model: str) -> ModelWindow:
        """Return the context and output limits of ENDPOINT/MODEL."""
        return model_catalog.model_window(self.config, model)

    async def aclose(self) -> None:
        """Close all providers."""
        while self._made or self._replaced:
            endpoint = self._replaced.pop() if self._replaced else self._made.popitem()[1]
            await endpoint.aclose()
