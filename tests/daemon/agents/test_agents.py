"""Coding agents as proposers: what a stand-in does, well and badly, killed or not; all is in the log."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.agents.scratch import scratch_root
from daemon.agents.transcript import HALF_BYTES, read_usage
from state.events import (
    AgentEnded,
    ExecutionFailed,
    ExecutionStarted,
    KernelKept,
    KernelProposed,
    KernelTried,
    SessionEnded,
    SessionStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from state.model import AgentConfig, SearchConfig, SessionEndReason
from state.reader import LogReader
from state.verify import verify_log
from tests.support import coding_agent, fakes
from tests.support.mcp_clients import ROOT

pytestmark = pytest.mark.needs("bwrap", package="bubblewrap")
PROGRAM = Path(coding_agent.__file__)


def config_of(habit: str, *, plans: int = 1, **agent):
    search = SearchConfig(beam=1, plans=plans, rounds=1, explorers=0, within_percent=0)
    command = ("{python}", str(PROGRAM), habit)
    found = AgentConfig(command=command, shown=(str(PROGRAM.parent),), **{"seconds": 60, **agent})
    return fakes.CONFIG.model_copy(
        update={"planner": ("agent",), "agent": found, "search": search, "cap_usd": 10.0, "starts": "kernel"}
    )


def finish(home: Path, habit: str, *, at_a_time: int = 1, **options) -> str:
    run = fakes.submit_run(home, config_of(habit, **options))
    fakes.finish_runs(home, run, at_a_time=at_a_time)
    check_log(home, run)
    return run


def check_log(home: Path, run: str) -> None:
    """The log is whole, replays to the same state, and no folder or process of an agent is left."""
    assert verify_log(home).is_ok
    with LogReader.open(home) as reader:
        reader.replay_run(run)  # compares every hash
    assert not list(scratch_root(home).glob("*"))
    assert not agents_of(home)


def agents_of(home: Path) -> list[int]:
    """Return the processes whose command line names a folder of the home's agents."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(scratch_root(home)).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def events(home: Path, run: str, *kinds: type) -> list:
    with LogReader.open(home) as reader:
        found = [item.event for item in reader.read(stream=run, limit=10_000)]
    return [event for event in found if isinstance(event, kinds)]


def blob(home: Path, digest: str) -> bytes:
    with LogReader.open(home) as reader:
        return reader.get_blob(digest)


def test_an_agent_makes_a_kernel_faster_and_all_of_it_is_in_the_log(home):
    run = finish(home, "tweak")
    (begun,) = events(home, run, SessionStarted)
    assert (begun.model, begun.by_agent) == ("agent", True)
    started, completed = events(home, run, ToolCallStarted), events(home, run, ToolCallCompleted)
    assert [one.turn for one in started] == list(range(len(started))) == [one.turn for one in completed]
    assert [one.tool for one in started][-1] == "submit"
    assert events(home, run, KernelTried)
    (ended,) = events(home, run, AgentEnded)
    assert (ended.reason, ended.status, ended.tool_calls) == ("submitted", 0, len(started))
    assert (ended.usage.cost_usd, ended.usage.input_tokens, ended.usage.output_tokens) == (0.25, 1200, 300)
    assert b'"type": "result"' in blob(home, ended.transcript)
    (proposed,) = [one for one in events(home, run, KernelProposed) if one.author == "agent"]
    assert proposed.usage == ended.usage
    assert len(events(home, run, KernelKept)) == 2
    with LogReader.open(home) as reader:
        state = reader.run_state(run)
    assert state.spent_usd == pytest.approx(0.25)
    assert state.best.latency_ms < state.initial.latency_ms


@pytest.mark.parametrize(
    ("habit", "options", "reason"),
    [
        ("hang", {"seconds": 2}, SessionEndReason.DEADLINE),
        ("hang_later", {"seconds": 20}, SessionEndReason.DEADLINE),
        ("crash", {}, SessionEndReason.EXITED),
        ("chatty", {"tool_calls": 5}, SessionEndReason.TURNS),
        ("cheat", {}, SessionEndReason.EXITED),
    ],
)
def test_an_agent_that_brings_nothing_fails_by_name(home, habit, options, reason):
    run = finish(home, habit, **options)
    (failed,) = events(home, run, ExecutionFailed)
    assert failed.error.code == f"session_{reason.value}"
    (session,) = events(home, run, SessionEnded)
    assert (session.reason, session.submitted) == (reason, None)
    (ended,) = events(home, run, AgentEnded)
    assert ended.tool_calls <= options.get("tool_calls", 64)
    if habit == "cheat":
        codes = [one.code for one in events(home, run, ToolCallCompleted)]
        assert len(codes) == 5
        assert all(codes), "each was refused"
        assert "unknown_tool" in codes
    assert len(events(home, run, KernelKept)) == 1, "the initial kernel alone"


def test_a_flood_of_output_is_cut_and_what_it_cost_is_still_read(home):
    run = finish(home, "flood")
    (ended,) = events(home, run, AgentEnded)
    assert ended.cut
    assert len(blob(home, ended.transcript)) <= 2 * HALF_BYTES + 100
    assert ended.usage.cost_usd == 0.25
    assert ended.reason == "submitted"


def test_a_wrong_token_opens_no_tools(home):
    run = finish(home, "knock")
    (ended,) = events(home, run, AgentEnded)
    assert blob(home, ended.transcript).count(b"knocked: b''") == 2
    assert ended.reason == "submitted", "the agent goes on with its own"


def test_an_agent_sees_no_other_plan_no_home_and_no_key(home, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("GIVEN_KEY", "given")
    run = finish(home, "others", plans=2, at_a_time=2, variables=("GIVEN_KEY", "NOT_THERE"))
    found = events(home, run, AgentEnded)
    assert len(found) == 2
    for ended in found:
        text = blob(home, ended.transcript).decode()
        seen = coding_agent.json.loads(next(line for line in text.split("\n") if '"folders"' in line))
        assert len(seen["folders"]) == 1, "its own"
        assert seen["home"] == ["cache"]
        assert "GIVEN_KEY" in seen["keys"]
        assert not {"SOME_API_KEY", "NOT_THERE"} & set(seen["keys"])


def test_a_killed_daemon_starts_the_plan_again_and_loses_nothing(home):
    run = fakes.submit_run(home, config_of("tweak"))
    host = (
        "from pathlib import Path; from tests.support import fakes; "
        f"fakes.finish_runs(Path({str(home)!r}), {run!r})"
    )
    for wanted in (1, 3):
        with subprocess.Popen([sys.executable, "-c", host], cwd=ROOT) as daemon:
            deadline = time.monotonic() + 120
            while count_calls(home, run) < wanted:
                assert time.monotonic() < deadline
                assert daemon.poll() is None
                time.sleep(0.02)
            daemon.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while agents_of(home):
            assert time.monotonic() < deadline, "an agent outlives its daemon"
            time.sleep(0.05)
    before = {one.source for one in events(home, run, KernelTried)}
    fakes.finish_runs(home, run)
    check_log(home, run)
    started = [one for one in events(home, run, ExecutionStarted) if one.key.startswith("r1.")]
    assert max(one.delivery for one in started) == 3
    assert before <= {one.source for one in events(home, run, KernelTried)}
    turns = [one.turn for one in events(home, run, ToolCallCompleted)]
    assert turns == list(range(len(turns)))

    assert events(home, run, AgentEnded)[-1].delivery == 3
    (proposed,) = [one for one in events(home, run, KernelProposed) if one.author == "agent"]
    assert proposed.source


def count_calls(home: Path, run: str) -> int:
    try:
        return len(events(home, run, ToolCallStarted))
    except Exception:  # noqa: BLE001 - there is no log yet
        return 0


def test_a_program_that_is_not_there_fails_the_plan(home):
    config = config_of("tweak")
    agent = config.agent.model_copy(update={"command": ("no-such-program",)})
    run = fakes.submit_run(home, config.model_copy(update={"agent": agent}))
    fakes.finish_runs(home, run)
    (failed,) = events(home, run, ExecutionFailed)
    assert failed.error.code == "no_agent"
    assert "no-such-program" in failed.error.message


def test_an_agent_without_a_command_is_refused_at_once(ctl):
    called = ctl("submit", "--problem", "silu", "--set", 'planner=["agent"]')
    assert called.status == 2
    assert "agent.command" in called.err


@pytest.mark.parametrize(
    ("text", "cost", "tokens"),
    [
        ('{"total_cost_usd": 0.5, "usage": {"input_tokens": 2, "cache_read_input_tokens": 3}}',
         0.5, (5, 0)),
        ('noise\n{"usage": {"input_tokens": 1, "output_tokens": 2}}\n{"usage": {"input_tokens": 1}}\n',
         None, (2, 2)),
        ('{"usage": {"input_tokens": 9}}\n{"cost_usd": 1, "usage": {"output_tokens": 2}}\n', 1.0, (0, 2)),
        ('{"total_cost_usd": -1}', None, (0, 0)),
        ('{"total_cost_usd": NaN, "usage": {"input_tokens": "many", "output_tokens": true}}', None, (0, 0)),
        ("", None, (0, 0)),
        ("[" * 100_000, None, (0, 0)),
    ],
)  # fmt: skip
def test_what_an_agent_says_that_it_cost(text, cost, tokens):
    found = read_usage(text.encode())
    assert found.cost_usd == cost
    assert (found.input_tokens, found.output_tokens) == tokens
