"""What clients are told beyond answers: values that complete an argument, and resources that changed."""

from __future__ import annotations

import asyncio

import pytest
from mcp.client import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import PromptReference, ResourceTemplateReference, ResourceUpdatedNotification

from agentctl.mcp import completions, subscriptions
from agentctl.mcp.resources import TEMPLATES
from agentctl.mcp.server import create_server
from tests.support import fakes
from tests.support.mcp_clients import open_session

TEMPLATE = {one.name: ResourceTemplateReference(uri=one.uri_template) for one in TEMPLATES}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(subscriptions, "LOOK_SECONDS", 0.01)


async def complete(client: Client, ref, name: str, value: str, /, **known: str) -> list[str]:
    return (await client.complete(ref, {"name": name, "value": value}, known)).completion.values


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_arguments_are_completed(transport, home, finished):
    async with open_session(transport, home) as client:
        prompt = PromptReference(name="optimise_kernel")
        assert await complete(client, prompt, "problem", "sil") == ["silu"]
        assert await complete(client, PromptReference(name="tune_workload"), "workload", "/") == []
        assert await complete(client, TEMPLATE["report"], "run", finished[:4]) == [finished]
        kernels = await complete(client, TEMPLATE["kernel"], "candidate", "", run=finished)
        assert kernels[:2] == ["best", "initial"]
        assert await complete(client, TEMPLATE["kernel"], "candidate", "b", run="no-such-run") == []
        files = await complete(client, TEMPLATE["problem"], "file", "ref", name="silu")
        assert files == ["reference.py"]
        assert await complete(client, TEMPLATE["docs"], "page", "tun") == ["tune"]


async def test_at_most_a_hundred_values_are_answered(home, monkeypatch):
    many = [f"p{number}" for number in range(150)]
    monkeypatch.setitem(completions._VALUES, "problem", lambda *_: many)
    async with open_session("here", home) as client:
        ref = PromptReference(name="optimise_kernel")
        found = (await client.complete(ref, {"name": "problem", "value": ""})).completion
    assert (found.values, found.total, found.has_more) == (many[:100], 150, True)


@pytest.mark.parametrize("transport", ["stdio", "http", "here"])
async def test_a_stream_of_changes_names_the_runs_resources(transport, home):
    run = fakes.submit_run(home)
    wanted = [f"report://{run}", f"kernel://{run}/best"]
    async with (
        open_session(transport, home) as client,
        client.listen(resources_list_changed=True, resource_subscriptions=wanted) as changes,
    ):
        await asyncio.to_thread(fakes.finish_runs, home, run)
        seen = set()
        async with asyncio.timeout(60):
            async for event in changes:
                seen.add(event)
                if {*map(ResourceUpdated, wanted), ResourcesListChanged()} <= seen:
                    break
        assert f"profile://{run}/best" not in {getattr(event, "uri", "") for event in seen}


async def test_clients_of_older_revisions_subscribe_to_one_resource(home):
    run = fakes.submit_run(home)
    told: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            await told.put(message.params.uri)

    async with Client(create_server(home), mode="legacy", message_handler=handle) as client:
        with pytest.warns(MCPDeprecationWarning):
            await client.subscribe_resource(f"report://{run}")
        await asyncio.to_thread(fakes.finish_runs, home, run)
        assert await asyncio.wait_for(told.get(), 60) == f"report://{run}"
        with pytest.warns(MCPDeprecationWarning):
            await client.unsubscribe_resource(f"report://{run}")
        while not told.empty():
            told.get_nowait()
        again = fakes.submit_run(home)
        await asyncio.to_thread(fakes.finish_runs, home, again)
        await asyncio.sleep(10 * subscriptions.LOOK_SECONDS)
        assert told.empty()


async def test_the_log_is_looked_at_only_while_somebody_listens(home):
    watch = subscriptions.RunWatch(home)
    first, second = watch.subscribe(lambda _: None), watch.subscribe(lambda _: None)
    assert watch.is_watching
    first()
    first()
    assert watch.is_watching, "the second still listens"
    second()
    assert not watch.is_watching
    await watch.aclose()
