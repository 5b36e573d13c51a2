"""The accounting of model calls: tokens, prices, amounts, and what a log knows of one call."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from state.model.base import Digest, FrozenModel, is_empty

Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MILLION = 1_000_000
USD_DIGITS = 9
"""Amounts are whole billionths of a dollar, so that sums do not depend on the order of addition."""


def round_usd(amount: float) -> float:
    """Return an amount of money, rounded as it is stored."""
    return round(amount, USD_DIGITS)


def round_seconds(amount: float) -> float:
    """Return a time in seconds, rounded to whole microseconds as it is stored."""
    return round(amount, 6)


class Tokens(FrozenModel):
    """An answer's token counts. `input` includes `cached` (read from a cache) and `written` (to a cache).

    `output` includes `reasoning`, the tokens of thoughts that are not shown, where they are counted apart.
    They are `estimated`, on the high side, where the endpoint counted nothing.
    """

    input: int = Field(default=0, ge=0)
    cached: int = Field(default=0, ge=0)
    written: int = Field(default=0, ge=0)
    output: int = Field(default=0, ge=0)
    reasoning: int = Field(default=0, ge=0, exclude_if=is_empty)
    estimated: bool = Field(default=False, exclude_if=is_empty)

    @property
    def total(self) -> int:
        """All tokens, input and output."""
        return self.input + self.output


class ModelTraits(FrozenModel):
    """What was learnt of a model at an endpoint by asking it.

    `refused` are the fields of a request that its server does not take, `uncounted` says that its streams
    have no counts of tokens. `first_token_seconds` is how long an answer may take to begin; None: the usual.
    """

    refused: tuple[str, ...] = ()
    uncounted: bool = False
    first_token_seconds: float | None = None


class LearntTraits(FrozenModel):
    """A model's traits as the log has them: at which address, and on which day (UTC) they were learnt."""

    address: str
    day: str
    traits: ModelTraits


class TokenRates(FrozenModel):
    """US dollars per million tokens. `cached` is for tokens read from a cache, `written` for those written.

    They apply to requests whose whole input has more than `above` tokens.
    """

    above: int = Field(default=0, ge=0)
    input: Usd
    cached: Usd
    written: Usd
    output: Usd


class Price(FrozenModel):
    """The price of a model's tokens, with rates by rising request size; `source` names the price's origin."""

    rates: tuple[TokenRates, ...] = Field(min_length=1)
    source: str

    def cost(self, tokens: Tokens) -> float:
        """Return the cost of an answer with these token counts, in US dollars."""
        holding = [rates for rates in self.rates if tokens.input > rates.above]
        rates = holding[-1] if holding else self.rates[0]
        plain = max(0, tokens.input - tokens.cached - tokens.written)
        return (
            plain * rates.input
            + tokens.cached * rates.cached
            + tokens.written * rates.written
            + tokens.output * rates.output
        ) / MILLION

    def max_cost(self, input_tokens: int, output_tokens: int) -> float:
        """Return the most that a request with at most these token counts can cost, in US dollars.

        This is the worst case: nothing or everything is read from a cache or written to one, and the answer
        is as long as allowed.
        """
        reached = [rates for rates in self.rates if rates.above == 0 or input_tokens > rates.above]
        return max(
            (input_tokens * max(rates.input, rates.cached, rates.written) + output_tokens * rates.output)
            / MILLION
            for rates in reached
        )


class Resource(StrEnum):
    """The resources of a run or a day that have a cap."""

    USD = "usd"
    TOKENS = "tokens"
    CALLS = "calls"
    SECONDS = "seconds"
    DEVICE_SECONDS = "device_seconds"
    DAY_USD = "day_usd"
    DAY_TOKENS = "day_tokens"
    DAY_CALLS = "day_calls"
    DAY_SECONDS = "day_seconds"
    DAY_DEVICE_SECONDS = "day_device_seconds"


class Amount(FrozenModel):
    """Money, tokens, calls and time together; `usd` is 0 if the price is unknown.

    `seconds` are those in which runs were in progress, `device_seconds` those on devices.
    """

    usd: Usd = 0.0
    tokens: int = Field(default=0, ge=0)
    calls: int = Field(default=0, ge=0)
    seconds: Seconds = 0.0
    device_seconds: Seconds = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            usd=round_usd(self.usd + other.usd),
            tokens=self.tokens + other.tokens,
            calls=self.calls + other.calls,
            seconds=round_seconds(self.seconds + other.seconds),
            device_seconds=round_seconds(self.device_seconds + other.device_seconds),
        )

    def __sub__(self, other: Amount) -> Amount:
        """Return the difference; no part goes below 0."""
        return Amount(
            usd=max(0.0, round_usd(self.usd - other.usd)),
            tokens=max(0, self.tokens - other.tokens),
            calls=max(0, self.calls - other.calls),
            seconds=max(0.0, round_seconds(self.seconds - other.seconds)),
            device_seconds=max(0.0, round_seconds(self.device_seconds - other.device_seconds)),
        )


class ModelQuestion(FrozenModel):
    """What the log knows of one call of an effect in flight, over all its attempts.

    `request` is that of the last attempt. `held` is what is reserved for an attempt in flight, None if there
    is none. `failures` are the kinds of failed attempts, in order. Attempts lost in crashes count in
    `attempts` only; `lost` says that the last one was lost. `answer` is the blob of the answer, which ends
    the call.
    """

    role: str
    model: str
    request: Digest
    attempts: int = Field(ge=1)
    held: Amount | None = None
    failures: tuple[str, ...] = ()
    lost: bool = False
    answer: Digest | None = None


class ModelRecord(FrozenModel):
    """How well one model did in a run, as far as the assignment of later slots depends on it.

    `usd` is the cost of its answers at the uncached price, None once a price is unknown; so it does not
    depend on what was lost or repeated. `attempts` counts kernels that should come from its plans, `valid`
    those found correct, `gains` those beyond noise; `log_gain` is the sum of ln(speed-up) of the gains.
    """

    answers: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    attempts: int = 0
    valid: int = 0
    gains: int = 0
    log_gain: float = 0.0
