"""`agentctl` on a home at rest: what it reads, what it says, and with which status."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentctl.app import agentctl
from agentctl.event_lookup import find_event, find_seq_before
from agentctl.verb_table import VERBS
from agentctl.verbs import status as look
from agentctl.verbs.tail import parse_moment
from daemon import exits
from daemon.command_models import Cancel, Pause, run_id
from daemon.errors import DaemonError
from daemon.home_paths import waiting_commands
from daemon.inbox import put_command
from daemon.stop_signal import StopSignal
from state.events import FAMILIES
from state.home import HomeLayout
from state.log import EventLog
from state.reader import LogReader
from tests.support import fakes
from tests.support.fakes import FAKE

KEPT = {
    "id", "state", "problem", "round", "state_hash", "decision_digest", "initial_ms", "best_ms", "speedup",
    "percent_of_peak", "percent_of_tight_bound", "spent_usd",
}  # fmt: skip
"""What `status --json` says of a run, for others to rely on."""


# --- run and resume --------------------------------------------------------------------------------


def test_run_hosts_shows_progress_and_reports(ctl, home, fake_kernel):
    called = ctl("run", *FAKE, "--kernel", fake_kernel, "--rounds", 2, "--seed", 0)
    assert called.status == 0, called.err
    (row,) = ctl("status", "--json").json["runs"]
    assert called.out.count(f"run {row['id']}: silu (reduced) on trn2, seed 0, at most 2 rounds") == 1
    assert "so far" not in called.out
    assert "round 2 of at most 2" in called.out
    assert "proposed" in called.out
    assert "predicted" in called.out
    assert re.search(r"best +2 ms predicted, 1\.\d\dx", called.out)
    assert "Changes that led there:" in called.out
    assert f"agentctl status --home {home}" in called.out
    assert f"agentctl tail --home {home} --run {row['id']}" in called.out
    best = home / "results" / row["id"] / "best.py"
    assert str(best) in called.out
    assert best.read_text() != fakes.KERNEL
    assert waiting_commands(home) == []


def test_a_process_that_leaves_says_what_nobody_drives_any_more(ctl, home, fake_kernel):
    other = fakes.submit_run(home)
    fakes.take_commands(home)
    called = ctl("run", *FAKE, "--kernel", fake_kernel, "--rounds", 1)
    assert called.status == exits.OK
    assert f"interrupted, as this process leaves: {other}; carry on with: " in called.err
    assert called.err.endswith(f"resume --home {home} {other}\n")
    assert "interrupted" not in ctl("resume", other).err


def test_resume_tells_what_was_before_in_one_line(ctl, home):
    run = fakes.submit_run(home)
    with EventLog.open(home) as log:
        stop = StopSignal()

        async def one_round() -> None:
            hosting = asyncio.create_task(
                fakes.serve_runs(log, fakes.daemon_config(), stop=stop, workers=fakes.fake_workers())
            )
            while not (log.run_seq(run) and log.run_state(run).round == 2):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            stop.request()
            await hosting

        asyncio.run(one_round())
        assert not log.run_state(run).has_ended
    lines = ctl("resume", run).out.splitlines()
    assert lines[0].startswith(f"run {run}: silu (reduced) on trn2, seed 25, at most 2 rounds; model bound ")
    assert lines[1].startswith("  so far: 2 rounds, in all ")
    assert not any(line.startswith(("round 1", "initial kernel")) for line in lines)
    assert any(line.startswith(f"run {run} completed") for line in lines)


def test_run_as_json_prints_one_object_and_progress_elsewhere(ctl, home, fake_kernel, tmp_path):
    output = tmp_path / "out.py"
    called = ctl("run", *FAKE, "--kernel", fake_kernel, "--rounds", 2, "--json", "-o", output)
    assert called.status == 0
    assert "round 1" in called.err
    report = called.json
    assert report.keys() >= KEPT
    assert report["kernel_file"] == str(output)
    assert report["state"] == "completed"
    assert report["reason"] == "rounds"
    assert report["spent_usd"] == 0
    first, *_, last = report["lineage"]
    assert first["latency_ms"] == report["initial_ms"]
    assert last["candidate"] == report["best"]
    assert last["latency_ms"] == report["best_ms"]
    assert report["speedup"] == pytest.approx(report["initial_ms"] / report["best_ms"])
    shown = ctl("status", "--json").json["runs"][0]
    assert {key: shown[key] for key in KEPT} == {key: report[key] for key in KEPT}


def test_two_runs_with_one_seed_are_twins_and_status_shows_the_newest_first(ctl, fake_kernel):
    reports = [ctl("run", *FAKE, "--kernel", fake_kernel, "--seed", 5, "--json").json for _ in range(2)]
    assert len({report["id"] for report in reports}) == 2
    assert len({(report["state_hash"], report["decision_digest"]) for report in reports}) == 1
    runs = ctl("status", "--json").json["runs"]
    assert [run["id"] for run in runs] == [report["id"] for report in reversed(reports)]


def test_a_run_whose_initial_kernel_is_refused_says_why(ctl, tmp_path):
    kernel = tmp_path / "k.py"
    kernel.write_text("TILE_M = 5\n")
    called = ctl("run", *FAKE, "--kernel", kernel)
    assert called.status == exits.FAILURE
    assert "found no correct kernel: incorrect" in called.out


def test_run_leaves_runs_alone_that_nobody_asked_for(ctl, home, fake_kernel):
    other = fakes.submit_run(home)
    fakes.take_commands(home)
    assert ctl("run", *FAKE, "--kernel", fake_kernel).status == 0
    states = {run["id"]: run["state"] for run in ctl("status", "--json").json["runs"]}
    assert states.pop(other) == "interrupted"
    assert list(states.values()) == ["completed"]
    assert ctl("resume", "--last").status == 0
    assert {run["state"] for run in ctl("status", "--json").json["runs"]} == {"completed"}


def test_resume_of_a_run_that_has_ended_reports_it_again(ctl, home, finished):
    called = ctl("resume", finished, "--json")
    assert called.status == 0
    assert called.json["id"] == finished
    assert called.json["lineage"]


def test_resume_takes_up_a_paused_run(ctl, home):
    run = fakes.submit_run(home)
    put_command(home, Pause(run=run))
    fakes.take_commands(home)
    assert ctl("status", run, "--json").json["runs"][0]["state"] == "paused"
    assert ctl("resume", run).status == 0


def test_resume_brings_the_lists_of_an_older_version_up_to_date(ctl, home, finished):
    with closing(sqlite3.connect(HomeLayout(home).database)) as connection:
        connection.execute("UPDATE meta SET value = '0' WHERE key = 'projections'")
        connection.commit()
    assert ctl("status").status != 0
    assert ctl("resume", "--last").status == 0
    assert ctl("status").status == 0


def test_resume_takes_up_a_run_that_no_owner_has_seen(ctl, home):
    """As left by a process that was killed after it had dropped its command, before it had a log."""
    run = fakes.submit_run(home)
    put_command(home, Pause(run="nobody"))
    (waiting_commands(home)[0].parent / "0.json").write_text("no command")
    called = ctl("resume", "--last", "--json")
    assert called.status == 0
    assert called.json["id"] == run


def test_a_cancelled_run_cannot_be_resumed(ctl, home):
    run = fakes.submit_run(home)
    put_command(home, Cancel(run=run))
    fakes.take_commands(home)
    called = ctl("resume", run)
    assert called.status == exits.FAILURE
    assert "cancelled" in called.err


@pytest.mark.parametrize("arguments", [(), ("a-run", "--last")])
def test_resume_wants_a_run_or_the_last(ctl, finished, arguments):
    assert ctl("resume", *arguments).status == exits.USAGE


# --- status, show, tail ----------------------------------------------------------------------------


def test_status_with_nobody_home(ctl, home, finished):
    called = ctl("status", "--json")
    assert called.json["daemon"] == {
        "state": "stopped", "kind": None, "pid": None, "since": None, "home": str(home),
        "config_refused": None, "queued": 0, "waits_for": None,
    }  # fmt: skip
    (run,) = called.json["runs"]
    assert run.keys() >= KEPT
    assert run["id"] == finished
    assert run["percent_of_peak"] == pytest.approx(100 * run["plain_bound_ms"] / run["best_ms"])
    text = ctl("status", finished).out
    assert "stopped" in text
    assert finished in text
    assert "predicted" in text


def test_a_run_that_nobody_advances_is_interrupted(ctl, home, finished):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    assert [row["state"] for row in ctl("status", "--json").json["runs"]] == ["interrupted", "completed"]
    said = ctl("status", run).out
    assert "interrupted, as nobody owns this home: carry on with: " in fakes.join_wrapped_lines(said)
    assert said.endswith(f"resume --home {home} {run}\n")
    more = fakes.submit_run(home)
    fakes.take_commands(home)
    said = ctl("status").out
    assert "start agentd for all 2, or carry on with one: " in fakes.join_wrapped_lines(said)
    assert said.endswith(f"resume --home {home} {more}\n")
    with EventLog.open(home):
        assert ctl("status", run, "--json").json["runs"][0]["state"] == "queued"
        assert "carry on" not in ctl("status").out


def test_status_names_the_owner_of_a_foreground_run(ctl, home):
    with EventLog.open(home):
        process = ctl("status", "--json").json["daemon"]
    assert (process["state"], process["kind"], process["pid"]) == ("running", "agentctl", os.getpid())
    assert datetime.fromisoformat(process["since"]) <= datetime.now(UTC)


def test_show_resolves_the_blobs_that_an_event_names(ctl, finished):
    event = ctl("show", f"{finished}@1", "--json").json
    assert event["event"]["type"] == "RunCreated"
    assert event["blobs"][event["event"]["kernel"]] == fakes.KERNEL
    text = ctl("show", f"{finished}@1").out
    assert "TILE_M = 128" in text
    assert "RunCreated" in text


def test_show_gives_the_counters_of_a_profile_once(ctl, home, finished):
    with LogReader.open(home) as reader:
        (item, *_) = reader.read(stream=finished, types=("ProfileRecorded",))
    place = f"{finished}@{item.run_seq}"
    assert ctl("show", place).out.count("dma_active_time_percent") == 1
    assert '"counters": "(1, in the profile below)"' in ctl("show", place).out
    assert ctl("show", place, "--json").json["event"]["counters"] == item.event.counters


def test_status_names_some_of_many_runs(ctl, home):
    runs = [fakes.submit_run(home, fakes.CONFIG.model_copy(update={"seed": seed})) for seed in range(1, 5)]
    fakes.finish_runs(home, *runs)
    assert "best found correct on whole outputs of every seed: 4 runs\n" in ctl("status").out
    assert f"best found correct on whole outputs of every seed: {runs[0]}\n" in ctl("status", runs[0]).out
    assert look._name_some_runs(["a", "b", "c", "d"], all_=False) == "4 runs, such as a, b, c"


def test_show_gives_the_state_at_an_event(ctl, home, finished):
    with LogReader.open(home) as reader:
        last = reader.run_seq(finished)
    assert ctl("show", f"{finished}@1", "--state", "--json").json["round"] == 0
    assert ctl("show", f"{finished}@{last}", "--state", "--json").json["status"] == "completed"


@pytest.mark.parametrize(
    ("place", "status"),
    [("@1", 3), ("nobody@1", 3), ("RUN@100000", 3), ("RUN@0", 3), ("RUN", 2), ("RUN@x", 2)],
)
def test_show_of_what_is_not_there(ctl, finished, place, status):
    called = ctl("show", place.replace("RUN", finished))
    assert called.status == status
    assert called.err


def test_every_event_is_found_by_its_number(home, finished):
    with LogReader.open(home) as reader:
        for item in reader.read(stream=finished, limit=10_000):
            assert find_event(reader, finished, item.run_seq) == item
        with pytest.raises(DaemonError):
            find_event(reader, finished, reader.run_seq(finished) + 1)


def test_a_moment_is_found_by_bisection(home, finished):
    with LogReader.open(home) as reader:
        items = reader.read(limit=10_000)
        for item in items:
            after = find_seq_before(reader, item.time)
            assert next(one.seq for one in items if one.time >= item.time) == after + 1
        assert find_seq_before(reader, items[-1].time + timedelta(days=1)) == items[-1].seq


def test_tail_shows_the_end_and_each_line_leads_on(ctl, home, finished):
    with LogReader.open(home) as reader:
        head = reader.head.seq
    assert [line["seq"] for line in ctl("tail", "--json").lines] == list(range(head - 19, head + 1))
    assert [line["seq"] for line in ctl("tail", "--json", "-n", 3).lines] == [head - 2, head - 1, head]
    assert [line["seq"] for line in ctl("tail", "--json", "--after", head - 5).lines] == list(
        range(head - 4, head + 1)
    )
    assert [line["seq"] for line in ctl("tail", "--json", "--after", 2, "-n", 3).lines] == [3, 4, 5]
    assert ctl("tail", "-n", 0).out == ""
    assert len(ctl("tail", "-n", 5).out.splitlines()) == 5
    assert all(len(line) <= 160 for line in ctl("tail", "-n", 100).out.splitlines())


def test_tail_narrows_by_run_and_type(ctl, finished):
    lines = ctl("tail", "--json", "--run", finished, "--after", 0).lines
    assert {line["run"] for line in lines} == {finished}
    assert [line["run_seq"] for line in lines] == list(range(1, len(lines) + 1))
    rounds = ctl("tail", "--json", "--type", "round,RunCreated", "--after", 0).lines
    assert {line["type"] for line in rounds} == {*FAMILIES["round"], "RunCreated"} - {"RoundDeadlinePassed"}
    starts = ctl("tail", "--json", "--type", "*Started", "--type", "RunCompleted", "--after", 0).lines
    assert {line["type"] for line in starts} >= {"PlanStarted", "RoundStarted", "RunCompleted"}
    assert ctl("tail", "--type", "nonsense").status == exits.USAGE
    assert ctl("tail", "--run", "nobody").status == exits.NOT_THERE


def test_tail_goes_on_from_an_event_as_its_line_names_it(ctl, home, finished):
    other = fakes.submit_run(home, fakes.CONFIG.model_copy(update={"seed": 7}))
    fakes.finish_runs(home, other)
    with LogReader.open(home) as reader:
        seq = find_event(reader, other, 3).seq
    by_place = ctl("tail", "--after", f"{other}@3").out
    assert by_place == ctl("tail", "--after", seq).out
    assert f" {other}@4 " in by_place.splitlines()[0]
    assert (
        ctl("tail", "--after", f"{finished}@1", "--run", finished, "-n", 1).out.split()[1] == f"{finished}@2"
    )


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ("RUN@9999", exits.NOT_THERE, "has no event 9999 (its last is "),
        ("RUNx@3", exits.NOT_THERE, "did you mean RUN?"),
        ("RUN@0", exits.USAGE, "is neither RUN@SEQ nor a number"),
        ("RUN@three", exits.USAGE, "is neither RUN@SEQ nor a number"),
        ("@3", exits.USAGE, "is neither RUN@SEQ nor a number"),
        ("-1", exits.USAGE, "is neither RUN@SEQ nor a number"),
        ("RUN", exits.USAGE, "is neither RUN@SEQ nor a number"),
    ],
)
def test_a_place_to_go_on_from_that_is_none(ctl, finished, place, status, said):
    called = ctl("tail", "--after", place.replace("RUN", finished))
    assert called.status == status
    assert said.replace("RUN?", f"{finished}?") in called.err


def test_tail_takes_numbers_of_any_size(ctl, home, finished):
    huge = 10**30
    with LogReader.open(home) as reader:
        events = reader.head.seq
    assert len(ctl("tail", "-n", huge).out.splitlines()) == events
    assert len(ctl("tail", "--after", 0, "-n", huge).out.splitlines()) == events
    assert (ctl("tail", "--after", huge).out, ctl("tail", "--after", huge).status) == ("", exits.OK)
    assert ctl("tail", "--run", finished, "--after", huge).out == ""
    for age in (f"{huge} d", "999999999 d", "99999999 h"):
        called = ctl("tail", "--since", age)
        assert called.status == exits.USAGE
        assert "neither an ISO 8601 time nor an age" in called.err


def test_tail_since(ctl, finished):
    everything = ctl("tail", "--json", "--after", 0).lines
    assert ctl("tail", "--json", "--since", "1 hour ago").lines == everything
    assert ctl("tail", "--json", "--since", "2100-01-01").lines == []
    middle = everything[len(everything) // 2]["time"]
    assert [line["time"] >= middle for line in ctl("tail", "--json", "--since", middle).lines]
    assert ctl("tail", "--since", "yesterdayish").status == exits.USAGE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 min ago", timedelta(minutes=10)),
        ("90s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("3 days ago", timedelta(days=3)),
        ("5 seconds", timedelta(seconds=5)),
        ("1 minute ago", timedelta(minutes=1)),
    ],
)
def test_ages(text, expected):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert now - parse_moment(text, now) == expected


@pytest.mark.parametrize("text", ["10 months ago", "3ms", "-1h", "1 hour later", "h", ""])
def test_what_is_no_age_and_no_time(text):
    with pytest.raises(ValueError, match=r"isoformat"):
        parse_moment(text, datetime(2030, 1, 1, tzinfo=UTC))


def test_times():
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert parse_moment("2029-05-06T07:08:09", now) == datetime(2029, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert parse_moment("2029-05-06T07:08:09+02:00", now) == datetime(2029, 5, 6, 5, 8, 9, tzinfo=UTC)


# --- best, diff ------------------------------------------------------------------------------------


def test_best_gives_the_kernel(ctl, finished, tmp_path):
    output = tmp_path / "best.py"
    called = ctl("best", finished, "-o", output)
    assert called.status == 0
    assert "predicted" in called.out
    assert ctl("best", finished).out.rstrip("\n") == output.read_text().rstrip("\n")
    assert ctl("best", finished, "--json").json["source"] == output.read_text()
    about = ctl("best", finished, "--json", "-o", output).json
    assert about["output"] == str(output)
    assert about["predicted"] is True
    assert ctl("best", finished, "-o", tmp_path / "no" / "such" / "folder").status == exits.USAGE


def test_diff_shows_sources_latencies_and_counters(ctl, finished):
    content = ctl("diff", finished, "--json").json
    assert content["a"] == "r0.b0.p0.k0.f0"
    assert content["speedup"] == pytest.approx(content["a_ms"] / content["b_ms"])
    assert content["counters"]["dma_active_time_percent"] == [content["a_ms"], content["b_ms"]]
    assert any(line.startswith("-TILE_") for line in content["diff"].splitlines())
    assert any(line.startswith("+TILE_") for line in content["diff"].splitlines())
    backwards = ctl("diff", finished, "best", "initial", "--json").json
    assert backwards["speedup"] == pytest.approx(1 / content["speedup"])
    text = ctl("diff", finished).out
    assert "dma_active_time_percent" in text
    assert "predicted" in text
    assert ctl("diff", finished, "r9.b0.p0.k0.f0").status == exits.NOT_THERE


def test_every_proposed_kernel_can_be_compared_with_the_initial_one(ctl, home, finished):
    with LogReader.open(home) as reader:
        proposed = [row["candidate"] for row in reader.attempt_rows(finished) if row["source"] is not None]
    assert len(proposed) > 2
    for candidate in proposed:
        assert ctl("diff", finished, "initial", candidate, "--json").json["b"] == candidate


# --- steering without an owner ---------------------------------------------------------------------


def test_without_an_owner_commands_are_queued(ctl, home, fake_kernel, monkeypatch):
    monkeypatch.setattr("agentctl.command_answers.QUEUED_AFTER_SECONDS", 0.0)
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    calls = [
        ("pause", run),
        ("cancel", run, "--reason", "enough"),
        ("propose", run, fake_kernel, "--note", "mine"),
        ("submit", *FAKE, "--kernel", fake_kernel),
    ]
    for number, call in enumerate(calls, 1):
        called = ctl(*call)
        assert called.status == 0
        assert "queued" in called.out
        assert len(waiting_commands(home)) == number
    made = run_id(waiting_commands(home)[-1].stem, "silu")
    assert called.out.startswith(
        f"queued: submit as {made}; nobody owns this home now: agentd takes it up, or: "
    )
    assert called.out.endswith(f"resume --home {home} {made}\n")
    assert ctl("status", "--json").json["daemon"]["queued"] == 4
    payloads = [json.loads(path.read_bytes()) for path in waiting_commands(home)]
    assert [payload["verb"] for payload in payloads] == ["pause", "cancel", "propose", "submit"]
    assert payloads[1]["reason"] == "enough"
    assert payloads[2]["source"] == fakes.KERNEL
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_an_ended_run_is_not_steered_whatever_waits(ctl, home, finished, fake_kernel):
    assert ctl("submit", *FAKE, "--kernel", fake_kernel).status == exits.OK
    for verb in ("pause", "cancel", "approve"):
        called = ctl(verb, finished)
        assert called.status == exits.FAILURE
        assert f"{verb}: run {finished} is completed" in called.err
    assert len(waiting_commands(home)) == 1


def test_an_owner_that_does_not_answer(ctl, home, finished, monkeypatch):
    monkeypatch.setattr("agentctl.command_answers.TIMEOUT_SECONDS", 0.01)
    with EventLog.open(home):
        called = ctl("pause", finished)
    assert called.status == exits.TIMEOUT
    assert "stays queued" in called.err
    assert len(waiting_commands(home)) == 1
    with EventLog.open(home):
        forked = ctl("fork", f"{finished}@20")
    assert forked.status == exits.TIMEOUT
    assert f"its run will be {run_id(waiting_commands(home)[-1].stem, 'silu')}" in forked.err


# --- config, try, verify --------------------------------------------------------------------------


def test_config_check_looks_names_up_and_reports_all_at_once(ctl, monkeypatch):
    for key, value in {"PROBLEM": "nope", "TARGET": "trn9", "EVALUATOR": "foo", "PLANNER": "bar"}.items():
        monkeypatch.setenv(f"NKI_AGENT_RUN__{key}", value)
    monkeypatch.setenv("NKI_AGENT_SEED", "5")
    called = ctl("config", "check")
    assert called.status == exits.USAGE
    assert len(called.err.splitlines()) == 5
    for words in ("'nope'", "'trn9'", "'foo'", "'bar'", "did you mean NKI_AGENT_RUN__SEED?"):
        assert words in called.err


def test_config_show_and_check(ctl, home):
    home.mkdir()
    (home / "config.toml").write_text("[run.search]\nbeam = 7\n")
    shown = ctl("config", "show", "--json").json
    assert shown["run.search.beam"] == {"value": 7, "origin": "config.toml"}
    assert "beam = 7" in ctl("config", "show").out
    assert ctl("config", "check").status == 0
    (home / "config.toml").write_text("[run.search]\nbeem = 7\nplans = 'many'\n")
    called = ctl("config", "check")
    assert called.status == exits.USAGE
    assert "beam" in called.err
    assert "plans" in called.err
    assert ctl("run", "--problem", "silu").status == exits.USAGE


def test_verify_of_a_sound_log(ctl, finished):
    called = ctl("verify", "--json")
    assert called.status == 0
    assert called.json["ok"] is True
    assert called.json["events"] > 20
    assert ctl("verify", "--quick").status == 0


def test_home_and_json_are_understood_before_and_after_the_verb(ctl, home, finished, tmp_path):
    before = ctl("--json", "status").json
    after = ctl("status", "--json", "--home", home, home=tmp_path / "elsewhere").json
    assert before == after


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_that_ends_with_the_statuses(ctl, verb):
    called = ctl(verb, "--help")
    assert called.status == 0
    assert "Exit statuses:" in called.out
    assert "--home" in called.out


def test_the_help_of_the_whole_lists_every_verb_with_a_line(ctl):
    text = ctl("--help").out
    for verb in VERBS:
        command = agentctl.get_command(None, verb)
        assert re.search(rf"^  {verb} +\S", text, re.MULTILINE)
        assert command.help


def test_only_listed_codes_are_not_bad_input():
    """The table's statuses are those that are documented, and every one documented is used."""
    listed = set(exits._BY_CODE.values()) | {exits.OK, exits.USAGE, exits.BLOCKED, exits.INTERRUPTED}
    assert listed == set(exits.MEANING)
    assert exits.status_of_error(ValueError("a bug")) is None


def test_every_code_in_the_table_is_one_that_an_error_has():
    """A code that nothing has would be a promise that nothing keeps."""
    root = Path(__file__).parents[2]
    text = {
        node.value
        for room in ("state", "seeds", "remote", "targets", "daemon", "agentctl", "agent_core")
        for path in (root / room).rglob("*.py")
        if path.name != "exits.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(exits._BY_CODE) - text == set()


def test_it_says_its_version_and_helps_by_the_short_flag(ctl):
    from importlib.metadata import version

    assert ctl("--version").out == f"agentctl, version {version('nki-kernel-agent')}\n"
    assert ctl("status", "-h").out == ctl("status", "--help").out != ""
