"""The planner: proposes one change to a kernel and predicts its effect, from profile, memory and menu.

All plans of a kernel in a round share their prompt except for its end. There, each plan has its own selection
of the menu, its own order of counters, and its own selection of what was learnt; the plan's number decides
how it should use the menu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agent_core.effects import LearningContext, PlanRequest
from agent_core.prompting import FileKind, PromptSet, builtin_prompts
from agent_core.roles import PlanAnswer, ReadBlob, RoleError
from agent_core.roles.ask_protocol import AskModel
from agent_core.roles.llm import memory, plans, profiles, prompt_values, techniques
from agent_core.roles.llm.answer_forms import make_answer_schema
from agent_core.roles.llm.blocks import last_json
from agent_core.roles.llm.fitting import PromptItems, ShedStep
from agent_core.roles.llm.own_words import require_own_words
from agent_core.roles.llm.plans import PlanReply, PlanRules
from agent_core.roles.llm.questions import Question, ask_question
from agent_core.roles.llm.quoting import fence_text, single_line
from agent_core.tools.workbench import KernelLab, RefusedKernel
from state.model import Candidate, EffectKey
from targets.registry import load_target

SHED_ORDER = (
    ShedStep("attempts", 8),
    ShedStep("experiences", 4),
    ShedStep("reflections", 6),
    ShedStep("interface", 1),
    ShedStep("examples", 1),
    ShedStep("attempts", 2),
    ShedStep("profile", 24),
    ShedStep("interface", 0),
    ShedStep("examples", 0),
    ShedStep("reflections", 0),
    ShedStep("experiences", 0),
    ShedStep("attempts", 0),
    ShedStep("what_ifs", 0),
    ShedStep("profile", 3),
    ShedStep("menu", 3),
)
"""What is dropped first if the prompt is too large, and how many stay; problem, reference and kernel stay."""

APPROACHES = ("apply", "inspired", "apply", "different")
"""How plans 0, 1, 2, ... of a kernel should use the menu, in a cycle; these are names of prompt texts."""


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What a planner sees: the profile's `metrics`, and how much of menu and memory is left out.

    Without `metrics` it sees all counters that the target names.
    """

    metrics: tuple[str, ...] | None = None
    dropout_percent: float = 70.0
    memory_dropout_percent: float = 50.0
    least: int = 3
    """How many techniques and experiences stay at least, whatever is drawn."""


async def propose_plan(
    request: PlanRequest,
    read: ReadBlob,
    ask: AskModel,
    *,
    options: PlannerOptions,
    lab: KernelLab | None = None,
) -> PlanAnswer:
    """Return one plan; `lab` predicts the latencies of the kernel's what-ifs.

    Raises:
        RoleError: the model's failure, `no_room`, or the fault of the model's second answer.
    """
    context = read_context(request, read)
    rules = read_plan_rules(request, read, context)
    told = [one.id for one in _draw_experiences(request, context, options)]
    what_ifs = await _predict_what_ifs(request, read, lab)
    question = Question(
        "planner",
        lambda room: {**_prompt_values(request, read, options, prompts=room.prompts), "what_ifs": what_ifs},
        SHED_ORDER,
        make_answer_schema("plan", PlanReply),
    )
    reply = await ask_question(
        ask, question, lambda answer: last_json(answer, PlanReply, lambda one: _check_reply(one, rules))
    )
    return PlanAnswer(plans.build_plan(reply, rules, told))


def _check_reply(reply: PlanReply, rules: PlanRules) -> PlanReply:
    return plans.check_plan(require_own_words(reply, "planner"), rules)


async def _predict_what_ifs(request: PlanRequest, read: ReadBlob, lab: KernelLab | None) -> PromptItems:
    """Return what the kernel's latency would be if one part took no time, largest gain first.

    There is nothing where the target cannot tell, or the lab cannot now: a plan does not depend on it.
    """
    topic = load_target(request.target).parts.tools.what_if
    rows: list[str] = []
    if lab is not None and topic is not None:
        try:
            found = await lab.explain(prompt_values.source_of(request.parent, read), (topic,))
        except RoleError:
            found = None
        if found is not None and not isinstance(found, RefusedKernel):
            rows = found.topics.get(topic, "").splitlines()
    return PromptItems(tuple(rows), show=_show_what_ifs)


def _show_what_ifs(rows: Sequence[str]) -> str:
    head = "If one part took no time, by prediction; a change that relieves that part alone cannot gain more:"
    return f"{head}\n\n{fence_text(chr(10).join(rows), 'text')}"


def read_plan_rules(request: PlanRequest, read: ReadBlob, context: LearningContext) -> PlanRules:
    """Return what plans on a kernel may name."""
    profile = prompt_values.profile_of(request.parent, read)
    return PlanRules(
        techniques=frozenset(techniques.techniques_by_id(builtin_prompts(), request.target)),
        tried=frozenset(context.credits),
        elsewhere={one.technique: one for one in context.techniques},
        counters=profiles.counter_names(profile) if profile else None,
        most=request.most_plans,
    )


def read_context(request: PlanRequest, read: ReadBlob) -> LearningContext:
    return LearningContext.model_validate_json(read(request.context))


def _prompt_values(
    request: PlanRequest, read: ReadBlob, options: PlannerOptions, *, prompts: PromptSet
) -> Mapping[str, str | PromptItems]:
    context = read_context(request, read)
    source = prompt_values.source_of(request.parent, read)
    told = prompt_values.describe_problem(request.problem, request.size, read)
    key = EffectKey.parse(request.key)
    profile = prompt_values.profile_of(request.parent, read)
    target = load_target(request.target)
    approaches = {one.name: one.text for one in prompts.list_sections(FileKind.APPROACH, request.target)}
    language, metrics = target.language, options.metrics
    return {
        **told,
        **prompt_values.select_sections(prompts, request.target, source, *told.values()),
        "experiences": memory.render_experiences(_draw_experiences(request, context, options)),
        "reflections": memory.render_reflections(context, request.parent.bottleneck, key.round),
        "attempts": memory.render_attempts(context, request.parent.id),
        "kernel": fence_text(source, language.fence),
        "standing": describe_standing(request),
        "profile": profiles.render_profile(
            profile,
            source,
            target.profile.counters if metrics is None else metrics,
            _seeded_random(request, "profile"),
        ),
        "approach": approaches.get(APPROACHES[key.plan % len(APPROACHES)], ""),
        "menu": draw_menu(request, context, prompts, words_in=(source, *told.values()), options=options),
        "place": f"plan {key.plan + 1} of {request.plans}",
    }


def draw_menu(
    request: PlanRequest,
    context: LearningContext,
    prompts: PromptSet,
    *,
    words_in: Sequence[str],
    options: PlannerOptions,
) -> PromptItems:
    """Return a plan's selection of the techniques that may help a kernel; `words_in` are texts about it."""
    ids = techniques.techniques_by_id(prompts, request.target)
    words = prompt_values.words_of(*words_in)
    helpful = techniques.helpful_techniques(ids, request.parent.bottleneck, words, options.least)
    chance = _seeded_random(request, "menu")
    return techniques.offer_techniques(helpful, context, options.dropout_percent, options.least, chance)


def _draw_experiences(
    request: PlanRequest, context: LearningContext, options: PlannerOptions
) -> Sequence[memory.MemoryItem]:
    """Return the experiences for one plan: a random selection, so that not all plans are alike."""
    chance = _seeded_random(request, "memory")
    return memory.draw_items(
        memory.memory_items(context), options.memory_dropout_percent, options.least, chance
    )


def _seeded_random(request: PlanRequest, what: str) -> Random:
    """Return a random generator that follows from the request alone, separate for each use."""
    return Random(f"{request.draw}|{what}")  # noqa: S311 - a search, no secret


def describe_standing(request: PlanRequest) -> str:
    """Return a kernel's standing: its latency, the best one, its share of the bounds, its bottleneck."""
    parent, bounds = request.parent, request.bounds
    shares = (("roofline lower bound", bounds.plain_ms), ("model bound", bounds.tight_ms))
    return "\n".join(
        [
            f"- latency: {prompt_values.format_latency(parent.benchmark)}",
            f"- best so far in this run: {request.best_ms:.6g} ms",
            *(
                f"- {name}: {ms:.6g} ms (this kernel reaches {100 * ms / parent.latency_ms:.1f} % of it)"
                for name, ms in shares
            ),
            f"- bottleneck: {parent.bottleneck or 'unknown'}",
            f"- made by: {_kernel_origin(parent)}",
        ]
    )


def _kernel_origin(parent: Candidate) -> str:
    return (
        f"{single_line(parent.technique)}: {single_line(parent.title)}"
        if parent.technique
        else single_line(parent.title) or "?"
    )
