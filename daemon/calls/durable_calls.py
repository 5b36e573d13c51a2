"""Durable calls: each question of an effect is rendered once, logged before it is sent, and paid for
once.

The n-th question of an effect has a number, under which the log records its attempts. An answer that is
in the log is returned. An attempt that a crash left without an outcome is charged, and its request is
sent again as logged. What to do after a failure is also derived from the log, so a restart in between
changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random

from agent_core.ensemble import endpoint_of
from agent_core.prompting import PromptSet
from agent_core.providers import retry, windows
from agent_core.providers.completion import (
    AnswerSchema,
    Completion,
    CompletionRequest,
    DialogueStep,
    ModelTurn,
    ToolDefinition,
)
from agent_core.providers.failures import REMEDIES, CallError, Failure, FailureKind, Remedy
from agent_core.providers.limits import TurnTimeout
from agent_core.providers.retry import RetryPolicy
from agent_core.roles.ask_protocol import FillPrompt
from daemon.calls import request_rendering
from daemon.calls.budget_ledger import BudgetLedger, lost_call_event
from daemon.calls.endpoints import EndpointPool, EndpointUnavailable, ModelEndpoint
from daemon.calls.errors import EffectDeferred, unanswered_error, unavailable_error
from daemon.calls.parent_answers import find_parent_answer
from daemon.structured_log import structlog
from state.crash import crash_point
from state.errors import BlobMissing, StateError
from state.events import CallCompleted, CallFailed, CallStarted
from state.fold import RunState
from state.log import EventLog
from state.model import (
    Amount,
    EffectKey,
    ErrorInfo,
    ModelQuestion,
    PauseCause,
    Price,
    Tokens,
    digest_of,
    draw_seed,
    round_usd,
)

MAX_OUTPUT_FACTOR = 2
"""How much longer an answer may be on the second try, after the first was cut off."""

SHARE_WHEN_TOO_LARGE = 0.5
"""The share of the room for prompt values that is used after a prompt was too large."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("calls")


class DurableCalls:
    """Asks `model` the questions of one delivery of an effect; implements
    `agent_core.roles.ask_protocol.AskModel`. The turns of a session are questions with a dialogue.
    """

    def __init__(
        self,
        run: str,
        key: EffectKey,
        model: str,
        *,
        event_log: EventLog,
        ledger: BudgetLedger,
        endpoints: EndpointPool,
        prompts: PromptSet,
        policy: RetryPolicy,
    ) -> None:
        self._run = run
        self._key = key
        self._model = model
        self._log = event_log
        self._ledger = ledger
        self._endpoints = endpoints
        self._prompts = prompts
        self._policy = policy
        self._numbers = count()
        self._tools: tuple[ToolDefinition, ...] = ()
        self._dialogue: tuple[DialogueStep, ...] = ()
        self._form: AnswerSchema | None = None
        self._since = asyncio.get_running_loop().time()

    async def __call__(self, role: str, fill: FillPrompt, form: AnswerSchema | None = None) -> str:
        """Return the answer to the next question.

        Raises:
            RoleError: there is no answer; the code is `budget`, `llm_unavailable`, or `llm_` and a
                failure's kind.
            EffectDeferred: the run is paused or over; the effect is delivered again when the run goes
                on.
        """
        self._form = form
        return (await self._buy_answer(role, fill)).decode()

    async def converse(
        self,
        role: str,
        fill: FillPrompt,
        tools: Sequence[ToolDefinition],
        dialogue: Sequence[DialogueStep],
    ) -> ModelTurn:
        """Return the next answer of a dialogue with tools.

        Raises:
            RoleError, EffectDeferred: as for a question.
        """
        self._tools, self._dialogue = tuple(tools), tuple(dialogue)
        return ModelTurn.model_validate_json(await self._buy_answer(role, fill))

    async def _buy_answer(self, role: str, fill: FillPrompt) -> bytes:
        """Return the blob of the answer to the next question, bought or found in the log."""
        call = next(self._numbers)
        failure: Failure | None = None
        while True:
            known = self._logged_question(call)
            if known is None:
                request = self._render_request(self._model, role, fill)
                if await self._reuse_parent_answer(call, role, request):
                    continue
            elif known.answer is not None:
                return self._log.get_blob(known.answer)
            elif known.held is not None:
                await self._settle_lost_attempt(call, known)
                continue
            else:
                request = await self._retry_request(call, known, role, fill, failure)
            model = known.model if known is not None else self._model
            attempt = known.attempts + 1 if known is not None else 1
            failure = await self._attempt_call(model, call, attempt, role, request)

    @property
    def prompts(self) -> PromptSet:
        """The prompts of the run's round."""
        return self._prompts

    def _run_state(self) -> RunState:
        return self._log.run_state(self._run)

    def _logged_question(self, call: int) -> ModelQuestion | None:
        effect = self._run_state().open.get(str(self._key))
        if effect is None:
            raise EffectDeferred  # the run is over
        return effect.calls[call] if call < len(effect.calls) else None

    async def _settle_lost_attempt(self, call: int, known: ModelQuestion) -> None:
        """Charge an attempt of an earlier process, whose outcome is unknown."""
        priced = self._run_state().prices.get(known.model) is not None
        reason = "its process ended before it had an outcome"
        gone = lost_call_event(str(self._key), call, known, priced=priced, reason=reason)
        log.warning("call_lost", run=self._run, key=str(self._key), call=call, cost_usd=gone.cost_usd)
        await self._ledger.settle(self._run, gone)

    # --- requests ----------------------------------------------------------------------------------

    def _render_request(
        self, model: str, role: str, fill: FillPrompt, share: float = 1.0
    ) -> CompletionRequest:
        config = self._run_state().config
        rendered = request_rendering.render_request(
            self._prompts,
            role,
            config.target,
            fill,
            model=model.partition("/")[2],
            bounds=request_rendering.TokenBounds.from_window(self._endpoints.model_window(model), config.llm),
            effort=config.llm.effort,
            share=share,
        )
        more = {"tools": self._tools, "dialogue": self._dialogue, "answer": self._form}
        return rendered.model_copy(update=more)

    async def _retry_request(
        self, call: int, known: ModelQuestion, role: str, fill: FillPrompt, failure: Failure | None
    ) -> CompletionRequest:
        """Return the request to send after an attempt that failed or was lost, once its back-off is over."""
        logged = request_rendering.load_request(self._log.get_blob(known.request), self._log.get_blob)
        if known.lost:
            return logged
        kind = FailureKind(known.failures[-1])
        times = known.failures.count(kind)
        match REMEDIES[kind]:
            case Remedy.PAUSE:  # a person has resumed the run
                return logged
            case Remedy.SHRINK if times == 1 and not logged.dialogue:  # a dialogue has nothing to leave out
                return self._render_request(known.model, role, fill, SHARE_WHEN_TOO_LARGE)
            case Remedy.MORE_OUTPUT if times == 1 and (more := self._larger_output_limit(known, logged)):
                return logged.model_copy(update={"max_output_tokens": more})
            case Remedy.BACK_OFF:
                await self._back_off(call, known, failure or Failure(kind=kind, message=""))
                return logged
        raise unanswered_error(known.model, kind)

    def _larger_output_limit(self, known: ModelQuestion, logged: CompletionRequest) -> int:
        """Return a larger limit for an answer that was cut off; 0 if the model cannot answer longer."""
        window = self._endpoints.model_window(known.model)
        left = window.context - windows.estimate_request_tokens(logged)
        more = min(MAX_OUTPUT_FACTOR * logged.max_output_tokens, window.output, left)
        return more if more > logged.max_output_tokens else 0

    async def _back_off(self, call: int, known: ModelQuestion, failure: Failure) -> None:
        """Sleep as the policy says. The random draw is derived from the effect, so equal runs pause
        equally.
        """
        tried = sum(REMEDIES[FailureKind(kind)] is Remedy.BACK_OFF for kind in known.failures)
        seed = draw_seed(self._run_state().config.seed, self._key)
        draw = Random(f"{seed}|{call}|{known.attempts}").random()  # noqa: S311 - spreads pauses
        seconds = retry.retry_pause(failure, tried, draw, self._remaining_patience(known.model), self._policy)
        if seconds is None:
            raise unanswered_error(known.model, failure.kind)
        log.info("call_backs_off", run=self._run, key=str(self._key), kind=failure.kind, seconds=seconds)
        await asyncio.sleep(seconds)

    def _remaining_patience(self, model: str) -> float:
        """Return the seconds of patience that are left for this effect's questions."""
        patience = self._endpoints.get(endpoint_of(model)).settings.patience_seconds
        return patience - (asyncio.get_running_loop().time() - self._since)

    # --- reused answers ----------------------------------------------------------------------------

    async def _reuse_parent_answer(self, call: int, role: str, request: CompletionRequest) -> bool:
        """Reuse the answer of the run that this one forks, if that run got one to the same request."""
        data, texts = request_rendering.dump_request(request)
        found = find_parent_answer(self._log, self._run, str(self._key), call, digest_of(data))
        if found is None or not isinstance(found.event, CallCompleted):
            return False
        known = found.event
        if known.model != self._model or not self._has_blob(known.answer):
            return False
        started = self._call_started_event(call, role, self._model, digest_of(data))
        answered = CallCompleted(
            **_shared_fields(started),
            answer=known.answer,
            answered_by=known.answered_by,
            stop_reason=known.stop_reason,
            request_id=known.request_id,
            tokens=known.tokens,  # so that the answer's size is known; none of them are charged
            cost_usd=0.0,
            ms=0.0,
            reused_from=found.event_id,
        )
        await self._ledger.record_reused_answer(
            self._run, started, answered, self._missing_blobs((data, *texts))
        )
        log.info("answer_reused", run=self._run, key=str(self._key), call=call, reused_from=found.event_id)
        return True

    def _call_started_event(self, call: int, role: str, model: str, request: str) -> CallStarted:
        """Return the start of a question's first attempt, with nothing reserved."""
        return CallStarted(
            key=str(self._key),
            call=call,
            attempt=1,
            role=role,
            model=model,
            request=request,
            prompts=self._prompts.version,
            price=self._model_price(model),
            reserved=Amount(),
        )

    def _model_price(self, model: str) -> Price | None:
        """Return a model's price in this run: the price at its first call."""
        prices = self._run_state().prices
        return prices[model] if model in prices else self._endpoints.model_price(model)

    # --- attempts ----------------------------------------------------------------------------------

    async def _attempt_call(
        self, model: str, call: int, attempt: int, role: str, request: CompletionRequest
    ) -> Failure | None:
        """Make one attempt, from its reservation to its outcome; return its failure, None if it was
        answered.

        Raises:
            RoleError: there is no room in the budget, or its turn would come too late.
            EffectDeferred: the run is paused or over.
        """
        price = self._model_price(model)
        data, texts = request_rendering.dump_request(request)
        most = windows.bound_request_tokens(request)
        reserved = Amount(
            usd=round_usd(price.max_cost(most, request.max_output_tokens)) if price is not None else 0.0,
            tokens=most + request.max_output_tokens,
            calls=1,
        )
        started = self._call_started_event(call, role, model, digest_of(data)).model_copy(
            update={"attempt": attempt, "reserved": reserved}
        )
        await self._ensure_provider(model)
        try:
            async with self._endpoint_turn(model, request, price) as endpoint:
                await self._ledger.reserve(self._run, started, self._missing_blobs((data, *texts)))
                await self._send_request(endpoint, request, started)
        except CallError as error:
            return error.failure
        return None

    async def _ensure_provider(self, model: str) -> None:
        """Make sure that the endpoint's provider exists before anything is held for a question.

        Raises:
            EffectDeferred: it cannot be created, and a person must mend the cause; the run is paused.
        """
        name = endpoint_of(model)
        try:
            await self._endpoints.get(name).ensure_provider()
        except CallError as error:
            log.warning("endpoint_not_ready", run=self._run, endpoint=name, error=error.failure.message)
            reason = f"{name}: {error.failure.kind.value}: {error.failure.message}"
            await self._ledger.pause_run(self._run, reason, PauseCause.PROVIDER)
            raise EffectDeferred from None

    @asynccontextmanager
    async def _endpoint_turn(
        self, model: str, request: CompletionRequest, price: Price | None
    ) -> AsyncIterator[ModelEndpoint]:
        endpoint = self._endpoints.get(endpoint_of(model))
        try:
            async with endpoint.wait_for_turn(
                request, price, wait_seconds=max(0.0, self._remaining_patience(model))
            ):
                yield endpoint
        except EndpointUnavailable:
            raise unavailable_error(model) from None
        except TurnTimeout:
            raise unanswered_error(model, FailureKind.RATE) from None

    def _missing_blobs(self, blobs: tuple[bytes, ...]) -> list[bytes]:
        """Return the blobs that the log does not have; most parts of a prompt are there already."""
        return [blob for blob in blobs if not self._has_blob(digest_of(blob))]

    def _has_blob(self, digest: str) -> bool:
        try:
            self._log.get_blob(digest)
        except BlobMissing:
            return False
        return True

    async def _send_request(
        self, endpoint: ModelEndpoint, request: CompletionRequest, started: CallStarted
    ) -> None:
        """Send a reserved request and log its outcome; raises CallError after a failure is logged.

        A bug on the way counts as a failure too, charged with all that was reserved. Its text is not
        logged, because nobody has checked it for the key.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            completion = await endpoint.send_request(request)
            crash_point("call.answered")
            await self._record_answer(started, completion, ms=(loop.time() - began) * 1000)
        except CallError as error:
            crash_point("call.failed")
            await self._record_failure(started, error.failure, ms=(loop.time() - began) * 1000)
            raise
        except (StateError, EffectDeferred):
            raise
        except Exception as error:
            log.exception("call_broke", run=self._run, key=started.key)
            text = f"{type(error).__name__} here, see the daemon's log"
            failure = Failure(kind=FailureKind.INVALID, message=text, may_cost=True)
            await self._record_failure(started, failure, ms=(loop.time() - began) * 1000)
            raise CallError(failure) from error

    async def _record_answer(self, started: CallStarted, completion: Completion, *, ms: float) -> None:
        answer = (completion.turn.model_dump_json() if self._tools else completion.text).encode()
        cost = self._token_cost(started, completion.tokens)
        if cost is not None and cost > started.reserved.usd:
            log.error("call_beyond_reservation", run=self._run, key=started.key, cost_usd=cost)
        outcome = CallCompleted(
            **_shared_fields(started),
            answer=digest_of(answer),
            answered_by=completion.model,
            stop_reason=completion.stop_reason,
            request_id=completion.request_id,
            tokens=completion.tokens,
            charged_tokens=completion.tokens.total,
            cost_usd=cost,
            ms=round(ms, 3),
        )
        await self._ledger.settle(self._run, outcome, blobs=(answer,))

    async def _record_failure(self, started: CallStarted, failure: Failure, *, ms: float) -> None:
        """Log a failure and its cost: the counted tokens, or all that was held if the attempt may have
        cost anything.
        """
        cost: float | None = 0.0
        charged = 0
        if failure.tokens is not None:
            cost, charged = self._token_cost(started, failure.tokens), failure.tokens.total
        elif failure.may_cost:
            priced = self._run_state().prices.get(started.model) is not None
            cost, charged = (started.reserved.usd if priced else None), started.reserved.tokens
        outcome = CallFailed(
            **_shared_fields(started),
            kind=failure.kind.value,
            error=ErrorInfo(code=failure.kind.value, message=failure.message),
            status=failure.status,
            request_id=failure.request_id,
            tokens=failure.tokens,
            charged_tokens=charged,
            cost_usd=cost,
            ms=round(ms, 3),
        )
        log.warning("call_failed", run=self._run, key=started.key, kind=failure.kind, error=failure.message)
        stuck = REMEDIES[failure.kind] is Remedy.PAUSE
        pause = f"{endpoint_of(started.model)}: {failure.kind.value}: {failure.message}" if stuck else None
        await self._ledger.settle(self._run, outcome, pause=pause)
        if stuck:
            raise EffectDeferred

    def _token_cost(self, started: CallStarted, tokens: Tokens) -> float | None:
        price = self._run_state().prices.get(started.model)
        return None if price is None else round_usd(price.cost(tokens))


def _shared_fields(started: CallStarted) -> dict[str, object]:
    """Return the fields that an outcome shares with its start."""
    return started.model_dump(include={"key", "call", "attempt", "role", "model"})
