"""Asking both endpoints over real sockets, the way the tests of this folder do it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from agent_core.providers import registry
from agent_core.providers.completion import Completion, CompletionRequest, PromptPart, Provider, RateLimits
from agent_core.providers.failures import CallError, Failure
from agent_core.providers.keys import Secret
from agent_core.providers.registry import EndpointSettings
from tests.support.llm_server import LlmServer, Script

KEY = "sk-test-0123456789abcdef"
SENTENCE = "The partition dimension of a tile has at most 128 elements, so split it."
REQUEST = CompletionRequest(
    model="test-model",
    guide=(PromptPart(text="You write kernels."), PromptPart(text=SENTENCE, cached=True)),
    case=(PromptPart(text="Here is the kernel of today: nki.language.load(a)"),),
    max_output_tokens=1000,
)
ENDPOINTS = ("anthropic", "openai", "local", "responses", "bedrock")
"""`responses` is OpenAI in its newer wire format; `bedrock` has Amazon's signatures and framing."""

MESSAGES = ("anthropic", "bedrock")
"""Endpoints that are asked in Anthropic's wire format."""

AWS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "session-token-of-a-role",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}


def settings_of(name: str, server: LlmServer, **more: Any) -> EndpointSettings:
    """Return how an endpoint of these tests is reached at the server."""
    own: dict[str, Any] = {"base_url": server.openai, "key": Secret(KEY)}
    if name in MESSAGES:
        own["base_url"] = server.anthropic
    if name == "responses":
        own |= {"service": "openai", "wire": "responses"}
    if name == "bedrock":
        own |= {"key": None, "region": "us-west-2"}
    return EndpointSettings(**(own | more))


@asynccontextmanager
async def endpoint(name: str, server: LlmServer, **settings: Any) -> AsyncIterator[Provider]:
    with patch.dict(os.environ, AWS):
        provider = registry.create_provider(name, settings_of(name, server, **settings))
        try:
            yield provider
        finally:
            await provider.aclose()


class Limits(list[RateLimits]):
    """What was observed."""

    def __call__(self, limits: RateLimits) -> None:
        self.append(limits)


async def ask_once(
    name: str,
    script: Script,
    *,
    request: CompletionRequest = REQUEST,
    deadline: float = 60.0,
    **settings: Any,
) -> tuple[Completion | Failure, Limits, LlmServer]:
    """Ask one question; return what came of it, what was said of limits, and the server that was asked."""
    limits = Limits()
    with LlmServer(script) as server:
        async with endpoint(name, server, **settings) as provider:
            try:
                outcome: Completion | Failure = await provider.complete(
                    request, deadline_seconds=deadline, observe=limits
                )
            except CallError as error:
                outcome = error.failure
    return outcome, limits, server


async def ask_for_failure(name: str, script: Script, **more: Any) -> Failure:
    """Ask one question that has no answer, and return the failure."""
    outcome, _, _ = await ask_once(name, script, **more)
    assert isinstance(outcome, Failure), outcome
    return outcome


async def ask_for_answer(name: str, script: Script, **more: Any) -> Completion:
    """Ask one question that has an answer, and return it."""
    outcome, _, _ = await ask_once(name, script, **more)
    assert isinstance(outcome, Completion), outcome
    return outcome
