"""Refuses answers that repeat an example of their prompt: small models copy what they are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from agent_core.prompting import TextLifetime, builtin_prompts
from agent_core.roles.llm.blocks import AnswerFault
from state.model import FrozenModel

_SHORTEST = 40
"""Characters of a sentence that nobody writes twice by chance."""
_JSON_BLOCK = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r'"([^"<>]+)"')
_SENTENCE_END = re.compile(r"(?<=[.:;]) ")

M = TypeVar("M", bound=FrozenModel)


def require_own_words(reply: M, role: str) -> M:
    """Return an answer if no sentence of it is one of the examples in the role's prompt.

    Raises:
        AnswerFault: `copied_example`.
    """
    said = "\n".join(_list_texts(reply.model_dump(mode="json")))
    copied = next((one for one in list_example_sentences(role) if one in said), None)
    if copied is not None:
        message = f"it repeats an example of the task ({copied!r}): say what is so here"
        raise AnswerFault("copied_example", message)
    return reply


@cache
def list_example_sentences(role: str) -> tuple[str, ...]:
    """Return the sentences of the examples that a role is shown, whatever its target."""
    own = builtin_prompts()
    blocks = {
        block.text
        for target in own.manifest.targets
        for block in own.role_blocks(role, target)
        if block.lasts is TextLifetime.RELEASE
    }
    found = [sentence for text in blocks for sentence in _list_sentences(text)]
    return tuple(sorted({one for one in found if len(one) >= _SHORTEST and "<" not in one}))


def _list_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of JSON examples, and what stands in quotes elsewhere."""
    for block in _JSON_BLOCK.findall(text):
        for value in _list_texts(json.loads(block)):
            yield from _SENTENCE_END.split(value)
    yield from _QUOTED.findall(" ".join(_JSON_BLOCK.sub("", text).split()))


def _list_texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _list_texts(item)
        case list():
            for item in value:
                yield from _list_texts(item)
