"""Coding agents as proposers: what a stand-in does, well and badly, killed or not; all is in the log."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.agents.scratch import scratch_root
from daemon.agents.transcript import HALF_BYTES, read_usage
from daemon.command_models import Cancel
from daemon.inbox import put_command
from state.events import (
    AgentEnded,
    AgentStarted,
    BudgetShort,
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
from state.log import EventLog
from state.model import AgentConfig, SearchConfig, SessionEndReason
from state.reader import LogReader
from state.verify import verify_log
from tests.support import coding_agent, fakes
from tests.support.mcp_clients import ROOT

pytestmark = pytest.mark.needs("bwrap", package="bubblewrap")
PROGRAM = Path(coding_agent.__file__)
HELD_USD = 2.5
"""A fourth of the cap of these runs, by run.llm.session_percent."""


def config_of(habit: str, *, plans: int = 1, cap_usd: float = 10.0, **agent):
    search = SearchConfig(beam=1, plans=plans, rounds=1, explorers=0, within_percent=0)
    command = ("{python}", str(PROGRAM), habit)
    found = AgentConfig(command=command, shown=(str(PROGRAM.parent),), **{"seconds": 60, **agent})
    return fakes.CONFIG.model_copy(
        update={
            "planner": ("agent",),
            "agent": found,
            "search": search,
            "cap_usd": cap_usd,
            "starts": "kernel",
        }
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


def check_day(home: Path, spent_usd: float) -> None:
    """Everything that was reserved of the day is settled, and it was charged this much."""
    with LogReader.open(home) as reader:
        day = reader.system_state().day
    assert day.held == {}
    assert day.spent.usd == pytest.approx(spent_usd)


def check_cap(home: Path, run: str) -> None:
    """At no event was more spent and reserved than the cap."""
    with LogReader.open(home) as reader:
        for at in range(1, reader.run_seq(run) + 1):
            state = reader.run_state(run, at)
            assert state.spent_usd + state.reserved_usd <= state.config.cap_usd


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
    (held,) = events(home, run, AgentStarted)
    assert (held.number, held.reserved_usd) == (1, HELD_USD)
    check_day(home, 0.25)
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
    first, second, last = events(home, run, AgentEnded)
    assert (first.reason, second.reason, last.reason) == ("lost", "lost", "submitted")
    assert {first.charged_usd, second.charged_usd} == {HELD_USD}, "nobody knows what they cost"
    with LogReader.open(home) as reader:
        assert reader.run_state(run).spent_usd == pytest.approx(2 * HELD_USD + 0.25)
        assert reader.run_state(run).unknown_cost
    check_day(home, 2 * HELD_USD + 0.25)
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


@pytest.mark.slow
def test_agents_side_by_side_wait_for_room_under_the_cap(home):
    """Three of 0.6 US$ under a cap of 1.2: two at a time, the third when both have ended."""
    run = finish(home, "tweak", plans=3, at_a_time=3, cap_usd=1.2, usd=0.6)
    found = events(home, run, AgentStarted, AgentEnded)
    assert [type(one) for one in found].count(AgentStarted) == 3
    under_way = most = 0
    for one in found:
        under_way += 1 if isinstance(one, AgentStarted) else -1
        most = max(most, under_way)
    assert most == 2
    check_cap(home, run)
    check_day(home, 0.75)


@pytest.mark.slow
def test_an_agent_for_which_no_room_is_left_is_not_started(home):
    """The first says that it cost 0.25 of 0.7 US$: there is no room for another 0.6."""
    run = finish(home, "tweak", plans=2, cap_usd=0.7, usd=0.6)
    assert len(events(home, run, AgentStarted)) == 1
    (short,) = events(home, run, BudgetShort)
    assert (short.resource, short.wanted) == ("usd", 0.6)
    (failed,) = events(home, run, ExecutionFailed)
    assert failed.error.code == "budget"
    check_cap(home, run)


def test_an_agent_that_does_not_say_what_it_cost_is_charged_what_was_reserved(home):
    run = finish(home, "crash", usd=0.6)
    (ended,) = events(home, run, AgentEnded)
    assert (ended.usage.cost_usd, ended.charged_usd) == (None, 0.6)
    with LogReader.open(home) as reader:
        state = reader.run_state(run)
        spent = sum(row["cost_nano_usd"] for row in reader.spend_rows(run))
    assert (state.spent_usd, state.unknown_cost) == (0.6, True)
    assert spent == 600_000_000
    check_day(home, 0.6)


def has_tried_kernel(event_log: EventLog, run: str) -> bool:
    return event_log.run_seq(run) > 0 and any(
        item.type == "KernelTried" for item in event_log.read(stream=run, limit=10_000)
    )


def test_a_cancelled_run_is_charged_for_the_agents_that_it_ends(home):
    run = fakes.submit_run(home, config_of("hang_later", usd=0.6))

    async def cancel_while_it_works(event_log) -> None:
        hosting = asyncio.create_task(fakes.host_until_ended(event_log, run))
        async with asyncio.timeout(120):
            while not has_tried_kernel(event_log, run):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.05)
        put_command(home, Cancel(run=run))
        await hosting

    with EventLog.open(home) as event_log:
        asyncio.run(cancel_while_it_works(event_log))
    check_log(home, run)
    (ended,) = events(home, run, AgentEnded)
    assert (ended.reason, ended.charged_usd) == ("lost", 0.6)
    with LogReader.open(home) as reader:
        assert reader.run_state(run).spent_usd == 0.6
    check_day(home, 0.6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["cap_usd=0"], "coding agents cost money"),
        (["cap_usd=1", "agent.usd=2"], "run.agent.usd = 2 is more than run.cap_usd = 1"),
    ],
)
def test_a_cap_under_which_no_agent_could_start_is_refused(ctl, settings, said):
    words = ['planner=["agent"]', 'agent.command=["true"]', *settings]
    called = ctl("run", "--problem", "silu", "--dry-run", *(p for word in words for p in ("--set", word)))
    assert called.status == 2
    assert said in fakes.join_wrapped_lines(called.err)


def test_a_dry_run_says_what_an_agent_holds_and_that_its_cost_is_unknown(ctl):
    words = ["--set", 'planner=["agent"]', "--set", 'agent.command=["true"]', "--set", "cap_usd=2"]
    called = ctl("run", "--problem", "silu", *words, "--dry-run")
    assert "holds $0.50 of $2.00" in called.out
    found = ctl("run", "--problem", "silu", *words, "--dry-run", "--json").json
    assert (found["usd"], found["agent_usd"]) == (None, 0.5)
