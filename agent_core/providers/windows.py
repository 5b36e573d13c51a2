"""How much a model can be asked and can answer, in tokens, and how many tokens a text is.

Context windows come with the prices, where those are known; longest answers are in a table of model families
here. A server of one's own decides both when it is started, so the user says them. Tokenizers are not
shipped: a text's tokens are estimated from its letters, on the high side, and bounded by its bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from unicodedata import normalize

from pydantic import Field

from agent_core.providers.completion import CompletionRequest
from agent_core.providers.registry import endpoint_address
from state.model import FrozenModel

_OVERRIDE = re.compile(
    r"(?P<endpoint>[a-z]+)/(?P<model>[^\s=]+)=(?P<context>[1-9]\d{0,8})/(?P<output>[1-9]\d{0,8})"
)

LETTERS_PER_TOKEN = 2.1
"""Letters of a prompt that a token has at least.

This tree's prompts and kernels, cut by published tokenizers: 3.6 and 3.3 letters a token by `o200k_base` of
js-tiktoken, 3.3 and 2.8 by `@anthropic-ai/tokenizer` 0.0.4, which is that of early models. Anthropic says
that its models since Claude Opus 4.7 count the same text as about 30 % more: 2.8 / 1.3 is taken for all.
"""

WRAPPING_TOKENS = 64
"""What roles, separators and a service's own preamble add to the texts of a question, at most."""


class ModelWindow(FrozenModel):
    """Most tokens of question and answer together, and of the answer alone, hidden thinking included."""

    context: int = Field(ge=1)
    output: int = Field(ge=1)


UNKNOWN_WINDOW = ModelWindow(context=32_768, output=8_192)
"""What a model of which nothing is known is given: small, since too large fails and too small only costs."""

_FAMILIES: tuple[tuple[str, ModelWindow], ...] = (
    ("claude-3-5", ModelWindow(context=200_000, output=8_192)),
    ("claude-3-7", ModelWindow(context=200_000, output=64_000)),
    ("claude-3", ModelWindow(context=200_000, output=4_096)),
    ("claude-opus-4-0", ModelWindow(context=200_000, output=32_000)),
    ("claude-opus-4-1", ModelWindow(context=200_000, output=32_000)),
    ("claude-opus-4-2025", ModelWindow(context=200_000, output=32_000)),
    ("claude-sonnet-4-0", ModelWindow(context=200_000, output=64_000)),
    ("claude-sonnet-4-2025", ModelWindow(context=200_000, output=64_000)),
    ("claude-sonnet-4-5", ModelWindow(context=200_000, output=64_000)),
    ("claude-haiku-4-5", ModelWindow(context=200_000, output=64_000)),
    ("claude-opus-4-5", ModelWindow(context=200_000, output=64_000)),
    ("claude-", ModelWindow(context=200_000, output=128_000)),
    ("gpt-4o", ModelWindow(context=128_000, output=16_384)),
    ("gpt-4.1", ModelWindow(context=1_000_000, output=32_768)),
    ("gpt-4", ModelWindow(context=8_192, output=4_096)),
    ("gpt-oss", ModelWindow(context=131_072, output=32_768)),
    ("gpt-", ModelWindow(context=400_000, output=128_000)),
    ("o1", ModelWindow(context=128_000, output=32_768)),
    ("o3", ModelWindow(context=200_000, output=100_000)),
    ("o4", ModelWindow(context=200_000, output=100_000)),
)
"""By how a model's name begins, the first that fits. Contexts are the family's smallest.

Longest answers are the vendors' figures of November 2026 (platform.claude.com/docs/en/models, where 128 000
holds from Claude 4.6 to 5.5; platform.openai.com/docs/models); later models are taken for no smaller ones.
"""


def window_of(
    model: str,
    endpoint: str,
    *,
    base_url: str | None = None,
    overrides: Mapping[str, ModelWindow] | None = None,
) -> ModelWindow:
    """Return the model's window at the endpoint: the user's word, else what is known, else a small one.

    `overrides` are by "ENDPOINT/MODEL".

    Raises:
        agent_core.providers.registry.UnknownEndpoint: no endpoint has this name.
    """
    place = endpoint_address(endpoint, base_url)
    if overrides is not None and (own := overrides.get(f"{endpoint}/{model}")) is not None:
        return own
    name = model.lower().rpartition("/")[2]
    family = next((window for prefix, window in _FAMILIES if name.startswith(prefix)), UNKNOWN_WINDOW)
    if endpoint == "local":
        return UNKNOWN_WINDOW  # whatever its model is called, its memory decides
    context = _listed_context(model, place) or family.context
    return ModelWindow(context=context, output=min(family.output, context))


def parse_window_override(text: str) -> tuple[str, ModelWindow]:
    """Read the user's window "ENDPOINT/MODEL=CONTEXT/OUTPUT", in tokens.

    Raises:
        ValueError: it says something else, or no endpoint has this name; the message says what is expected.
    """
    found = _OVERRIDE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no window: ENDPOINT/MODEL=CONTEXT/OUTPUT in tokens, "
            "such as local/qwen3-coder=65536/16384"
        )
    endpoint_address(found["endpoint"])  # refuses a window that nothing would ever ask for
    window = ModelWindow(context=int(found["context"]), output=int(found["output"]))
    return f"{found['endpoint']}/{found['model']}", window


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text is, rather too many: letters beyond ASCII are a token each."""
    foreign = sum(1 for letter in text if letter > "\x7f") if not text.isascii() else 0
    return math.ceil((len(text) - foreign) / LETTERS_PER_TOKEN) + foreign


def bound_tokens(texts: Iterable[str]) -> int:
    """Return a number of tokens that a question of these texts does not exceed.

    Today's large models cut bytes into tokens, and no token is shorter than a byte; some first replace
    letters by others that look alike, which may be more (NFKC). For prompts it is over twice what they count.
    """
    return sum(map(_max_bytes, texts)) + WRAPPING_TOKENS


def bound_request_tokens(request: CompletionRequest) -> int:
    """Return the most input tokens that the request can be counted at, for what is reserved for it."""
    return bound_tokens(part.text for part in (*request.guide, *request.case))


def estimate_request_tokens(request: CompletionRequest) -> int:
    """Return about how many input tokens the request is, for limits of rates."""
    return sum(estimate_tokens(part.text) for part in (*request.guide, *request.case)) + WRAPPING_TOKENS


def _max_bytes(text: str) -> int:
    plain = len(text.encode(errors="surrogatepass"))
    return (
        plain if text.isascii() else max(plain, len(normalize("NFKC", text).encode(errors="surrogatepass")))
    )


def _listed_context(model: str, place: str) -> int | None:
    """Return the context window that the list of prices gives, where its maker serves the model."""
    from genai_prices import data_snapshot

    try:
        _, info = data_snapshot.get_snapshot().find_provider_model(model, None, None, place)
    except LookupError:
        return None
    return info.context_window
