"""`CLAUDE.md`: the commands that it names give the JSON that it says; its exit statuses are all there are."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from agentctl.verb_table import VERBS
from daemon.exits import MEANING

PAGE = (Path(__file__).parents[2] / "CLAUDE.md").read_text(encoding="utf-8")
ROWS = {
    command: re.findall(r"`(\w+)`", keys)
    for command, keys in re.findall(r"^\| `agentctl (.+?)` \| (.+) \|$", PAGE, re.MULTILINE)
}


def test_there_are_commands_to_hold():
    assert len(ROWS) > 15
    assert all(ROWS.values())


@pytest.mark.parametrize("command", ROWS)
def test_a_commands_json_has_the_keys_that_are_told(ctl, finished, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("RUN", finished).replace("DIR", "exported") for word in shlex.split(command)]
    called = ctl(*words, "--json")
    first = json.loads(called.out.splitlines()[0] if words[0] == "tail" else called.out)
    found = first[0] if isinstance(first, list) and first else first
    if found == []:  # a home that has learnt nothing has nothing to list
        return
    assert set(ROWS[command]) <= set(found), called.err


def test_runs_have_the_keys_and_states_that_are_told(ctl, finished):
    told = PAGE.split("A run in `runs` of `status` has")[1].split(". Its `state`")[0]
    (run,) = ctl("status", finished, "--json").json["runs"]
    assert set(re.findall(r"`(\w+)`", told)) <= set(run)


def test_every_verb_that_is_named_is_one():
    assert set(re.findall(r"`agentctl ([a-z]+)", PAGE)) <= set(VERBS)


def test_the_statuses_are_all_there_are():
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE)
    assert {int(number) for row in rows for number in row.split(",")} == set(MEANING)
