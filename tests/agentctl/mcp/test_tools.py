"""Every tool of the server, over both transports: what it answers, and how it refuses."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from agent_core.tools.registry import TOOLS
from agentctl.command_answers import is_owned
from agentctl.mcp.tool_table import SERVER_TOOLS
from tests.agentctl.mcp.spaces import PLACE, REFERENCE, SMALL_RUN
from tests.support.mcp_clients import call, open_session, refuse, stdio_session

TRANSPORTS = ["stdio", "http"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_finds_tools_resources_and_prompts(transport, home, finished):
    async with open_session(transport, home) as client:
        assert "submit_run" in client.instructions
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == list(SERVER_TOOLS)
        for tool in listed.values():
            Draft202012Validator.check_schema(tool.input_schema)
            Draft202012Validator.check_schema(tool.output_schema)
            assert tool.output_schema["type"] == tool.input_schema["type"] == "object"
            assert tool.annotations.read_only_hint is SERVER_TOOLS[tool.name].reads
        assert [name for name, tool in listed.items() if tool.annotations.destructive_hint] == ["cancel"]
        uris = [one.uri for one in (await client.list_resources()).resources]
        assert {f"kernel://{finished}/best", f"report://{finished}", "docs://tune"} <= set(uris)
        templates = (await client.list_resource_templates()).resource_templates
        assert {one.name for one in templates} == {"kernel", "profile", "report", "problem", "docs"}
        assert {one.name for one in (await client.list_prompts()).prompts} == {
            "optimise_kernel", "why_slow", "tune_workload",
        }  # fmt: skip


def test_tools_of_sessions_have_the_schemas_of_sessions():
    for name in ("lookup", "check", "evaluate", "profile", "what_if", "compare", "list_rewrites", "recall"):
        own = SERVER_TOOLS[name].arguments.model_json_schema()["properties"]
        assert TOOLS[name].arguments.model_json_schema()["properties"].items() <= own.items()
        assert own.keys() - TOOLS[name].arguments.model_fields.keys() == {"problem", "run", "size", "target"}


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_kernel_is_worked_on_with_every_tool(transport, home, tmp_path):
    async with open_session(transport, home) as client:
        first = await call(client, "evaluate", **PLACE, source="v0")
        (claim,) = first["latencies"]
        assert (claim["of"], claim["kind"]) == ("v0", "predicted")
        assert claim["lo_ms"] <= claim["ms"] <= claim["hi_ms"]
        assert claim["limited_by"] == first["answer"]["evaluation"]["bottleneck"]
        checked = await call(client, "check", **PLACE, source="v0")
        assert checked["latencies"][0]["ms"] == pytest.approx(claim["ms"])
        listed = await call(client, "list_rewrites", **PLACE, source="v0")
        one = listed["answer"]["rewrites"][0]
        made = await call(
            client, "apply_rewrite", **PLACE, source="v0", id=f"{one['technique']}@{one['site']}",
            params=one["params"],
        )  # fmt: skip
        version = made["answer"]["version"]
        second = await call(client, "evaluate", **PLACE, source=version)
        assert "keep it" in second["next"], "nothing is submitted here"
        assert second["latencies"][0]["of"] == version
        read = await call(client, "read_kernel", **PLACE, version=version)
        assert read["latencies"] == second["latencies"]
        again = await call(client, "evaluate", **PLACE, source=read["source"])
        assert again["answer"]["evaluation"]["code"] == second["answer"]["evaluation"]["code"]
        compared = await call(client, "compare", **PLACE, a="v0", b=version)
        assert {one["of"] for one in compared["latencies"]} == {"v0", version}
        assert (await call(client, "profile", **PLACE, source=version))["answer"]["topics"]
        assert (await call(client, "what_if", **PLACE, source=version))["answer"]["topics"]
        assert (await call(client, "lookup", **PLACE, query="dma_copy"))["shown"]
        translated = await call(client, "translate", reference=REFERENCE, into=str(tmp_path / "expo"))
        assert translated["verdict"] == "correct"
        assert translated["latencies"][0]["kind"] == "predicted"
        assert (await refuse(client, "translate", reference=REFERENCE, into=str(tmp_path / "expo")))["code"]
        again = await call(client, "check", problem=translated["folder"], source="v0")
        assert again["answer"]["version"] == "v0"


FAULTS = [
    ("lookup", {**PLACE}, "bad_arguments"),
    ("check", {**PLACE, "source": "v9"}, "unknown_version"),
    ("check", {"source": "v0"}, "bad_arguments"),
    ("check", {"source": "v0", "problem": "silu", "run": "x"}, "bad_arguments"),
    ("check", {"source": "v0", "problem": "no_such_problem"}, "unknown_problem"),
    ("evaluate", {**PLACE, "source": ""}, "empty_source"),
    ("evaluate", {**PLACE, "source": "v0", "edit": []}, "bad_arguments"),
    ("evaluate", {**PLACE, "source": 7}, "bad_arguments"),
    ("evaluate", {"run": "no-such-run", "source": "v0"}, "unknown_run"),
    ("profile", {**PLACE, "source": "v0", "detail": "soul"}, "unknown_topic"),
    ("what_if", {**PLACE, "source": "v0", "change": "magic"}, "unknown_change"),
    ("compare", {**PLACE, "a": "v0", "b": "best"}, "unknown_version"),
    ("apply_rewrite", {**PLACE, "source": "v0", "id": "fly@moon"}, "unknown_rewrite"),
    ("read_kernel", {**PLACE, "version": "v9"}, "unknown_version"),
    ("recall", {**PLACE, "query": "tiles"}, "nothing_found"),
    ("new_problem", {"name": "mine", "into": "relative"}, "relative_path"),
    ("new_problem", {"name": "../mine", "into": "/tmp"}, None),
    ("translate", {"reference": "import os\nos.system('x')\n"}, None),
    ("translate", {"reference": "/no/such/file.py"}, None),
    ("submit_run", {"problem": "silu", "rounds": 0}, "bad_arguments"),
    ("submit_run", {"problem": "silu", "settings": {"search.rounds": "many"}}, None),
    ("submit_run", {"problem": "silu", "settings": {"score.command": "true"}}, "cli_only"),
    ("submit_run", {"problem": "silu", "settings": {"run.hosts": []}}, "cli_only"),
    ("submit_run", {"problem": "silu", "kernel": "def f(:"}, None),
    ("submit_run", {"problem": "silu", "kernel": "v1"}, "not_a_source"),
    ("dry_run", {"problem": "silu", "settings": {"planner": ["nobody"]}}, None),
    ("run_status", {"run": "no-such-run"}, "unknown_run"),
    ("wait", {"run": "no-such-run"}, "unknown_run"),
    ("wait", {"run": "x", "condition": "rich"}, "bad_condition"),
    ("wait", {"run": "x", "timeout_seconds": 1e9}, "bad_arguments"),
    ("best", {"run": "no-such-run"}, "unknown_run"),
    ("why", {"run": "", "candidate": "best"}, None),
    ("propose", {"run": "x", "source": ""}, "bad_arguments"),
    ("propose", {"run": "x", "source": "v1\n"}, "not_a_source"),
    ("fork", {"run": "x@y"}, None),
    ("fork", {"run": "no-such-run"}, "unknown_run"),
    ("pause", {"run": "no-such-run"}, "unknown_run"),
    ("resume", {}, "bad_arguments"),
    ("cancel", {"run": "no-such-run"}, "unknown_run"),
    ("problems", {"many": 1}, "bad_arguments"),
    ("sing", {}, "unknown_tool"),
]


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_bad_call_gets_a_typed_fault(transport, home, finished):
    async with open_session(transport, home) as client:
        for name, arguments, code in FAULTS:
            fault = await refuse(client, name, **arguments)
            assert code in (None, fault["code"]), (name, arguments, fault)
    assert {name for name, _, _ in FAULTS} >= SERVER_TOOLS.keys() - {"list_rewrites"}


async def test_a_finished_run_is_read_without_an_owner(home, finished):
    async with open_session("here", home) as client:
        status = await call(client, "run_status", run=finished)
        assert status["is_owned"] is False
        assert status["runs"][0]["state"] == "completed"
        assert {one["of"] for one in status["latencies"]} == {f"{finished}/initial", f"{finished}/best"}
        waited = await call(client, "wait", run=finished, condition="ended")
        assert waited["holds"]
        found = await call(client, "best", run=finished)
        kernel = await client.read_resource(f"kernel://{finished}/best")
        assert found["source"] == kernel.contents[0].text
        (shown,) = (await client.call_tool("best", {"run": finished})).content
        judged = f"{found['candidate']} of {finished}, judged on whole outputs of every seed"
        named = f": {found['title']}" if found["title"] else ""
        assert shown.text.startswith(f"{judged}{named}\n\n")
        story = await call(client, "why", run=finished)
        assert story["candidate"] == found["candidate"]
        assert "\x1b" not in story["story"]
        assert (await client.read_resource(f"report://{finished}")).contents[0].text.startswith("# ")
        assert '"kind": ' in (await client.read_resource(f"profile://{finished}/best")).contents[0].text


async def test_without_an_owner_a_run_is_queued_and_the_answer_says_how_to_start_it(home):
    home.mkdir()
    async with open_session("here", home) as client:
        made = await call(client, "submit_run", problem="silu")
        assert made["state"] == "queued"
        assert f"agentd --home {home}" in made["next"]
        status = await call(client, "run_status")
        assert status["queued"] == [made["run"]]
        fault = await refuse(client, "wait", run=made["run"], timeout_seconds=5)
        assert fault["code"] == "not_begun"
        assert "agentd" in fault["hint"]


@pytest.mark.slow
async def test_a_run_goes_from_submit_to_best_by_an_agentd_of_the_server(home):
    seen: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with stdio_session(home, "--agentd") as client:
        made = await call(client, "submit_run", **SMALL_RUN)
        assert made["state"] == "done"
        run = made["run"]
        found = await client.call_tool("wait", {"run": run, "timeout_seconds": 300}, progress_callback=note)
        assert found.structured_content["holds"], found.structured_content
        assert seen
        best = await call(client, "best", run=run)
        assert {one["kind"] for one in best["latencies"]} == {"predicted"}
        forked = await call(client, "fork", run=run, settings={"search.rounds": 2})
        await call(client, "pause", run=forked["run"])
        fate = await call(client, "resume", run=forked["run"])
        proposed = await call(
            client, "propose", run=forked["run"], source=best["source"] + "\n# mine\n", wait_seconds=0
        )
        assert proposed["candidate"]
        assert (await call(client, "cancel", run=fate["run"]))["state"] == "done"
        assert (await refuse(client, "resume", run=fate["run"]))["code"] == "illegal_state"
    assert not is_owned(home), "the server ends the agentd that it started"
