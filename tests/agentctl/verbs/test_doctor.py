"""What `agentctl doctor` finds: each fault is named with a remedy, and no key is ever shown."""

from __future__ import annotations

import asyncio
import errno
import json
import os

import pytest

from agentctl import environment_checks
from agentctl.endpoint_checks import BAD, GOOD, LOOK
from daemon import exits
from state.events import ModelTraitsLearnt
from state.home import HomeLayout
from state.log import EventLog
from state.model import SYSTEM_STREAM, ModelTraits
from state.records import NewEvent
from tests.agent_core.providers.provider_calls import AWS
from tests.support.scripted_runs import ScriptedRun

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


def test_an_effect_that_is_cut_off_again_and_again_is_named_with_what_a_life_must_last(
    ctl, home, monkeypatch
):
    monkeypatch.setattr("remote.pool.measure_start_seconds", lambda target: 1.25)
    with EventLog.open(home) as log:
        steps = iter(ScriptedRun().steps())
        while not (open_ := log.run_state("cut").open if log.run_ids() else {}):
            step = next(steps)
            log.append_now([NewEvent("cut", step.event)], blobs=step.blobs)
        started = step.event
        for delivery in (2, 3):
            log.append_now([NewEvent("cut", started.model_copy(update={"delivery": delivery}))])
    (key,) = open_
    effects = found(ctl)["effects"]
    assert effects["result"] == LOOK
    assert f"cut {key} was delivered 3 times" in effects["found"]
    assert "takes 1.2 s to start here now" in effects["found"]
    assert "ends within 2.5 s of it" in effects["found"]


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


def test_an_endpoint_in_a_cloud_says_what_it_lacks_and_what_it_found(ctl, home, finished, monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    file = home / "config.toml"
    file.write_text('[daemon.endpoints.trainium]\nservice = "bedrock"\n')
    lacking = found(ctl)["endpoint: trainium"]
    assert lacking["result"] == BAD
    assert "no region: set daemon.endpoints.trainium.region, or AWS_REGION" in lacking["found"]
    file.write_text('[daemon.endpoints.trainium]\nservice = "bedrock"\nregion = "us-west-2"\n')
    assert found(ctl)["endpoint: trainium"]["found"] == "credentials found"
    assert AWS["AWS_SECRET_ACCESS_KEY"] not in ctl("doctor", "--json").out
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert found(ctl)["endpoint: trainium"]["found"] == "no credentials"


def test_what_was_learnt_of_a_model_is_a_line(ctl, home, finished):
    learnt = ModelTraits(refused=("tools",), uncounted=True, first_token_seconds=1200)
    address, day = "http://127.0.0.1:8000", "2026-11-27"
    event = ModelTraitsLearnt(model="local/small", address=address, day=day, traits=learnt)
    with EventLog.open(home) as log:
        asyncio.run(log.append([NewEvent(SYSTEM_STREAM, event)]))
    said = found(ctl)["model: local/small"]["found"]
    assert said == (
        "takes no tools; counts no tokens in streams, so it is asked for whole answers; "
        "may take 1200 s to begin an answer (learnt 2026-11-27)"
    )


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


AGENT = """[run.agent]
command = ["{python}", "-m", "agent"]
variables = ["SOME_AGENT_KEY"]
"""


def test_a_coding_agent_is_said_to_have_an_open_network(ctl, home, monkeypatch):
    assert "coding agent" not in found(ctl)
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(AGENT)
    check = found(ctl)["coding agent"]
    assert check["result"] == LOOK
    assert "open network: it can send out the problem and its kernels" in check["found"]
    assert "SOME_AGENT_KEY (SOME_AGENT_KEY not set here)" in check["found"]
    assert "firewall" in check["remedy"]
    monkeypatch.setenv("SOME_AGENT_KEY", KEY)
    assert KEY not in ctl("doctor", "--json").out
    assert "not set here" not in found(ctl)["coding agent"]["found"]


def test_a_coding_agent_without_a_jail_is_refused_or_sees_all(ctl, home, monkeypatch):
    monkeypatch.setattr("remote.jail_backends.jail_strength", lambda: checkup_strength("namespaces"))
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(AGENT)
    check = found(ctl)["coding agent"]
    assert (check["result"], "is refused: nothing confines it" in check["found"]) == (BAD, True)
    (home / "config.toml").write_text(f"{AGENT}[daemon]\nallow_weak_jail = true\n")
    check = found(ctl)["coding agent"]
    assert (check["result"], "can read and send out what this user can" in check["found"]) == (LOOK, True)


def test_a_coding_agent_that_is_not_installed_is_bad(ctl, home):
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[run.agent]\ncommand = ["no-such-agent"]\n')
    check = found(ctl)["coding agent"]
    assert (check["result"], "no-such-agent" in check["found"]) == (BAD, True)


@pytest.mark.parametrize(("code", "result"), [(errno.EPERM, LOOK), (None, GOOD)])
def test_hardware_counters_are_checked_for_a_target_that_has_them(ctl, monkeypatch, code, result):
    def open_counter(*_):
        if code is not None:
            raise OSError(code, os.strerror(code))
        return os.memfd_create("counter")

    monkeypatch.setattr("targets.c.hardware_counters.open_counter", open_counter)
    checks = {one["name"]: one for one in ctl("doctor", "--target", "x86", "--json").json["checks"]}
    assert checks["counters"]["result"] == result
    assert ("perf_event_open" in checks["counters"]["remedy"]) == (result == LOOK)
    assert "counters" not in found(ctl)


def test_an_unknown_target_is_bad(ctl):
    called = ctl("doctor", "--target", "x87", "--json")
    assert called.status == exits.FAILURE
    (check,) = [one for one in called.json["checks"] if one["name"] == "target"]
    assert check["result"] == BAD
    assert "x87" in check["found"]
