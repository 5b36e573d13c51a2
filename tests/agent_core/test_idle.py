"""A round in which nobody proposed a kernel ends the run, and says what failed first."""

from __future__ import annotations

import pytest

from agent_core.roles import RoleError
from state.events import BeamSelected, PlanProposed, ReflectionRecorded
from state.model import ErrorInfo, StopReason
from tests.support.path_kernels import ROOT, Paths, judged_by
from tests.support.world import World, small


@pytest.mark.parametrize(
    ("role", "why"),
    [("plan", "nothing_applies: no idea at all"), ("implement", "unmatched_edit: no such line")],
)
def test_a_round_without_a_kernel_still_closes_and_ends_the_run(role, why):
    class Mute(Paths):
        async def plan(self, request, read):
            if role == "plan":
                raise RoleError(ErrorInfo(code="nothing_applies", message="no idea\nat all"))
            return await super().plan(request, read)

        async def implement(self, request, read):
            raise RoleError(ErrorInfo(code="unmatched_edit", message="no such line"))

    world = World(small(rounds=5), kernel=ROOT, proposer=Mute(), judge=judged_by({ROOT: 10.0})).finish()
    assert world.state.stop is StopReason.NO_PROPOSALS
    assert world.state.status_reason == f"a round without a kernel to judge: {why}"
    assert world.of(BeamSelected)[-1].beam[0].candidate == world.state.initial
    planned = len(world.of(PlanProposed))
    failed = world.state.attempts
    assert len(failed) == 2 * planned == len(world.of(ReflectionRecorded))
    assert all(attempt.error and attempt.error.code == "unmatched_edit" for attempt in failed)


@pytest.mark.parametrize("order", range(6))
def test_the_first_failure_of_a_round_without_a_kernel_is_told_in_whatever_order_they_came(order):
    class Mute(Paths):
        async def plan(self, request, read):
            raise RoleError(ErrorInfo(code="llm_auth", message=request.key))

    world = World(
        small(rounds=5, plans=4), kernel=ROOT, proposer=Mute(), judge=judged_by({ROOT: 10.0}), order=order
    ).finish()
    assert world.state.status_reason.endswith(": llm_auth: r1.b0.p0.k0.f0.planner")
