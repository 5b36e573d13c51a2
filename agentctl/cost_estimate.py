"""Estimates how often a run's models would be asked and what that would cost, before it starts; nothing
is sent.

Prompts are rendered as in the first round, from the run's initial kernel; later prompts are longer by
what was learnt. The length of answers is unknown; `ANSWER_TOKENS` holds assumptions for models that do
not think at length. `usd` assumes no repairs, and that prompts' common prefixes come from a cache.
`most_usd` assumes all possible repairs, no cache, and the longest possible answers. Neither counts
questions that are asked again after a failure or a faulty answer. An unknown price is None. Where rounds are
fitted to the cap, `usd` is of the calls that the cap pays for.

A role that works in a loop is asked once a turn, each time with its tools and the dialogue so far. `usd`
assumes `SESSION_TURNS` turns that add `TURN_TOKENS` each, from a cache; `most_usd` all turns, each with the
longest answer and results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from agent_core.ensemble import ModelShare, parse_model_shares, planner_models
from agent_core.prompting import PromptSet
from agent_core.proposers import AGENT, is_llm_proposer
from agent_core.providers.completion import AnswerSchema, CompletionRequest
from agent_core.providers.windows import LETTERS_PER_TOKEN, estimate_request_tokens, estimate_tokens
from agent_core.requests import form_of_role, reserved_agent_usd
from agent_core.roles.ask_protocol import FillPrompt
from agent_core.roles.llm import LlmRoles, planner_session, session
from agent_core.spending import Breadth, foresee_breadths
from agent_core.tools.answers import MOST_WITH_MORE
from agentctl.sample_requests import SampleRequests
from daemon.calls import model_catalog, request_rendering
from daemon.config import Config
from seeds import Problem
from state.model import Price, RunConfig, Tokens

ANSWER_TOKENS: Mapping[str, int] = {
    "planner": 800,
    "executor": 300,
    "repairer": 300,
    "summarizer": 500,
    "reflector": 150,
}
"""Assumed tokens of an answer, without the kernel that executors and repairers write."""

SESSION_TURNS = 6
"""Assumed turns of a session, if it may take as many."""
SESSION_PLANS = 3
"""Assumed plans that a planner's session submits, if it may submit as many."""
TURN_TOKENS = 800
"""Assumed tokens by which a turn makes the dialogue longer: an answer with edits, and short results."""
_MOST_RESULTS = session.MOST_CALLS * ceil(MOST_WITH_MORE / LETTERS_PER_TOKEN)
"""Most tokens of the results of one turn."""

_WRITES_KERNEL = frozenset({"executor", "repairer"})


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """What one role asks one model: the number of calls, their maximum, and the tokens of each call."""

    role: str
    model: str
    calls: float
    most_calls: float
    input_tokens: int
    shared_tokens: int
    output_tokens: int
    usd: float | None
    most_usd: float | None


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The cost of a run; a sum is None if any of its prices is unknown.

    `agent_usd` is what is reserved for each plan of a coding agent, None without one. What agents cost in all
    is unknown beforehand, unless they are free.
    """

    rows: tuple[EstimateRow, ...]
    rounds: int
    cap_usd: float
    agent_usd: float | None = None
    breadths: tuple[Breadth, ...] = ()
    """What each round asks for, where rounds are fitted to the cap and all prices are known."""

    @property
    def usd(self) -> float | None:
        return None if self.agent_usd else _sum_known(row.usd for row in self.rows)

    @property
    def most_usd(self) -> float | None:
        return None if self.agent_usd else _sum_known(row.most_usd for row in self.rows)


def estimate_cost(config: Config, problem: Problem, kernel: str, prompts: PromptSet) -> CostEstimate:
    """Return what the run would cost; there are no rows if none of its planners asks models.

    Raises:
        RoleError: a prompt does not fit its model.
    """
    rows: list[EstimateRow] = []
    stand_in = SampleRequests(config.run, problem, kernel)
    for role, (calls, most) in calls_per_role(config.run).items():
        models = models_of_role(config.run, role)
        total = sum(one.weight for one in models)
        for model, weight in models:
            part = weight / total
            request = render_first_request(stand_in, role, model, config, prompts)
            answer = ANSWER_TOKENS[role] + (estimate_tokens(kernel) if role in _WRITES_KERNEL else 0)
            price = model_catalog.model_price(config.daemon, model)
            row = _build_row(role, model, (calls * part, most * part), request, price, answer=answer)
            rows.append(_expect_turns(row, request, price, run=config.run) if request.tools else row)
    agent_usd = reserved_agent_usd(config.run) if AGENT in config.run.planner else None
    whole = CostEstimate(tuple(rows), config.run.search.rounds, config.run.cap_usd, agent_usd)
    return _fit_to_cap(whole, config.run)


def _fit_to_cap(whole: CostEstimate, config: RunConfig) -> CostEstimate:
    """Return the estimate with the calls that the run will make, if its rounds are fitted to the cap.

    The most that it may ask for, and pay, stays as it is.
    """
    search = config.search
    if not (config.llm.scale_to_cap and config.cap_usd > 0 and whole.usd):
        return whole
    plans = (1 + (search.rounds - 1) * search.beam) * search.plans
    attempts = plans * search.implementations
    planning = sum(row.usd or 0.0 for row in whole.rows if row.role == "planner")
    breadths = foresee_breadths(
        config, plan_usd=planning / plans, attempt_usd=(whole.usd - planning) / attempts
    )
    part = sum(one.attempts for one in breadths) / attempts
    parts = {"planner": sum(one.kernels * one.plans for one in breadths) / plans}
    rows = [_scale_row(row, parts.get(row.role, part)) for row in whole.rows]
    return replace(whole, rows=tuple(rows), rounds=len(breadths), breadths=tuple(breadths))


def _scale_row(row: EstimateRow, part: float) -> EstimateRow:
    return replace(row, calls=row.calls * part, usd=None if row.usd is None else row.usd * part)


def calls_per_role(config: RunConfig) -> dict[str, tuple[float, float]]:
    """Return how often each role is asked over all rounds: without repairs, and at most.

    The first round improves only the initial kernel; later rounds improve as many kernels as the beam
    holds.
    """
    search = config.search
    asking = sum(map(is_llm_proposer, config.planner)) / len(config.planner)
    slots = (1 + (search.rounds - 1) * search.beam) * asking
    plans = slots * search.plans
    kernels = plans * search.implementations
    repairs = kernels * search.repairs
    pairs = min(float(search.top_k * search.rounds) * asking, plans)
    if not asking:
        return {}
    return {
        "planner": (plans / _usual_plans(config), plans),
        "executor": (kernels, kernels),
        "repairer": (0.0, repairs),
        "reflector": (kernels, kernels),  # once per attempt, on its last try
        "summarizer": (pairs, pairs),
    }


def _usual_plans(config: RunConfig) -> int:
    """Return how many plans a planner is assumed to answer with: sessions submit several."""
    in_loop = form_of_role(config.llm, "planner") == "loop"
    return min(SESSION_PLANS, config.search.plans) if in_loop else 1


def models_of_role(config: RunConfig, role: str) -> tuple[ModelShare, ...]:
    """Return the models of a role. Planners take slots in turn, and weights count within one planner."""
    own = {
        "executor": config.llm.executor_models,
        "repairer": config.llm.executor_models,
        "summarizer": config.llm.summarizer_models,
        "reflector": config.llm.summarizer_models,
    }.get(role, ())
    if own:
        return parse_model_shares(own)
    dealt: dict[str, float] = {}
    for models in (planner_models(planner, config) for planner in config.planner if is_llm_proposer(planner)):
        total = sum(one.weight for one in models)
        dealt |= {one.model: dealt.get(one.model, 0.0) + one.weight / total for one in models}
    return tuple(ModelShare(model, part) for model, part in dealt.items())


def _build_row(
    role: str,
    model: str,
    calls: tuple[float, float],
    request: CompletionRequest,
    price: Price | None,
    *,
    answer: int,
) -> EstimateRow:
    tokens, shared = estimate_request_tokens(request), request_rendering.shared_prefix(request)[1]
    usual = Tokens(input=tokens, cached=shared, output=min(answer, request.max_output_tokens))
    return EstimateRow(
        role=role,
        model=model,
        calls=calls[0],
        most_calls=calls[1],
        input_tokens=tokens,
        shared_tokens=shared,
        output_tokens=usual.output,
        usd=None if price is None else calls[0] * price.cost(usual),
        most_usd=None if price is None else calls[1] * price.max_cost(tokens, request.max_output_tokens),
    )


def _expect_turns(
    row: EstimateRow, request: CompletionRequest, price: Price | None, *, run: RunConfig
) -> EstimateRow:
    """Return the row of a role whose every call is a session of turns.

    A session takes no further turn once its share of the cap has no room for one.
    """
    turns, share = run.llm.turns, run.cap_usd * run.llm.session_percent / 100
    usual, longest = min(SESSION_TURNS, turns), request.max_output_tokens
    inputs = [row.input_tokens + turn * TURN_TOKENS for turn in range(usual)]
    known = [row.shared_tokens, *inputs][:usual]  # what was sent before comes from a cache
    answers = min(TURN_TOKENS, longest)
    costs, most = [0.0], [0.0]
    if price is not None:
        costs = [
            price.cost(Tokens(input=size, cached=cached, output=answers))
            for size, cached in zip(inputs, known, strict=True)
        ]
        grown = (row.input_tokens + turn * (longest + _MOST_RESULTS) for turn in range(turns))
        most = [price.max_cost(size, longest) for size in grown]
    return replace(
        row,
        calls=row.calls * usual,
        most_calls=row.most_calls * turns,
        input_tokens=round(sum(inputs) / usual),
        shared_tokens=round(sum(known) / usual),
        output_tokens=answers,
        usd=None if price is None else row.calls * sum(costs),
        most_usd=None if price is None else row.most_calls * min(sum(most), share + max(most)),
    )


def _sum_known(amounts: Iterable[float | None]) -> float | None:
    found = list(amounts)
    return None if any(one is None for one in found) else sum(one for one in found if one is not None)


class _RequestRendered(Exception):  # noqa: N818 - not a failure: it carries a request out of a role
    def __init__(self, request: CompletionRequest) -> None:
        super().__init__()
        self.request = request


@dataclass(frozen=True, slots=True)
class _RequestCapture:
    """An `Ask` that renders the first question and stops there."""

    model: str
    config: Config
    prompts: PromptSet

    async def __call__(self, role: str, fill: FillPrompt, form: AnswerSchema | None = None) -> str:
        raise _RequestRendered(self.render(role, fill).model_copy(update={"answer": form}))

    def render(self, role: str, fill: FillPrompt) -> CompletionRequest:
        run = self.config.run
        window = model_catalog.model_window(self.config.daemon, self.model)
        return request_rendering.render_request(
            self.prompts,
            role,
            run.target,
            fill,
            model=self.model.partition("/")[2],
            bounds=request_rendering.TokenBounds.from_window(window, run.llm),
            effort=run.llm.effort,
        )


def render_first_request(
    stand_in: SampleRequests, role: str, model: str, config: Config, prompts: PromptSet
) -> CompletionRequest:
    """Return the first prompt that a role would send to a model; that of a session has tools.

    Raises:
        RoleError: it does not fit the model.
    """
    capture = _RequestCapture(model, config, prompts)
    prompt = planner_session.ROLE if role == "planner" else session.ROLE
    if form_of_role(config.run.llm, role) == "loop" and prompt in prompts.manifest.roles:
        rendered = capture.render(prompt, stand_in.fill_session(role))
        tools = session.define_tools(config.run.target, planning=role == "planner")
        return rendered.model_copy(update={"tools": tools})
    try:
        asyncio.run(stand_in.ask_role(role, LlmRoles(model, capture)))
    except _RequestRendered as rendered:
        return rendered.request
    raise AssertionError(f"the {role} asked nothing")
