"""The proposer `knobs`: answers the roles with points of the workload's space, lowered to new kernels.

It needs a problem with a graph (`workload.json`). A plan is a point; its kernel depends only on what was
tried in the space, not on the parent's source. Source edits are left to others: in a run with several
planners, theirs start from this one's kernels and compete with its next ones. Search and rendering run in a
process pool; all state comes with a request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agent_core.effects import (
    ImplementRequest,
    LearningContext,
    LookAheadRequest,
    PlanRequest,
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
from state.model import Candidate, EffectKey, Plan, Prediction, digest_of
from targets.nki.knobs.search import SearchMode
from targets.nki.knobs.tuning import answer_in_worker
from targets.nki.knobs.tuning.history import TECHNIQUE, judged_points, origin_point
from targets.nki.knobs.tuning.look_ahead import KnobLookAhead, ParentFeedback
from targets.nki.knobs.workload_file import WORKLOAD_FILE

MAX_WORKERS = 2
"""Processes at most; each search is short compared with its predictions."""

MBU = "mbu_estimated_percent"

KnobRequest = LookAheadRequest | PlanRequest | ImplementRequest


class KnobProposer(MechanicalLearner):
    """All four roles; a point has only one form, so nothing is repaired."""

    name = "knobs"
    repairs = False

    def __init__(self, *, workers: int | None = None) -> None:
        self._pool = ProcessPool(answer_in_worker, workers=workers or min(MAX_WORKERS, os.cpu_count() or 1))

    def warm_up(self) -> None:
        """Have a process start before there is work for it."""
        self._pool.warm_up()

    async def look_ahead(
        self, request: LookAheadRequest, read: ReadBlob, predict: Predict
    ) -> LookAheadAnswer:
        """Search the space by predictions, or draw where the request says so.

        Raises:
            RoleError: `no_graph`, or what `predict` raises.
        """
        context = LearningContext.model_validate_json(read(request.context))
        feedback = _parent_feedback(request, read)
        look = KnobLookAhead(request, context, feedback, self._bind_workload(request, read), predict)
        return await (look.draw() if request.drawn else look.run())

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        """Return plan number `key.plan` of the search's results, else of the next points, unpredicted.

        Raises:
            RoleError: `nothing_applies` if there are fewer; `no_graph`.
        """
        number = EffectKey.parse(request.key).plan
        if request.variants is not None:
            return PlanAnswer(
                _plan_from_variants(request, number, Variants.model_validate_json(read(request.variants)))
            )
        made = await self._next_points(request, read)
        if number >= len(made["points"]):
            raise make_role_error("nothing_applies", f"{len(made['points'])} points left: {made['reason']}")
        one = made["points"][number]
        prediction = Prediction(speedup=1.0, reason=f"{made['reason']}; nothing was predicted")
        technique = TECHNIQUE + (made["knob"] or made["mode"])
        detail = {"source": digest_of(one["source"].encode())}
        return PlanAnswer(
            Plan(
                technique=technique,
                site=one["text"],
                title=one["title"],
                prediction=prediction,
                detail=detail,
            )
        )

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        """Lower the plan's point to a kernel.

        Raises:
            RoleError: `no_point`, `no_more_choices` for a second implementation, `not_reproduced`.
        """
        if EffectKey.parse(request.key).implementation > 0:
            raise make_role_error("no_more_choices", "a point of the space has one kernel")
        made = await self._bind_workload(request, read)({"job": "render", "point": request.plan.site})
        if request.plan.detail != {"source": digest_of(made["source"].encode())}:
            raise make_role_error(
                "not_reproduced", "the point is lowered to another kernel than the one planned"
            )
        return KernelAnswer(made["source"], request.plan.title)

    async def aclose(self) -> None:
        """End the pool's processes."""
        await self._pool.aclose()

    async def _next_points(self, request: PlanRequest, read: ReadBlob) -> dict[str, Any]:
        """The same points for every plan of a parent in a round: the draw depends on what they share."""
        ask = self._bind_workload(request, read)
        context = LearningContext.model_validate_json(read(request.context))
        start = origin_point(context.attempts, request.parent) or await _first_default(ask)
        variant = start.split(" ")[0]
        trials = [
            [one.text, one.ms, one.failure]
            for one in judged_points(context.attempts, request.parent)
            if one.text.split(" ")[0] == variant
        ]
        mine = [start, request.parent.latency_ms, ""]
        feedback = _parent_feedback(request, read)
        job = {
            "job": "next",
            "variant": variant,
            "history": [{"mode": SearchMode.JOINT.value, "knob": "", "trials": [*trials, mine]}],
            "start": start,
            "bottleneck": feedback.bottleneck,
            "mbu_percent": feedback.mbu_percent,
            "draw": f"{request.parent.code}|{EffectKey.parse(request.key).round}",
            "count": request.plans,
        }
        return await ask(job)

    def _bind_workload(
        self, request: KnobRequest, read: ReadBlob
    ) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
        files = request.problem.files
        if WORKLOAD_FILE not in files:
            text = (
                f"the problem {request.problem.name} carries no {WORKLOAD_FILE}: it cannot be tuned by knobs"
            )
            raise make_role_error("no_graph", text)
        told = {
            "workload": read(files[WORKLOAD_FILE]).decode(),
            "size": request.size,
            "target": request.target,
        }
        return partial(self._ask_pool, told)

    async def _ask_pool(self, told: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
        return await ask_worker(
            self._pool, json.dumps({**told, **job}, sort_keys=True), "the search of the knobs"
        )


def _plan_from_variants(request: PlanRequest, number: int, looked: Variants) -> Plan:
    if number >= len(looked.found):
        raise make_role_error(
            "nothing_applies", f"{len(looked.found)} points found: {'; '.join(looked.reasons)}"
        )
    one = looked.found[number]
    (step,) = one.steps
    speedup, reason = 1.0, "drawn evenly; nothing was predicted"
    if one.latency_ms is not None:
        speedup = looked.parent_ms / one.latency_ms
        told = f"looking ahead predicts {one.latency_ms:.4g} ms, from {looked.parent_ms:.4g} ms"
        reason = "; ".join((told, *looked.reasons[:1]))
    return Plan(
        technique=step.technique,
        site=step.site,
        title=step.title,
        prediction=Prediction(speedup=round(speedup, 6), reason=reason),
        detail={"source": one.source},
    )


async def _first_default(ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> str:
    """The text of the starting point; raises RoleError if no variant fits the chip."""
    made = await ask({"job": "defaults"})
    if not made["points"]:
        raise make_role_error("nothing_applies", "; ".join(made["reasons"]))
    return str(made["points"][0]["text"])


def _parent_feedback(request: LookAheadRequest | PlanRequest, read: ReadBlob) -> ParentFeedback:
    parent: Candidate = request.parent
    counters = json.loads(read(parent.profile))["counters"] if parent.profile else {}
    mbu = counters.get(MBU)
    return ParentFeedback(
        bottleneck=parent.bottleneck or "",
        mbu_percent=float(mbu) if isinstance(mbu, int | float) else None,
        efficiency=_roofline_ms(request, read) / parent.latency_ms,
    )


def _roofline_ms(request: LookAheadRequest | PlanRequest, read: ReadBlob) -> float:
    """The longer of the time for the bytes at HBM bandwidth, and for the matrix products at the peak rate."""
    from seeds import build_problem
    from targets.nki.knobs.tuning.roofline import roofline_ms

    files = {path: read(digest) for path, digest in request.problem.files.items()}
    return roofline_ms(build_problem(files).spec.minimal_work(request.size), request.target)
