"""Waiting for what a run reaches: conditions as people say them, and what becomes of waiting."""

from __future__ import annotations

import threading

import pytest

from agentctl.verbs.wait import parse_condition
from agentctl.views.run import run_view
from daemon import exits
from state.reader import LogReader
from tests.support import fakes


@pytest.fixture
def view(home, finished):
    with LogReader.open(home) as reader:
        return run_view(finished, reader.run_state(finished))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("ended", True),
        ("completed", True),
        ("Completed", True),
        ("cancelled", False),
        ("approval", False),
        ("best>1x", True),
        ("best>1", True),
        ("best > 99x", False),
        ("best<1000ms", True),
        ("best<=0.001 ms", False),
        ("round>=2", True),
        ("round=2", True),
        ("round==3 rounds", False),
        ("peak>0.01%", True),
        ("tight<100", True),
        ("spent<1$", True),
        ("spent>1usd", False),
        ("evaluated>=1", True),
    ],
)
def test_conditions(view, text, holds):
    assert parse_condition(text).holds(view) is holds


@pytest.mark.parametrize("text", ["", "better", "best", "best>", "best>fast", "best>3$", "mood>1", "best~2x"])
def test_what_is_no_condition(text):
    with pytest.raises(ValueError, match="is none of ended, "):
        parse_condition(text)


def test_what_is_not_known_yet_does_not_hold(home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    with LogReader.open(home) as reader:
        begun = run_view(run, reader.run_state(run))
    assert not parse_condition("best>0x").holds(begun)
    assert not parse_condition("best<1000000ms").holds(begun)


def test_a_run_that_ends_before_it_holds_is_a_no(ctl, finished):
    called = ctl("wait", finished, "--for", "best>99x")
    assert called.status == exits.FAILURE
    assert "does not hold, and the run is over" in called.out
    assert ctl("wait", finished, "--for", "best>99x", "--json").json["holds"] is False


def test_time_that_is_up_says_how_far_it_came(ctl, home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    called = ctl("wait", "--timeout", "0")
    assert called.status == exits.TIMEOUT
    assert f"nobody drives {run} now; carry on with: " in called.err
    assert f"ended does not hold of {run} yet: interrupted, round 0/2" in called.err


@pytest.mark.parametrize("text", ["soon", "-1", "1 month", f"{10**30} d"])
def test_what_is_no_time(ctl, finished, text):
    called = ctl("wait", finished, f"--timeout={text}")
    assert called.status == exits.USAGE
    assert "is no time such as" in called.err


def test_it_returns_when_it_holds(ctl, home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    driving = threading.Thread(target=fakes.finish_runs, args=(home, run))
    driving.start()
    try:
        called = ctl("wait", run, "--for", "completed", "--timeout", "60")
    finally:
        driving.join()
    assert called.status == exits.OK
    assert f"{run}: completed holds: completed, round 2/2, best 2 ms predicted" in called.out


def test_an_unknown_run_is_refused(ctl, finished):
    assert ctl("wait", "nobody").status == exits.NOT_THERE
