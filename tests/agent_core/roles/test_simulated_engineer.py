"""The simulated engineer is what it says: its rates, its mistakes, and that it mends what it is told."""

from __future__ import annotations

from random import Random

import pytest

from state.model import Verdict
from tests.support.engineer_tasks import TASKS, Task, attempt_task, lab_of
from tests.support.simulated_engineer import (
    ONE_SHOT,
    PATIENCE,
    WITH_TOOLS,
    Draft,
    Engineer,
    Skill,
    spoil_line,
    write_draft,
)

SILU = Task("silu", "trn2")


def test_there_are_twenty_tasks():
    assert len(set(TASKS)) == 20


def test_its_skill_gives_the_published_rates():
    """Of many drafts, so many are right at once, and so many if each mistake is tried three times."""
    skill, luck = Skill.from_rates(), Random(1)
    good = lab_of(SILU).kernel
    drafts = [write_draft(good, skill, luck) for _ in range(3000)]
    assert sum(not one.mistakes for one in drafts) / len(drafts) == pytest.approx(ONE_SHOT, abs=0.02)
    stays = (1 - skill.mends) ** PATIENCE
    kept = sum(all(luck.random() >= stays for _ in one.mistakes) for one in drafts) / len(drafts)
    assert kept == pytest.approx(WITH_TOOLS, abs=0.04)


def test_most_of_its_mistakes_are_refused_and_mending_them_makes_the_kernel_right():
    lab, luck = lab_of(SILU), Random(2)
    verdicts = []
    for _ in range(30):
        draft = Draft(lab.kernel.split("\n"))
        spoil_line(draft, luck)
        verdicts.append(lab.judge(draft.source).verdict)
        for at, row in draft.mistakes.items():
            draft.rows[at] = row
        assert lab.judge(draft.source).is_correct
    assert sum(one is not Verdict.CORRECT for one in verdicts) >= 24
    assert {Verdict.COMPILE_ERROR, Verdict.INCORRECT} <= set(verdicts)


def test_a_mistake_is_mended_where_the_refusal_points():
    draft = Draft(["a", "bad", "c", "bad too"], {1: "b", 3: "d"})
    engineer = Engineer([], Skill(mistakes=0, mends=1.0, slips=0), Random(0))
    assert engineer.mend(draft, "v1: compile_error\n[code] message\nline 4: bad too")
    assert draft.rows == ["a", "bad", "c", "d"]
    several = Draft(["bad", "b", "bad too", "and bad"], {0: "a", 2: "c", 3: "d"})
    assert engineer.mend(several, "v1: refused\nline 1: bad\nwrong as well:\nline 4: and bad")
    assert several.rows == ["a", "b", "bad too", "d"]
    hopeless = Engineer([], Skill(mistakes=0, mends=0.0, slips=0), Random(0))
    assert [hopeless.mend(draft, "incorrect") for _ in range(PATIENCE + 1)] == [True] * PATIENCE + [False]


@pytest.mark.parametrize("form", ["question", "loop"])
async def test_the_same_seed_does_the_same_and_keeps_its_budget(form):
    one, other = [await attempt_task(SILU, form, budget=60_000, seed=3) for _ in range(2)]
    assert one == other
    assert 0 < one.spent <= 60_000
    assert one.drafts > 0


async def test_an_engineer_without_mistakes_solves_a_task_in_both_forms(monkeypatch):
    perfect = Skill(mistakes=0.0, mends=1.0, slips=0.0)
    monkeypatch.setattr(Skill, "from_rates", lambda: perfect)
    for form in ("question", "loop"):
        found = await attempt_task(SILU, form, budget=3_000_000, seed=0)
        assert found.is_solved
        assert found.right_at_once == found.drafts
