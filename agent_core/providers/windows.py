"""Context windows: how many tokens a model can read and write, and how many tokens a text has.

Context windows come with the prices, if those are known; the longest answers are in a table of model families
here. For a self-hosted server both are set when it starts, so the user gives them. No tokenizer is included:
tokens are estimated from the number of characters, on the high side, and bounded by the number of bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from unicodedata import normalize

from pydantic import Field

from agent_core.providers.completion import CompletionRequest
from agent_core.providers.registry import SERVICES, EndpointSettings, find_service, listed_address
from state.model import FrozenModel

_OVERRIDE = re.compile(
    r"(?P<endpoint>[a-z][a-z0-9_]*)/(?P<model>[^\s=]+)=(?P<context>[1-9]\d{0,8})/(?P<output>[1-9]\d{0,8})"
)

_VENDOR_PREFIX = re.compile(r"^(?:(?:global|regional|us|eu|apac|au|jp|ca)\.)?(?:anthropic|openai)\.")
"""What Amazon Bedrock's names of models and inference profiles begin with."""

LETTERS_PER_TOKEN = 2.1
"""Characters of a prompt per token, at least.

Measured on this tree's prompts and kernels with published tokenizers: 3.6 and 3.3 characters a token with
`o200k_base` of js-tiktoken, 3.3 and 2.8 with `@anthropic-ai/tokenizer` 0.0.4, which is that of early models.
Anthropic says that its models since Claude Opus 4.7 count about 30 % more for the same text: 2.8 / 1.3 is
used for all.
"""

WRAPPING_TOKENS = 64
"""The most tokens that roles, separators and a service's own preamble add to a request."""


class ModelWindow(FrozenModel):
    """The most tokens of request and answer together, and of the answer alone, hidden thinking included."""

    context: int = Field(ge=1)
    output: int = Field(ge=1)


UNKNOWN_WINDOW = ModelWindow(context=32_768, output=8_192)
"""The window of an unknown model. It is small, because too large fails and too small only costs."""

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
    ("claude-", ModelWindow(context=1_000_000, output=128_000)),
    ("gpt-4o", ModelWindow(context=128_000, output=16_384)),
    ("gpt-4.1", ModelWindow(context=1_000_000, output=32_768)),
    ("gpt-4", ModelWindow(context=8_192, output=4_096)),
    ("gpt-oss", ModelWindow(context=131_072, output=32_768)),
    ("gpt-6", ModelWindow(context=1_000_000, output=128_000)),
    ("gpt-", ModelWindow(context=400_000, output=128_000)),
    ("o1", ModelWindow(context=128_000, output=32_768)),
    ("o3", ModelWindow(context=200_000, output=100_000)),
    ("o4", ModelWindow(context=200_000, output=100_000)),
)
"""By the beginning of a model's name; the first match counts. Contexts are the family's smallest.

Longest answers are the vendors' figures of November 2026 (platform.claude.com/docs/en/models, where 128 000
holds from Claude 4.6 to 5.5; platform.openai.com/docs/models). Later models are assumed to be no smaller.
"""


def window_of(
    model: str,
    endpoint: str,
    *,
    settings: EndpointSettings | None = None,
    overrides: Mapping[str, ModelWindow] | None = None,
) -> ModelWindow:
    """Return the model's window at the endpoint: the user's value, else the known one, else a small one.

    `overrides` are by "ENDPOINT/MODEL".

    Raises:
        agent_core.providers.registry.UnknownEndpoint: no endpoint has this name.
    """
    address = listed_address(endpoint, settings)
    if overrides is not None and (own := overrides.get(f"{endpoint}/{model}")) is not None:
        return own
    name = _VENDOR_PREFIX.sub("", model.lower().rpartition("/")[2])
    family = next((window for prefix, window in _FAMILIES if name.startswith(prefix)), UNKNOWN_WINDOW)
    context = _listed_context(model, address)
    if context is None and find_service(endpoint, settings) is SERVICES["compatible"]:
        return UNKNOWN_WINDOW  # depends on the server's memory, not on the model's name
    context = context or family.context
    return ModelWindow(context=context, output=min(family.output, context))


def parse_window_override(text: str) -> tuple[str, ModelWindow]:
    """Parse a user's window "ENDPOINT/MODEL=CONTEXT/OUTPUT", in tokens.

    Raises:
        ValueError: the text has another form; the message says what is expected.
    """
    found = _OVERRIDE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no window: ENDPOINT/MODEL=CONTEXT/OUTPUT in tokens, "
            "such as local/qwen3-coder=65536/16384"
        )
    window = ModelWindow(context=int(found["context"]), output=int(found["output"]))
    return f"{found['endpoint']}/{found['model']}", window


def estimate_tokens(text: str) -> int:
    """Estimate a text's tokens, on the high side; every character beyond ASCII counts as one token."""
    foreign = sum(1 for letter in text if letter > "\x7f") if not text.isascii() else 0
    return math.ceil((len(text) - foreign) / LETTERS_PER_TOKEN) + foreign


def bound_tokens(texts: Iterable[str]) -> int:
    """Return an upper bound on the tokens of a request with these texts.

    Today's large models cut bytes into tokens, and no token is shorter than a byte. Some first replace
    characters by compatible ones (NFKC), which may be longer. For prompts the bound is over twice the real
    count.
    """
    return sum(map(_max_bytes, texts)) + WRAPPING_TOKENS


def bound_request_tokens(request: CompletionRequest) -> int:
    """Return the most input tokens that the request can count as, to reserve budget for it."""
    return bound_tokens(request.texts())


def estimate_request_tokens(request: CompletionRequest) -> int:
    """Estimate the request's input tokens, for rate limits."""
    return sum(map(estimate_tokens, request.texts())) + WRAPPING_TOKENS


def _max_bytes(text: str) -> int:
    plain = len(text.encode(errors="surrogatepass"))
    return (
        plain if text.isascii() else max(plain, len(normalize("NFKC", text).encode(errors="surrogatepass")))
    )


def _listed_context(model: str, place: str) -> int | None:
    """Return the context window in the price list, if the model's maker serves it."""
    from genai_prices import data_snapshot

    try:
        _, info = data_snapshot.get_snapshot().find_provider_model(model, None, None, place)
    except LookupError:
        return None
    return info.context_window
