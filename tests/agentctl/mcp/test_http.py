"""Who may ask the server on HTTP, and what clients may take up: the attacks that the page withstands, too."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess

import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from agentctl.mcp.http_server import MAX_BODY_BYTES, read_token
from agentctl.page import limits
from agentctl.page.guard import HEADERS
from daemon.errors import DaemonError
from tests.agentctl.mcp.spaces import PLACE
from tests.agentctl.page.test_limits import connect, read_all
from tests.support.mcp_clients import (
    ROOT,
    ServedMcp,
    call,
    http_session,
    open_session,
    refuse,
    serving_mcp,
    stdio_command,
)

HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture
def served(home):
    home.mkdir()
    with serving_mcp(home) as found:
        yield found


def post(served: ServedMcp, body: object, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request("POST", "/mcp", data, {**JSON, **headers})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_token_opens_the_server_and_nothing_else_does(served):
    assert post(served, HELLO, **served.known)[0] == 200
    for given in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": served.gate.token},
        {"authorization": f"Basic {served.gate.token}"},
        {"x-token": served.gate.token},
        {"cookie": f"token={served.gate.token}"},
    ):
        status, headers, body = post(served, HELLO, **given)
        assert status == 403
        assert b"token" in body
        assert served.gate.token.encode() not in body
        assert {name: headers.get(name) for name in HEADERS} == HEADERS


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1", ""])
def test_a_name_that_was_made_to_point_here_is_refused(served, host):
    assert post(served, HELLO, **served.known, host=host.format(port=served.port))[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_other_sites_are_refused_even_with_the_token(served, headers):
    assert post(served, HELLO, **served.known, **headers)[0] == 403


def test_a_huge_body_is_refused_and_the_server_goes_on(served):
    huge = {**HELLO, "params": {"text": "x" * (MAX_BODY_BYTES + 1)}}
    assert post(served, huge, **served.known)[0] == 413
    assert post(served, HELLO, **served.known)[0] == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"[" * 50_000, b'{"jsonrpc": "2.0"}', b"\xff\xfe"]
)
def test_what_is_no_message_is_refused(served, body):
    assert post(served, body, **served.known)[0] in (400, 422)
    assert post(served, HELLO, **served.known)[0] == 200


def test_a_slow_client_is_let_go(home, monkeypatch):
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.5)
    home.mkdir()
    with serving_mcp(home) as served:
        with connect(served) as idle:
            assert read_all(idle).startswith(b"HTTP/1.1 408")
        with connect(served) as halfway:
            head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{served.port}\r\ncontent-length: 1000\r\n"
            head += f"authorization: Bearer {served.gate.token}\r\ncontent-type: application/json\r\n"
            halfway.sendall(f"{head}accept: application/json, text/event-stream\r\n\r\nhalf".encode())
            assert read_all(halfway).startswith(b"HTTP/1.1 408")


async def test_a_client_without_the_token_learns_nothing(served):
    async with create_mcp_http_client() as http_client:
        with pytest.raises(BaseException, match=r"403|Forbidden|token|closed|unhandled") as refused:
            async with Client(streamable_http_client(served.url, http_client=http_client)):
                pass
    assert served.gate.token not in repr(refused.value)


async def test_two_clients_work_at_once(served):
    async with http_session(served) as one, http_session(served) as two:
        found = await call(one, "check", **PLACE, source="v0")
        other = await call(two, "check", **PLACE, source="v0")
        assert found == other
        assert (await refuse(two, "check", **PLACE, source="v7"))["code"] == "unknown_version"
        assert (await call(one, "problems", only="silu"))["problems"]


async def test_a_client_that_is_gone_leaves_the_others_alone(served):
    async with http_session(served) as stays:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        request = {
            "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": {"name": "evaluate", "arguments": {**PLACE, "source": "v0"}},
        }  # fmt: skip
        connection.request("POST", "/mcp", json.dumps(request), {**JSON, **served.known})
        connection.close()
        assert (await call(stays, "check", **PLACE, source="v0"))["latencies"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_call_can_be_cancelled_and_the_server_goes_on(transport, home):
    home.mkdir()
    async with open_session(transport, home) as client:
        made = await call(client, "submit_run", problem="silu")
        with pytest.raises(Exception, match=r"(?i)time"):
            await client.call_tool("evaluate", {**PLACE, "source": "v0"}, read_timeout_seconds=0.05)
        assert (await call(client, "run_status"))["queued"] == [made["run"]]


def test_the_server_ends_when_its_client_dies(home):
    home.mkdir()
    with subprocess.Popen(
        stdio_command(home),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        server.stdin.write(json.dumps(HELLO).encode() + b"\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"]
        server.stdin.close()
        assert server.wait(60) == 0


def test_the_verb_prints_address_and_token_and_no_log_has_the_token(home):
    home.mkdir()
    command = [*stdio_command(home, "--http", "--port", "0"), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        said = json.loads(server.stdout.readline())
        port = int(said["url"].rpartition(":")[2].partition("/")[0])
        found = ServedMcp(port, type("Gate", (), {"token": said["token"]})())
        assert post(found, HELLO, authorization=f"Bearer {said['token']}")[0] == 200
        assert post(found, HELLO)[0] == 403
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
        assert server.returncode == 0
    assert said["token"].encode() not in out + err


def test_a_token_of_the_environment_has_to_be_long():
    assert read_token({"AGENTCTL_MCP_TOKEN": "x" * 32}) == "x" * 32
    assert len(read_token({})) >= 32
    assert read_token({}) != read_token({})
    for given in ("", "short", "ä" * 40, "x\n" * 40):
        with pytest.raises(DaemonError, match="AGENTCTL_MCP_TOKEN"):
            read_token({"AGENTCTL_MCP_TOKEN": given})


def test_port_goes_with_http(ctl):
    called = ctl("mcp", "--port", "1")
    assert called.status == 2
    assert "--http" in called.err
