"""The built-in proposer: answers the four roles with the rewrite engine, without a model.

It looks ahead (`lookahead_role`), and plan number n is the n-th variant found. Without look-ahead, one
ranking of single rewrites serves all plans of a parent in a round. The ranking depends only on the parent,
its profile and the round's learning context. So plan number n is its n-th entry, whichever plan is requested
first and however often. Planning and rewriting run in a process pool.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from agent_core.effects import (
    ImplementRequest,
    LearningContext,
    LookAheadRequest,
    PlanRequest,
    SimplifyRequest,
    Variants,
)
from agent_core.process_pool import ProcessPool
from agent_core.roles import (
    KernelAnswer,
    LookAheadAnswer,
    PlanAnswer,
    Predict,
    ReadBlob,
)
from agent_core.roles.mechanical import MechanicalLearner
from agent_core.roles.worker_pool import ask_worker, make_role_error
from state.model import EffectKey, Plan, Prediction, ProblemRef, SequenceLeg, digest_of
from targets.nki.rewrites import answer_in_worker, lookahead_role, prediction_scale
from targets.nki.rewrites.raised_parent import split_raise

if TYPE_CHECKING:
    from seeds import ProblemSpec

MAX_RANKINGS = 64
"""Rankings kept: more than the beam slots of two rounds."""
MAX_WORKERS = 4


class BuiltinProposer(MechanicalLearner):
    """All four roles; nothing is repaired, because a refused rewrite has no second form."""

    name = "builtin"
    repairs = False

    def __init__(self, *, workers: int | None = None) -> None:
        count = workers or min(MAX_WORKERS, os.cpu_count() or 1)
        self._pool = ProcessPool(answer_in_worker, workers=count)
        self._rankings: OrderedDict[str, asyncio.Task[dict[str, Any]]] = OrderedDict()

    def warm_up(self) -> None:
        """Have a process of the engine start before there is work for it."""
        self._pool.warm_up()

    async def look_ahead(
        self, request: LookAheadRequest, read: ReadBlob, predict: Predict
    ) -> LookAheadAnswer:
        """Search sequences of rewrites by predictions.

        Raises:
            RoleError: `unreadable_kernel`, or what `predict` raises.
        """
        return await lookahead_role.look_ahead(
            request, read, predict, _load_spec(request.problem, read), self._run_job
        )

    async def simplify(
        self, request: SimplifyRequest, leg: SequenceLeg | None, read: ReadBlob, predict: Predict
    ) -> KernelAnswer:
        """Drop the rewrites that bring nothing, and simplify the text.

        Raises:
            RoleError: `nothing_simpler`, or what `predict` raises.
        """
        # It needs the syntax library, which a daemon that only plans does not load.
        from targets.nki.rewrites.winner_simplification import simplify_winner

        spec = _load_spec(request.problem, read)
        return await simplify_winner(request, leg, read, predict=predict, spec=spec, ask=self._run_job)

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        """Return plan number `key.plan` of the look-ahead's results, else of the parent's ranking.

        Raises:
            RoleError: `nothing_applies` if there are fewer; `unreadable_kernel`.
        """
        number = EffectKey.parse(request.key).plan
        if request.variants is not None:
            return PlanAnswer(
                _plan_from_variants(request, number, Variants.model_validate_json(read(request.variants)))
            )
        made = await asyncio.shield(self._rank_once(_make_rank_request(request, read)))
        plans = made["plans"]
        if number >= len(plans):
            reasons = "; ".join(made["refusals"]) or "no transformation has a site in this kernel"
            raise make_role_error(
                "nothing_applies", f"{len(plans)} rewrites left for {request.parent.id}: {reasons}"
            )
        return PlanAnswer(_plan_from_rewrite(plans[number]))

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        """Carry out a plan; implementation k takes the k-th choice of parameters, the plan's own first.

        Raises:
            RoleError: the rewrite does not apply, changes nothing or has no k-th choice.
        """
        detail = request.plan.detail
        if request.plan.steps:
            return await self._replay_plan(request, read)
        if not isinstance(detail, dict) or not {"site", "choices"} <= detail.keys():
            raise make_role_error(
                "no_detail", f"{request.plan.technique} was not planned by the built-in planner"
            )
        choices = detail["choices"]
        number = EffectKey.parse(request.key).implementation
        assert isinstance(choices, list)
        if number >= len(choices):
            raise make_role_error(
                "no_more_choices", f"{request.plan.site} has {len(choices)} choices of parameters"
            )
        job = {
            "job": "apply",
            "source": read(request.parent.source).decode(),
            "technique": request.plan.technique,
            "site": detail["site"],
            "choice": choices[number],
            **_problem_job_fields(request.problem, request.size, request.target, read=read),
        }
        made = await self._run_job(job)
        return KernelAnswer(made["source"], f"{made['note']}: {made['keeps']}")

    async def _replay_plan(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        """Carry out a sequence again; the result must be the predicted kernel."""
        if EffectKey.parse(request.key).implementation > 0:
            raise make_role_error(
                "no_more_choices", "a sequence that was found by looking ahead has one form"
            )
        plan = request.plan
        source, steps = split_raise(read(request.parent.source).decode(), plan.steps, read)
        job = {
            "job": "replay",
            "source": source,
            "steps": [step.model_dump(mode="json") for step in steps],
            **_problem_job_fields(request.problem, request.size, request.target, read=read),
        }
        made = await self._run_job(job)
        if plan.detail != {"source": digest_of(made["source"].encode())}:
            text = "the rewrites lead to another kernel than the one that was predicted"
            raise make_role_error("not_reproduced", text)
        return KernelAnswer(made["source"], plan.title)

    async def aclose(self) -> None:
        """End the pool's processes."""
        for task in self._rankings.values():
            task.cancel()
        await asyncio.gather(*self._rankings.values(), return_exceptions=True)
        self._rankings.clear()
        await self._pool.aclose()

    def _rank_once(self, request: str) -> asyncio.Task[dict[str, Any]]:
        """The ranking for a request, computed once; a failed one is not kept."""
        task = self._rankings.get(request)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._ask_worker(request))
            self._rankings[request] = task
            while len(self._rankings) > MAX_RANKINGS and next(iter(self._rankings.values())).done():
                self._rankings.popitem(last=False)
        return task

    async def _run_job(self, job: dict[str, Any]) -> dict[str, Any]:
        return await self._ask_worker(json.dumps(job, sort_keys=True))

    async def _ask_worker(self, request: str) -> dict[str, Any]:
        return await ask_worker(self._pool, request, "the rewrite engine")


def _load_spec(problem: ProblemRef, read: ReadBlob) -> ProblemSpec:
    from seeds import build_problem

    return build_problem({path: read(digest) for path, digest in problem.files.items()}).spec


def _problem_job_fields(problem: ProblemRef, size: str, target: str, *, read: ReadBlob) -> dict[str, Any]:
    return prediction_scale.problem_job_fields(_load_spec(problem, read), size, target)


def _make_rank_request(request: PlanRequest, read: ReadBlob) -> str:
    context = LearningContext.model_validate_json(read(request.context))
    parent = request.parent
    tried = {(item.technique, item.site) for item in context.attempts if item.parent == parent.id}
    profile = json.loads(read(parent.profile))["counters"] if parent.profile else {}
    job = {
        "job": "rank",
        "source": read(parent.source).decode(),
        "bottleneck": parent.bottleneck,
        "profile": {name: value for name, value in profile.items() if name.endswith("_active_time_percent")},
        "tried": sorted(tried),
        "credits": {name: (item.tries, item.log_gain) for name, item in context.credits.items()},
        "count": request.plans,
        "seed": f"{parent.code}|{EffectKey.parse(request.key).round}",
        **_problem_job_fields(request.problem, request.size, request.target, read=read),
    }
    return json.dumps(job, sort_keys=True)


def _plan_from_variants(request: PlanRequest, number: int, seen: Variants) -> Plan:
    if number >= len(seen.found):
        reasons = "; ".join(seen.reasons) or "no sequence of rewrites is predicted to be faster"
        raise make_role_error(
            "nothing_applies", f"{len(seen.found)} variants found of {request.parent.id}: {reasons}"
        )
    return lookahead_role.plan_variant(seen.found[number], seen.parent_ms)


def _plan_from_rewrite(made: dict[str, Any]) -> Plan:
    return Plan(
        technique=made["technique"],
        site=made["place"],
        title=made["title"],
        prediction=Prediction(speedup=made["speedup"], counter=made["counter"], reason=made["reason"]),
        detail={"site": made["site"], "choices": [made["choice"], *made["choices"]]},
    )
