"""The forms of answers: schemas that every service takes, and answers that come in them."""

from __future__ import annotations

import json

import pytest

from agent_core.roles.llm import LlmRoles
from tests.support.role_requests import Answers, Blobs, evaluation_of, plan_reply


async def ask_role(role: str, answer: str) -> tuple[object, Answers]:
    """Return what a role makes of an answer, and what it was asked."""
    held, ask = Blobs(), Answers([answer])
    roles = LlmRoles("local", ask)
    if role == "planner":
        return await roles.plan(held.plan_request(), held.read), ask
    if role == "summarizer":
        return await roles.summarize(held.summarize_request("def kernel(): ..."), held.read), ask
    return await roles.reflect(held.reflect_request(evaluation_of()), held.read), ask


EXPERIENCE = {
    "found": True,
    "title": "load once",
    "strategy": "Load in front of the loop.",
    "before": "for i: load(w)",
    "after": "load(w); for i: use(w)",
    "applies_when": "The loads bound it.",
}
WHOLE = {
    "planner": {"reasoning": "It waits for loads.", **plan_reply(), "invented": None},
    "summarizer": EXPERIENCE,
    "reflector": {"lesson": "The loads were hidden behind the products already."},
}
"""An answer of each role with every key of its form."""


@pytest.mark.parametrize("role", WHOLE)
async def test_a_form_is_what_all_services_take_and_answers_in_it_are_read(role):
    _, ask = await ask_role(role, json.dumps(WHOLE[role]))  # alone, without a fence
    schema = ask.forms[0].load()
    assert list(schema["properties"]) == list(WHOLE[role])  # what explains the rest comes first
    pending, seen = [schema], 0
    while pending:
        one = pending.pop()
        assert one.keys() <= {"type", "properties", "required", "additionalProperties", "items", "anyOf"}
        if one.get("type") == "object":
            seen += 1
            assert one["required"] == list(one["properties"])
            assert one["additionalProperties"] is False
        pending += [*one.get("properties", {}).values(), *one.get("anyOf", ())]
        pending += [one["items"]] if "items" in one else []
    assert seen == {"planner": 3}.get(role, 1)  # a plan has a prediction, and may have a new technique


async def test_roles_that_write_kernels_are_told_no_form():
    held, ask = Blobs(), Answers(["```python\ndef kernel(a):\n    return a\n```"] * 2)
    with pytest.raises(Exception, match="does not define"):
        await LlmRoles("local", ask).implement(held.implement_request(), held.read)
    assert ask.forms == [None, None]
