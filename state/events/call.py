"""Events of model calls: each attempt has one event before it is sent, and one outcome.

The n-th question of an effect is its `call` n; its attempts are counted from 1. An attempt that a crash left
without an outcome is lost: it is charged at its full reservation, and the next attempt sends the logged
request again. Models are named ENDPOINT/MODEL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import Amount, Digest, ErrorInfo, Key, Price, Resource, Tokens, Usd


class CallStarted(Event):
    """A request is about to be sent; nothing is sent before this event is stored.

    `request` is the blob of the request (JSON, with its texts by digest), `role` the role whose prompt it is,
    `prompts` the version of the prompts that it was rendered from. `price` holds for the model in this run
    from its first call on; None if it is unknown, in which case `reserved.usd` is 0 and no cap on money
    applies.
    """

    version = 2
    family = "call"
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
    """Base of all outcomes of an attempt. `cost_usd` is None if the price is unknown, never 0.

    `tokens` is None if the endpoint gave no counts; then `charged_tokens` counts as spent.
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
        """What the attempt takes from the budgets."""
        return Amount(usd=self.cost_usd or 0.0, tokens=self.charged_tokens, calls=1)


class CallCompleted(CallEnded):
    """The whole answer arrived and is the blob `answer`; it is never bought again. `ms` is how long it took.

    `reused_from` is the RUN@SEQ of the answer that a fork took from its parent, None if it was bought. A
    reused answer costs nothing and does not count as a call.
    """

    version = 2
    family = "call"
    type: Literal["CallCompleted"] = "CallCompleted"
    answer: Digest
    answered_by: str
    stop_reason: str
    request_id: str | None = None
    ms: float = Field(ge=0)
    reused_from: str | None = None

    @property
    def charged_amount(self) -> Amount:
        """What the attempt takes from the budgets."""
        return Amount() if self.reused_from is not None else super().charged_amount


class CallFailed(CallEnded):
    """No answer came, and `error` says why; `kind` is one of `agent_core.providers.failures.FailureKind`."""

    family = "call"
    type: Literal["CallFailed"] = "CallFailed"
    kind: str
    error: ErrorInfo
    status: int | None = None
    request_id: str | None = None
    ms: float = Field(ge=0)


class CallLost(CallEnded):
    """The attempt's result is unknown: it is charged at its full reservation."""

    family = "call"
    type: Literal["CallLost"] = "CallLost"
    reason: str


class BudgetShort(Event):
    """A run could not get what it needed: it wanted `wanted` of a resource, and `left` was left under `cap`.

    The run ends after the round, unless the cap is raised before.
    """

    family = "safety"
    type: Literal["BudgetShort"] = "BudgetShort"
    resource: Resource
    cap: float
    left: float
    wanted: float


class BudgetWarned(Event):
    """A percentage of a cap is spent or reserved; recorded once for each mark.

    In the system stream, the cap is one on a day, and this is recorded once a day.
    """

    family = "safety"
    type: Literal["BudgetWarned"] = "BudgetWarned"
    resource: Resource
    percent: int
    cap: float


class DayReserved(Event):
    """In the system stream: an upper limit of the day's budget was reserved.

    `call` names what it is for: RUN KEY CALL ATTEMPT for a call, beside its CallStarted; "device RUN KEY
    NUMBER" for an evaluation on a device; "agent RUN KEY NUMBER" for a coding agent, beside its AgentStarted;
    "time NUMBER" for a stretch of time in which runs are in progress. `day` is the UTC date, YYYY-MM-DD.
    """

    version = 2
    family = "safety"
    type: Literal["DayReserved"] = "DayReserved"
    day: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    call: str
    amount: Amount


class DaySettled(Event):
    """In the system stream, beside a call's outcome: what the call used of the day on which it was reserved.

    For other reservations it follows their end, or the end of the process that made them.
    """

    version = 2
    family = "safety"
    type: Literal["DaySettled"] = "DaySettled"
    call: str
    amount: Amount
