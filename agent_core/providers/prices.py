"""Prices of completions: vendors' list prices, from a package that needs no network, and the user's own.

An unknown price is None and never 0: a cap in dollars cannot be enforced then, and the code that holds the
cap must say so. A run freezes the prices it began with in its log, as `Price` values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agent_core.providers.registry import EndpointSettings, listed_address
from state.model import Price, TokenRates

__all__ = ["Price", "TokenRates", "parse_price_override", "price_of"]

CACHE_WRITE_RATIO = 1.25
"""The cost of tokens written to a cache, relative to plain input, if the user gives no price.

It is the largest ratio in both vendors' list prices in `genai-prices` 0.2.3, such as 2.5 to 2 for
claude-sonnet-4-5 and 2.5 to 2 for gpt-6-sol. Only caches of five minutes are requested.
"""

_USD = r"\d{1,6}(?:\.\d{1,9})?"
_OVERRIDE = re.compile(
    rf"(?P<endpoint>[a-z][a-z0-9_]*)/(?P<model>[^\s=]+)=(?P<input>{_USD})/(?P<cached>{_USD})/(?P<output>{_USD})"
)


def price_of(
    model: str,
    endpoint: str,
    *,
    settings: EndpointSettings | None = None,
    overrides: Mapping[str, Price] | None = None,
    at: datetime | None = None,
) -> Price | None:
    """Return the price of a model at an endpoint, None if it is unknown.

    `overrides` are the user's prices, by "ENDPOINT/MODEL", and come first. The list price is that of the
    vendor at the endpoint's address, at the time `at` (None: now). A server that is in no list, such as a
    self-hosted one, has no list price, whatever its models are called.

    Raises:
        agent_core.providers.registry.UnknownEndpoint: no endpoint has this name.
    """
    address = listed_address(endpoint, settings)
    if overrides is not None and (own := overrides.get(f"{endpoint}/{model}")) is not None:
        return own
    return _list_price(model, address, at or datetime.now(UTC))


def parse_price_override(text: str) -> tuple[str, Price]:
    """Parse a user's price "ENDPOINT/MODEL=INPUT/CACHED/OUTPUT", in US dollars per million tokens.

    Raises:
        ValueError: the text has another form; the message says what is expected.
    """
    found = _OVERRIDE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no price: ENDPOINT/MODEL=INPUT/CACHED/OUTPUT in US dollars per million tokens, "
            "such as local/qwen3-coder=0/0/0"
        )
    plain, cached, output = (float(found[name]) for name in ("input", "cached", "output"))
    written = plain * (1.0 if found["endpoint"] == "local" else CACHE_WRITE_RATIO)
    rates = TokenRates(input=plain, cached=cached, written=written, output=output)
    return f"{found['endpoint']}/{found['model']}", Price(rates=(rates,), source="configuration")


def _list_price(model: str, place: str, at: datetime) -> Price | None:
    from genai_prices import __version__, data_snapshot

    try:
        snapshot = data_snapshot.get_snapshot()
        provider, info = snapshot.find_provider_model(model, None, None, place)
    except LookupError:
        return None
    listed = info.get_prices(at)
    if listed.input_mtok is None or listed.output_mtok is None:
        return None
    source = f"genai-prices {__version__}: {provider.id}/{info.id}"
    starts = {0, *(start for field in _FIELDS for start in _tier_starts(getattr(listed, field)))}
    return Price(rates=tuple(_rates_above(listed, start) for start in sorted(starts)), source=source)


_FIELDS = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok")


def _tier_starts(listed: Any) -> list[int]:
    """Return the request sizes at which the tiers of a list price begin."""
    return [tier.start for tier in getattr(listed, "tiers", ())]


def _rates_above(listed: Any, above: int) -> TokenRates:
    """Return the rates of requests just larger than `above`."""
    plain, cached, written, output = (_rate_above(getattr(listed, field), above) for field in _FIELDS)
    assert plain is not None
    assert output is not None
    # Reading or writing a cache without a price of its own costs as much as plain input.
    return TokenRates(
        above=above,
        input=plain,
        cached=plain if cached is None else cached,
        written=plain if written is None else written,
        output=output,
    )


def _rate_above(listed: Any, above: int) -> float | None:
    if listed is None or not hasattr(listed, "tiers"):
        return None if listed is None else float(listed)
    price = listed.base
    for tier in listed.tiers:
        if tier.start <= above:
            price = tier.price
    return float(price)
