"""`agentctl host` against a real SSH server: trust, look, set up, plan, list."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from daemon import exits
from remote.fleet.fleet_host import find_remedy
from remote.ssh.host_setup import find_script
from state.host_status import HostStatus, publish_host_status
from tests.support.sshd import Sshd

SCRIPT = find_script("trn2")

pytestmark = pytest.mark.needs("sshd", package="openssh-server")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A host whose user has a home of its own, with this interpreter as `python3` there."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "bin").mkdir()
    program(folder / "bin" / "python3", f'exec {sys.executable} "$@"')
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    with Sshd(folder / "sshd", environment={"HOME": str(folder / "user"), "PATH": path}) as one:
        (folder / "user").mkdir()
        yield one


@pytest.fixture
def user(server, tmp_path, monkeypatch):
    """The user at home, whose ssh_config names the key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "config").write_text(server.ssh_config.read_text())
    return server.host().address


def shown(ctl, address: str) -> str:
    """Return the fingerprint that an unknown host shows."""
    found = ctl("host", "trust", address)
    assert found.status == exits.USAGE
    name, _, port = address.partition("@")[2].partition(":")
    assert f"{address} is {name}, port {port}, and shows the key ssh-ed25519 SHA256:" in found.err
    return found.err.split("--yes ")[1].split()[0]


@pytest.fixture
def trusted(ctl, user):
    assert ctl("host", "trust", user, "--yes", shown(ctl, user)).status == exits.OK
    return user


def test_a_host_is_trusted_only_by_its_fingerprint(ctl, user, home):
    before = ctl("host", "check", user)
    assert before.status == exits.FAILURE
    assert f"agentctl host --home {home} trust {user}" in before.out
    fingerprint = shown(ctl, user)
    assert fingerprint.startswith("SHA256:")
    other = ctl("host", "trust", user, "--yes", "SHA256:another")
    assert (other.status, "not SHA256:another; it is not trusted" in other.err) == (
        exits.FAILURE,
        True,
    )
    assert not (home / "known_hosts").exists()
    said = ctl("host", "trust", user, "--yes", fingerprint, "--json").json
    assert said["trusted"] is True
    assert said["fingerprint"].endswith(fingerprint)
    again = ctl("host", "trust", user)
    assert again.out.endswith("is trusted already\n")


def test_a_key_that_was_trusted_is_taken_back_where_there_is_one(ctl, trusted, home, tmp_path):
    line = (home / "known_hosts").read_text()
    said = ctl("host", "forget", trusted, "--key", "--json").json
    assert (said["key"], said["still_known"]) == (True, [])
    refused = ctl("host", "check", trusted)
    assert (refused.status, "is not known" in refused.out) == (exits.FAILURE, True)
    again = ctl("host", "forget", trusted, "--key")
    assert (again.status, again.err) == (
        exits.NOT_THERE,
        f"agentctl: {trusted}: `host trust` has recorded no key for it\n",
    )
    (home / "known_hosts").write_text(line)
    (tmp_path / ".ssh" / "known_hosts").write_text(line)
    kept = ctl("host", "forget", trusted, "--key")
    assert (kept.status, "your own known_hosts has ssh-ed25519 SHA256:" in kept.out) == (exits.OK, True)
    assert (home / "known_hosts").read_text() == ""
    assert "your own known_hosts has" in ctl("host", "forget", trusted, "--key").err


def test_checking_changes_nothing_and_setting_up_is_idempotent(ctl, trusted, server, home):
    there = Path(server.folder.parent, "user", ".cache", "nki-kernel-agent")
    checked = ctl("host", "check", trusted)
    assert checked.status == exits.OK
    assert "not set up: there is no" in checked.out
    assert f"--home {home} setup {trusted}" in checked.out
    assert "no Neuron SDK: the simulator stands in for the device" in checked.out
    assert not there.exists()
    first = ctl("host", "setup", trusted, "--json")
    (found,) = first.json
    assert (first.status, found["usable"], found["address"]) == (exits.OK, True, trusted)
    assert found["commands"] == ["mkdir -p -m 700 -- .cache/nki-kernel-agent"]
    assert found["found"]["neuronx-cc"] == "none"
    assert found["found"]["NeuronCores"] == "0 (physical)"
    assert "tried on a device" not in found["found"]  # the simulator stands in, and says so
    assert stat.S_IMODE(there.stat().st_mode) == 0o700
    remedies = [one["remedy"] for one in found["missing"]]
    assert len(remedies) == len(set(remedies))
    second = ctl("host", "setup", trusted, "--json").json[0]
    assert second == {**found, "commands": []}
    assert ctl("host", "check", trusted).out.endswith("kernels can be run there\n")


def test_a_python_that_builds_no_jail_is_said_to_be_of_no_use(tmp_path):
    """The script by itself, with an interpreter that says it is 3.9."""
    old = tmp_path / "python3.9"
    says = "import sys; sys.version_info = (3, 9, 18);"
    program(old, f'exec {sys.executable} -I -c "{says} $3"')
    command = ["bash", str(SCRIPT), "--check", "--json", "--python", str(old)]
    done = subprocess.run(
        command, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["usable"]) == (1, False)
    told = dict(zip(found["missing"], found["remedies"], strict=True))
    (missing,) = (what for what in told if "older than Python 3.10, which jails need" in what)
    assert told[missing].startswith("name a newer interpreter with --python")


def test_an_sdk_s_tools_and_versions_are_found(tmp_path):
    """The script by itself, on a host with stand-ins for an SDK's interpreter and tools."""
    bin_ = tmp_path / "bin"
    program(bin_ / "neuron-profile", "exit 0")
    site = tmp_path / "site"
    for name, version in (("neuronx_cc", "2.21.3"), ("nki", "0.5.0")):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    text = f"import sys; sys.path.insert(0, {str(site)!r})"
    # -I would hide the folder, so the stand-in puts it there itself.
    program(
        bin_ / "sdk",
        f'shift; if [ "$1" = -c ]; then c=$2; shift 2; exec {sys.executable} -I -c "{text}\n$c" "$@"; fi\n'
        f'exec {sys.executable} "$@"',
    )
    env = {"HOME": str(tmp_path), "PATH": f"{bin_}:{os.environ['PATH']}"}
    command = ["bash", "-s", "--", "--json", "--check", "--python", str(bin_ / "sdk")]
    ran = subprocess.run(command, input=SCRIPT.read_bytes(), env=env, capture_output=True, check=True)
    found = json.loads(ran.stdout)
    assert found["found"]["neuronx-cc"] == "2.21.3"
    assert found["found"]["nki"] == "0.5.0"
    assert found["found"]["profiler"] == str(bin_ / "neuron-profile")
    assert not any("no Neuron SDK" in text for text in found["missing"])
    assert found["found"]["tried on a device"].startswith("no: ")


def test_a_host_that_cannot_be_reached_and_one_that_is_none_are_told_apart(ctl, trusted):
    gone = ctl("host", "check", trusted, "127.0.0.1:1", "--json")
    assert gone.status == exits.FAILURE
    good, bad = gone.json
    assert good["usable"] is True
    assert bad["error"]["code"] == "host_unreachable"
    none = ctl("host", "check", "a@b@c:x")
    assert (none.status, "is not an address of the form [user@]host[:port]" in none.err) == (
        exits.USAGE,
        True,
    )
    assert ctl("host", "check").status == exits.USAGE


def test_what_a_host_says_moves_no_cursor_and_is_bounded(ctl, trusted, server):
    profile = server.folder.parent / "bin" / "bash"
    answer = {
        "usable": True, "found": {"python": "x\u001b[2J"}, "missing": ["a\rb"], "remedies": ["c"],
        "commands": [],
    }  # fmt: skip
    program(profile, f"cat >/dev/null; cat <<'X'\n{json.dumps(answer)}\nX")
    try:
        said = ctl("host", "check", trusted)
        assert "x [2J" in said.out
        assert "\x1b" not in said.out
        assert "\r" not in said.out
        program(profile, "cat >/dev/null; echo '{}'")
        odd = ctl("host", "check", trusted)
        assert (odd.status, "no answer can be read" in odd.out) == (exits.FAILURE, True)
    finally:
        profile.unlink()


def test_a_plan_names_every_command_and_asks_no_host(ctl, home):
    said = ctl("host", "plan", "ubuntu@192.0.2.1")
    assert said.status == exits.OK
    assert f"< {SCRIPT}" in said.out
    assert 'mkdir -p -m 700 -- "$workdir"' in said.out
    assert ".pyz serve .cache/nki-kernel-agent" in said.out
    found = ctl("host", "plan", "ubuntu@192.0.2.1", "--json").json["ubuntu@192.0.2.1"]
    source = (SCRIPT.parents[1] / "targets" / "nki" / "hostside" / "neuron.py").read_text()
    assert found["device"]
    for command in found["device"]:
        fixed = [word for word in command.split()[1:] if not word.isupper()]
        assert all(f'"{word}"' in source for word in fixed), command
    text = SCRIPT.read_text()
    assert len(found["setup"]) == 1 + text.count(" act ") - text.count("# act ")


def test_the_list_has_what_is_configured_with_how_it_stood_and_what_to_do(ctl, home):
    assert ctl("host", "list").out == (
        "no hosts: none is configured (run.hosts), and no run that goes on names any\n"
    )
    home.mkdir()
    config = home / "config.toml"
    config.write_text('[run]\nhosts = ["ubuntu@new", "ubuntu@old"]\n')
    heard = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    used = HostStatus(
        address="ubuntu@old",
        state="resting",
        since=heard,
        heard=heard,
        device="trn2",
        slots=4,
        running=3,
        done=7,
        why="its disk is full",
        remedy=find_remedy("host_full", "ubuntu@old"),
    )
    publish_host_status(home, [used])
    new, old = ctl("host", "list", "--json").json
    assert (new["name"], new["state"], new["configured"], new["heard"]) == (
        "ubuntu@new",
        "unused",
        True,
        None,
    )
    assert (old["name"], old["state"], old["configured"]) == ("ubuntu@old", "unused", True)
    assert (old["heard"], old["done"], old["device"]) == ("2026-01-02T03:04:05+00:00", 7, "trn2")
    text = ctl("host", "list").out
    assert "2026-01-02T03:04:05" in text
    assert "  its disk is full\n  -> free disk there: `ssh ubuntu@old df -h` says where it is full" in text
    (check,) = (one for one in ctl("doctor", "--json").json["checks"] if one["name"] == "host: ubuntu@old")
    assert (check["result"], check["remedy"]) == ("look", old["remedy"])
    assert ctl("host", "forget", "ubuntu@old").status == exits.OK
    assert ctl("host", "forget", "ubuntu@old").status == exits.NOT_THERE
    assert ctl("host", "list", "--json").json[1]["heard"] is None
    publish_host_status(home, [used])
    config.write_text('[run]\nhosts = ["ubuntu@new"]\n')
    assert [one["name"] for one in ctl("host", "list", "--json").json] == ["ubuntu@new"]
    assert "ubuntu@old" not in ctl("doctor").out
