"""Classifies the error bodies of endpoints, and decides what of them may be logged.

Services name the same failure differently and give it different statuses: a spending limit comes as 402, 429
or 400, a prompt that is too long as 413 or 400. Codes in the body decide before the status. Words of the
message decide only if neither says anything. A logged failure is short and contains no keys and no part of
the prompt, which servers like to repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_core.providers.completion import CompletionRequest
from agent_core.providers.failures import FailureKind
from agent_core.providers.keys import Secret, redact

MOST_LETTERS = 300
_OVERLAP = 24
"""A stretch of this many characters that also occurs in the prompt counts as repeated from it."""

_CODES: Mapping[FailureKind, frozenset[str]] = {
    FailureKind.SPEND_LIMIT: frozenset(
        {
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "contract_spend_limit_reached",
            "enforced_spend_limit_reached",
            "insufficient_balance",
            "insufficient_credits",
            "insufficient_quota",
            "linked_organization_billing_unavailable",
            "linked_organization_spend_limit_reached",
            "spend_limit_reached",
        }
    ),
    FailureKind.TOO_LARGE: frozenset(
        {
            "context_length_exceeded",
            "exceed_context_size_error",
            "request_body_too_large_after_decoding",
            "request_too_large",
            "string_above_max_length",
        }
    ),
    FailureKind.REFUSED: frozenset(
        {
            "bio_policy",
            "content_filter",
            "content_policy_violation",
            "invalid_prompt",
            "misalignment_policy_violation",
            "moderation_blocked",
        }
    ),
    FailureKind.AUTH: frozenset(
        {
            "accessdeniedexception",
            "authentication_error",
            "expiredtokenexception",
            "invalid_api_key",
            "model_not_found",
            "not_found_error",
            "organization_on_hold",
            "permission_error",
            "resourcenotfoundexception",
            "unrecognizedclientexception",
        }
    ),
    FailureKind.OVERLOADED: frozenset(
        {
            "engine_overloaded",
            "modelnotreadyexception",
            "overloaded_error",
            "serviceunavailableexception",
            "slow_down",
        }
    ),
    FailureKind.RATE: frozenset(
        {
            "ramp_limit_exceeded",
            "rate_limit_error",
            "rate_limit_exceeded",
            "requests",
            "servicequotaexceededexception",
            "throttlingexception",
            "tokens",
        }
    ),
    FailureKind.SERVER: frozenset(
        {
            "api_error",
            "conflict_error",
            "internal_server_error",
            "internalserverexception",
            "modelerrorexception",
            "modelstreamerrorexception",
            "server_error",
        }
    ),
    FailureKind.TRANSPORT: frozenset({"modeltimeoutexception", "timeout_error"}),
    FailureKind.INVALID: frozenset({"invalid_request_error", "validationexception"}),
}
"""Codes and types of errors in small letters; the first kind that matches decides."""

_STATUSES: Mapping[int, FailureKind] = {
    401: FailureKind.AUTH,
    402: FailureKind.SPEND_LIMIT,
    403: FailureKind.AUTH,
    404: FailureKind.AUTH,  # no such model, no access, or no such URL: only a person can fix it
    408: FailureKind.TRANSPORT,
    409: FailureKind.SERVER,
    413: FailureKind.TOO_LARGE,
    425: FailureKind.TRANSPORT,
    429: FailureKind.RATE,
    503: FailureKind.OVERLOADED,
    529: FailureKind.OVERLOADED,
}

_WORDS: tuple[tuple[re.Pattern[str], FailureKind], ...] = (
    (
        re.compile(
            r"credit balance|usage limits?\b.*regain|exceeded your current quota|spend(?:ing)? limit"
            r"|billing (?:hard )?limit|insufficient (?:balance|credits|quota|funds)",
            re.IGNORECASE | re.DOTALL,
        ),
        FailureKind.SPEND_LIMIT,
    ),
    (
        re.compile(
            r"prompt is too long|maximum context length|context[ _](?:length|window|size|limit)"
            r"|(?:input|prompt|request) (?:is |was )?too (?:long|large)|max_model_len"
            r"|longer than the maximum model length|exceed the configured limit",
            re.IGNORECASE,
        ),
        FailureKind.TOO_LARGE,
    ),
)
"""Words of messages without codes. Spending limits count under any status, sizes under `_SIZED` only."""
_SIZED = frozenset({200, 400, 413, 422, 500})
_NEVER_FITS = re.compile(r"request too large for", re.IGNORECASE)
"""A request above a whole minute's limit is refused as too fast, but waiting does not help."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An endpoint's error: its codes, from all levels of the body, and its message; empty if missing."""

    codes: frozenset[str]
    message: str
    parameter: str | None = None


def parse_error_body(body: object) -> ErrorBody:
    """Parse an error's body. Text that is not JSON is ignored, because it cannot be trusted."""
    if isinstance(body, bytes | str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            body = None
    outer: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    error: Mapping[str, Any] = outer["error"] if isinstance(outer.get("error"), Mapping) else outer
    details = error.get("details")
    said = [error.get("type"), error.get("code")]
    if isinstance(details, Mapping):
        said.append(details.get("error_code"))
    if error is not outer:
        said.append(outer.get("code"))
    texts = (error.get("message"), outer.get("error"), outer.get("detail"), _join_faults(outer.get("detail")))
    message = next((text for text in texts if isinstance(text, str)), "")
    parameter = error.get("param")
    return ErrorBody(
        codes=frozenset(code.lower() for code in said if isinstance(code, str)),
        message=message,
        parameter=parameter if isinstance(parameter, str) else None,
    )


def _join_faults(details: object) -> str | None:
    """Return the faults of a request's fields, as servers built with FastAPI list them."""
    said = [
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
        for one in (details if isinstance(details, list) else ())
        if isinstance(one, Mapping) and isinstance(one.get("loc"), list) and isinstance(one.get("msg"), str)
    ]
    return "; ".join(said) or None


def classify_error(status: int, refusal: ErrorBody) -> FailureKind:
    """Return the kind of an error with this status (200: an error in the middle of an answer)."""
    for kind in (FailureKind.SPEND_LIMIT, FailureKind.TOO_LARGE, FailureKind.REFUSED):
        if refusal.codes & _CODES[kind]:
            return kind
    for pattern, kind in _WORDS:
        if (kind is FailureKind.SPEND_LIMIT or status in _SIZED) and pattern.search(refusal.message):
            return kind
    if status == 429 and _NEVER_FITS.search(refusal.message):
        return FailureKind.TOO_LARGE
    if 300 <= status < 400:
        return FailureKind.AUTH  # the address has moved: only a person can change it
    if status in _STATUSES:
        return _STATUSES[status]
    for kind, codes in _CODES.items():
        if refusal.codes & codes:
            return kind
    return FailureKind.SERVER if status >= 500 or status < 300 else FailureKind.INVALID


def redact_message(text: str, secrets: Iterable[Secret | None], request: CompletionRequest) -> str:
    """Return a text that may be logged: short, one line, without keys and without the prompt."""
    line = " ".join(redact(text[: 8 * MOST_LETTERS], *secrets).split())
    prompt = " ".join(" ".join(request.texts()).split())
    kept: list[str] = []
    at = 0
    while at < len(line) and len(kept) <= MOST_LETTERS:
        if line[at] != " " and at + _OVERLAP <= len(line) and line[at : at + _OVERLAP] in prompt:
            at = _end_of_repeat(line, at, prompt)
            kept.append("[prompt]")
        else:
            kept.append(line[at])
            at += 1
    shown = "".join(kept)
    return shown if len(shown) <= MOST_LETTERS else shown[: MOST_LETTERS - 3] + "..."


def _end_of_repeat(line: str, at: int, prompt: str) -> int:
    """Return the end of the stretch that starts at `at` and also occurs in the prompt."""
    end = at + _OVERLAP
    while end < len(line) and line[end - _OVERLAP + 1 : end + 1] in prompt:
        end += 1
    return end - 1 if line[end - 1] == " " else end
