"""Handing over work: proposing a kernel and seeing what becomes of it, and what is refused at once."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from agentctl import command_answers
from agentctl.command_answers import ProposalResult, find_proposal_result, wait_for_proposal_result
from agentctl.verbs import steer
from daemon import exits
from daemon.command_models import Pause, Propose
from daemon.inbox import put_command
from state.events import CommandCompleted, KernelDiscarded, KernelKept
from state.reader import LogReader
from tests.support import fakes
from tests.support.sweeps import parametrize_sweep

FASTER = fakes.KERNEL.replace("TILE_M = 128", "TILE_M = 256")
WRONG = "TILE_M = 5\n"
PLACE = "r1.b1000.p0.k0.f0"


def proposed(home, source: str) -> str:
    """Enter `source` into a run and see the run to its end; return the run."""
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    put_command(home, Propose(run=run, source=source))
    fakes.take_commands(home)
    fakes.finish_runs(home, run)
    return run


@pytest.fixture
def answered(home, monkeypatch):
    """As if an owner answered at once, and then saw the run to its end."""
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    wait = command_answers.wait_for_answer

    def owner(home, sent) -> CommandCompleted | None:
        with capture_logs():  # of the owner, which is a process of its own elsewhere
            fakes.take_commands(home)
            answer = wait(home, sent)
            fakes.finish_runs(home, run)
        return answer

    monkeypatch.setattr(steer, "wait_for_answer", owner)
    return run


@pytest.mark.parametrize(("source", "correct"), [(FASTER, True), (WRONG, False)])
def test_the_fate_of_a_proposal_is_its_verdict_and_the_decision(home, source, correct):
    run = proposed(home, source)
    fate = wait_for_proposal_result(home, run, PLACE, 0)
    assert fate.is_correct is correct
    assert fate.verdict.event.key == f"{PLACE}.{'verifier' if correct else 'evaluator'}"
    assert isinstance(fate.decision.event, KernelKept | KernelDiscarded)
    assert fate.verdict.seq < fate.decision.seq


def test_of_a_candidate_that_is_not_there_nothing_is_known(home):
    run = proposed(home, FASTER)
    assert wait_for_proposal_result(home, run, "r9.b0.p0.k0.f0", 0) == ProposalResult(None, None)
    with LogReader.open(home) as reader:
        assert find_proposal_result(reader, run, PLACE, reader.head.seq) == ProposalResult(None, None)
    assert not ProposalResult(None, None).is_correct


def test_of_a_run_that_rests_nobody_waits_for_a_verdict(home, monkeypatch):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    put_command(home, Propose(run=run, source=FASTER))
    put_command(home, Pause(run=run))
    fakes.take_commands(home)
    monkeypatch.setattr(command_answers, "is_owned", lambda _: True)
    assert wait_for_proposal_result(home, run, PLACE, 0) == ProposalResult(None, None)


def test_propose_tells_how_to_see_its_fate(ctl, home, answered, tmp_path):
    kernel = tmp_path / "k.py"
    kernel.write_text(FASTER)
    called = ctl("propose", answered, kernel)
    assert called.status == exits.OK
    assert called.out.startswith(f"proposed: {answered} as {PLACE} in round 1\n")
    hint = called.out.splitlines()[1]
    assert f"tail --home {home} -f --after " in hint
    arguments = [word for word in hint.partition(" tail ")[2].split() if word != "-f"]
    assert PLACE in ctl("tail", *arguments).out


@parametrize_sweep(
    ("source", "verdict"), [(FASTER, "correct"), (WRONG, "incorrect")], quick=[(WRONG, "incorrect")]
)
def test_propose_waits_for_the_verdict_when_asked_to(ctl, answered, tmp_path, source, verdict):
    kernel = tmp_path / "k.py"
    kernel.write_text(source)
    called = ctl("propose", answered, kernel, "--wait")
    assert called.status == (exits.OK if source == FASTER else exits.FAILURE)
    _, judged, decided = called.out.splitlines()
    assert f"EvaluationCompleted {PLACE}: {verdict}" in judged
    assert f": {PLACE}: " in decided


def test_propose_as_json_has_verdict_and_decision(ctl, answered, tmp_path):
    kernel = tmp_path / "k.py"
    kernel.write_text(WRONG)
    content = ctl("propose", answered, kernel, "--wait", "--json").json
    assert content["candidate"] == PLACE
    assert content["verdict"]["evaluation"]["verdict"] == "incorrect"
    assert content["decision"]["reason"] == "incorrect"


def test_propose_says_when_nothing_was_decided(ctl, answered, tmp_path, monkeypatch):
    monkeypatch.setattr(steer, "wait_for_proposal_result", lambda *_: ProposalResult(None, None))
    kernel = tmp_path / "k.py"
    kernel.write_text(FASTER)
    called = ctl("propose", answered, kernel, "--wait")
    assert called.status == exits.FAILURE
    assert "undecided" in called.out


@pytest.mark.parametrize("verb", ["submit", "run"])
def test_a_wrong_size_is_told_which_there_are(ctl, verb):
    called = ctl(verb, "--problem", "silu", "--size", "tiny")
    assert called.status == exits.USAGE
    assert "'full' or 'reduced'" in called.err
    assert "pattern" not in called.err
