"""`agentctl ui` as a process: it says where it is, serves, and ends when it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from agentctl.page.server import PORT, open_listening_socket, page_address, policy_for_socket
from agentctl.verbs.ui import _is_loopback
from tests.agentctl.page.serving import PATIENCE_S


def test_it_prints_its_address_serves_and_ends_on_ctrl_c(recorded_home):
    command = [
        sys.executable,
        "-m",
        "agentctl",
        "--home",
        str(recorded_home),
        "ui",
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = json.loads(process.stdout.readline())
            assert (said["home"], said["control"]) == (str(recorded_home), False)
            with urllib.request.urlopen(said["url"], timeout=PATIENCE_S) as page:
                assert b"nki-kernel-agent" in page.read()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_a_home_that_is_not_there_and_an_address_that_is_taken_are_named(ctl, tmp_path, recorded_home):
    missing = ctl("ui", home=tmp_path / "nowhere")
    assert missing.status == 3
    assert str(tmp_path / "nowhere") in missing.err
    with open_listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        refused = ctl("ui", "--port", port, home=recorded_home)
    assert refused.status == 2
    assert f"cannot listen on 127.0.0.1:{port}: " in refused.err


def test_the_usual_port_is_left_to_who_has_it():
    with (
        open_listening_socket("127.0.0.1", None) as first,
        open_listening_socket("127.0.0.1", None) as second,
    ):
        ports = [first.getsockname()[1], second.getsockname()[1]]
    assert len(set(ports)) == 2
    assert ports[1] != PORT


def test_addresses_are_those_that_a_browser_on_this_machine_can_open():
    with open_listening_socket("127.0.0.1", 0) as bound:
        gate, port = policy_for_socket(bound, ["box.example"]), bound.getsockname()[1]
        assert page_address(gate, bound) == f"http://127.0.0.1:{port}/?token={gate.token}"
        assert f"box.example:{port}" in gate.hosts
    with open_listening_socket("0.0.0.0", 0) as bound:
        assert page_address(policy_for_socket(bound), bound).startswith("http://127.0.0.1:")


def test_each_start_has_a_token_of_its_own():
    with open_listening_socket("127.0.0.1", 0) as bound:
        one, other = policy_for_socket(bound), policy_for_socket(bound)
    assert one.token != other.token
    assert len(one.token) >= 40


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("box", False),
    ],
)
def test_what_is_not_loopback_is_known(host, loopback):
    assert _is_loopback(host) is loopback
