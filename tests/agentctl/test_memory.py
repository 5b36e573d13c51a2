"""`agentctl memory`: what it shows of a home's experiences, and what it changes by way of the inbox."""

from __future__ import annotations

import json
import re

import pytest

from agentctl import command_answers
from daemon import exits
from daemon.command_models import ExperienceEntry, Forget, Learn, Pause
from state.events import CommandCompleted, CommandRejected, ExperiencesForgotten, ExperiencesLearnt
from state.log import EventLog
from state.model import SYSTEM_STREAM, ExperienceKind, digest_of
from state.reader import LogReader
from state.records import NewEvent
from state.verify import verify_log
from tests.support import fakes
from tests.support.learnt_sequences import SOURCE, imported_experience, learnt_experience

ONE = learnt_experience(fast=digest_of(b"a faster kernel"), cites=("r0.initial", "r1.b0.p0.k0.f0"))
WORSE = learnt_experience("another", kind=ExperienceKind.NEGATIVE, predicted=False, speedup=1.5)
FILE = imported_experience(1, problem="", toolchain="")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_answers, "QUEUED_AFTER_SECONDS", 0)


@pytest.fixture
def told(home):
    """A home with three experiences."""
    with EventLog.open(home) as log:
        event = ExperiencesLearnt(experiences=(ONE, WORSE, FILE))
        log.append_now([NewEvent(SYSTEM_STREAM, event)], blobs=[SOURCE, b"a faster kernel"])
    return home


def system(home, *kinds):
    with LogReader.open(home) as reader:
        return [item.event for item in reader.read(stream=SYSTEM_STREAM) if isinstance(item.event, kinds)]


def experiences(home):
    with LogReader.open(home) as reader:
        return reader.system_state().experiences


def carry_out(home):
    """Own the home until a command that comes after all others is answered."""
    fakes.put_command(home, Pause(run="silu-000000"), id_="9999-last")
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)


# --- looking ---


def test_a_home_without_a_log_has_none(ctl):
    called = ctl("memory", "list")
    assert (called.status, called.out) == (exits.OK, "no experiences\n")
    assert ctl("memory", "list", "--json").json == []
    assert ctl("memory", "show", "0123").status == exits.NOT_THERE


def test_the_list_says_where_each_is_from_and_what_it_brought(ctl, told):
    lines = ctl("memory", "list").out.splitlines()
    assert len(lines) == 4
    told_of = [ONE.id, "donor", "p", "trn2", "hoist", "faster", "2.00x", "predicted"]
    assert lines[1].split() == [*told_of, *ONE.summary.split()]
    assert "slower 1.50x  " in lines[2], "measured"
    assert lines[3].split() == [FILE.id, "rewrites.json", "-", "trn2", "-", "advice", "1"]
    assert ctl("memory", "list", "--from", "another").out.splitlines()[1:] == [lines[2]]
    rows = ctl("memory", "list", "--json").json
    assert [row["id"] for row in rows] == [ONE.id, WORSE.id, FILE.id]
    assert rows[0] == {"id": ONE.id, **ONE.model_dump(mode="json")}


def test_one_is_shown_with_its_kernels(ctl, told):
    text = ctl("memory", "show", ONE.id[:5]).out
    assert "from: donor r0.initial r1.b0.p0.k0.f0" in text
    assert "toolchain: sim 1" in text
    assert ONE.summary in text
    assert text.endswith("--- the fast kernel\na faster kernel\n")
    assert "from: rewrites.json, a file" in ctl("memory", "show", FILE.id).out
    shown = ctl("memory", "show", ONE.id, "--json").json
    assert shown["sources"] == {"slow": SOURCE.decode(), "fast": "a faster kernel"}


@pytest.mark.parametrize("name", ["", "zz", "0123456789ab"])
def test_what_is_not_there_or_not_meant_by_one_name_is_refused(ctl, told, name):
    for verb in ("show", "export", "forget"):
        called = ctl("memory", verb, name)
        assert called.status == exits.NOT_THERE
        assert f"no experience {name!r}" in called.err
        assert re.search(r"agentctl memory (--home \S+ )?list", called.err)


# --- files ---


def test_what_is_exported_has_the_format_of_the_original_design(ctl, told, tmp_path):
    rows = ctl("memory", "export").json
    assert [(row["slow"], row["fast"], row["summary"]) for row in rows] == [
        (SOURCE.decode(), "a faster kernel", ONE.summary),
        (SOURCE.decode(), "", WORSE.summary),
        (SOURCE.decode(), "", FILE.summary),
    ]
    path = tmp_path / "rewrites.json"
    called = ctl("memory", "export", ONE.id, "-o", path)
    assert called.out == f"wrote 1 experience to {path}\n"
    assert json.loads(path.read_text()) == rows[:1]
    assert ctl("memory", "export", "-o", path, "--json").json["experiences"] == [ONE.id, WORSE.id, FILE.id]


def test_a_home_s_own_files_are_no_place_to_export_to(ctl, told):
    called = ctl("memory", "export", "-o", told / "events.db")
    assert called.status == exits.USAGE
    assert experiences(told) == (ONE, WORSE, FILE)


def test_a_file_is_imported_by_the_owner_of_the_home(ctl, home, tmp_path):
    path = tmp_path / "rewrites.json"
    path.write_text(json.dumps([{"slow": "a", "fast": "b", "summary": "larger tiles"}, {"slow": "c"}]))
    called = ctl("memory", "import", path, "--target", "trn2", "--json")
    assert called.status == exits.OK
    assert called.json["state"] == "queued"
    assert "queued: memory import; nobody owns this home" in ctl("memory", "import", path).out
    carry_out(home)
    (learnt,) = [
        one for one in system(home, ExperiencesLearnt) if one.experiences[0].origin == "rewrites.json"
    ]
    (one,) = learnt.experiences
    assert (one.imported, one.summary, one.tags.target) == (True, "larger tiles", "trn2")
    answered = {one.id: one.result for one in system(home, CommandCompleted)}
    assert answered[called.json["command"]] == {"learnt": [one.id], "known": 0}
    assert {"learnt": [], "known": 1} in answered.values()
    with LogReader.open(home) as reader:
        assert (reader.get_blob(one.slow), reader.get_blob(one.fast)) == (b"a", b"b")
    assert one.id in [row["id"] for row in ctl("memory", "list", "--json").json]
    assert verify_log(home).is_ok


def test_a_file_that_is_no_such_list_is_refused_before_anything_is_sent(ctl, home, tmp_path):
    path = tmp_path / "rewrites.json"
    path.write_text('[{"summary": 3}]')
    called = ctl("memory", "import", path)
    assert called.status == exits.USAGE
    assert f"{path}: [0].summary: " in called.err
    missing = ctl("memory", "import", tmp_path / "nothing.json")
    assert missing.status == exits.USAGE
    assert "No such file" in missing.err
    assert not home.exists()


def test_what_was_answered_is_told(ctl, home, tmp_path, monkeypatch):
    path = tmp_path / "rewrites.json"
    path.write_text(json.dumps([{"summary": "a"}, {"summary": "b"}, {}]))
    result = {"learnt": ["0123456789ab"], "known": 1}
    sent = []

    def answer(where, command):
        sent.append((where, command))
        return CommandCompleted(id="1", result=result)

    monkeypatch.setattr("agentctl.verbs.memory.send_command", lambda where, command: (where, command))
    monkeypatch.setattr("agentctl.verbs.memory.wait_for_answer", lambda where, one: answer(*one))
    called = ctl("memory", "import", path, "--name", "advice")
    assert called.out == f"learnt 1 experience of {path}; 1 known already; 1 without a summary passed over\n"
    rewrites = (ExperienceEntry(summary="a"), ExperienceEntry(summary="b"))
    assert sent == [(home, Learn(file="advice", rewrites=rewrites))]
    assert ctl("memory", "import", path, "--json").json == {"state": "done", **result, "without_summary": 1}


# --- forgetting ---


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ((ONE.id[:6], FILE.id), {WORSE.id}),
        (("--from", "rewrites.json"), {ONE.id, WORSE.id}),
        (("--all",), set()),
    ],
)
def test_what_is_to_be_forgotten_is_told_to_no_later_run(ctl, told, arguments, left):
    assert "queued: memory forget" in ctl("memory", "forget", *arguments).out
    assert len(experiences(told)) == 3
    carry_out(told)
    there = {ONE.id, WORSE.id, FILE.id} & {one.id for one in experiences(told)}
    assert there == left
    (event,) = system(told, ExperiencesForgotten)
    assert set(event.ids) == {ONE.id, WORSE.id, FILE.id} - left
    assert verify_log(told).is_ok


def test_nothing_is_forgotten_by_mistake(ctl, told):
    assert ctl("memory", "forget").status == exits.USAGE
    assert ctl("memory", "forget", "--from", "nobody").status == exits.NOT_THERE


def test_what_was_forgotten_meanwhile_is_refused(told):
    for number in (1, 2):
        fakes.put_command(told, Forget(ids=(ONE.id,)), id_=f"000{number}")
    carry_out(told)
    (rejected,) = [one for one in system(told, CommandRejected) if one.id == "0002"]
    assert rejected.error.code == "unknown_experience"
    assert ONE.id not in {one.id for one in experiences(told)}
