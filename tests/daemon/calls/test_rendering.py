"""Requests: what endpoints may cache, what fits, and that the log gives back what was sent."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.prompting import TextLifetime, builtin_prompts
from agent_core.providers.completion import AnswerSchema, CompletionRequest, PromptPart
from agent_core.providers.windows import ModelWindow, estimate_tokens
from agent_core.roles.ask_protocol import TokenBudget
from daemon.calls.request_rendering import (
    TokenBounds,
    dump_request,
    load_request,
    render_request,
    shared_prefix,
)
from state.model import LlmConfig, digest_of

ROLES = tuple(builtin_prompts().manifest.roles)
WIDE = TokenBounds(input=60_000, output=1_000)


def filling(rooms: list[TokenBudget] | None = None):
    """Fill every value of a role with its name; note the room that there was."""

    def fill(role: str):
        def filled(room: TokenBudget) -> dict[str, str]:
            if rooms is not None:
                rooms.append(room)
            return {name: f"the {name}" for name in room.prompts.manifest.roles[role].values}

        return filled

    return fill


def render_role(role: str, rooms: list[TokenBudget] | None = None, **more) -> CompletionRequest:
    plain = {"model": "m", "bounds": WIDE, "effort": None}
    return render_request(builtin_prompts(), role, "trn2", filling(rooms)(role), **(plain | more))


@pytest.mark.parametrize("role", ROLES)
def test_a_prompt_is_whole_and_in_order(role):
    request = render_role(role, effort="low")
    values = {name: f"the {name}" for name in builtin_prompts().manifest.roles[role].values}
    blocks = [one.text for one in builtin_prompts().render_role(role, "trn2", values) if one.text.strip()]
    texts = [part.text for part in (*request.guide, *request.case)]
    assert [text.rstrip("\n") for text in texts] == [text.rstrip("\n") for text in blocks]
    assert (request.model, request.max_output_tokens, request.effort) == ("m", 1_000, "low")
    assert request.guide
    assert request.case


@pytest.mark.parametrize("role", ROLES)
def test_what_may_be_cached_ends_where_something_changes_more_often(role):
    """At most four places: as many as the endpoint with the fewest takes."""
    request = render_role(role)
    values = {name: f"the {name}" for name in builtin_prompts().manifest.roles[role].values}
    blocks = [one for one in builtin_prompts().render_role(role, "trn2", values) if one.text.strip()]
    cached = [part.cached for part in (*request.guide, *request.case)]
    changes = [before.lasts < after.lasts for before, after in pairwise(blocks)]
    assert cached == [*changes, False]
    assert 1 <= sum(cached) <= 4
    assert all(block.lasts <= TextLifetime.ROUND for block in blocks[: len(request.guide)])


def test_values_have_the_room_that_the_words_leave_or_a_share_of_it():
    rooms: list[TokenBudget] = []
    render_role("planner", rooms)
    render_role("planner", rooms, share=0.5)
    words = sum(estimate_tokens(block.text) for block in builtin_prompts().role_blocks("planner", "trn2"))
    assert rooms[0].tokens == WIDE.input - words
    assert rooms[1].tokens == pytest.approx(rooms[0].tokens / 2, abs=1)
    render_role("planner", rooms, bounds=TokenBounds(input=10, output=10))
    assert rooms[2].tokens == 0


@pytest.mark.parametrize(
    ("window", "config", "bounds"),
    [
        (ModelWindow(context=200_000, output=64_000), LlmConfig(), TokenBounds(64_000, 16_000)),
        (ModelWindow(context=32_768, output=8_192), LlmConfig(), TokenBounds(24_576, 8_192)),
        (ModelWindow(context=8_000, output=8_000), LlmConfig(), TokenBounds(4_000, 4_000)),
        (
            ModelWindow(context=200_000, output=64_000),
            LlmConfig(max_output_tokens=500),
            TokenBounds(64_000, 500),
        ),
    ],
)
def test_prompt_and_answer_share_the_window(window, config, bounds):
    assert TokenBounds.from_window(window, config) == bounds


PARTS = st.lists(st.builds(PromptPart, text=st.text(max_size=30), cached=st.booleans()), max_size=4)


@given(guide=PARTS, case=PARTS, effort=st.sampled_from([None, "low", "high"]))
def test_the_log_gives_back_what_was_sent(guide, case, effort):
    request = CompletionRequest(
        model="a/b:c", guide=tuple(guide), case=tuple(case), max_output_tokens=7, effort=effort
    )
    data, texts = dump_request(request)
    held = {digest_of(text): text for text in texts}
    assert load_request(data, held.__getitem__) == request
    assert all(text.decode() not in data.decode() for text in texts if len(text) > 20)


def test_what_questions_share_goes_up_to_the_last_cached_part_of_the_guide():
    def asked(*guide: tuple[str, bool], model: str = "m") -> CompletionRequest:
        parts = tuple(PromptPart(text=text, cached=cached) for text, cached in guide)
        return CompletionRequest(model=model, guide=parts, case=(PromptPart(text="x"),), max_output_tokens=1)

    one = shared_prefix(asked(("a", True), ("b", True), ("c", False)))
    assert one == shared_prefix(asked(("a", False), ("b", True), ("d", False)))
    assert one[0] != shared_prefix(asked(("a", True), ("c", True)))[0]
    assert one[0] != shared_prefix(asked(("a", True), ("b", True), model="n"))[0]
    assert shared_prefix(asked(("a", False)))[1] == 0


def test_the_form_of_an_answer_is_stored_once_and_keeps_the_order_of_its_keys():
    form = AnswerSchema(name="plan", text='{"b": 1, "a": 2}')
    requests = [render_role("planner", model=name).model_copy(update={"answer": form}) for name in "mn"]
    dumped = [dump_request(one) for one in requests]
    held = {digest_of(text): text for _, texts in dumped for text in texts}
    assert form.text.encode() in held.values()
    assert [load_request(data, held.__getitem__) for data, _ in dumped] == requests
    assert form.text in list(requests[0].texts())
    assert all(form.text.encode() not in data for data, _ in dumped)
