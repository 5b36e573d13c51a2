"""What clients of the page may take up: time for a request, connections, files."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from agentctl.page import limits
from agentctl.page.limits import FileShortage
from tests.agentctl.page.serving import Served, serving


@pytest.fixture
def served(home: Path, monkeypatch):
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.5)
    home.mkdir()
    with serving(home) as served:
        yield served


def connect(served: Served) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", served.port))
    made.settimeout(60)
    return made


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(4096):
        found += part
    return found


def test_a_client_that_sends_nothing_is_let_go(served: Served) -> None:
    with connect(served) as idle:
        assert read_all(idle).startswith(b"HTTP/1.1 408")


def test_headers_that_drip_in_do_not_move_the_deadline(served: Served) -> None:
    with connect(served) as dripping:
        dripping.settimeout(0.05)
        found, began = b"", time.monotonic()
        while not found:
            assert time.monotonic() - began < 60
            dripping.send(b"X")
            try:
                found = dripping.recv(4096)
            except TimeoutError:
                continue
        assert found.startswith(b"HTTP/1.1 408")


def test_a_body_that_does_not_come_is_not_waited_for(served: Served) -> None:
    head = f"POST /api/runs/r/pause HTTP/1.1\r\nhost: {served.host}\r\ncontent-length: 10\r\n\r\n{{"
    with connect(served) as slow:
        slow.sendall(head.encode())
        read_all(slow)  # ends: whatever the answer is, the connection is closed


def test_a_quick_client_is_served_again_and_again(served: Served) -> None:
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    with closing(client):
        for _ in range(3):
            client.request("GET", "/static/none", headers=served.known)
            assert client.getresponse().read() == b"no such file\n"


def test_one_address_gets_no_more_than_its_share(served: Served, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_PER_PEER", 3)
    monkeypatch.setattr(limits, "HEADER_SECONDS", 60.0)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(served))
        time.sleep(0.2)  # until the server has accepted them
        with connect(served) as fourth:
            assert read_all(fourth).startswith(b"HTTP/1.1 503")


async def test_a_shortage_of_files_is_one_line_a_minute(caplog) -> None:
    shortage = FileShortage()
    error = OSError(errno.EMFILE, "Too many open files")
    loop = asyncio.get_running_loop()
    for _ in range(100):
        shortage.handle_loop_error(
            loop, {"message": "socket.accept() out of system resource", "exception": error}
        )
    answer = await shortage.answer_os_error(None, error)
    assert answer.status_code == 503
    assert [record.getMessage()[:19] for record in caplog.records] == ["Too many open files"]
    assert not caplog.records[0].exc_info
    with pytest.raises(OSError, match="denied"):
        await shortage.answer_os_error(None, OSError(errno.EACCES, "Permission denied"))
