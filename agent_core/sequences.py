"""Learnt sequences of changes: what a run teaches other runs when it ends, and which ones a new run gets.

A run teaches the steps from its initial kernel to its best one: those of the plans along the best kernel's
line of descent. It teaches only what was verified: the best kernel passed the full audit and is clearly
faster than the initial one. Tags decide which problems are similar. They come from the problem's
specification and the instructions of the initial kernel, never from a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import log2, prod
from typing import TYPE_CHECKING, TypeVar

from stability import divergence_guard
from state.events import Event, KernelKept, PlanProposed, RoundStarted, RunForked
from state.fold import RunState
from state.model import (
    Candidate,
    EffectKey,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    Plan,
    ProblemTags,
    RewriteStep,
    Role,
    SequenceLeg,
)
from state.records import RecordedEvent
from targets.registry import load_families, load_target, target_names

if TYPE_CHECKING:
    from pydantic import JsonValue

    from seeds import ProblemSpec

MOST_SEQUENCES = 4
"""The most sequences that a run is given."""
LEAST_ALIKE = 1 / 3
"""Similar problems share at least this part of the operators that either of them has."""
ANY_TARGET = ""
"""The target of tags that name none."""
MOST_STEPS = 64
"""The most steps of a sequence; of a longer line of descent, only the first legs are taught."""

HISTORY_EVENTS: tuple[type[Event], ...] = (RunForked, RoundStarted, PlanProposed, KernelKept)
"""The event types of a run that `collect_sequence` needs."""

Learnt = TypeVar("Learnt", bound=LearntSequence | LearntExperience | LearntTechnique)


@dataclass(frozen=True, slots=True)
class ProblemSetting:
    """What a run works on: the tags that sequences are compared by, and the arguments of its kernels."""

    tags: ProblemTags
    arguments: tuple[JsonValue, ...]


def describe_setting(spec: ProblemSpec, size: str, target: str, kernel: str) -> ProblemSetting:
    """Return the setting of a run that starts from the source `kernel`.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    dims = spec.dims(size)
    arrays = [[list(item.resolve_kernel_shape(dims)), item.dtype] for item in spec.inputs]
    tags = ProblemTags(
        target=target,
        operators=tuple(sorted(collect_operators(kernel, target))),
        dtypes=tuple(sorted({item.dtype for item in spec.inputs})),
        extents=tuple(sorted((round(log2(extent)) for extent in dims.values()), reverse=True)),
    )
    return ProblemSetting(tags, tuple(spec.call_arguments(arrays, lambda value: value)))


def collect_operators(kernel: str, target: str) -> frozenset[str]:
    """Return the instructions that a kernel's source uses; if the target is unknown, try every language."""
    known = [load_target(target)] if target in target_names() else load_families()
    return next((found for one in known if (found := one.language.operators(kernel))), frozenset())


# --- what a run teaches ------------------------------------------------------------------------------


def has_sure_gain(state: RunState, where: ProblemSetting) -> bool:
    """Return whether an audited run has something to teach: its best is clearly faster than its first."""
    best, initial = state.best, state.initial
    if best is None or initial is None or not where.tags.operators:  # no operators: similar to nothing
        return False
    return divergence_guard.is_clearly_faster(
        best, initial, confidence_percent=state.config.search.confidence_percent
    )


def collect_sequence(
    run: str, state: RunState, history: Iterable[RecordedEvent], where: ProblemSetting
) -> LearntSequence | None:
    """Return the steps to the best kernel of an audited run; None if there is nothing to learn.

    `history` are the events of the run and its ancestors of the types in HISTORY_EVENTS. People's kernels
    have no steps: they are left out of the line, and so is their part of the speed-up.
    """
    best = state.best
    if best is None or not has_sure_gain(state, where):
        return None
    told = _read_history(history, load_target(where.tags.target).menu())
    legs = _bound_legs(
        [leg for one in told.line_of_descent(best) if (leg := told.build_leg(one)) is not None]
    )
    speedup = prod(leg.speedup for leg in legs)
    if speedup <= 1:
        return None
    return LearntSequence(
        run=run,
        run_seq=told.places[best.id],
        problem=state.problem.name,
        tags=where.tags,
        arguments=where.arguments,
        speedup=round(speedup, 9),
        legs=tuple(legs),
        predicted=best.benchmark.predicted,
    )


def trace_rewrites(
    history: Iterable[RecordedEvent], best: Candidate, known: Collection[str]
) -> SequenceLeg | None:
    """Return the rewrites that led to `best` without a break, and the kernel that they began with.

    `history` is as for `collect_sequence`, `known` are the techniques of the menu. A kernel that was not made
    by rewrites, such as a person's, is a break. None if `best` itself is one.
    """
    told = _read_history(history, known)
    legs: list[SequenceLeg] = []
    for one in reversed(told.line_of_descent(best)):
        leg = told.build_leg(one)
        if leg is None:
            break
        legs.insert(0, leg)
    if not legs:
        return None
    steps = tuple(step for leg in legs for step in leg.steps)
    return SequenceLeg(source=legs[0].source, steps=steps, speedup=prod(leg.speedup for leg in legs))


@dataclass(slots=True)
class _RunHistory:
    """What a run's events say about kept kernels: the plan and the parent of each."""

    known: Collection[str]
    """The techniques of the menu."""
    kept: dict[str, KernelKept] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    first: set[str] = field(default_factory=set)
    """Kernels that the run began with, or that a fork judged again; their ancestors are not followed."""

    def line_of_descent(self, best: Candidate) -> list[KernelKept]:
        """Return the kernels on the way to `best` that this run made, oldest first."""
        found: list[KernelKept] = []
        one: str | None = best.id
        while one in self.kept and one not in self.first:
            found.append(self.kept[one])
            one = self.kept[one].candidate.parent
        return found[::-1]

    def build_leg(self, one: KernelKept) -> SequenceLeg | None:
        key = EffectKey.parse(f"{one.candidate.id}.{Role.PLANNER}")
        plan = self.plans.get(str(key._replace(implementation=0, repair=0)))
        parent = self.kept.get(one.candidate.parent or "")
        steps = _plan_steps(plan, key.implementation, self.known) if plan is not None else ()
        if parent is None or one.speedup is None or not steps:
            return None
        return SequenceLeg(source=parent.candidate.source, steps=steps, speedup=one.speedup)


def _read_history(history: Iterable[RecordedEvent], known: Collection[str]) -> _RunHistory:
    told, begun = _RunHistory(known), False
    for item in history:
        match item.event:
            case RunForked(rebase=rebase) if rebase is not None:
                told, begun = _RunHistory(known), False
            case RoundStarted():
                begun = True
            case PlanProposed(key=key, plan=plan):
                told.plans[key] = plan
            case KernelKept(candidate=candidate) as kept:
                told.kept[candidate.id] = kept
                told.places[candidate.id] = item.run_seq
                if not begun:
                    told.first.add(candidate.id)
    return told


def _plan_steps(plan: Plan, implementation: int, known: Collection[str]) -> tuple[RewriteStep, ...]:
    """Return the rewrites of a plan that are on the menu; a single one with its chosen parameters.

    A step that names the blob of its result stays too: it prepares the kernel for the rewrites after it.
    """
    if plan.steps:
        steps = [step for step in plan.steps if step.technique in known or "source" in step.choice]
        return tuple(steps) if any(step.technique in known for step in steps) else ()
    if plan.technique not in known:
        return ()
    site, choices = plan.site, None
    if isinstance(plan.detail, dict):
        site, choices = str(plan.detail.get("site", site)), plan.detail.get("choices")
    choice = choices[implementation] if isinstance(choices, list) and implementation < len(choices) else {}
    return (
        RewriteStep(
            technique=plan.technique,
            site=site,
            title=plan.title,
            choice=_choice_parameters(choice),
            speedup=plan.prediction.speedup,
        ),
    )


def _choice_parameters(choice: JsonValue) -> dict[str, int | str]:
    values = choice.items() if isinstance(choice, dict) else ()
    return {name: value for name, value in values if isinstance(value, int | str)}


def _bound_legs(legs: Sequence[SequenceLeg]) -> list[SequenceLeg]:
    kept: list[SequenceLeg] = []
    for leg in legs:
        if sum(len(one.steps) for one in (*kept, leg)) > MOST_STEPS:
            break
        kept.append(leg)
    return kept


# --- what a run is given -----------------------------------------------------------------------------


def select_nearest(
    known: Sequence[Learnt],
    tags: ProblemTags,
    *,
    most: int = MOST_SEQUENCES,
    foreign: Callable[[Learnt], bool] = lambda _: False,
) -> tuple[Learnt, ...]:
    """Return what fits a run with these tags and its target, most similar first.

    The order is by shared operators, then by what is not `foreign`, by similar dimensions, by data types, and
    by gain. Among equals the last learnt comes first.
    """
    alike = {
        number: _operator_overlap(one.tags, tags)
        for number, one in enumerate(known)
        if one.tags.target in (ANY_TARGET, tags.target)
    }

    def order(number: int) -> tuple[float, bool, int, bool, float, int]:
        one = known[number]
        apart = _extent_distance(one.tags.extents, tags.extents)
        return -alike[number], foreign(one), apart, one.tags.dtypes != tags.dtypes, -one.strength, -number

    near = (number for number, share in alike.items() if share >= LEAST_ALIKE)
    return tuple(known[number] for number in sorted(near, key=order)[:most])


def _operator_overlap(one: ProblemTags, other: ProblemTags) -> float:
    mine, theirs = set(one.operators), set(other.operators)
    return len(mine & theirs) / len(mine | theirs) if mine and theirs else 0.0


def _extent_distance(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """Return the distance of two lists of dimensions in powers of two, comparing them largest first."""
    most = max(len(mine), len(theirs))
    padded = ((*one, *[0] * (most - len(one))) for one in (mine, theirs))
    return sum(abs(a - b) for a, b in zip(*padded, strict=True))
