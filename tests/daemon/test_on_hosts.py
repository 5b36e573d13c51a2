"""A whole run over real SSH servers, by `agentctl`: one host dies on the way, the run ends as it should."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from state import host_status
from tests.support.sshd import SOON_S, Sshd, trust_host, wait_for

AGENTCTL = Path(sys.executable).with_name("agentctl")
DEVICE = "nki_sim (no Neuron SDK on host)"

pytestmark = [pytest.mark.needs("sshd", package="openssh-server"), pytest.mark.timeout(600)]

QUICK = (
    "--problem", "silu", "--size", "reduced", "--rounds", "1", "--set", "run.search.beam=1",
    "--set", "run.search.explorers=0", "--set", "run.search.plans=2",
    "--set", "run.search.lookahead_predictions=0", "--set", "daemon.host_silence_seconds=1",
    "--set", "run.starts=kernel",
)  # fmt: skip


class User:
    """Somebody at home, who reaches servers with their keys."""

    def __init__(self, folder: Path, *servers: Sshd) -> None:
        self.home = folder / "state"
        self.env = {**os.environ, "HOME": str(folder), "NO_COLOR": "1"}
        (folder / ".ssh").mkdir(mode=0o700)
        keys = "".join(f"IdentityFile {one.folder}/user_key\n" for one in servers)
        (folder / ".ssh" / "config").write_text(keys)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [AGENTCTL, "--home", self.home, *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self.env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: str, status: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=5 * SOON_S)
        assert process.returncode == status, (out, err)
        return out or err

    def trust(self, server: Sshd) -> None:
        asyncio.run(trust_host(server.link(self.home), self.home))

    def configure(self, *servers: Sshd) -> None:
        """Name the servers as hosts, with this interpreter as theirs."""
        entries = [
            f'{{address = "{one.host().address}", python = "{sys.executable}", workdir = "{one.workdir}"}}'
            for one in servers
        ]
        (self.home / "config.toml").write_text(f"[run]\nhosts = [{', '.join(entries)}]\n")

    def working(self) -> list[str]:
        """The hosts on which something is under way."""
        return [one.address for one in host_status.read_host_status(self.home) if one.running]


@pytest.fixture
def servers(tmp_path):
    with Sshd(tmp_path / "a") as first, Sshd(tmp_path / "b") as second:
        yield first, second


@pytest.mark.slow
def test_a_run_over_two_hosts_goes_on_when_one_dies(tmp_path, servers):
    dying, staying = servers
    names = [one.host().address for one in servers]
    (tmp_path / "user").mkdir()
    user = User(tmp_path / "user", *servers)
    for one in servers:
        user.trust(one)
    user.configure(*servers)
    running = user.start("run", "--json", *QUICK)
    wait_for(lambda: names[0] in user.working(), "a job on the first host", 3 * SOON_S)
    dying.stop()
    out, err = running.communicate(timeout=5 * SOON_S)
    assert running.returncode == 0, err
    report = json.loads(out)
    assert report["state"] == "completed"
    assert report["kernel_file"]
    assert report["devices"].keys() == {DEVICE}
    assert names[1] in report["hosts"]
    events = [json.loads(line) for line in user.run("tail", "--json", "-n", "500").splitlines()]
    kept = [one for one in events if one["type"] == "KernelKept"]
    failed = [one for one in events if one["type"] == "EvaluationFailed"]
    assert kept
    assert failed == []
    known = {one["name"]: one for one in json.loads(user.run("host", "list", "--json"))}
    assert {one["state"] for one in known.values()} == {"unused"}
    assert known[names[1]]["device"] == DEVICE
    assert known[names[0]]["why"]
    wait_for(lambda: not staying.workers(), "the end of the worker")


@pytest.mark.slow
def test_one_kernel_is_judged_on_a_host_as_the_configuration_has_it(tmp_path):
    (tmp_path / "user").mkdir()
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import nki\n")
    with Sshd(tmp_path / "a") as server:
        user = User(tmp_path / "user", server)
        user.trust(server)
        user.configure(server)
        address = server.host().address
        said = user.run("try", "--problem", "silu", "--size", "reduced", "--host", address)
        first = said.splitlines()[0]
        assert first == "initial kernel of silu: correct on whole outputs of every seed"
        assert " predicted" in said
        assert said.endswith(f"  host: {address}\n  device: {DEVICE}\n")
        told = ("try", str(wrong), "--problem", "silu", "--size", "reduced", "--host", address, "--json")
        found = json.loads(user.run(*told, status=1))
        assert (found["verdict"], found["benchmark"]) == ("compile_error", None)
    refused = user.run("try", "--problem", "silu", "--host", "127.0.0.1:1", status=1)
    assert "no host can be used: 127.0.0.1:1: " in refused


def test_a_host_that_refuses_is_told_at_once_and_makes_no_run(tmp_path):
    (tmp_path / "user").mkdir()
    user = User(tmp_path / "user")
    said = user.run("run", "--host", "127.0.0.1:1", *QUICK, status=1)
    assert "no host can be used: 127.0.0.1:1: " in said
    assert "no runs" in user.run("status")
