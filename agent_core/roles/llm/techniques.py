"""The menu as models see it: techniques that all proposers share, those for models alone, invented ones.

A model may propose a technique that is on no menu. It is kept as `new:<name>` in the plan, and so in the
run's attempts, credits and lessons: later plans are offered it with what it has brought, like any other. What
it is, its inventor said in the plan's detail, and experiences and lessons say it again. What models invented
in other runs of the home is offered likewise, with where it is from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random

from agent_core.effects import LearningContext
from agent_core.prompting import FileKind, PromptSection, PromptSet
from agent_core.roles.llm.blocks import AnswerFault
from agent_core.roles.llm.fitting import PromptItems
from agent_core.roles.llm.quoting import single_line
from state.model import LearntTechnique, TechniqueCredit
from targets.base import Technique
from targets.registry import load_target

INVENTED_NAME = re.compile(r"new:[a-z][a-z0-9_]{2,39}")
MOST_INVENTED = 8
"""Techniques of models that are offered again at most, those that brought most."""
MOST_SAID = 300


def techniques_by_id(prompts: PromptSet, target: str) -> dict[str, Technique]:
    """Return all techniques of the menus by id: those shared with the rewrites, and those for models."""
    own = {one.name: _section_technique(one) for one in prompts.list_sections(FileKind.MENU, target)}
    return {**load_target(target).menu(), **own}


def _section_technique(one: PromptSection) -> Technique:
    return Technique(one.name, one.title, " ".join(one.text.split()), frozenset(one.item.bottlenecks))


def accept_technique(technique: str, ids: Mapping[str, Technique]) -> str:
    """Return the id under which a plan's technique is kept.

    Raises:
        AnswerFault: `unknown_technique`: it is on no menu and no name for a new one.
    """
    name = technique.strip(" `")
    if name.removeprefix("new:") in ids:
        return name.removeprefix("new:")
    if INVENTED_NAME.fullmatch(name):
        return name
    text = f"{single_line(name, 80)!r} is no id of the menu; a new technique is called new:<short_name>, in lower case"
    raise AnswerFault("unknown_technique", text)


def offer_techniques(
    ids: Mapping[str, Technique], context: LearningContext, dropout_percent: float, least: int, draw: Random
) -> PromptItems:
    """Return what one plan is offered: each technique is left out with the given odds, `least` stay."""
    lines = [_menu_line(one, context.credits.get(one.id)) for one in ids.values()]
    elsewhere = {one.technique: one for one in context.techniques}
    lines += [
        _invented_line(name, context) for name in rank_invented(context.credits) if name not in elsewhere
    ]
    lines += [_foreign_line(one, context.credits.get(one.technique)) for one in elsewhere.values()]
    order = list(range(len(lines)))
    draw.shuffle(order)
    kept = [at for at in order if draw.random() * 100 >= dropout_percent]
    kept += [at for at in order if at not in kept][: max(0, least - len(kept))]
    return PromptItems(tuple(lines[at] for at in kept), "(the menu is empty)")


def rank_invented(credits_: Mapping[str, TechniqueCredit]) -> Sequence[str]:
    """Return the techniques that models of this run proposed, those that brought most per try first."""
    found = [name for name in credits_ if INVENTED_NAME.fullmatch(name)]
    return sorted(found, key=lambda name: -credits_[name].log_gain / max(1, credits_[name].tries))[
        :MOST_INVENTED
    ]


def describe_technique(technique: str, detail: Mapping[str, object], ids: Mapping[str, Technique]) -> str:
    """Return a plan's technique as its menu describes it, or as the plan that invented it does."""
    if technique in ids:
        return f"{ids[technique].title}. {ids[technique].description}"
    said = detail.get("invented")
    if isinstance(said, dict):
        return single_line(f"{said.get('title', '')}. {said.get('description', '')}", MOST_SAID)
    return technique


def _menu_line(one: Technique, credit: TechniqueCredit | None) -> str:
    return f"- `{one.id}`: {one.title}. {one.description}{_credit_text(credit)}"


def _invented_line(name: str, context: LearningContext) -> str:
    """Return an invented technique with what was last learnt of it."""
    learnt = [one.summary.partition("\n")[0] for one in context.memory if one.technique == name][-1:]
    learnt += [note.lesson for note in context.reflections if note.technique == name]
    words = name.removeprefix("new:").replace("_", " ")
    said = f" {single_line(learnt[0], MOST_SAID)}" if learnt else ""
    return f"- `{name}`: {words}, proposed in this run.{said}{_credit_text(context.credits[name])}"


def _foreign_line(one: LearntTechnique, credit: TechniqueCredit | None) -> str:
    """Return a technique that another run's model invented, with what it brought there and here."""
    there = one.credit
    by = f" by {single_line(one.model, 80)}" if one.model else ""
    place = f"run {single_line(one.run, 80)}, problem {single_line(one.problem, 80)}, {single_line(one.tags.target, 80)}"
    return (
        f"- `{single_line(one.technique, 80)}`: {single_line(one.title, MOST_SAID)}. {single_line(one.description, MOST_SAID)}"
        f" (invented{by} in {place}; tried {there.tries} times there, gained {there.gains}){_credit_text(credit)}"
    )


def _credit_text(credit: TechniqueCredit | None) -> str:
    if credit is None or not credit.tries:
        return ""
    return f" (in this run: tried {credit.tries} times, gained {credit.gains})"
