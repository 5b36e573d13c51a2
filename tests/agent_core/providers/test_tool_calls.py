"""Tools on the wire: calls, results, thinking blocks, breakpoints, and models that take no tools."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import TextBlockParam, ThinkingBlockParam, ToolResultBlockParam, ToolUseBlockParam
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from agent_core.providers.completion import (
    Completion,
    CompletionRequest,
    DialogueStep,
    ModelTurn,
    Tokens,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from agent_core.providers.failures import Failure, FailureKind
from agent_core.providers.http_provider import PartialAnswer
from agent_core.providers.text_tools import parse_calls, put_in_words
from agent_core.providers.windows import bound_request_tokens
from tests.agent_core.providers.provider_calls import ENDPOINTS, MESSAGES, REQUEST, ask_once, endpoint
from tests.support.llm_server import Asked, LlmServer, Refuse, Reply, Said

TOOLS = (
    ToolDefinition(
        name="check",
        description="Check a kernel.",
        parameters={
            "type": "object",
            "properties": {"source": {"type": "string", "description": "the kernel"}},
            "required": ["source"],
        },
    ),
    ToolDefinition(name="give_up", description="End.", parameters={"type": "object", "properties": {}}),
)
ASKED = REQUEST.model_copy(update={"tools": TOOLS})
BLOCKS = {
    "text": TextBlockParam,
    "thinking": ThinkingBlockParam,
    "tool_use": ToolUseBlockParam,
    "tool_result": ToolResultBlockParam,
}
CALLS = (("check", '{"source": "v0"}'), ("give_up", "{}"))


def followed(request: CompletionRequest, answer: ModelTurn, *, note: str = "") -> CompletionRequest:
    results = tuple(ToolResult(id=call.id, text=f"result of {call.name}") for call in answer.calls)
    step = DialogueStep(answer=answer, results=results, note=note)
    return request.model_copy(update={"dialogue": (*request.dialogue, step)})


async def answer_of(name: str, reply: Said, request: CompletionRequest = ASKED) -> tuple[Completion, Asked]:
    outcome, _, server = await ask_once(name, lambda _: reply, request=request)
    assert isinstance(outcome, Completion), outcome
    return outcome, server.asked[-1]


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_parallel_calls_are_read_and_their_results_returned(name):
    made, _ = await answer_of(name, Reply(text="I look.", calls=CALLS))
    assert [(call.name, call.arguments) for call in made.calls] == list(CALLS)
    assert len({call.id for call in made.calls}) == 2
    _, asked = await answer_of(name, Reply(), followed(ASKED, made.turn, note="2 turns left"))
    sent = str(asked.later)
    for call in made.calls:
        assert sent.count(call.id) == 2, "once as a call, once as a result"
        assert f"result of {call.name}" in sent
    assert "2 turns left" in sent


@pytest.mark.parametrize("name", MESSAGES)
async def test_thinking_blocks_are_returned_unchanged(name):
    made, _ = await answer_of(name, Reply(text="so", thinking="hm", calls=CALLS[:1]))
    _, asked = await answer_of(name, Reply(), followed(ASKED, made.turn))
    blocks = asked.body["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "hm", "signature": "signed"}
    assert blocks[-1]["input"] == {"source": "v0"}
    assert asked.body["thinking"] == {"type": "adaptive"}


async def test_encrypted_reasoning_is_returned_unchanged():
    made, first = await answer_of("responses", Reply(text="so", thinking="c2VjcmV0", calls=CALLS))
    assert (first.body["store"], first.body["include"]) == (False, ["reasoning.encrypted_content"])
    assert first.body["parallel_tool_calls"] is True
    assert [tool["type"] for tool in first.body["tools"]] == ["function", "function"]
    _, asked = await answer_of("responses", Reply(), followed(ASKED, made.turn))
    kinds = [item.get("type", item.get("role")) for item in asked.body["input"]]
    outputs = ["function_call_output"] * 2
    assert kinds == ["user", "reasoning", "message", "function_call", "function_call", *outputs]
    assert asked.body["input"][1]["encrypted_content"] == "c2VjcmV0", "the complete one, of its last event"


async def test_reasoning_that_the_service_kept_is_not_named_in_the_next_request():
    def script(asked: Asked) -> Said:
        if "include" in asked.body:
            message = "Encrypted content is not supported with this model."
            return Refuse(400, "invalid_request_error", message, param="include")
        return Reply(text="so", calls=CALLS[:1], thinking="")

    with LlmServer(script) as server:
        async with endpoint("responses", server) as provider:
            made = await provider.complete(ASKED, deadline_seconds=60, observe=lambda _: None)
    assert ["include" in asked.body for asked in server.asked] == [True, False]
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer = PartialAnswer(items={0: bare, 1: {"type": "function_call", "id": "fc", "call_id": "c"}})
    native = provider.native_answer(answer)
    assert made.native is not None
    assert native.items == ({"type": "function_call", "call_id": "c"},)


async def test_reasoning_is_counted_as_part_of_the_output():
    made, _ = await answer_of("responses", Reply(input=100, cached=60, written=8, output=50, reasoning=40))
    assert made.tokens == Tokens(input=100, cached=60, written=8, output=50, reasoning=40)


async def test_a_dialogue_of_another_format_goes_on_in_this_one():
    made, _ = await answer_of("anthropic", Reply(text="so", thinking="hm", calls=CALLS[:1]))
    _, asked = await answer_of("responses", Reply(), followed(ASKED, made.turn, note="go on"))
    said, called, result, note = asked.later
    assert said == {"role": "assistant", "content": "so"}
    assert (called["call_id"], called["name"]) == (result["call_id"], "check")
    assert note == {"role": "user", "content": "go on"}


async def test_breakpoints_move_with_the_dialogue_and_never_exceed_four():
    request = ASKED
    for number in range(4):
        answer = ModelTurn(calls=(ToolCall(id=f"c{number}", name="check", arguments="{}"),))
        request = followed(request, answer)
    _, asked = await answer_of("anthropic", Reply(), request)
    assert str(asked.body).count("ephemeral") <= 4
    users = [message for message in asked.body["messages"] if message["role"] == "user"]
    marked = ["cache_control" in str(message) for message in users[1:]]
    assert marked == [False, False, True, True]


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_malformed_arguments_are_the_tools_business(name):
    made, _ = await answer_of(name, Reply(calls=[("check", '{"source": ')]))
    assert made.calls[0].arguments == '{"source": '
    _, asked = await answer_of(name, Reply(), followed(ASKED, made.turn))
    assert "result of check" in str(asked.later)


@pytest.mark.parametrize(("name", "documented"), [
    ("anthropic", MessageCreateParamsStreaming),
    ("responses", ResponseCreateParamsStreaming),
    ("local", CompletionCreateParamsStreaming),
])  # fmt: skip
async def test_what_is_sent_has_the_shape_that_the_sdk_documents(name, documented):
    request = ASKED.model_copy(update={"effort": "high"})
    for note in ("", "2 turns left"):
        made, _ = await answer_of(name, Reply(text="so", thinking="hm", calls=CALLS), request)
        request = followed(request, made.turn, note=note)
    _, asked = await answer_of(name, Reply(), request)
    checked = TypeAdapter(documented).validate_python(asked.body)
    assert checked.keys() == asked.body.keys(), "no field that the SDK does not know"
    blocks = [block for message in asked.later for block in message.get("content") or ()]
    for block in blocks if name == "anthropic" else ():
        TypeAdapter(BLOCKS[block["type"]]).validate_python(block)


async def test_thinking_that_the_service_hides_is_returned_too():
    hidden = {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}
    with LlmServer(lambda _: Reply()) as server:
        async with endpoint("anthropic", server) as provider:
            answer = PartialAnswer()
            provider.take_event(answer, {"type": "content_block_start", "index": 0, "content_block": hidden})
            assert provider.native_answer(answer).items == (hidden,)


@pytest.mark.parametrize(("stop", "tools", "kind"), [
    ("pause_turn", TOOLS, None),
    ("pause_turn", (), FailureKind.INVALID),
    ("tool_use", (), FailureKind.INVALID),
    ("refusal", TOOLS, FailureKind.REFUSED),
    ("model_context_window_exceeded", TOOLS, FailureKind.TOO_LARGE),
    ("max_tokens", TOOLS, FailureKind.TRUNCATED),
])  # fmt: skip
async def test_stop_reasons_of_a_dialogue(stop, tools, kind):
    request = REQUEST.model_copy(update={"tools": tools})
    outcome, _, _ = await ask_once("anthropic", lambda _: Reply(stop=stop), request=request)
    assert (outcome.kind if isinstance(outcome, Failure) else None) == kind


async def test_a_paused_answer_goes_on_from_where_it_was():
    paused, _ = await answer_of("anthropic", Reply(text="half", stop="pause_turn"))
    step = DialogueStep(answer=paused.turn)
    _, asked = await answer_of("anthropic", Reply(), ASKED.model_copy(update={"dialogue": (step,)}))
    assert [message["role"] for message in asked.body["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    "refusal",
    [
        Refuse(400, "invalid_request_error", "tools: this model does not support tools"),
        Refuse(500, "server_error", "tools param requires --jinja flag"),  # of llama.cpp's server
    ],
    ids=["invalid", "llama.cpp"],
)
@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_server_that_takes_no_tools_is_told_of_them_in_words(name, refusal):
    def script(asked: Asked) -> Said:
        if "tools" in asked.body:
            return refusal
        return Reply(text='Fine.\n\n```json\n{"tool": "check", "arguments": {"source": "v0"}}\n```\n')

    outcome, _, server = await ask_once(name, script, request=ASKED)
    assert isinstance(outcome, Completion)
    assert [(call.name, call.arguments) for call in outcome.calls] == [("check", '{"source": "v0"}')]
    assert "`check`: Check a kernel." in server.asked[-1].guide


async def test_thinking_that_a_model_does_not_know_is_left_out_once_and_for_all():
    def script(asked: Asked) -> Said:
        if "thinking" in asked.body:
            return Refuse(400, "invalid_request_error", "thinking: adaptive is not supported by this model")
        return Reply(calls=CALLS[:1])

    outcome, _, server = await ask_once("anthropic", script, request=ASKED)
    assert isinstance(outcome, Completion)
    assert ["thinking" in asked.body for asked in server.asked] == [True, False]


@pytest.mark.parametrize("ending", ["cut", "eof", "error", "no_stop"])
@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_stream_that_breaks_between_calls_is_no_answer(name, ending):
    outcome, _, _ = await ask_once(name, lambda _: Reply(calls=CALLS, ending=ending), request=ASKED)
    assert isinstance(outcome, Failure)


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"tool": "check", "arguments": {"source": "v0"}}\n```',
        '<tool_call>\n{"name": "check", "arguments": {"source": "v0"}}\n</tool_call>',
        '{"name": "check", "parameters": {"source": "v0"}}',
        'First this.\n```tool\n[{"function": "check", "args": {"source": "v0"}}]\n```\nThen that.',
    ],
)
def test_calls_are_read_from_text_however_models_write_them(text):
    assert [(call.name, call.arguments) for call in parse_calls(text)] == [("check", '{"source": "v0"}')]


@pytest.mark.parametrize("text", ["", "```python\nx = 1\n```", '{"a": 1}', "```json\n{broken\n```"])
def test_other_texts_are_no_calls(text):
    assert parse_calls(text) == ()


def test_words_keep_what_was_called_and_what_came_of_it():
    answer = ModelTurn(text="I look.", calls=(ToolCall(id="a", name="check", arguments='{"source": "v0"}'),))
    told = put_in_words(followed(ASKED, answer, note="go on"))
    (step,) = told.dialogue
    assert (told.tools, step.results) == ((), ())
    assert [(one.name, one.arguments) for one in parse_calls(step.answer.text)] == [
        ("check", '{"source": "v0"}')
    ]
    assert step.note == "Result of `check`:\nresult of check\n\ngo on"


def test_all_that_is_sent_counts_towards_the_reservation():
    def bound(**changes: Any) -> int:
        return bound_request_tokens(REQUEST.model_copy(update=changes))

    answer = ModelTurn(calls=(ToolCall(id="a", name="check", arguments="x" * 1000),))
    step = DialogueStep(answer=answer, results=(ToolResult(id="a", text="y" * 1000),), note="z" * 1000)
    assert bound(dialogue=(step,)) > bound() + 3000
    assert bound(tools=TOOLS) > bound()


def test_requests_without_tools_are_stored_as_before():
    assert REQUEST.model_dump(mode="json").keys() == {"model", "guide", "case", "max_output_tokens", "effort"}
