"""What questions to models are counted by: tokens, prices, amounts, and what a log knows of one question."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from state.model.base import Digest, FrozenModel

Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MILLION = 1_000_000
USD_DIGITS = 9
"""Amounts are whole billionths of a dollar, so that sums do not depend on the order of what is added."""


def round_usd(amount: float) -> float:
    """Return an amount of money as it is kept."""
    return round(amount, USD_DIGITS)


def round_seconds(amount: float) -> float:
    """Return an amount of time as it is kept, in whole microseconds."""
    return round(amount, 6)


class Tokens(FrozenModel):
    """What an answer was counted at. `input` includes `cached` (read from a cache) and `written` (to one)."""

    input: int = Field(default=0, ge=0)
    cached: int = Field(default=0, ge=0)
    written: int = Field(default=0, ge=0)
    output: int = Field(default=0, ge=0)

    @property
    def total(self) -> int:
        """All tokens, read and written."""
        return self.input + self.output


class TokenRates(FrozenModel):
    """US dollars per million tokens. `cached` is for tokens read from a cache, `written` for those put there.

    They hold for questions whose whole input has more than `above` tokens.
    """

    above: int = Field(default=0, ge=0)
    input: Usd
    cached: Usd
    written: Usd
    output: Usd


class Price(FrozenModel):
    """What a model's tokens cost, the rates by rising size of the question; `source` says who says so."""

    rates: tuple[TokenRates, ...] = Field(min_length=1)
    source: str

    def cost(self, tokens: Tokens) -> float:
        """Return what an answer of so many tokens costs, in US dollars."""
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
        """Return the most that a question of at most so many tokens can cost, in US dollars.

        The dearest of all that may happen: nothing or everything is read from a cache or written to one, and
        the answer is as long as it may be.
        """
        reached = [rates for rates in self.rates if rates.above == 0 or input_tokens > rates.above]
        return max(
            (input_tokens * max(rates.input, rates.cached, rates.written) + output_tokens * rates.output)
            / MILLION
            for rates in reached
        )


class Resource(StrEnum):
    """What a run or a day has only so much of."""

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
    """Money, tokens, calls and time together; `round_usd` is 0 for what has no known price.

    `round_seconds` are those in which runs were under way, `device_seconds` those on devices.
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
        """Return the rest; nothing is less than nothing."""
        return Amount(
            usd=max(0.0, round_usd(self.usd - other.usd)),
            tokens=max(0, self.tokens - other.tokens),
            calls=max(0, self.calls - other.calls),
            seconds=max(0.0, round_seconds(self.seconds - other.seconds)),
            device_seconds=max(0.0, round_seconds(self.device_seconds - other.device_seconds)),
        )


class ModelQuestion(FrozenModel):
    """What the log knows of one question of an effect in flight, over all attempts at an answer.

    `request` is that of the last attempt, `held` what is reserved for it while it is under way, None when it
    is not. `failures` are the kinds of the attempts that failed, in order; those lost in crashes are in
    `attempts` only, and `lost` says that the last one was. `answer` is the blob of the answer, which ends the
    question.
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
    """How one model did in a run, as far as later rounds are dealt by it.

    `round_usd` is what its answers come to at the price of tokens that no cache had, None once a price is
    unknown; so it does not depend on what was lost or repeated. `attempts` are kernels that were to be made
    of its plans, `valid` those found correct, `gains` those beyond noise, `log_gain` the sum of ln(speed-up)
    of these.
    """

    answers: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    attempts: int = 0
    valid: int = 0
    gains: int = 0
    log_gain: float = 0.0
