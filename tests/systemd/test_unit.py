"""The unit file: what systemd thinks of it, and that each thing it leaves open is needed by the jail."""

from __future__ import annotations

import json
import re
import sys

import pytest

from agentctl.service_manager import ServiceManager
from agentctl.systemd_unit import BadUnit, ServiceScope, ServiceUnit, unreadable_folders
from tests.support.booted_systemd import ROOT
from tests.systemd.conftest import BIN

NAMESPACES = "RestrictNamespaces=user mnt pid net ipc uts cgroup"
CALLS = "SystemCallFilter=mount umount2 pivot_root capset sethostname"

PROBE = f"""import subprocess, sys
sys.path[:1] = [{str(ROOT)!r}]
from remote import jail_backends as walls
from remote.jail_backends import JailedProgram, JailLimits, JailStrength, can_build_jail
walls._PROBE_WALL_S = 8  # without capset, bubblewrap waits for ever
probe = JailedProgram("", limits=JailLimits(cpu_s=2, wall_s=5))
print(*(strength for strength in list(JailStrength)[:2] if can_build_jail(strength, probe)))
"""


@pytest.fixture
def unit(tmp_path) -> ServiceUnit:
    key = tmp_path / "key"
    key.write_text("secret")
    return ServiceUnit(ServiceScope.SYSTEM, {"model_key": key})


@pytest.mark.needs("systemd-analyze", package="systemd")
@pytest.mark.parametrize("scope", list(ServiceScope))
def test_systemd_has_nothing_against_the_unit(scope, tmp_path):
    unit = ServiceUnit(scope, home=tmp_path if scope is ServiceScope.USER else None)
    manager = ServiceManager(scope, {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert manager._analyze_unit("verify", "--man=no", text=unit.render_text()) == ""
    # Whom a user's service runs as is not in its unit, so that it counts as root here.
    assert manager.exposure_score(unit.render_text()).exposure < (3 if scope is ServiceScope.SYSTEM else 5)


@pytest.mark.needs("systemd-analyze", package="systemd")
@pytest.mark.parametrize("line", ["Tpye=notify", "Restart=onfail", "SystemCallFilter=@nothing"])
def test_a_fault_in_the_unit_would_be_told(unit, line):
    faults = ServiceManager(ServiceScope.SYSTEM, {}).find_unit_faults(f"{unit.render_text()}{line}\n")
    assert len(faults) == 1
    assert line.partition("=")[2] in faults[0] or line.partition("=")[0] in faults[0]


def test_the_unit_says_what_is_particular_to_this_installation(unit, tmp_path):
    text = unit.render_text()
    assert f"ExecStart={BIN / 'agentd'}\n" in text
    assert f"LoadCredential=model_key:{tmp_path / 'key'}\n" in text
    assert "secret" not in text
    assert "@" not in re.sub(r"~?@(system-service|privileged|resources)", "", text)
    mine = ServiceUnit(ServiceScope.USER, home=tmp_path).render_text()
    assert f"ExecStart={BIN / 'agentd'} --home {tmp_path}\n" in mine
    assert "User=" not in re.sub(r"PrivateUsers=", "", mine)


def test_what_a_unit_cannot_spell_is_refused(tmp_path):
    for name, path in {"A": tmp_path, "key": tmp_path / "none", "key%": tmp_path}.items():
        with pytest.raises(BadUnit):
            ServiceUnit(ServiceScope.SYSTEM, {name: path})
    with pytest.raises(BadUnit, match="spaces"):
        ServiceUnit(ServiceScope.USER, home=tmp_path / "a b")


def test_a_program_that_only_its_owner_may_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "deploy").mkdir()
    monkeypatch.setattr("agentctl.systemd_unit.DEPLOY", tmp_path / "deploy")
    for mode, closed in ((0o755, False), (0o750, True)):
        tmp_path.chmod(mode)
        assert (tmp_path in unreadable_folders()) is closed


def lacking(line: str, word: str) -> tuple[str, str]:
    """Return a line of the unit, and the line without one of its words."""
    key, _, words = line.partition("=")
    return line, f"{key}={' '.join(other for other in words.split() if other != word)}"


SHUT = {
    **{word: lacking(NAMESPACES, word) for word in NAMESPACES.partition("=")[2].split()},
    **{word: lacking(CALLS, word) for word in CALLS.partition("=")[2].split()},
    "netlink": (" AF_NETLINK", ""),
    "proc": ("ProtectProc=", "ProcSubset=pid\nProtectProc="),
    "hostname": ("ProtectClock=", "ProtectHostname=yes\nProtectClock="),
}
"""What the unit leaves open: text of it, and what that is when shut."""


@pytest.mark.slow
@pytest.mark.needs("bwrap", package="bubblewrap")
def test_both_jails_stand_in_the_unit_and_whatever_else_it_shut_would_take_one_away(machine):
    machine.write("/opt/probe.py", PROBE)
    machine.write("/etc/sysusers.d/probe.conf", "u nki-agent -\n")
    machine.run("systemd-sysusers")
    once = r"^(Type|ExecStart|Restart\w*|WatchdogSec)=.*$|^\[Install\]\nWantedBy=.*$"
    text = re.sub(once, "", ServiceUnit(ServiceScope.SYSTEM).render_text(), flags=re.MULTILINE)
    text += f"Type=oneshot\nExecStart={sys.executable} /opt/probe.py\n"
    assert [what for what, (open_, _) in SHUT.items() if text.count(open_) != 1] == []
    units = {"as it is": text, **{what: text.replace(*change) for what, change in SHUT.items()}}
    names = {what: f"probe{number}.service" for number, what in enumerate(units)}
    for what, name in names.items():
        machine.write(f"/etc/systemd/system/{name}", units[what])
    machine.run("systemctl", "daemon-reload")
    for some in (["as it is"], SHUT):
        machine.run("systemctl", "start", *(names[what] for what in some))
    stand = {what: _read_unit_property(machine, name) for what, name in names.items()}
    assert stand.pop("as it is") == ["bubblewrap namespaces"]
    assert {what: "bubblewrap" in "".join(lines) for what, lines in stand.items()} == dict.fromkeys(
        SHUT, False
    )


def _read_unit_property(machine, name: str) -> list[str]:
    entries = machine.run("journalctl", "--unit", name, "--output=json", "--no-pager").stdout.splitlines()
    found = [json.loads(entry) for entry in entries]
    return [item["MESSAGE"] for item in found if item.get("SYSLOG_IDENTIFIER") == "agentd"]
