"""A judgement goes on where it was cut off, with the same outcome, and believes no part of another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest

import nki_sim
import seeds
from remote.judge import judged_parts
from remote.judge.input_cache import InputCache
from remote.judge.judged_parts import JudgedParts
from remote.local import LocalEvaluator
from remote.worker import answer_job
from state.model import Level
from state.step_keeper import STEP_KEEPER
from targets.nki.judge import trials
from tests.support.sweeps import parametrize_sweep


class Killed(BaseException):
    """Stands for the end of the process."""


class MemoryKeeper:
    """Keeps the parts of an effect in memory; ends the "process" when `lives` answers were kept."""

    def __init__(self, lives: int = 10**9) -> None:
        self.kept: dict[str, str] = {}
        self.lives = lives
        self.done = 0

    async def find(self, asked: str, /) -> str | None:
        return self.kept.get(asked)

    async def keep(self, asked: str, answer: str, /) -> None:
        if not self.lives:
            raise Killed
        self.lives -= 1
        self.kept[asked] = answer
        self.done += 1

    async def recall(self, asked, perform, /, *, prepare=None) -> str:
        if asked not in self.kept:
            await self.keep(asked, await perform())
        return self.kept[asked]

    async def note_begun(self) -> None: ...

    async def note_part(self) -> None: ...


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all parts that were judged, not recalled, each told at once."""
    names: list[str] = []
    real = JudgedParts.recall

    def recall(self: JudgedParts, name: str, judge: Callable[..., object], /, *args: object) -> object:
        def noted(*given: object) -> object:
            names.append(name)
            return judge(*given)

        return real(self, name, noted, *args)

    monkeypatch.setattr(JudgedParts, "recall", recall)
    monkeypatch.setattr(judged_parts, "TELL_SECONDS", 0.0)
    return names


def judge_here(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the evaluator judge in this process, where a test can see the parts.

    A worker judges no further than one part beyond those that its keeper lives to keep.
    """

    async def judge(job, payload, *, keep=None):
        told: list[dict[str, object]] = []
        keeper = STEP_KEEPER.get()
        lives = 0 if keeper is None else keeper.lives

        def tell(parts) -> None:
            told.append(dict(parts))
            if sum(map(bool, told)) > lives:
                raise Killed

        reply = None
        with suppress(Killed):
            reply = answer_job(
                job.model_dump_json().encode(), payload, InputCache(1 << 28), None if keep is None else tell
            )
        for parts in told:
            await keep(json.loads(json.dumps(parts)))
        assert reply is not None
        return reply.result

    monkeypatch.setattr(evaluator.judge.workers, "judge", judge)


def told_outcome(answer) -> str:
    return answer.evaluation.model_dump_json()


@pytest.mark.parametrize("case", [
    ("", Level.ONE_SEED, False, ["first seed"]),
    ("bfloat16", Level.SLICES, False, []),
    ("bfloat16", Level.ONE_SEED, False, ["outliers"]),
    ("bfloat16", Level.ONE_SEED, True, ["first seed"]),
    ("bfloat16", Level.WHOLE, False, ["outliers", "flipped", "first seed", "other seeds"]),
])  # fmt: skip
async def test_a_kernel_that_may_round_is_first_compared_where_most_is_lost(
    case, bench, make_evaluator, monkeypatch, judged
):
    told, level, meaningless, compared = case
    lab, evaluator = bench(seeds.load_problem("silu")), make_evaluator()
    judge_here(evaluator, monkeypatch)
    if meaningless:
        usual = trials.set_tolerance
        monkeypatch.setattr(
            trials,
            "set_tolerance",
            lambda name, honest, own: None if name == "outliers" else usual(name, honest, own),
        )
    source = lab.problem.kernel + f"\n# {told}\n"
    answer = await evaluator.evaluate(lab.request(source, level=level), lab.blobs)
    assert answer.evaluation.is_correct
    assert answer.evaluation.level is level
    first, *others = map(str, lab.problem.spec.seeds)
    names = {"first seed": [first], "other seeds": others}
    wanted = [f"whole {name}" for one in compared for name in names.get(one, [one])]
    assert [name for name in judged if name.startswith("whole ")] == wanted


@parametrize_sweep("case", [
    ("silu", Level.SLICES), ("silu", Level.WHOLE), ("lora", Level.WHOLE), ("matmul", Level.ONE_SEED),
    ("rope_single_freq_apply", Level.WHOLE), ("rmsnorm_matmul", Level.SLICES),
], quick=2)  # fmt: skip
async def test_killed_after_any_part_it_goes_on_to_the_same_outcome(
    case, bench, make_evaluator, monkeypatch, judged
):
    name, level = case
    lab, evaluator = bench(seeds.load_problem(name)), make_evaluator()
    judge_here(evaluator, monkeypatch)
    wanted = told_outcome(await evaluator.evaluate(lab.request(level=level), lab.blobs))
    whole = list(judged)
    assert len(whole) > 10
    keeper, lives = MemoryKeeper(), 0
    STEP_KEEPER.set(keeper)
    judged.clear()
    found = None
    while found is None:
        keeper.lives, lives = 2, lives + 1
        try:
            found = told_outcome(await evaluator.evaluate(lab.request(level=level), lab.blobs))
        except Killed:
            continue
    assert found == wanted
    assert set(judged) == set(whole)
    assert lives > len(whole) / 4
    kept = [json.loads(value) for asked, value in keeper.kept.items() if asked.startswith("parts of ")]
    assert set().union(*kept) == set(whole)


async def test_a_part_is_judged_once_however_often_it_is_cut_off(silu, make_evaluator, monkeypatch, judged):
    evaluator = make_evaluator()
    judge_here(evaluator, monkeypatch)
    STEP_KEEPER.set(keeper := MemoryKeeper())
    await evaluator.evaluate(silu.request(), silu.blobs)
    whole = list(judged)
    outcome = next(asked for asked in keeper.kept if f"parts of {asked}" in keeper.kept)
    del keeper.kept[outcome]
    await evaluator.evaluate(silu.request(), silu.blobs)
    assert judged == whole


def replace_toolchain(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nki_sim, "toolchain", lambda: "another")


def replace_secret(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(evaluator.judge.references), "secret", "another secret")


def replace_judge(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.judge_service._digest_judge", lambda target: "another")


def replace_constants(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator.judge, "constants_of", lambda target: {"tensor_min_cycles": 70.0})


def reseal_references(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.judge_service.read_seal", lambda path: "another")


OTHERS = (replace_toolchain, replace_secret, replace_judge, replace_constants, reseal_references)


@pytest.mark.parametrize("other", OTHERS, ids=lambda one: one.__name__)
async def test_parts_of_another_judgement_are_not_believed(other, silu, make_evaluator, monkeypatch, judged):
    evaluator = make_evaluator()
    judge_here(evaluator, monkeypatch)
    STEP_KEEPER.set(MemoryKeeper())
    await evaluator.evaluate(silu.request(), silu.blobs)
    first = len(judged)
    await evaluator.evaluate(silu.request(), silu.blobs)
    assert len(judged) == first
    other(evaluator, monkeypatch)
    await evaluator.evaluate(silu.request(), silu.blobs)
    assert len(judged) == 2 * first
