"""Repairs, as runs in memory: from which error, how often, and what of answers that are no kernels."""

from __future__ import annotations

import pytest

from agent_core.effects import ImplementRequest
from agent_core.roles import KernelAnswer, RoleError
from state.events import KernelDiscarded, KernelKept
from state.model import EffectKey, ErrorInfo, Role
from tests.support.path_kernels import ROOT, Paths, judge_flaws, list_started_effects
from tests.support.world import World, small


class Clumsy(Paths):
    """Breaks kernels: `flaws` are the texts added on the first try, the first repair, ..."""

    def __init__(self, *flaws: str) -> None:
        self.flaws = flaws
        self.seen: list[ImplementRequest] = []

    async def implement(self, request, read):
        self.seen.append(request)
        tries = len(request.failed)
        answer = await super().implement(request, read)
        return KernelAnswer(answer.source + (self.flaws[tries] if tries < len(self.flaws) else ""), "")


def create_clumsy_world(proposer: Clumsy, **search: int) -> World:
    numbers = {"plans": 1, "implementations": 1, "rounds": 1} | search
    return World(small(**numbers), kernel=ROOT, proposer=proposer, judge=judge_flaws).finish()


def test_a_refused_kernel_is_repaired_from_its_error():
    proposer = Clumsy("!one")
    world = create_clumsy_world(proposer, repairs=2)
    assert list_started_effects(world, Role.EXECUTOR) == [
        EffectKey(1, 0, 0, 0, 0, Role.EXECUTOR),
        EffectKey(1, 0, 0, 0, 1, Role.EXECUTOR),
    ]
    (failed,) = proposer.seen[1].failed
    assert world.source(failed.source) == "k.0!one"
    assert failed.error.message == "flaw !one"
    assert [event.reason for event in world.of(KernelDiscarded)] == ["compile_error"]
    assert [event.candidate.id for event in world.of(KernelKept)][1:] == ["r1.b0.p0.k0.f1"]
    (attempt,) = world.state.attempts
    assert (attempt.candidate, attempt.speedup) == ("r1.b0.p0.k0.f1", 2.0)


def test_repair_ends_after_its_rounds():
    proposer = Clumsy("!one", "!two", "!three", "!four")
    world = create_clumsy_world(proposer, repairs=2)
    assert [len(request.failed) for request in proposer.seen] == [0, 1, 2]
    (attempt,) = world.state.attempts
    assert attempt.error is not None
    assert attempt.error.message == "flaw !three"


@pytest.mark.parametrize("flaws", [("!one", "!one"), ("!one", "!two", "!one")])
def test_repair_ends_when_an_error_returns(flaws):
    proposer = Clumsy(*flaws, "!other")
    create_clumsy_world(proposer, repairs=8)
    assert len(proposer.seen) == len(flaws)


class Wordy(Clumsy):
    """Repairs with texts that are no kernels: `faults` are what is wrong with the first answers."""

    def __init__(self, *faults: str) -> None:
        super().__init__("!one")
        self.faults = faults

    async def implement(self, request, read):
        number = len(request.unusable)
        if request.failed and number < len(self.faults):
            self.seen.append(request)
            raise RoleError(ErrorInfo(code=self.faults[number], message="not a kernel"))
        return await super().implement(request, read)


def test_an_answer_that_is_no_kernel_takes_a_repair_and_the_next_one_is_told_of_it():
    proposer = Wordy("no_block", "edit_not_found")
    world = create_clumsy_world(proposer, repairs=3)
    assert [[one.code for one in request.unusable] for request in proposer.seen] == [
        [],
        [],
        ["no_block"],
        ["no_block", "edit_not_found"],
    ]
    assert [len(request.failed) for request in proposer.seen] == [0, 1, 1, 1], "all repair the same kernel"
    assert [event.candidate.id for event in world.of(KernelKept)][1:] == ["r1.b0.p0.k0.f3"]


@pytest.mark.parametrize(
    ("faults", "asked"),
    [
        (("no_block", "no_block"), 3),  # the same fault came back
        (("no_block", "edit_not_found", "not_python"), 3),  # no repairs are left
        (("refused",), 2),  # the model gave no answer
        (("budget",), 2),
    ],
)
def test_repairs_without_a_kernel_end(faults, asked):
    proposer = Wordy(*faults)
    create_clumsy_world(proposer, repairs=2)
    assert len(proposer.seen) == asked


def test_an_executor_whose_answer_is_no_kernel_has_nothing_to_repair():
    class Mute(Clumsy):
        async def implement(self, request, read):
            self.seen.append(request)
            raise RoleError(ErrorInfo(code="no_block", message="not a kernel"))

    proposer = Mute()
    create_clumsy_world(proposer, repairs=2)
    assert len(proposer.seen) == 1


def test_without_repairs_the_first_refusal_is_final():
    proposer = Clumsy("!one")
    create_clumsy_world(proposer, repairs=0)
    assert len(proposer.seen) == 1


def test_a_proposer_that_cannot_repair_is_not_asked_to():
    config = small(plans=1, implementations=1, rounds=1, repairs=2).model_copy(
        update={"planner": ("builtin",)}
    )
    proposer = Clumsy("!one")
    World(config, kernel=ROOT, proposer=proposer, judge=judge_flaws).finish()
    assert len(proposer.seen) == 1
