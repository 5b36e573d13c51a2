"""Tools on the wire: calls, results, thinking blocks, breakpoints, and models that take no tools."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.providers.completion import (
    Completion,
    CompletionRequest,
    DialogueStep,
    ModelTurn,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from agent_core.providers.failures import Failure, FailureKind
from agent_core.providers.text_tools import parse_calls, put_in_words
from agent_core.providers.windows import bound_request_tokens
from tests.agent_core.providers.provider_calls import ENDPOINTS, REQUEST, ask_once
from tests.support.llm_server import Asked, Refuse, Reply, Said

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
    sent = str(asked.body["messages"])
    for call in made.calls:
        assert sent.count(call.id) == 2, "once as a call, once as a result"
        assert f"result of {call.name}" in sent
    assert "2 turns left" in sent


async def test_thinking_blocks_are_returned_unchanged():
    made, _ = await answer_of("anthropic", Reply(text="so", thinking="hm", calls=CALLS[:1]))
    _, asked = await answer_of("anthropic", Reply(), followed(ASKED, made.turn))
    blocks = asked.body["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "hm", "signature": "signed"}
    assert blocks[-1]["input"] == {"source": "v0"}
    assert asked.body["thinking"] == {"type": "adaptive"}


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
    assert "result of check" in str(asked.body["messages"])


@pytest.mark.parametrize(("stop", "tools", "kind"), [
    ("pause_turn", TOOLS, None),
    ("pause_turn", (), FailureKind.INVALID),
    ("tool_use", (), FailureKind.INVALID),
    ("refusal", TOOLS, FailureKind.REFUSED),
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


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_server_that_takes_no_tools_is_told_of_them_in_words(name):
    def script(asked: Asked) -> Said:
        if "tools" in asked.body:
            return Refuse(400, "invalid_request_error", "tools: this model does not support tools")
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
