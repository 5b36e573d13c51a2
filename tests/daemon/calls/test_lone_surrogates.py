"""A run over real sockets, asked of a server that says halves of letters wherever it says anything."""

from __future__ import annotations

import asyncio

from daemon.calls.llm_roles import RoleFactory
from state.events import CallCompleted, CallFailed
from state.log import EventLog
from state.model import RunStatus
from tests.daemon.calls import fake_models
from tests.support import constants_model
from tests.support.llm_server import Asked, LlmServer, Refuse, Reply, Said, fail_first_deliveries

HALF = "\ud83d"


def script(asked: Asked) -> Said:
    text = constants_model.answer_question(asked.model, asked.guide, asked.case)
    return Reply(text=f"{text}\n{HALF}", model=f"m{HALF}")


def test_every_question_is_paid_once_and_the_run_ends(home):
    with (
        LlmServer(fail_first_deliveries(script, Refuse(500, "api_error", f"down {HALF}"))) as server,
        EventLog.open(home) as event_log,
    ):
        settings = fake_models.daemon_config(local={"base_url": server.openai})

        async def work() -> str:
            run = await fake_models.submit_run(event_log)
            roles = RoleFactory(event_log, settings, env={}, retries=fake_models.QUICK)
            await fake_models.host_until(
                event_log, roles, until=lambda: event_log.run_state(run).has_ended, config=settings
            )
            return run

        run = asyncio.run(work())
        ends = [item.event for item in event_log.read(stream=run, limit=10_000)]
        state = event_log.run_state(run)
    answers = [event for event in ends if isinstance(event, CallCompleted)]
    failures = [event for event in ends if isinstance(event, CallFailed)]
    assert state.status is RunStatus.COMPLETED
    assert {event.answered_by for event in answers} == {"m\ufffd"}
    assert {event.error.message for event in failures} == {"down \ufffd"}
    assert len(answers) + len(failures) == len(server.asked)
    assert len(failures) == len(server.counts())
