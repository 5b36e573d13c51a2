"""Events of calls to models: each attempt at an answer is an intent before it, and one outcome after.

The n-th question of an effect is its `call` n; its attempts are counted from 1. An attempt that a crash left
without an outcome is lost: it is charged at what was reserved for it, and the next attempt sends the request
that was logged. Models are named ENDPOINT/MODEL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import Amount, Digest, ErrorInfo, Key, Price, Resource, Tokens, Usd


class CallStarted(Event):
    """A request is about to be sent; nothing is before this is stored.

    `request` is the blob of the request (JSON, its texts by digest), `role` whose prompt it is, `prompts` the
    version of the prompts that it was rendered from. `price` is what holds for the model in this run from
    its first call on, None where nobody knows; then `reserved.usd` is 0 and no cap on money is kept.
    """

    version = 2
    type: Literal["CallStarted"] = "CallStarted"
    key: Key
    call: int = Field(ge=0)
    attempt: int = Field(ge=1)
    role: str
    model: str
    request: Digest
    prompts: Digest | None = None
    price: Price | None = None
    reserved: Amount


class CallEnded(Event):
    """Base of all outcomes of an attempt. `cost_usd` is None where the price is unknown, never 0.

    `tokens` is None where nobody said how many they were; then `charged_tokens` were counted as spent.
    """

    key: Key
    call: int = Field(ge=0)
    attempt: int = Field(ge=1)
    role: str
    model: str
    cost_usd: Usd | None
    tokens: Tokens | None = None
    charged_tokens: int = Field(default=0, ge=0)

    @property
    def charged_amount(self) -> Amount:
        """What the attempt took of the budgets."""
        return Amount(usd=self.cost_usd or 0.0, tokens=self.charged_tokens, calls=1)


class CallCompleted(CallEnded):
    """The whole answer is there, as the blob `answer`; it is never bought again. `ms` is how long it took.

    `reused_from` is the RUN@SEQ of the answer that a fork took from its parent, None where it was bought.
    What is reused costs nothing, and is no call.
    """

    version = 2
    type: Literal["CallCompleted"] = "CallCompleted"
    answer: Digest
    answered_by: str
    stop_reason: str
    request_id: str | None = None
    ms: float = Field(ge=0)
    reused_from: str | None = None

    @property
    def charged_amount(self) -> Amount:
        """What the attempt took of the budgets."""
        return Amount() if self.reused_from is not None else super().charged_amount


class CallFailed(CallEnded):
    """There is no answer, and `error` says why; `kind` is one of `agent_core.providers.FailureKind`."""

    type: Literal["CallFailed"] = "CallFailed"
    kind: str
    error: ErrorInfo
    status: int | None = None
    request_id: str | None = None
    ms: float = Field(ge=0)


class CallLost(CallEnded):
    """Nobody knows what came of the attempt: it is charged at its full reservation."""

    type: Literal["CallLost"] = "CallLost"
    reason: str


class BudgetShort(Event):
    """A run could not have what it needed: `wanted` of a resource of which `left` is left under `cap`.

    It ends after the round, unless the cap is raised before.
    """

    type: Literal["BudgetShort"] = "BudgetShort"
    resource: Resource
    cap: float
    left: float
    wanted: float


class BudgetWarned(Event):
    """So much of a cap is spent or reserved, in percent; said once for each of some marks.

    In the system stream it is a cap on a day, and said once a day.
    """

    type: Literal["BudgetWarned"] = "BudgetWarned"
    resource: Resource
    percent: int
    cap: float


class DayReserved(Event):
    """In the system stream: what something may take of the day's budget.

    `call` names it: a call, beside its CallStarted, as RUN KEY CALL ATTEMPT; an evaluation on a device as
    device RUN KEY NUMBER; a while in which runs are under way as time NUMBER. `day` is the UTC date,
    YYYY-MM-DD.
    """

    version = 2
    type: Literal["DayReserved"] = "DayReserved"
    day: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    call: str
    amount: Amount


class DaySettled(Event):
    """In the system stream, beside the outcome of a call: what it took of the day that it was reserved on.

    Of other things than calls it stands beside their end, or after the end of the process that reserved it.
    """

    version = 2
    type: Literal["DaySettled"] = "DaySettled"
    call: str
    amount: Amount
