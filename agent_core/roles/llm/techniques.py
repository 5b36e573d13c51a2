"""The menu as models see it: techniques that all proposers share, those for models only, and invented ones.

A model may propose a technique that is on no menu. The plan keeps it as `new:<name>`, and so do the run's
attempts, credits and lessons; later plans are offered it with its results, like any other. Its inventor
describes it in the plan's detail; experiences and lessons describe it again. Techniques that models invented
in other runs of the home are offered too, with their origin.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
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
"""The most invented techniques that are offered again; those with the largest gains."""
MOST_SAID = 300


def techniques_by_id(prompts: PromptSet, target: str) -> dict[str, Technique]:
    """Return all techniques of the menus by id: those shared with the rewrites, and those for models."""
    own = {one.name: _section_technique(one) for one in prompts.list_sections(FileKind.MENU, target)}
    return {**load_target(target).menu(), **own}


def _section_technique(one: PromptSection) -> Technique:
    text, item = " ".join(one.text.split()), one.item
    return Technique(one.name, one.title, text, frozenset(item.bottlenecks), terms=frozenset(item.terms))


def helpful_techniques(
    ids: Mapping[str, Technique], bottleneck: str | None, words: frozenset[str], least: int
) -> dict[str, Technique]:
    """Return the techniques that may help a kernel: all of the menu if these are fewer than `least`.

    No technique relieves some bottlenecks, such as a kernel's fixed cost; then what applies is returned.
    """
    for wanted in (bottleneck, None):
        found = {name: one for name, one in ids.items() if one.can_help(wanted, words)}
        if len(found) >= least:
            return found
    return dict(ids)


def accept_technique(technique: str, ids: Container[str]) -> str:
    """Return the id under which a plan's technique is kept.

    Raises:
        AnswerFault: `unknown_technique`: it is on no menu and is not a name for a new one.
    """
    name = technique.strip(" `")
    if name.removeprefix("new:") in ids:
        return name.removeprefix("new:")
    if INVENTED_NAME.fullmatch(name):
        return name
    text = "is no id of the menu; a new technique is called new:<short_name>, in lower case"
    raise AnswerFault("unknown_technique", f"{single_line(name, 80)!r} {text}")


def offer_techniques(
    ids: Mapping[str, Technique], context: LearningContext, dropout_percent: float, least: int, draw: Random
) -> PromptItems:
    """Return the menu of one plan: techniques are dropped at random, but at least `least` stay."""
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
    """Return the techniques that models of this run proposed, largest gain per try first."""
    found = [name for name in credits_ if INVENTED_NAME.fullmatch(name)]
    return sorted(found, key=lambda name: -credits_[name].log_gain / max(1, credits_[name].tries))[
        :MOST_INVENTED
    ]


def describe_technique(technique: str, detail: Mapping[str, object], ids: Mapping[str, Technique]) -> str:
    """Return a description of a plan's technique, from the menu or from the plan that invented it."""
    if technique in ids:
        return f"{ids[technique].title}. {ids[technique].description}"
    said = detail.get("invented")
    if isinstance(said, dict):
        return single_line(f"{said.get('title', '')}. {said.get('description', '')}", MOST_SAID)
    return technique


def _menu_line(one: Technique, credit: TechniqueCredit | None) -> str:
    return f"- `{one.id}`: {one.title}. {one.description}{_credit_text(credit)}"


def _invented_line(name: str, context: LearningContext) -> str:
    """Return a menu line for an invented technique, with the last lesson about it."""
    learnt = [one.summary.partition("\n")[0] for one in context.memory if one.technique == name][-1:]
    learnt += [note.lesson for note in context.reflections if note.technique == name]
    words = name.removeprefix("new:").replace("_", " ")
    said = f" {single_line(learnt[0], MOST_SAID)}" if learnt else ""
    return f"- `{name}`: {words}, proposed in this run.{said}{_credit_text(context.credits[name])}"


def _foreign_line(one: LearntTechnique, credit: TechniqueCredit | None) -> str:
    """Return a menu line for a technique of another run's model, with its results there and here."""
    there = one.credit
    by = f" by {single_line(one.model, 80)}" if one.model else ""
    run, problem, target = (single_line(text, 80) for text in (one.run, one.problem, one.tags.target))
    return (
        f"- `{single_line(one.technique, 80)}`: {single_line(one.title, MOST_SAID)}."
        f" {single_line(one.description, MOST_SAID)}"
        f" (invented{by} in run {run}, problem {problem}, {target};"
        f" tried {there.tries} times there, gained {there.gains}){_credit_text(credit)}"
    )


def _credit_text(credit: TechniqueCredit | None) -> str:
    if credit is None or not credit.tries:
        return ""
    return f" (in this run: tried {credit.tries} times, gained {credit.gains})"
