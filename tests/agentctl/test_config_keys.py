"""The keys of the configuration in words: all of them, as the models have them, as the document says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentctl.config_keys import AT_ONCE, NEW_RUNS, NEXT_ROUND, format_key_table, list_config_keys
from daemon.config import Config, load_config

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
KEYS = {key.key: key for key in list_config_keys()}


def test_every_key_is_explained():
    flags = {"daemon.endpoints.mine.service": "bedrock"}
    shown = {key for key, _, _ in load_config(Path("/nowhere"), {}, flags).items()}
    assert {key.replace(".NAME.", ".mine.") for key in KEYS} == shown
    assert [key.key for key in KEYS.values() if not (key.meaning and key.values and key.default)] == []


def test_the_document_has_the_table_that_the_program_prints(ctl):
    printed = ctl("config", "keys").out.rstrip("\n")
    assert printed == "\n".join(format_key_table(list_config_keys()))
    here = printed in DOCUMENT.read_text(encoding="utf-8")
    assert here, "put what `agentctl config keys` prints into docs/configuration.md"
    assert [row["key"] for row in ctl("config", "keys", "--json").json] == list(KEYS)


@pytest.mark.parametrize(
    ("key", "values", "default", "unit", "counts"),
    [
        ("daemon.evaluations", "integer, at least 1, at most 1024", "the machine's CPUs", "", AT_ONCE),
        ("daemon.log_level", '"debug" or "info" or "warning" or "error"', '`"info"`', "", AT_ONCE),
        ("run.target", "string", '`"trn2"`', "", NEW_RUNS),
        ("run.planner", "list of string, at least 1 of them", '`["builtin"]`', "", NEXT_ROUND),
        ("run.seed", "integer, at least 0, below 9223372036854775808", "`0`", "", NEXT_ROUND),
        (
            "run.search.round_seconds",
            "number, above 0, at most 604800, or not set",
            "not set",
            "s",
            NEXT_ROUND,
        ),
        ("run.search.within_percent", "number, at least 0, at most 100", "`0.5`", "% (0 to 100)", NEXT_ROUND),
    ],
)
def test_what_is_said_is_what_the_models_say(key, values, default, unit, counts):
    found = KEYS[key]
    assert (found.values, found.default, found.unit, found.counts) == (values, default, unit, counts)


def test_defaults_that_are_shown_are_those_in_force():
    assert KEYS["run.search.beam"].default == f"`{Config().run.search.beam}`"
