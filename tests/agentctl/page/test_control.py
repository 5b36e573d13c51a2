"""Steering from the page: forms become commands in the inbox, and can name nothing of any machine."""

from __future__ import annotations

import json

import pytest

from agentctl.page.control import MAX_FORM_BYTES
from daemon.inbox import waiting_commands
from state.events import CommandReceived
from state.log import EventLog
from state.model import RunStatus
from state.reader import LogReader
from tests.agentctl.page.serving import serving, wait_for
from tests.support import fakes


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("steered") / "home"


@pytest.fixture(scope="module")
def run(home) -> str:
    """A run that has begun and that nobody drives."""
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    return run


@pytest.fixture(scope="module")
def page(home, run):
    with serving(home, control=True) as served:
        yield served


@pytest.fixture(autouse=True)
def _nothing_waits(home, page):
    yield
    for path in waiting_commands(home):
        path.unlink()


def said(home) -> list[dict]:
    return [json.loads(path.read_bytes()) for path in waiting_commands(home)]


@pytest.mark.parametrize(
    ("form", "command"),
    [
        ({"verb": "pause", "reason": "lunch"}, {"verb": "pause", "reason": "lunch"}),
        ({"verb": "cancel"}, {"verb": "cancel", "reason": "asked for"}),
        ({"verb": "resume"}, {"verb": "resume", "reason": "asked for"}),
        (
            {"verb": "set", "settings": ["search.rounds=9", "llm.models=[]"]},
            {"verb": "set", "settings": {"search.rounds": 9, "llm.models": []}},
        ),
        ({"verb": "propose", "source": "A = 1\n"}, {"verb": "propose", "source": "A = 1\n", "note": ""}),
        (
            {"verb": "fork", "seq": 1, "settings": ["search.beam=3"]},
            {"verb": "fork", "seq": 1, "settings": {"search.beam": 3}, "files": None, "rewind": False},
        ),
    ],
)
def test_a_form_becomes_a_command_that_says_where_it_was_given(page, home, run, form, command):
    reply = page.post({**form, "run": run})
    assert reply.status == 202
    assert said(home) == [{**command, "run": run, "origin": "page"}]
    answer = page.get(f"/api/control/{reply.json['id']}?after={reply.json['after']}").json
    assert answer == {"state": "queued"}


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ({"verb": "submit", "files": {}, "config": {}}, "not_on_the_page"),
        ({"verb": "learn", "file": "/etc/passwd"}, "not_on_the_page"),
        ({"verb": "forget"}, "not_on_the_page"),
        ({"verb": "fork", "files": {"problem.toml": "QQ=="}}, "not_on_the_page"),
        ({"verb": "fork", "rewind": True}, "not_on_the_page"),
        ({"verb": "pause", "origin": "agentctl"}, "not_on_the_page"),
        ({"verb": "fork", "settings": ["problem=/etc"]}, "not_on_the_page"),
        ({"verb": "fork", "settings": ["run.problem=silu"]}, "not_on_the_page"),
        ({"verb": "fork", "settings": ['score.command=["rm"]']}, "not_on_the_page"),
        ({"verb": "fork", "settings": ["run.score.command=x"]}, "not_on_the_page"),
        ({"verb": "set", "settings": ["score.command=x"]}, "not_on_the_page"),
        ({"verb": "fork", "settings": ['hosts=["me@evil"]']}, "not_on_the_page"),
        ({"verb": "fork", "settings": ["host_tags=[]"]}, "not_on_the_page"),
        ({"verb": "fork", "settings": ["daemon.day_usd=9"]}, "config_invalid"),
        ({"verb": "fork", "settings": ["search.beam=many"]}, "config_invalid"),
        ({"verb": "fork", "settings": ["search.beam"]}, "bad_setting"),
        ({"verb": "fork", "settings": {"search.beam": 3}}, "bad_command"),
        ({"verb": "fork", "seq": 99999, "settings": []}, "unknown_event"),
        ({"verb": "set", "settings": []}, "bad_command"),
        ({"verb": "set", "settings": ["search.roundz=9"]}, "config_invalid"),
        ({"verb": "set", "settings": ["target=trn1"]}, "config_invalid"),
        ({"verb": "propose", "source": ""}, "bad_command"),
        ({"verb": "approve"}, "illegal_state"),
        ({"verb": 3}, "bad_command"),
        ([], "bad_command"),
    ],
)
def test_what_the_page_may_not_say_or_is_wrong_reaches_no_inbox(page, home, run, form, code):
    reply = page.post({**form, "run": run} if isinstance(form, dict) else form)
    assert reply.code == code
    assert reply.status in (400, 404)
    assert said(home) == []


def test_a_run_that_is_not_there_cannot_be_steered(page, home, run):
    for verb in ("pause", "fork"):
        reply = page.post({"verb": verb, "run": f"{run}x"})
        assert (reply.status, reply.code) == (404, "unknown_run")
    assert said(home) == []


def test_what_is_no_form_is_refused(page, home, run):
    assert page.post(b"{").code == "bad_request"
    assert page.post(b"[" * 100_000).code == "bad_request"
    assert page.post({"verb": "pause", "run": run}, **{"content-type": "text/plain"}).code == "bad_request"
    assert page.post(b" " * (MAX_FORM_BYTES + 1)).code == "too_large"
    assert said(home) == []


def test_answers_are_those_of_the_log(page, home, run):
    forms = {
        "set": {"settings": ["search.rounds=7"]}, "pause": {"reason": "r"}, "resume": {"reason": "r"},
        "fork": {"settings": ["search.beam=5"]},
    }  # fmt: skip
    sent = {verb: page.post({"verb": verb, "run": run, **form}).json for verb, form in forms.items()}
    fakes.take_commands(home)
    answers = {
        verb: page.get(f"/api/control/{one['id']}?after={one['after']}").json for verb, one in sent.items()
    }
    assert {one["state"] for one in answers.values()} == {"done"}
    assert answers["set"]["result"]["changed"] == {"run.search.rounds": [fakes.CONFIG.search.rounds, 7]}
    assert answers["fork"]["result"]["run"] == sent["fork"]["run"]
    with LogReader.open(home) as reader:
        received = [item.event for item in reader.read(stream="system", types=("CommandReceived",))]
        mine = [one for one in received if isinstance(one, CommandReceived) and one.origin == "page"]
        assert [one.verb for one in mine] == ["set", "pause", "resume", "fork"]
        assert reader.run_state(run).status is RunStatus.RUNNING
        assert reader.run_state(sent["fork"]["run"]).pending_config.search.beam == 5


def test_what_the_owner_refuses_is_said_with_its_reason(page, home, run):
    """While somebody owns the home, it is the one to say."""
    with EventLog.open(home):
        reply = page.post({"verb": "approve", "run": run})
        assert reply.status == 202
        place = f"/api/control/{reply.json['id']}?after={reply.json['after']}"
        assert page.get(place).json == {"state": "waiting"}
    fakes.take_commands(home)
    answer = wait_for(lambda: (found := page.get(place).json)["state"] == "rejected" and found)
    assert answer["error"]["code"] == "illegal_state"
    assert page.get("/api/control/nothing?after=0").json == {"state": "queued"}
