"""Reads an answer's headers: rate limits, when to retry, and the request id.

The header names of both vendors are read from any endpoint, because gateways and self-hosted servers use
either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from agent_core.providers.completion import RateLimits

_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_SPAN_SECONDS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)

REQUEST_IDS = ("request-id", "x-request-id")


def rate_limits(headers: Mapping[str, str], now: datetime) -> RateLimits | None:
    """Return the rate limits in the headers, None if there are none; `now` is when the headers came.

    Of several token limits, the one that counts input and output together is used.
    """
    requests, tokens = (
        _read_limit(headers, (f"anthropic-ratelimit-{a}-{{}}", f"x-ratelimit-{{}}-{b}"), now)
        for a, b in (("requests", "requests"), ("tokens", "tokens"))
    )
    if tokens == _NO_LIMIT:
        tokens = _read_limit(headers, ("anthropic-ratelimit-input-tokens-{}",), now)
    if requests == _NO_LIMIT and tokens == _NO_LIMIT:
        return None
    return RateLimits(
        requests=requests[0],
        requests_limit=requests[1],
        requests_reset_seconds=requests[2],
        tokens=tokens[0],
        tokens_limit=tokens[1],
        tokens_reset_seconds=tokens[2],
    )


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return how many seconds the endpoint asks to wait, without a limit; None if it does not ask.

    A date is compared with the endpoint's own clock if the answer shows it, else with `now`.
    """
    if (millis := _parse_number(headers.get("retry-after-ms"))) is not None:
        return max(0.0, millis / 1000.0)
    text = headers.get("retry-after")
    if (seconds := _parse_number(text)) is not None:
        return max(0.0, seconds)
    date = _parse_http_date(text)
    if date is None:
        return None
    return max(0.0, (date - (_parse_http_date(headers.get("date")) or now)).total_seconds())


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the endpoint's id for the answer, which its support staff needs to find it."""
    found = (headers.get(name) for name in REQUEST_IDS)
    return next((text for text in found if text), None)


_Limit = tuple[int | None, int | None, float | None]
_NO_LIMIT: _Limit = (None, None, None)


def _read_limit(headers: Mapping[str, str], names: tuple[str, ...], now: datetime) -> _Limit:
    """Return remaining, limit and seconds until reset, from the first header name with a value."""
    for name in names:
        found = (
            _parse_count(headers.get(name.format("remaining"))),
            _parse_count(headers.get(name.format("limit"))),
            _seconds_until_reset(headers.get(name.format("reset")), now),
        )
        if found != _NO_LIMIT:
            return found
    return _NO_LIMIT


def _parse_count(text: str | None) -> int | None:
    number = _parse_number(text)
    return None if number is None else max(0, int(number))


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seconds_until_reset(text: str | None, now: datetime) -> float | None:
    """Return the seconds until a reset: a time (RFC 3339), a span such as "6m0s" or "120ms", or a number."""
    if not text:
        return None
    if (seconds := _parse_number(text)) is not None:
        return max(0.0, seconds)
    if span := _SPAN.fullmatch(text.strip()):
        return sum(
            float(part) * unit for part, unit in zip(span.groups(), _SPAN_SECONDS, strict=True) if part
        )
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return max(0.0, (_assume_utc(time) - now) / timedelta(seconds=1))


def _parse_http_date(text: str | None) -> datetime | None:
    try:
        return _assume_utc(parsedate_to_datetime(text)) if text else None
    except ValueError:
        return None


def _assume_utc(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
