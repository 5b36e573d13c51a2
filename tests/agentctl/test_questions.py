"""What came of a run's questions: counted as its events come, and told where all was in vain."""

from __future__ import annotations

import pytest

from agent_core.providers.failures import Failure, FailureKind
from agentctl.call_tally import CallTally
from agentctl.run_tracker import RunTracker
from state.events import PlanFailed
from state.log import EventLog
from tests.daemon.calls import fake_models as models
from tests.daemon.calls.fake_models import CONFIG, FakeProvider


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


async def followed(event_log: EventLog, script, **changes) -> CallTally:
    """Return what a run came to whose model answers so."""
    config = CONFIG.model_copy(update=changes)
    run = await models.finish_run(event_log, FakeProvider(script=script), config)
    tracker = RunTracker(run)
    for item in event_log.read(stream=run, limit=10_000):
        tracker.add(item)
    return tracker.questions


async def test_a_run_with_kernels_is_not_fruitless(event_log):
    found = await followed(event_log, models.answer_request)
    assert found.kernels > 0
    assert found.answered > found.kernels
    assert found.failure_reason() is None


async def test_where_nobody_answers_that_is_told_with_what_they_said(event_log):
    found = await followed(
        event_log, lambda *_: Failure(kind=FailureKind.INVALID, message="no such \x1b[31mmodel")
    )
    assert (found.answered, found.kernels) == (0, 0)
    told = found.failure_reason() or ""
    assert told.startswith("no question to a model was answered: llm_invalid: ")
    assert told.endswith(f"{found.failed['invalid']} invalid; the last: no such [31mmodel")


async def test_answers_of_which_no_kernel_came_are_told_apart(event_log):
    found = await followed(event_log, lambda *_: "I would rather not say.")
    assert found.answered > 0
    assert (found.failure_reason() or "").startswith("no answer of a model became a kernel: no_block: ")


async def test_where_no_question_could_be_asked_the_proposals_say_why(event_log):
    found = await followed(event_log, models.answer_request, cap_usd=0.001)
    assert (found.answered, found.failed.total()) == (0, 0)
    assert (found.failure_reason() or "").startswith("no question to a model was answered: budget: no room")


async def test_what_others_fail_at_is_none_of_its_questions(event_log):
    """The first round is the built-in proposer's, which can make nothing of this kernel."""
    found = await followed(event_log, models.answer_request, planner=("builtin", "local"))
    (run,) = event_log.run_ids()
    failed = [one for one in event_log.read(stream=run, limit=10_000) if isinstance(one.event, PlanFailed)]
    assert failed
    assert found.unmade.total() == 0
    assert found.failure_reason() is None
