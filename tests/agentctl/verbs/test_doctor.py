"""What `agentctl doctor` finds: each fault is named with a remedy, and no key is ever shown."""

from __future__ import annotations

import json

import pytest

from agentctl import environment_checks
from agentctl.environment_checks import BAD, GOOD, LOOK
from daemon import exits
from state.home import HomeLayout

KEY = "sk-ant-" + "s" * 40


@pytest.fixture(autouse=True)
def _strong(monkeypatch) -> None:
    """The jail is looked at elsewhere: building its walls takes a second."""
    monkeypatch.setattr("remote.jail_backends.jail_strength", lambda: checkup_strength("bubblewrap"))


def checkup_strength(name: str):
    from remote.jail_backends import JailStrength

    return JailStrength(name)


def found(ctl) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in ctl("doctor", "--json").json["checks"]}


def test_a_home_in_order_is_good(ctl, finished):
    called = ctl("doctor")
    assert called.status == exits.OK
    assert " bad" not in called.out
    checks = found(ctl)
    assert checks["log"]["result"] == GOOD
    assert "it ends where HEAD says" in checks["log"]["found"]
    assert checks["jail"]["found"].startswith("bubblewrap")
    assert {"python", "packages", "platform", "home", "disk", "owner", "inbox", "device"} <= checks.keys()


def test_a_first_user_is_told_that_nothing_is_there_yet(ctl, home):
    called = ctl("doctor")
    assert called.status == exits.OK
    assert f"agentctl --home {home} run makes it" in called.out
    assert found(ctl)["home"]["result"] == LOOK


def test_a_damaged_log_is_bad_and_names_what_repairs_it(ctl, home, finished):
    HomeLayout(home).head.write_text("nonsense")
    checks = found(ctl)
    assert checks["log"]["result"] == BAD
    assert "repair" in checks["log"]["remedy"]
    assert ctl("doctor").status == exits.FAILURE


def test_a_home_that_everybody_may_read_is_worth_a_look(ctl, home, finished):
    home.chmod(0o755)
    assert found(ctl)["home"]["remedy"] == f"chmod o-rwx {home}"


def test_faults_of_the_configuration_are_named(ctl, home, finished):
    (home / "config.toml").write_text("[run]\nproblem = 3\n")
    checks = found(ctl)
    assert checks["configuration"]["result"] == BAD
    assert "run.problem" in checks["configuration"]["found"]


def test_keys_are_present_or_not_and_never_shown(ctl, home, finished, monkeypatch, tmp_path):
    assert found(ctl)["key: anthropic"]["found"] == "none; only its models need one"
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    both = ctl("doctor", "--json").out + ctl("doctor").out
    assert KEY not in both
    assert KEY[-8:] not in both
    assert found(ctl)["key: anthropic"]["found"] == "present"
    loose = tmp_path / "key"
    loose.write_text(KEY)
    loose.chmod(0o644)
    (home / "config.toml").write_text(f"[daemon.openai]\nkey_file = {json.dumps(str(loose))}\n")
    checks = found(ctl)
    assert checks["key: openai"]["result"] == BAD
    assert "chmod 600" in checks["key: openai"]["found"]


@pytest.mark.parametrize(("strength", "result"), [("bubblewrap", GOOD), ("namespaces", LOOK), ("weak", BAD)])
def test_the_jail_is_as_good_as_it_is_strong(monkeypatch, strength, result):
    monkeypatch.setattr("remote.jail_backends.jail_strength", lambda: checkup_strength(strength))
    assert environment_checks._check_jail().result == result


def test_little_space_is_said(monkeypatch, home):
    monkeypatch.setattr(environment_checks, "free_bytes", lambda _: 1)
    assert environment_checks._check_disk(home, "").result == BAD
    monkeypatch.setattr(environment_checks, "free_bytes", lambda _: environment_checks.SCARCE_BYTES - 1)
    assert environment_checks._check_disk(home, "").result == LOOK


def test_a_cluster_is_looked_at_where_it_judges(ctl, home, monkeypatch):
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[run]\nevaluator = "ray"\n[daemon]\nray_address = "127.0.0.1:1"\n')
    check = found(ctl)["ray"]
    assert (check["result"], "127.0.0.1:1 cannot be reached" in check["found"]) == (BAD, True)
    assert "daemon.ray_address" in check["remedy"]
    (home / "config.toml").write_text('[run]\nevaluator = "ray"\n')
    assert found(ctl)["ray"]["result"] == GOOD

    def missing(name: str) -> str:
        raise environment_checks.PackageNotFoundError(name)

    monkeypatch.setattr(environment_checks, "version", missing)
    (check,) = environment_checks._check_ray(home, {})
    assert check.result == BAD
    assert "-m pip install 'ray>=2.50,<3'" in check.remedy
    (home / "config.toml").write_text("")
    assert list(environment_checks._check_ray(home, {})) == []
