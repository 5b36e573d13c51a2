"""Keys: a whole run over real sockets, by a server that repeats what it was sent, leaves no trace of one."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from daemon.calls.llm_roles import RoleFactory
from stability.breaker import BreakerPolicy
from state.events import CallFailed, ConfigChanged, RunResumed
from state.log import EventLog
from state.model import LlmConfig, RunStatus
from state.records import NewEvent
from tests.daemon.calls import fake_models
from tests.support import constants_model
from tests.support.llm_server import Asked, LlmServer, Refuse, Reply, Said

KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-quitesecret0123456789",
    "OPENAI_API_KEY": "sk-proj-verysecret9876543210",
    "LOCAL_API_KEY": "plainsecretwithoutanyform",
}
MODELS = ("anthropic/one", "openai/two", "local/three")


def script(asked: Asked) -> Said:
    """Repeat the key in refusals of every kind, then answer."""
    sent = asked.headers.get("x-api-key") or asked.headers["authorization"]
    told = f"this key is no good: {sent}"
    if asked.number <= 3:
        return Refuse(401, "authentication_error", told)
    if asked.number % 3 == 0:
        return [Refuse(500, "api_error", told), Refuse(429, "rate_limit_error", told)][asked.number % 2]
    return Reply(text=constants_model.answer_question(asked.model, asked.guide, asked.case))


async def run_through(event_log: EventLog, server: LlmServer) -> str:
    config = fake_models.CONFIG.model_copy(
        update={"planner": ("llm",), "llm": LlmConfig(models=MODELS, max_output_tokens=1000)}
    )
    settings = fake_models.daemon_config(
        anthropic={"base_url": server.anthropic},
        openai={"base_url": server.openai},
        local={"base_url": server.openai},
        prices=tuple(f"{model}=3/0.3/15" for model in MODELS),
    )
    run = await fake_models.submit_run(event_log, config)
    async with asyncio.timeout(120):
        while not event_log.run_state(run).has_ended:
            roles = RoleFactory(
                event_log,
                settings,
                env=KEYS,
                retries=fake_models.QUICK,
                breakers=BreakerPolicy(failures=1000),
            )
            await fake_models.host_until(
                event_log,
                roles,
                until=lambda: event_log.run_state(run).status is not RunStatus.RUNNING,
                config=settings,
            )
            if event_log.run_state(run).status is RunStatus.PAUSED:
                await event_log.append([NewEvent(run, RunResumed(reason="mended"))])
    return run


def read_home(home: Path) -> str:
    """Return all that a home has: its files as they are, and its blobs unpacked."""
    files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    with closing(sqlite3.connect(home / "events.db")) as connection:
        for table in ("blob", "snapshot"):
            files += [_unpack(data) for (data,) in connection.execute(f"SELECT data FROM {table}")]
    return b"\n".join(files).decode(errors="replace")


def _unpack(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return data


def test_no_key_is_in_any_event_blob_file_log_line_or_error(home, capsys, caplog):
    with LlmServer(script) as server:
        with EventLog.open(home) as event_log:
            run = asyncio.run(run_through(event_log, server))
            kinds = {
                item.event.kind
                for item in event_log.read(stream=run, limit=10_000)
                if isinstance(item.event, CallFailed)
            }
        sent = {asked.headers.get("x-api-key") or asked.headers["authorization"] for asked in server.asked}
    assert kinds == {"auth", "server", "rate"}
    assert len(sent) >= 2  # keys were sent, in the one form or the other
    out, err = capsys.readouterr()
    text = read_home(home) + out + err + caplog.text
    assert "this key is no good" in text
    for key in KEYS.values():
        assert key not in text
        assert key[8:] not in text


@pytest.mark.parametrize("key", KEYS.values())
def test_the_search_would_find_one(home, key):
    with EventLog.open(home) as event_log:
        taken = NewEvent("system", ConfigChanged(config={}))
        event_log.append_now([taken], blobs=[f"x {key}".encode() * 50])
    assert key in read_home(home)
