"""The command values: what is written is read back, whatever it holds, and what is wrong is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.command_models import (
    VERBS,
    Cancel,
    ExperienceEntry,
    Forget,
    Learn,
    Pause,
    Propose,
    Resume,
    Submit,
    parse_command,
    read_verb,
    run_id,
)
from daemon.errors import CommandRefused
from state.model import RunConfig
from tests.support.learnt_sequences import experience_context

TEXT = st.text(max_size=20)
REWRITES = st.builds(
    ExperienceEntry,
    slow=TEXT,
    fast=TEXT,
    summary=st.text(min_size=1),
    about=st.none() | st.just(experience_context()),
)
COMMANDS = st.one_of(
    st.builds(Pause, run=TEXT, reason=TEXT),
    st.builds(Resume, run=TEXT, reason=TEXT),
    st.builds(Cancel, run=TEXT, reason=TEXT),
    st.builds(Forget, ids=st.lists(TEXT, min_size=1, max_size=3)),
    st.builds(
        Learn, file=st.text(min_size=1, max_size=9), rewrites=st.lists(REWRITES, min_size=1, max_size=3)
    ),
    st.builds(Propose, run=TEXT, source=st.text(min_size=1, max_size=50), note=TEXT),
    st.builds(
        lambda files, kernel: Submit.model_construct(config=RunConfig(), files=files, kernel=kernel),
        st.dictionaries(TEXT, st.binary(max_size=50), max_size=3),
        st.none() | TEXT,
    ),
)


@given(COMMANDS)
def test_what_is_written_is_read_back(command):
    data = command.model_dump_json().encode()
    assert read_verb(data) == command.verb
    again = parse_command(data)
    assert type(again) is type(command)
    assert again.model_dump_json() == command.model_dump_json()


@given(st.binary(max_size=200))
def test_files_travel_byte_by_byte(data):
    sent = Submit.model_construct(config=RunConfig(), files={"problem.toml": data}, kernel=None)
    received = parse_command(sent.model_dump_json().encode())
    assert isinstance(received, Submit)
    assert received.files == {"problem.toml": data}


REQUIRED = {
    verb: [name for name, field in fields.model_fields.items() if field.is_required()]
    for verb, fields in VERBS.items()
}


def test_only_compaction_needs_nothing():
    assert [verb for verb, names in REQUIRED.items() if not names] == ["compact"]


@pytest.mark.parametrize("verb", [verb for verb, names in REQUIRED.items() if names])
def test_an_empty_command_names_all_that_is_missing(verb):
    with pytest.raises(CommandRefused) as refused:
        parse_command(json.dumps({"verb": verb}).encode())
    assert all(f"{name}: field required" in str(refused.value) for name in REQUIRED[verb])


def test_a_wrong_configuration_is_named_key_by_key():
    content = {"verb": "submit", "config": {"size": "huge", "search": {"beam": 0}}, "files": {}}
    with pytest.raises(CommandRefused) as refused:
        parse_command(json.dumps(content).encode())
    assert "config.size" in str(refused.value)
    assert "config.search.beam" in str(refused.value)


def test_a_run_id_follows_from_the_command_and_says_the_problem():
    assert run_id("1", "silu") == run_id("1", "silu")
    assert run_id("1", "silu") != run_id("2", "silu")
    assert run_id("1", "silu").startswith("silu-")
