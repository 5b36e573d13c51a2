"""The services: their signatures, addresses and framing over real sockets, and what each says is missing."""

from __future__ import annotations

import os
import re
from unittest.mock import patch

import pytest

from agent_core.providers import registry
from agent_core.providers.completion import Completion
from agent_core.providers.failures import CallError, FailureKind
from agent_core.providers.keys import Secret, redact
from agent_core.providers.prices import price_of
from agent_core.providers.registry import BUILTIN_ENDPOINTS, SERVICES, EndpointSettings
from state.model import ModelTraits
from tests.agent_core.providers.provider_calls import AWS, KEY, REQUEST, ask_once, endpoint
from tests.support.llm_server import Asked, Hang, LlmServer, Refuse, Reply, Said

PROFILE = "arn:aws:bedrock:us-west-2:123456789012:application-inference-profile/abc"
SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/\d{8}/us-west-2/(?P<service>[\w-]+)/aws4_request, "
    r"SignedHeaders=\S*host\S*, Signature=[0-9a-f]{64}"
)


async def ask_service(service: str, request=REQUEST, **settings) -> tuple[Completion, Asked]:
    """Ask a service's endpoint at a scripted server; return the answer and what was asked."""
    with LlmServer(lambda _: Reply(text="fine")) as server, patch.dict(os.environ, AWS):
        made = EndpointSettings(**{"base_url": server.anthropic, **settings})
        provider = registry.create_provider(service, made)
        try:
            answer = await provider.complete(request, deadline_seconds=60, observe=lambda _: None)
        finally:
            await provider.aclose()
    return answer, server.asked[-1]


@pytest.mark.parametrize("model", ["us.anthropic.claude-sonnet-5-5", PROFILE])
async def test_bedrock_is_asked_with_a_signature_and_the_inference_profile_in_the_path(model):
    request = REQUEST.model_copy(update={"model": model})
    answer, asked = await ask_service("bedrock", request, region="us-west-2")
    assert answer.text == "fine"
    assert asked.model == model
    assert asked.path.endswith("/invoke-with-response-stream")
    assert SIGNED.fullmatch(asked.headers["authorization"])["service"] == "bedrock"
    assert asked.headers["x-amz-security-token"] == AWS["AWS_SESSION_TOKEN"]
    assert asked.body["anthropic_version"]
    assert "stream" not in asked.body


async def test_bedrock_with_a_key_of_its_own_is_asked_with_that():
    _, asked = await ask_service("bedrock", region="us-west-2", key=Secret(KEY))
    assert asked.headers["authorization"] == f"Bearer {KEY}"


async def test_models_that_speak_like_openai_are_asked_through_bedrock_with_a_signature():
    _, asked = await ask_service("bedrock_openai", region="us-west-2")
    assert SIGNED.fullmatch(asked.headers["authorization"])["service"] == "bedrock-mantle"
    assert asked.path == "/responses"


@pytest.mark.parametrize(("wire", "path"), [
    (None, "/openai/responses"),
    ("chat", "/openai/deployments/test-model/chat/completions"),
])  # fmt: skip
async def test_azure_is_asked_under_its_paths_with_its_version(wire, path):
    _, asked = await ask_service("azure", api_version="2026-09-01", key=Secret(KEY), wire=wire)
    assert asked.path == f"{path}?api-version=2026-09-01"
    assert asked.headers["api-key"] == KEY


async def test_vertex_is_asked_in_its_project_and_region():
    _, asked = await ask_service("vertex", region="europe-west1", project="mine", key=Secret(KEY))
    place = "/projects/mine/locations/europe-west1/publishers/anthropic/models/"
    assert asked.path == f"{place}test-model:streamRawPredict"
    assert asked.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(("service", "address"), [
    ("bedrock", "https://bedrock-runtime.eu-central-1.amazonaws.com"),
    ("bedrock_openai", "https://bedrock-mantle.eu-central-1.api.aws/openai/v1"),
    ("vertex", "https://eu-central-1-aiplatform.googleapis.com/v1"),
])  # fmt: skip
async def test_the_region_is_in_the_usual_address(service, address):
    with patch.dict(os.environ, AWS):
        provider = registry.create_provider(service, EndpointSettings(region="eu-central-1"))
    assert provider._address.rstrip("/") == address
    await provider.aclose()


async def test_without_credentials_the_run_waits_for_a_person_and_nothing_is_sent():
    nothing = {name: "" for name in AWS if name.startswith("AWS_S") or name.endswith("_ID")}
    with LlmServer(lambda _: Reply()) as server:
        async with endpoint("bedrock", server, region="eu-north-1") as provider:
            with patch.dict(os.environ, {**AWS, **nothing}), pytest.raises(CallError) as caught:
                await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert caught.value.failure.kind is FailureKind.AUTH
    assert "no credentials" in caught.value.failure.message
    assert not server.asked


async def test_amazons_secrets_are_in_no_message():
    said = f"{AWS['AWS_ACCESS_KEY_ID']} may not invoke; AWS4-HMAC-SHA256 Signature={'a1' * 32} refused"
    outcome, _, _ = await ask_once("bedrock", lambda _: Refuse(403, "AccessDeniedException", said))
    assert "may not invoke" in outcome.message
    assert AWS["AWS_ACCESS_KEY_ID"] not in outcome.message
    assert "a1a1" not in outcome.message
    assert redact("ABSKQmVkcm9ja0FQSUtleS1leGFtcGxl") != "ABSKQmVkcm9ja0FQSUtleS1leGFtcGxl"


@pytest.mark.parametrize("name", BUILTIN_ENDPOINTS)
def test_each_endpoint_says_what_it_lacks(name):
    service = SERVICES[BUILTIN_ENDPOINTS[name]]
    missing = registry.find_missing(name, EndpointSettings(), {})
    assert len(missing) == len(service.needs)
    for setting, variables in service.needs.items():
        assert any(f".{setting}, or {' or '.join(variables)}" in line for line in missing)
    found = {names[0]: "x" for names in service.needs.values()}
    assert registry.find_missing(name, EndpointSettings(), found) == []


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    (line,) = registry.find_missing("bedrock", EndpointSettings(region="us-west-2"), {})
    assert line == "bedrock: boto3 is not installed: pip install 'nki-kernel-agent[bedrock]'"


def test_a_wire_format_that_a_service_does_not_speak_is_a_fault():
    (line,) = registry.find_missing("anthropic", EndpointSettings(wire="chat"), {})
    assert "there are messages" in line


@pytest.mark.parametrize(("settings", "wire"), [
    (EndpointSettings(), "responses"),
    (EndpointSettings(base_url="https://api.openai.com/v1/"), "responses"),
    (EndpointSettings(base_url="https://gateway.example.com/v1"), "chat"),
    (EndpointSettings(base_url="https://gateway.example.com/v1", wire="responses"), "responses"),
    (EndpointSettings(wire="chat"), "chat"),
])  # fmt: skip
def test_openai_itself_is_asked_for_responses_and_imitations_for_chat(settings, wire):
    assert SERVICES["openai"].choose_wire(settings) == wire


@pytest.mark.parametrize(("model", "name"), [
    ("us.anthropic.claude-sonnet-5-5", "bedrock"),
    ("global.anthropic.claude-opus-5-5", "bedrock"),
    ("claude-sonnet-5-5", "vertex"),
    ("us.openai.gpt-6.1-sol", "bedrock_openai"),
])  # fmt: skip
def test_models_in_clouds_have_list_prices(model, name):
    assert price_of(model, name) is not None


def test_inference_profiles_of_ones_own_have_no_list_price():
    assert price_of(PROFILE, "bedrock") is None


async def test_what_is_learnt_of_a_model_is_told_once_and_used_by_the_next_process():
    def script(asked: Asked) -> Said:
        if "reasoning_effort" in asked.body:
            return Refuse(400, "invalid_request_error", "reasoning_effort: unknown field")
        return Reply(ending="no_usage")

    learnt: dict[str, ModelTraits] = {}
    request = REQUEST.model_copy(update={"effort": "high"})
    with LlmServer(script) as server:
        for _ in range(2):
            known = {"traits": dict(learnt), "learnt": learnt.__setitem__}
            async with endpoint("local", server, **known) as provider:
                for _ in range(2):
                    await provider.complete(request, deadline_seconds=60, observe=lambda _: None)
    assert learnt == {"test-model": ModelTraits(refused=("reasoning_effort",), uncounted=True)}
    assert ["reasoning_effort" in asked.body for asked in server.asked] == [True] + [False] * 4
    assert ["stream" in asked.body for asked in server.asked] == [True, True, False, False, False]


async def test_a_model_that_begins_late_has_more_time_the_next_time(monkeypatch):
    monkeypatch.setattr("agent_core.providers.answer_pace.LARGEST_FIRST_TOKEN_SECONDS", 3.0)
    learnt: dict[str, ModelTraits] = {}
    with LlmServer(lambda asked: Hang() if asked.number == 1 else Reply()) as server:
        async with endpoint("local", server, learnt=learnt.__setitem__) as provider:
            provider._usual_first_token_seconds = 1.0
            with pytest.raises(CallError, match="no first token in 1 s"):
                await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
            assert learnt["test-model"].first_token_seconds == 2.0
            await provider.complete(REQUEST, deadline_seconds=60, observe=lambda _: None)
    assert learnt["test-model"].first_token_seconds == 2.0
