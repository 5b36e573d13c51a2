"""The what-ifs of a planner that answers questions: what it is told, and that a plan needs none."""

from __future__ import annotations

import pytest

from agent_core.roles import RoleError
from agent_core.roles.llm import LlmRoles
from agent_core.tools.workbench import RefusedKernel
from state.model import ErrorInfo, KernelExplanation, Verdict
from tests.support.role_requests import PROBLEM, Answers, Blobs, fenced_block, plan_reply


class Lab:
    """A session's host whose lab gives one answer, or fails."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    @property
    def lab(self):
        return self

    async def explain(self, source, topics):
        self.asked.append((source, tuple(topics)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def told_what_ifs(answer) -> tuple[str, Lab]:
    held, ask, lab = Blobs(), Answers([fenced_block(plan_reply())]), Lab(answer)
    await LlmRoles("local", ask, session=lab).plan(held.plan_request(), held.read)
    return ask.values()["what_ifs"], lab


async def test_a_planner_is_told_what_its_kernel_would_gain_if_a_part_took_no_time():
    row = "0.5 ms (-50.0 %) with dma free; no measured pair"
    found = KernelExplanation(latency_ms=1.0, topics={"what_if": f"1 ms predicted as it is\n{row}"})
    told, lab = await told_what_ifs(found)
    assert row in told
    assert "cannot gain more" in told
    assert lab.asked == [(PROBLEM.kernel, ("what_if",))]


@pytest.mark.parametrize(
    "answer",
    [
        RoleError(ErrorInfo(code="worker_lost", message="no worker")),
        RefusedKernel(verdict=Verdict.LINT_ERROR, stage="rules"),
        KernelExplanation(error=ErrorInfo(code="untimed", message="it cannot be timed")),
    ],
    ids=["failed", "refused", "untimed"],
)
async def test_a_plan_is_made_without_what_ifs_where_there_are_none(answer):
    told, lab = await told_what_ifs(answer)
    assert told == ""
    assert lab.asked
