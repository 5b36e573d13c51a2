"""`agentctl service` where no service manager answers: what it shows, and what it refuses in one line."""

from __future__ import annotations

import pytest

from agentctl import service_manager
from agentctl.service_manager import ServiceFailed, ServiceManager
from agentctl.systemd_unit import UNIT_NAME, BadUnit, ServiceScope, ServiceUnit
from daemon import exits


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A user without systemd on PATH, whose configuration lies in a folder of its own."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def systemd(bare, **programs: str) -> None:
    """Put stand-ins of systemd's programs on PATH; each writes down how it was called."""
    for name in ("systemctl", "systemd-analyze"):
        program = bare / "bin" / name
        program.parent.mkdir(exist_ok=True)
        script = programs.get(name.replace("-", "_"), "")
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{bare}/calls\n{script}\n')
        program.chmod(0o755)


def calls(bare) -> list[str]:
    return (bare / "calls").read_text().splitlines()


def test_show_needs_no_systemd(ctl, bare, home):
    shown = ctl("service", "show", "--user")
    assert shown.status == exits.OK
    assert f"--home {home}" in shown.out
    assert ctl("--json", "service", "show", "--user").json["unit"].endswith(f"systemd/user/{UNIT_NAME}")


def test_without_systemd_nothing_is_installed_and_one_line_says_so(ctl, bare, home):
    done = ctl("service", "install", "--user")
    assert done.status == exits.FAILURE
    assert done.err == "agentctl: systemd-analyze is not installed (a service needs systemd)\n"
    assert not home.exists()


def test_a_unit_that_systemd_has_something_against_is_not_installed(ctl, bare):
    systemd(bare, systemd_analyze=f"echo '{UNIT_NAME}:3: Unknown key' >&2; echo 'other.service: odd' >&2")
    done = ctl("service", "install", "--user")
    assert done.status == exits.USAGE
    assert (
        done.err == f"agentctl: {UNIT_NAME}:3: Unknown key (these are findings of `systemd-analyze verify`)\n"
    )
    assert not (bare / "config").exists()


def test_where_no_manager_runs_it_is_installed_and_enabled_for_later(ctl, bare, home):
    score = "echo '→ Overall exposure level for agentd.service: 2.0 OK :-)'"
    systemd(bare, systemd_analyze=f'case "$*" in *security*) {score};; esac')
    done = ctl("service", "install", "--user")
    assert done.status == exits.OK
    assert "exposure  2.0 of 10 (OK)" in done.out
    assert "systemd does not run here" in done.out
    unit = bare / "config/systemd/user" / UNIT_NAME
    assert f"--home {home}" in unit.read_text()
    assert f"systemctl --user enable {UNIT_NAME}" in calls(bare)
    assert [call for call in calls(bare) if "restart" in call] == []
    assert home.is_dir()
    assert ctl("service", "uninstall", "--user").status == exits.OK
    assert not unit.exists()
    assert home.is_dir()


def test_a_faulty_configuration_is_told_before_anything_is_installed(ctl, bare, home):
    systemd(bare)
    home.mkdir()
    (home / "config.toml").write_text("[daemon]\nevaluations = 0\n")
    done = ctl("service", "install", "--user")
    assert (done.status, "daemon.evaluations = 0" in done.err) == (exits.USAGE, True)
    assert not (bare / "config").exists()


@pytest.mark.parametrize("flag", ["name", "=file", "name="])
def test_a_credential_is_a_name_and_a_file(ctl, flag):
    done = ctl("service", "show", "--user", "--credential", flag)
    assert (done.status, "expected NAME=FILE" in done.err) == (exits.USAGE, True)


def test_a_systems_service_has_its_own_home(ctl):
    done = ctl("service", "show", "--system")
    assert (done.status, "/var/lib/nki-kernel-agent" in done.err) == (exits.USAGE, True)


def test_what_systemctl_says_is_passed_on(bare):
    systemd(bare, systemctl="echo 'Access denied' >&2; exit 4")
    with pytest.raises(ServiceFailed, match=r"systemctl restart agentd\.service: Access denied"):
        ServiceManager(ServiceScope.SYSTEM, {"PATH": str(bare / "bin")}).systemctl("restart", UNIT_NAME)


def test_what_may_not_be_written_says_whose_it_is(bare):
    (bare / "file").write_text("")
    with pytest.raises(ServiceFailed) as error:
        service_manager.write_system_file(bare / "file" / UNIT_NAME, "")
    assert error.value.code == "not_permitted"


def test_status_tells_the_last_end_in_words(ctl, bare):
    ended = (
        "LoadState=loaded\nActiveState=failed\nSubState=failed\nStatusText=\nResult=exit-code\nMainPID=0\n"
    )
    ended += "NRestarts=3\nActiveEnterTimestamp=\nExecMainStatus=4\nUnitFileState=enabled\n"
    systemd(bare, systemctl=f"printf '{ended}'")
    done = ctl("service", "status", "--user")
    assert done.status == exits.NOT_THERE
    assert f"last end: exit-code, status 4 {exits.MEANING[4]}" in done.out
    assert "restarts 3" in done.out


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "systemctl is not installed"),
        (
            "echo 'Failed to connect to bus: No medium found' >&2; exit 1",
            "Failed to connect to bus: No medium found",
        ),
    ],
)
def test_where_no_systemd_answers_the_service_is_not_active(ctl, bare, program, said):
    if program is not None:
        systemd(bare, systemctl=program)
    done = ctl("service", "status", "--user")
    assert (done.status, done.err) == (exits.NOT_THERE, "")
    assert done.out.startswith(f"{UNIT_NAME}: not installed; no systemd of this user answers: ")
    assert said in done.out
    (bare / "config" / "systemd" / "user").mkdir(parents=True)
    (bare / "config" / "systemd" / "user" / UNIT_NAME).touch()
    found = ctl("service", "status", "--user", "--json").json
    assert (found["ActiveState"], found["installed"]) == ("unknown", True)


@pytest.mark.parametrize("name", ["a b", "a:b", "%h", 'a"b', "a'b", "a\\b", "x${USER}"])
def test_a_unit_names_no_path_that_systemd_would_read_otherwise(tmp_path, name):
    with pytest.raises(BadUnit, match="a unit cannot name"):
        ServiceUnit(ServiceScope.USER, home=tmp_path / name)
