"""Every attack gets its verdict at its stage, and the evaluator judges the next kernel as ever."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import remote.local
import seeds
from state.model import Evaluation, Verdict
from tests.adversarial.attacks import (
    escapes,
    formulas,
    input_ranges,
    language,
    numbers,
    repeats,
    replies,
    resources,
    shortcuts,
    tells,
    walls,
)
from tests.adversarial.model import ENDED_BY_CPU, ENDED_OTHERWISE, SECRET, Attack, Judged
from tests.support.sweeps import parametrize_sweep

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODULES = (
    numbers, formulas, shortcuts, repeats, input_ranges, walls, escapes, replies, resources, language, tells
)  # fmt: skip
ATTACKS = tuple(attack for module in MODULES for attack in module.ATTACKS)
UNRULED = [attack for attack in ATTACKS if attack.unruled is not None]


def parametrize_attacks(attacks: Iterable[Attack]) -> pytest.MarkDecorator:
    """All attacks; in a quick run the first of each module."""
    cases = [*attacks]
    of_modules = [[attack for attack in cases if attack in module.ATTACKS] for module in MODULES]
    firsts = [found[0] for found in of_modules if found]
    return parametrize_sweep("attack", cases, quick=firsts, ids=[attack.technique for attack in cases])


def judge_attack(found: Evaluation) -> Judged:
    return found.verdict, found.stage, found.error.code if found.error else ""


HONEST_EVERY = 12
"""Attacks after which an honest kernel is judged; that each attack is judged right shows the rest."""


async def check(judge, attack: Attack, expected: Judged) -> None:
    """The verdict is right, tells nothing it should not, and the same evaluator judges on."""
    workers = judge.evaluator.judge.worker_pids
    limits = ENDED_BY_CPU if expected[2] == "cpu_limit" else ENDED_OTHERWISE
    found = await judge(attack.problem, attack.kernel, limits=limits)
    judge.judged += 1
    assert judge_attack(found) == expected, found.error
    assert SECRET not in found.model_dump_json()
    assert (found.benchmark is not None) == found.is_correct
    assert set(workers) <= set(judge.evaluator.judge.worker_pids)
    if judge.judged % HONEST_EVERY == 0:
        await check_honest(judge)


async def check_honest(judge, level: str = "slices") -> None:
    honest = await judge("silu", seeds.load_problem("silu").kernel, level=level)
    assert honest.is_correct, honest.error


@pytest.mark.slow
async def test_the_evaluator_is_none_the_worse_for_them(judge):
    """Last in this file, behind all of them."""
    await check_honest(judge, level="whole")


async def test_there_are_forty_techniques_and_more():
    assert len({attack.technique for attack in ATTACKS}) == len(ATTACKS) >= 40
    assert len({attack.kernel for attack in ATTACKS}) == len(ATTACKS)
    assert not any(attack.judged[0] is Verdict.CORRECT for attack in ATTACKS)


@parametrize_attacks(ATTACKS)
async def test_caught(attack, judge):
    await check(judge, attack, attack.judged)


@parametrize_attacks(UNRULED)
async def test_held_by_the_jail_alone(attack, judge, monkeypatch):
    monkeypatch.setattr(remote.local, "lint_kernel", lambda *_: None)
    await check(judge, attack, attack.unruled)
