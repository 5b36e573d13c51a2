"""What the tests of calls share: a provider that needs no network, and a run that asks it for everything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_core.providers.completion import Completion, CompletionRequest, Tokens, ToolCall
from agent_core.providers.failures import CallError, Failure
from agent_core.providers.registry import EndpointSettings
from agent_core.providers.retry import RetryPolicy
from agent_core.providers.windows import estimate_tokens
from daemon.calls.llm_roles import RoleFactory
from daemon.calls.request_rendering import dump_request
from daemon.command_models import run_id
from daemon.commands import CommandHandler
from daemon.config import DaemonConfig
from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from daemon.workers import Workers
from state.log import EventLog
from state.model import LlmConfig, RunConfig, SearchConfig, digest_of
from tests.support import constants_model, fakes

MODEL = "local/some-model"
PRICE = f"{MODEL}=3/0.3/15"
QUICK = RetryPolicy(tries=6, first_seconds=0.001, longest_seconds=0.002)

SEARCH = SearchConfig(beam=2, plans=2, rounds=2, explorers=1, repairs=1, within_percent=0, simplify=False)
CONFIG = RunConfig(
    problem="silu",
    size="reduced",
    evaluator="fake",
    planner=("local",),
    seed=3,
    cap_usd=100.0,
    llm=LlmConfig(models=(MODEL,), max_output_tokens=1000),
    search=SEARCH,
)

LOOP = CONFIG.model_copy(update={"llm": CONFIG.llm.model_copy(update={"form": "loop", "turns": 8})})
"""The same run with sessions in place of the executor's and the repairer's questions."""

AnswerScript = Callable[[CompletionRequest, int], str | Completion | Failure]
"""Says what comes of the n-th delivery (from 1) of a request: an answer's text, or a failure."""


def answer_request(request: CompletionRequest, delivery: int) -> str | Completion:
    """The script of a model without faults; in a session it calls tools."""
    guide, case = ("\n\n".join(part.text for part in parts) for parts in (request.guide, request.case))
    if not request.tools:
        return constants_model.answer_question(request.model, guide, case)
    told = [result.text for step in request.dialogue for result in step.results]
    text, called = constants_model.take_turn(request.model, guide + case, told, len(request.dialogue))
    return complete_turn(request, text, called)


def complete_turn(
    request: CompletionRequest, text: str, called: Sequence[tuple[str, str]] = ()
) -> Completion:
    """Return a whole answer; its tokens are half of what an estimate says."""
    at = len(request.dialogue)
    calls = [
        ToolCall(id=f"c{at}.{number}", name=name, arguments=said)
        for number, (name, said) in enumerate(called)
    ]
    return Completion(
        text=text,
        model=f"{request.model}-1",
        stop_reason="tool_use" if calls else "end_turn",
        tokens=Tokens(
            input=sum(map(estimate_tokens, request.texts())) // 2,
            output=estimate_tokens(text) + sum(estimate_tokens(call.arguments) for call in calls),
        ),
        request_id="req",
        calls=tuple(calls),
    )


@dataclass
class FakeProvider:
    """Answers as its script says; `asked` are all requests, `most` how many were under way at a time."""

    script: AnswerScript = answer_request
    name: str = "local"
    asked: list[CompletionRequest] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    most: int = 0
    closed: bool = False

    async def complete(self, request, *, deadline_seconds, observe):
        self.asked.append(request)
        digest = digest_of(dump_request(request)[0])
        self.counts[digest] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            said = self.script(request, self.counts[digest])
        finally:
            self.under_way -= 1
        if isinstance(said, Failure):
            raise CallError(said)
        return said if isinstance(said, Completion) else complete_turn(request, said)

    async def aclose(self) -> None:
        self.closed = True


def daemon_config(**changes) -> DaemonConfig:
    plain = {"evaluations": 2, "proposals": 2, "grace_seconds": 5.0, "prices": (PRICE,)}
    return DaemonConfig.model_validate(plain | changes)


def create_role_factory(
    event_log: EventLog, provider: FakeProvider, config: DaemonConfig | None = None, **more
) -> RoleFactory:
    def create(name: str, settings: EndpointSettings) -> FakeProvider:
        return provider

    return RoleFactory(
        event_log, config or daemon_config(), env={}, create=create, **({"retries": QUICK} | more)
    )


async def submit_run(event_log: EventLog, config: RunConfig = CONFIG, id_: str = "first") -> str:
    """Create a run; return its id."""
    submission = fakes.create_submission(config, constants_model.KERNEL)
    commands = CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)
    await commands.handle(id_, submission.model_dump_json().encode())
    return run_id(id_, config.problem)


async def host_until(
    event_log: EventLog,
    roles: RoleFactory,
    *,
    until: Callable[[], bool],
    stop: StopSignal | None = None,
    config: DaemonConfig | None = None,
    workers: Workers | None = None,
    seconds: float = 60.0,
) -> None:
    """Own the log until something is so, or until a script has asked `stop`."""
    stop = stop or StopSignal()
    work = serve_runs(
        event_log,
        config or daemon_config(),
        stop=stop,
        workers=workers or fakes.fake_workers(),
        roles=roles,
    )
    hosting = asyncio.create_task(work)
    async with asyncio.timeout(seconds):
        while not hosting.done() and not until():  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.002)
    stop.requested.set()
    await hosting


async def finish_run(
    event_log: EventLog,
    provider: FakeProvider,
    config: RunConfig = CONFIG,
    workers: Workers | None = None,
    **more,
) -> str:
    """Submit a run and host it until it has ended; return its id."""
    run = await submit_run(event_log, config)
    await host_until(
        event_log,
        create_role_factory(event_log, provider, **more),
        until=lambda: event_log.run_state(run).has_ended,
        workers=workers,
    )
    return run
