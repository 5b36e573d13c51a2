"""Changing settings of a run that is there: which keys, checked as a whole, and what is named when wrong."""

from __future__ import annotations

import pytest

from daemon.config import ConfigError
from daemon.name_checks import find_unknown_names
from daemon.run_settings import EVALUATION_KEYS, apply_settings, diff_configs
from state.model import RunConfig

CONFIG = RunConfig(problem="silu")


def test_keys_are_those_of_the_configuration_with_or_without_their_section():
    found = apply_settings(CONFIG, {"run.search.beam": 6, "search.rounds": 9, "cap_usd": 2.5})
    assert (found.search.beam, found.search.rounds, found.cap_usd) == (6, 9, 2.5)
    assert found.search.plans == CONFIG.search.plans


def test_what_changed_is_told_by_key():
    found = apply_settings(CONFIG, {"search.beam": 6, "planner": ["scripted", "builtin"], "search.plans": 6})
    assert diff_configs(CONFIG, found) == {
        "run.search.beam": (4, 6),
        "run.planner": (["builtin"], ["scripted", "builtin"]),
    }
    assert diff_configs(CONFIG, CONFIG) == {}


def test_a_section_that_was_not_set_at_all_is_told_too():
    found = apply_settings(CONFIG, {"agent.command": ["x"], "calibration": "mine"})
    changed = {"run.agent.command": ([], ["x"]), "run.calibration": ("", "mine")}
    assert diff_configs(CONFIG, found) == changed
    assert diff_configs(found, CONFIG) == {key: (now, was) for key, (was, now) in changed.items()}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"search.beem": 6}, "search.beem: no such key; did you mean run.search.beam?"),
        ({"search.beam": 0}, "search.beam = 0: Input should be greater than or equal to 1"),
        ({"search.beam": "many"}, 'search.beam = "many"'),
        ({"search": 3}, "a section, not a value"),
        ({"search.beam": 3, "run.search.beam": 3}, "run.search.beam has a value already"),
        ({"daemon.evaluations": 3}, "daemon.evaluations: a setting of the process, not of a run"),
        ({"run.target": "trn1"}, "a fork may change it"),
        ({"problem": "adamw"}, "run.problem: a run keeps what it is judged by"),
        ({"planner": ["nobody"]}, "run.planner: no proposer is called 'nobody'"),
        ({"approval": ["lunch"]}, 'approval = ["lunch"]'),
    ],
)
def test_what_is_wrong_is_named(settings, words):
    with pytest.raises(ConfigError) as error:
        apply_settings(CONFIG, settings, keep=EVALUATION_KEYS, look_up=find_unknown_names)
    assert words in str(error.value)
    assert len(error.value.faults) == 1


def test_everything_wrong_is_named_at_once_and_nothing_is_taken():
    with pytest.raises(ConfigError) as error:
        apply_settings(CONFIG, {"search.beem": 6, "search.rounds": 0, "search.plans": 3})
    assert len(error.value.faults) == 2


def test_a_fork_may_change_what_a_run_keeps():
    assert apply_settings(CONFIG, {"target": "trn1"}).target == "trn1"
