"""Renders a role's prompt into a request, and stores requests so that they can be sent again unchanged.

The log holds a request as JSON that names its texts by digest, so text that many requests share is
stored once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from agent_core.prompting import PromptBlock, PromptSet, TextLifetime
from agent_core.providers.completion import CompletionRequest, Effort, PromptPart
from agent_core.providers.windows import ModelWindow, estimate_tokens
from agent_core.roles.ask_protocol import FillPrompt, TokenBudget
from state.model import LlmConfig, canonical_json, digest_of


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """How many tokens a prompt and an answer may have, for one model under one configuration."""

    input: int
    output: int

    @classmethod
    def from_window(cls, window: ModelWindow, config: LlmConfig) -> TokenBounds:
        """Return the bounds: an answer gets at most half of the model's context, a prompt the rest."""
        output = min(config.max_output_tokens, window.output, window.context // 2)
        return cls(input=min(config.max_input_tokens, window.context - output), output=output)


def render_request(
    prompts: PromptSet,
    role: str,
    target: str,
    fill: FillPrompt,
    *,
    model: str,
    bounds: TokenBounds,
    effort: Effort | None,
    share: float = 1.0,
) -> CompletionRequest:
    """Return a role's prompt as a request; its values get `share` of the room that the bounds leave.

    Raises:
        agent_core.roles.RoleError: a text that may not be left out is too large.
    """
    words = sum(estimate_tokens(block.text) for block in prompts.role_blocks(role, target))
    room = TokenBudget(
        target=target,
        tokens=max(0, int((bounds.input - words) * share)),
        count=estimate_tokens,
        prompts=prompts,
    )
    blocks = [block for block in prompts.render_role(role, target, fill(room)) if block.text.strip()]
    guide = list(takewhile(lambda block: block.lasts <= TextLifetime.ROUND, blocks[:-1]))
    parts = list(_split_parts(blocks))
    return CompletionRequest(
        model=model,
        guide=tuple(parts[: len(guide)]),
        case=tuple(parts[len(guide) :]),
        max_output_tokens=bounds.output,
        effort=effort,
    )


def _split_parts(blocks: list[PromptBlock]) -> Iterator[PromptPart]:
    """Yield blocks as parts; a part ends a cached prefix if the next block changes more often."""
    for number, block in enumerate(blocks):
        after = blocks[number + 1] if number + 1 < len(blocks) else None
        ends = after is not None and after.lasts > block.lasts
        yield PromptPart(text=block.text.rstrip("\n") + "\n\n", cached=ends)


def dump_request(request: CompletionRequest) -> tuple[bytes, tuple[bytes, ...]]:
    """Return a request as the log stores it: its JSON, and the texts that the JSON names by digest."""
    texts = tuple(part.text.encode() for part in (*request.guide, *request.case))
    named = iter(map(digest_of, texts))
    data = request.model_dump(mode="json")
    for part in (*data["guide"], *data["case"]):
        part["text"] = next(named)
    if request.answer is not None:
        schema = request.answer.text.encode()
        data["answer"]["text"] = digest_of(schema)
        texts += (schema,)
    for name in _LISTED:
        if name in data:
            listed = tuple(map(canonical_json, data[name]))
            data[name] = [digest_of(item) for item in listed]
            texts += listed
    return canonical_json(data), texts


_LISTED = ("tools", "dialogue")
"""Fields whose items are stored one by one: each request of a session has those of the one before."""


def load_request(data: bytes, read: Callable[[str], bytes]) -> CompletionRequest:
    """Read back what `dump_request` wrote."""
    fields: dict[str, Any] = json.loads(data)
    for part in (*fields["guide"], *fields["case"]):
        part["text"] = read(part["text"]).decode()
    for name in _LISTED:
        if name in fields:
            fields[name] = [json.loads(read(digest)) for digest in fields[name]]
    if "answer" in fields:
        fields["answer"]["text"] = read(fields["answer"]["text"]).decode()
    return CompletionRequest.model_validate(fields)


def shared_prefix(request: CompletionRequest) -> tuple[str, int]:
    """Return the prefix that a request shares with others of its round: its digest and estimated tokens."""
    texts: list[str] = []
    upto = 0
    for part in request.guide:
        texts.append(part.text)
        upto = len(texts) if part.cached else upto
    shared = "".join(texts[:upto])
    return hashlib.sha256(f"{request.model}\n{shared}".encode()).hexdigest(), estimate_tokens(shared)
