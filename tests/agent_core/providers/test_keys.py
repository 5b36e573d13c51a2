"""Keys: where they come from, what is refused, and that nothing shows them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import structlog

from agent_core.providers.keys import (
    KeyFault,
    Secret,
    credential_name,
    describe_key_sources,
    find_key,
    key_variable,
    redact,
)
from agent_core.providers.registry import EndpointSettings

KEY = "sk-ant-api03-abcdefghijklmnop"


def write_key(path: Path, text: str = KEY, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("name", ["anthropic", "openai", "local"])
def test_a_key_comes_from_the_endpoints_variable(name):
    found = find_key(name, {key_variable(name): KEY})
    assert found is not None
    assert found.reveal() == KEY
    assert key_variable(name) == f"{name.upper()}_API_KEY"


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_is_none(value):
    assert find_key("openai", {"OPENAI_API_KEY": value}) is None
    assert find_key("openai", {}) is None


def test_a_key_comes_from_a_credential(tmp_path):
    write_key(tmp_path / credential_name("openai"), f"{KEY}\n", 0o440)
    found = find_key("openai", {"CREDENTIALS_DIRECTORY": str(tmp_path), "OPENAI_API_KEY": "other-key"})
    assert found == Secret(KEY)
    assert find_key("local", {"CREDENTIALS_DIRECTORY": str(tmp_path)}) is None


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_comes_from_a_file_that_only_its_owner_can_read(tmp_path, mode):
    file = write_key(tmp_path / "key", f"{KEY}\n", mode)
    assert find_key("openai", {"OPENAI_API_KEY": "other-key"}, file) == Secret(KEY)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777, 0o700, 0o620])
def test_a_file_that_others_may_use_is_refused(tmp_path, mode):
    file = write_key(tmp_path / "key", mode=mode)
    with pytest.raises(KeyFault, match=rf"mode {mode:04o}.*chmod 600 {file}") as caught:
        find_key("openai", {}, file)
    assert KEY not in str(caught.value)


def test_a_file_of_somebody_else_is_refused(tmp_path, monkeypatch):
    file = write_key(tmp_path / "key")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(KeyFault, match="must be ours"):
        find_key("openai", {}, file)


def test_only_a_regular_file_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    link = tmp_path / "link"
    link.symlink_to(write_key(tmp_path / "key"))
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    for path, why in (
        (pipe, "regular file"),
        (link, "a link"),
        (folder, "regular file"),
        (tmp_path / "no", "No "),
    ):
        with pytest.raises(KeyFault, match=why):
            find_key("openai", {}, path)


@pytest.mark.parametrize("text", ["", "\n", "two words", "line\nline", "s\x00k", "kéy", "k" * 5000])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path, text):
    file = tmp_path / "key"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(KeyFault, match="key") as caught:
        find_key("openai", {}, file)
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_variable_that_is_no_key_is_refused():
    with pytest.raises(KeyFault, match="OPENAI_API_KEY: a key is one word"):
        find_key("openai", {"OPENAI_API_KEY": "two words"})


def test_nothing_shows_a_secret():
    secret = Secret(KEY)
    settings = EndpointSettings(key=secret)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", f"{secret:>3}", "%s" % secret]  # noqa: UP031
    shown += [
        repr(settings),
        str(settings),
        settings.model_dump_json(),
        json.dumps(settings.model_dump(mode="json")),
    ]
    shown += [str(settings.model_dump()), structlog.processors.JSONRenderer()(None, "info", {"key": secret})]
    for text in shown:
        assert KEY not in text
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_secrets_are_compared_by_what_they_hide():
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_a_known_secret_is_redacted_wherever_it_stands():
    assert redact(f"x{KEY}y and word", Secret(KEY), None) == "x[hidden]y and word"
    assert redact("nothing here", Secret("")) == "nothing here"


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-abc***************wxyz. You can find",
        "Authorization: Bearer abcdefghijk",
        "{'x-api-key': 'abcdefghijk'}",
        'api_key="abcdefghijk"',
        "used key fw_3ZabcdefghijkX here",
    ],
)
def test_what_looks_like_a_key_is_redacted_too(text):
    shown = redact(text)
    assert "[hidden]" in shown
    assert "abc" not in shown


def test_words_are_not_taken_for_keys():
    text = "the keyword argument key_size of nki.isa.nc_matmul; sk is short; the task-oriented bearer of it"
    assert redact(text) == text


def test_the_places_of_a_key_are_named():
    text = describe_key_sources("anthropic")
    for place in ("ANTHROPIC_API_KEY", "anthropic-api-key", "daemon.anthropic.key_file"):
        assert place in text
