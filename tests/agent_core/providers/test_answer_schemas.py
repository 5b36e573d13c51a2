"""Answers by JSON schema: how each format sends one, and what happens where a server takes none."""

from __future__ import annotations

import json

import pytest

from agent_core.providers.completion import AnswerSchema
from agent_core.providers.failures import FailureKind
from state.model import ModelTraits
from tests.agent_core.providers.provider_calls import ENDPOINTS, MESSAGES, REQUEST, ask_once, endpoint
from tests.support.llm_server import LlmServer, Refuse, Reply

SCHEMA = {
    "type": "object",
    "properties": {"why": {"type": "string"}, "answer": {"type": "integer"}},
    "required": ["why", "answer"],
    "additionalProperties": False,
}
FORM = AnswerSchema(name="sum", text=json.dumps(SCHEMA))
FORMED = REQUEST.model_copy(update={"answer": FORM})
NAMED = {"name": "sum", "strict": True, "schema": SCHEMA}
SENT = {
    **{name: ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}) for name in MESSAGES},
    **{n: ("response_format", {"type": "json_schema", "json_schema": NAMED}) for n in ("openai", "local")},
    "responses": ("text", {"format": {"type": "json_schema", **NAMED}}),
}
"""The field of each endpoint's body, and its value."""

FIELDS = {
    "output_config": "output_config.format",
    "text": "text.format",
    "response_format": "response_format",
}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_schema_is_sent_as_each_format_has_it(name):
    field, value = SENT[name]
    answer, _, server = await ask_once(
        name, lambda _: Reply(text='{"why": "-", "answer": 4}'), request=FORMED
    )
    assert json.loads(answer.text) == {"why": "-", "answer": 4}
    assert server.asked[0].body[field] == value
    assert list(server.asked[0].body[field]) == list(value)
    _, _, plain = await ask_once(name, lambda _: Reply())
    assert field not in plain.asked[0].body


def refuse(message: str, code: str | None = None, field: str | None = None, status: int = 400) -> Refuse:
    return Refuse(status, "invalid_request_error", message, code, field)


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("anthropic", refuse("output_config.format: Extra inputs are not permitted")),
        ("anthropic", refuse("This model does not support structured outputs.")),
        ("bedrock", refuse("Schema is too complex for compilation.")),
        ("openai", refuse("Invalid schema for response_format 'sum'", field="response_format")),
        ("openai", refuse("it is not strict", "invalid_json_schema", "response_format")),
        ("responses", refuse("Unsupported", "unsupported_parameter", "text.format")),
        ("responses", refuse("Unknown parameter", "unknown_parameter", "text")),
        ("local", refuse("failed to parse grammar")),
        ("local", refuse("structured outputs are not supported by this backend", status=500)),
    ],
)
async def test_a_refused_schema_is_left_out_and_remembered(name, refusal):
    field, _ = SENT[name]
    learnt: dict[str, ModelTraits] = {}

    def script(came):
        return refusal if field in came.body else Reply(text="taken")

    with LlmServer(script) as server:
        for _ in range(2):  # the second provider is told what the first one learnt
            known = {"traits": dict(learnt), "learnt": learnt.__setitem__}
            async with endpoint(name, server, **known) as provider:
                answer = await provider.complete(FORMED, deadline_seconds=60, observe=lambda _: None)
                assert answer.text == "taken"
    assert [field in came.body for came in server.asked] == [True, False, False]
    assert learnt == {REQUEST.model: ModelTraits(refused=(FIELDS[field],))}


async def test_faults_of_fields_as_fastapi_lists_them_are_read():
    detail = [{"loc": ["body", "response_format", "type"], "msg": "Input should be 'text' or 'json_object'"}]
    raw = json.dumps({"detail": detail}).encode()

    def script(came):
        return Refuse(422, raw=raw) if "response_format" in came.body else Reply(text="taken")

    answer, _, server = await ask_once("local", script, request=FORMED)
    assert answer.text == "taken"
    assert len(server.asked) == 2


async def test_effort_stays_where_only_the_schema_is_refused_and_the_other_way_round():
    request = FORMED.model_copy(update={"effort": "high"})
    for refused, kept in (("format", "effort"), ("effort", "format")):
        message = f"output_config.{refused}: Extra inputs are not permitted"

        def script(came, refused=refused, message=message):
            there = refused in came.body.get("output_config", {})
            return Refuse(400, "invalid_request_error", message) if there else Reply()

        _, _, server = await ask_once("anthropic", script, request=request)
        assert [set(came.body["output_config"]) for came in server.asked] == [{"effort", "format"}, {kept}]


async def test_what_was_learnt_of_the_whole_table_before_there_were_schemas_still_holds():
    request = FORMED.model_copy(update={"effort": "high"})
    traits = {REQUEST.model: ModelTraits(refused=("output_config",))}
    _, _, server = await ask_once("anthropic", lambda _: Reply(), request=request, traits=traits)
    assert "output_config" not in server.asked[0].body


async def test_a_fault_of_something_else_leaves_the_schema_alone():
    refusal = Refuse(400, "invalid_request_error", "messages: unexpected role")
    outcome, _, server = await ask_once("openai", lambda _: refusal, request=FORMED)
    assert outcome.kind is FailureKind.INVALID
    assert len(server.asked) == 1
