"""What the process tells a service manager: the datagrams, and what a manager that does not listen costs."""

from __future__ import annotations

import socket
import time

import pytest

from daemon.systemd import NULL_NOTIFIER, ServiceNotifier, credential_files


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.setblocking(False)
        yield heard


def read_notifications(manager: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_what_is_said_is_what_the_protocol_has(manager):
    notifier = ServiceNotifier.from_env(environment(manager))
    notifier.notify_ready()
    notifier.send_heartbeat()
    notifier.notify_stopping()
    notifier.extend_timeout(2.5)
    assert read_notifications(manager) == [
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
        "EXTEND_TIMEOUT_USEC=2500000",
    ]


def test_a_status_is_one_line_and_is_not_repeated(manager):
    notifier = ServiceNotifier.from_env(environment(manager))
    for _ in range(2):
        notifier.set_status("two\nlines")
    notifier.set_status("x" * 300)
    first, second = read_notifications(manager)
    assert first == "STATUS=two lines"
    assert len(second.removeprefix("STATUS=")) == 200


def test_the_watchdog_is_meant_for_the_process_that_it_names(manager):
    usec = environment(manager, WATCHDOG_USEC="3000000")
    assert ServiceNotifier.from_env(usec).watchdog_seconds == 3
    assert ServiceNotifier.from_env({**usec, "WATCHDOG_PID": "12"}, pid=12).watchdog_seconds == 3
    assert ServiceNotifier.from_env({**usec, "WATCHDOG_PID": "12"}, pid=13).watchdog_seconds is None
    assert ServiceNotifier.from_env({"WATCHDOG_USEC": "3000000"}).watchdog_seconds is None


def test_an_abstract_socket_is_one(tmp_path):
    name = f"@{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{tmp_path}")
        ServiceNotifier(name).notify_ready()
        assert heard.recv(100) == b"READY=1"


def test_nobody_there_is_no_trouble(tmp_path):
    assert not NULL_NOTIFIER.is_listening
    NULL_NOTIFIER.notify_ready()
    gone = ServiceNotifier(str(tmp_path / "gone"))
    gone.notify_ready()
    gone.set_status("not heard")


def test_a_manager_that_does_not_listen_costs_no_cpu(manager, monkeypatch):
    monkeypatch.setattr("daemon.systemd._SEND_SECONDS", 0.2)
    notifier = ServiceNotifier.from_env(environment(manager))
    for _ in range(1000):
        started, used = time.monotonic(), time.process_time()
        notifier.send_heartbeat()
        if time.monotonic() - started >= 0.2:
            break
    else:
        pytest.skip("the queue of this system is longer than any that would be filled")
    assert time.process_time() - used < 0.1


def test_credentials_are_files_by_name(tmp_path):
    (tmp_path / "model_key").write_text("secret")
    assert credential_files({"CREDENTIALS_DIRECTORY": str(tmp_path)}) == {"model_key": tmp_path / "model_key"}
    assert credential_files({}) == {}
