"""The planner in a session: it reads with tools where a kernel's time goes, and ends with plans.

The model gets the problem, the kernel, its standing and a part of the menu, and looks the rest up. It may try
changes with `check`, which predicts, but it has no kernel judged: that is the executor's work. The plans that
it submits are its own and those that follow it by number.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.effects import PlanRequest
from agent_core.roles import PlanAnswer, ReadBlob
from agent_core.roles.ask_protocol import FillPrompt, TokenBudget
from agent_core.roles.llm import memory, planner, prompt_values
from agent_core.roles.llm.fitting import PromptItems, ShedStep, fit_values
from agent_core.roles.llm.planner import PlannerOptions
from agent_core.roles.llm.quoting import fence_text
from agent_core.roles.llm.session import Session, define_tools, fruitless_error, share_of
from agent_core.roles.session_protocol import SessionHost
from agent_core.tools.rewriting import KernelPlace
from agent_core.tools.workbench import KernelTask, Workbench
from seeds import build_problem
from state.model import EffectKey
from targets.registry import load_target

ROLE = "planner_session"
"""The prompt of planners' sessions; sets of older versions do not have it."""

SHED_ORDER = (ShedStep("attempts", 2), ShedStep("menu", 3), ShedStep("attempts", 0))
"""What is dropped first if the prompt is too large, and how many stay."""


async def plan_in_session(
    request: PlanRequest, read: ReadBlob, host: SessionHost, options: PlannerOptions
) -> PlanAnswer:
    """Return the plans that a session ends with.

    Raises:
        RoleError: `session_REASON`: it ended without a plan.
    """
    assert request.session is not None
    tools = define_tools(request.target, planning=True)
    await host.begin(ROLE, [tool.name for tool in tools], request.session.turns)
    session = Session(
        host=host,
        bench=_make_bench(request, read, host),
        tools=tools,
        turns=request.session.turns,
        share=share_of(request.session),
        role=ROLE,
        purpose="`submit_plans` with what you have",
    )
    ending = await session.run(make_fill(request, read, options))
    await host.end(ending.reason, ending.detail, None)
    if not ending.plans:
        raise fruitless_error(ending.reason, ending.detail, "a plan")
    first, *further = ending.plans
    return PlanAnswer(first, further=tuple(further))


def _make_bench(request: PlanRequest, read: ReadBlob, host: SessionHost) -> Workbench:
    assert request.session is not None
    spec = build_problem({path: read(digest) for path, digest in request.problem.files.items()}).spec
    context = planner.read_context(request, read)
    return Workbench(
        task=KernelTask(
            place=KernelPlace(spec, request.size, request.target),
            parent=request.parent,
            bounds=request.bounds,
            within_percent=request.session.within_percent,
        ),
        lab=host.lab,
        context=context,
        prompts=host.prompts,
        versions=[prompt_values.source_of(request.parent, read)],
        rewriter=host.rewriter,
        plan_rules=planner.read_plan_rules(request, read, context),
    )


def make_fill(request: PlanRequest, read: ReadBlob, options: PlannerOptions) -> FillPrompt:
    """Return what fills the prompt of a planner's session."""

    def filled(room: TokenBudget) -> Mapping[str, str]:
        texts = fit_values(_prompt_values(request, read, options, room), SHED_ORDER, room)
        return {name: texts.get(name, "") for name in room.prompts.manifest.roles[ROLE].values}

    return filled


def _describe_place(first: int, most: int, plans: int) -> str:
    """Return which plans of a kernel a session may submit."""
    if most == 1:
        return f"plan {first} of {plans}"
    return f"plans {first} to {first + most - 1} of {plans}"


def _prompt_values(
    request: PlanRequest, read: ReadBlob, options: PlannerOptions, room: TokenBudget
) -> Mapping[str, str | PromptItems]:
    assert request.session is not None
    context = planner.read_context(request, read)
    source = prompt_values.source_of(request.parent, read)
    told = prompt_values.describe_problem(request.problem, request.size, read)
    key, most = EffectKey.parse(request.key), request.most_plans
    wanted = "Submit one plan." if most == 1 else f"Submit up to {most} plans."
    return {
        **told,
        "kernel": fence_text(source, load_target(request.target).language.fence),
        "standing": planner.describe_standing(request),
        "attempts": memory.render_attempts(context, request.parent.id),
        "menu": planner.draw_menu(
            request, context, room.prompts, words_in=(source, *told.values()), options=options
        ),
        "place": _describe_place(key.plan + 1, most, request.plans),
        "wanted": f"{wanted} You have {request.session.turns} turns.",
    }
