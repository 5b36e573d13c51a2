"""The kill-and-fault runner: what it makes of cases, deadlines and arguments; and its scenarios in short."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import ends
from benchmarks.faults import hosts, kills, llm_kill_sweep, power_cuts, runner, storage
from benchmarks.faults.llm_kill_sweep import KilledRun
from benchmarks.faults.llm_lives import CAP_USD, FORMATS, Lives
from benchmarks.faults.llm_story import FAULTS, Story, create_faulty_script
from benchmarks.faults.power_cuts import Cut
from benchmarks.faults.scenario import Case, Report, Scenario
from benchmarks.faults.scenarios import SCENARIOS
from state import schema
from state.log import EventLog
from state.reader import LogReader
from tests.support import failing_disk as disk
from tests.support import fakes
from tests.support.failing_disk import Fault, failing_disk
from tests.support.host_faults import Outcome
from tests.support.llm_server import Asked
from tests.support.sweeps import is_exhaustive

EVERY = 43


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk that is fast, if there is one; the faults do not ask for a real one."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None) as name:
        yield Path(name)


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**({"every": 1, "only": "", "seed": 3, "jobs": 1} | given))


# -- the runner ----------------------------------------------------------------------------------------------


def run_three(_: argparse.Namespace, report: Report) -> None:
    for place in ("1", "2", "3"):
        report(Case("a fault", place, "nothing lost"))


def create_scenario(run=run_three, **changes: object) -> Scenario:
    scenario = Scenario("made_up", "all", "always", "something", run, len, lambda count: [f"{count} in all"])
    return replace(scenario, **changes)


@pytest.fixture
def made_up(monkeypatch):
    """Put a scenario of its own into the table."""
    return lambda scenario: monkeypatch.setitem(SCENARIOS, "made_up", scenario)


def test_a_scenario_in_which_everything_holds(made_up, tmp_path, capsys):
    made_up(create_scenario())
    out = tmp_path / "out.json"
    assert runner.main(["--scenario", "made_up", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == ["3 in all", "3 cases; 0 things that must not be"]
    kept = json.loads(out.read_text())
    assert (kept["scenario"], kept["is_complete"], kept["wrong"], kept["summary"]) == ("made_up", True, [], 3)
    assert [case["place"] for case in kept["cases"]] == ["1", "2", "3"]
    assert runner.main(["--scenario", "made_up", "--read", str(out)]) == 0


def test_what_must_not_be_is_told_and_is_the_exit_status(made_up, tmp_path, capsys):
    def run(_: argparse.Namespace, report: Report) -> None:
        report(Case("a fault", "7", "lost", wrong="two events lost"))

    made_up(create_scenario(run))
    out = tmp_path / "out.json"
    assert runner.main(["--scenario", "made_up", "--out", str(out)]) == 1
    assert "a fault at 7: two events lost" in capsys.readouterr().out
    assert runner.main(["--scenario", "made_up", "--read", str(out)]) == 1


def test_at_the_deadline_what_came_until_then_is_judged_and_kept(made_up, tmp_path, capsys):
    made_up(create_scenario())
    out = tmp_path / "out.json"
    assert runner.main(["--scenario", "made_up", "--deadline", "0", "--out", str(out)]) == 0
    assert "the deadline of 0 minutes has passed" in capsys.readouterr().err
    kept = json.loads(out.read_text())
    assert (len(kept["cases"]), kept["is_complete"]) == (1, False)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (OSError("the disk is gone"), 1)])
def test_what_ends_a_scenario_early_leaves_what_came_until_then(made_up, tmp_path, error, status):
    def run(_: argparse.Namespace, report: Report) -> None:
        report(Case("a fault", "1", "nothing lost"))
        raise error

    made_up(create_scenario(run))
    out = tmp_path / "out.json"
    assert runner.main(["--scenario", "made_up", "--out", str(out)]) == status
    assert (len(json.loads(out.read_text())["cases"]), json.loads(out.read_text())["is_complete"]) == (
        1,
        False,
    )


def test_where_a_scenario_cannot_run_is_said(made_up, capsys):
    made_up(create_scenario(find_obstacle=lambda: "needs root"))
    assert runner.main(["--scenario", "made_up"]) == 2
    assert capsys.readouterr().err == "made_up cannot run here: needs root\n"


def test_without_a_scenario_the_table_is_shown(capsys):
    assert runner.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}\n" in shown and one.must_hold in shown for name, one in SCENARIOS.items())


@pytest.mark.parametrize(
    "arguments", [["--cuts", "3"], ["--scenario", "nowhere"], ["--scenario", "llm", "--cuts", "3"]]
)
def test_arguments_of_other_scenarios_are_refused(arguments):
    with pytest.raises(SystemExit) as ended:
        runner.main(arguments)
    assert ended.value.code == 2


def test_a_document_keeps_what_is_outside_the_marks():
    text = "before\n<!-- faults power begin -->\nold\n<!-- faults power end -->\nafter\n"
    changed = runner.replace_section(text, "power", "new")
    assert changed == text.replace("old", "\nnew\n")
    assert runner.replace_section(changed, "power", "new") == changed
    with pytest.raises(ValueError, match="no section for the scenario storage"):
        runner.replace_section(text, "storage", "new")


# -- storage -------------------------------------------------------------------------------------------------


@pytest.fixture
def _eager() -> Iterator[None]:
    if obstacle := storage.find_obstacle():
        pytest.skip(obstacle)
    with storage.eager_writes():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_eager")
def test_every_fault_loses_nothing_or_is_detected(folder: Path) -> None:
    cases: list[Case] = []
    storage.run_in(folder, options(every=EVERY), cases.append)
    assert [str(case) for case in cases if case.wrong] == []
    summary = storage.summarize(cases)
    assert {*storage.WHILE_WRITING, *storage.AT_REST} <= set(summary)
    for name in storage.WHILE_WRITING:
        assert summary[name]["kept"] == summary[name]["cases"], (name, summary[name]["named"])


def test_the_table_in_the_document_is_of_these_faults() -> None:
    text = runner.DOCUMENT.read_text(encoding="utf-8")
    shown = text.partition("<!-- faults storage begin -->")[2].partition("<!-- faults storage end -->")[0]
    rows = [line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("| ")][1:]
    assert {row[0].strip() for row in rows} >= {*storage.WHILE_WRITING, *storage.AT_REST}
    assert {row[-1].strip() for row in rows} == {"0"}


def test_events_that_are_lost_unseen_are_wrong() -> None:
    cases = [
        storage.make_case("torn", n, outcome)
        for n, outcome in enumerate(["nothing lost", "tail", "lost unseen: 1"])
    ]
    assert [bool(case.wrong) for case in cases] == [False, False, True]
    assert storage.summarize(cases) == {"torn": {"cases": 3, "kept": 1, "named": {"tail": 1}, "unseen": 1}}
    assert storage.format_table(storage.summarize(cases))[-1] == "| torn | 3 | 1 | tail 1 | 1 |"


@pytest.mark.usefixtures("_eager")
def test_a_power_cut_is_noticed_where_commits_are_not_synced(folder: Path, monkeypatch) -> None:
    """Without a sync at each commit the same rig finds events lost, so it would find them here."""
    lazy = tuple((name, 1 if name == "synchronous" else value) for name, value in schema._WRITER_PRAGMAS)
    monkeypatch.setattr(schema, "_WRITER_PRAGMAS", lazy)
    outcomes = {storage.cut_power(folder / str(nth), nth, None) for nth in range(300, 480, 20)}
    assert outcomes & {"tail", "tail_lost"}


@pytest.mark.usefixtures("_eager")
def test_every_operation_is_counted_and_can_fail(folder: Path) -> None:
    with failing_disk(None) as undisturbed:
        assert storage.write_log(folder / "home") == len(storage.STEPS)
    counts = undisturbed.counts
    assert counts["sync"] > len(storage.STEPS)
    assert counts["any"] == counts["write"] + counts["sync"] + counts["truncate"]
    with failing_disk(Fault("sync", 3, code=disk.IOERR_FSYNC, lasting=True)) as broken:
        assert storage.write_log(folder / "other") == 0
    assert broken.has_happened
    with EventLog.open(folder / "other"):  # outside the block, the disk is what it was
        pass


@pytest.mark.usefixtures("_eager")
def test_only_what_was_synced_is_left(folder: Path) -> None:
    path = folder / "x.db"
    wal = folder / "x.db-wal"
    with failing_disk(None) as lossy, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("PRAGMA journal_mode=WAL", "CREATE TABLE t(x)", "INSERT INTO t VALUES (1)"):
            connection.execute(statement).fetchall()  # synchronous is FULL
        kept = wal.read_bytes()
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("INSERT INTO t VALUES (2)")
        assert len(wal.read_bytes()) > len(kept)
        lossy.lose_unsynced()
        assert wal.read_bytes() == kept


# -- power ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "wrong"),
    [
        (Cut(100, 0, 101, True), ""),
        (Cut(100, 2, 98, True), "2 of 100 acknowledged events lost"),
        (Cut(100, 0, 100, False), "the log does not verify"),
    ],
)
def test_what_a_power_cut_must_not_do(cut: Cut, wrong: str):
    case = power_cuts.make_case(95, cut, 26.0)
    assert case.wrong == wrong
    row = power_cuts.format_table(power_cuts.summarize([case, case]))[2]
    assert row == f"| 2 | 200 (100 to 100 a cut) | {2 * cut.lost} | {2 * cut.sound} | {cut.stored - 100} |"


@pytest.mark.parametrize(
    ("line", "acknowledged"),
    [
        (b"ack 7 " + b"a" * 64 + b"\n", (7, "a" * 64)),
        (b"ack 7 " + b"a" * 64, None),  # cut off
        (b"ack 7 " + b"a" * 63 + b"\n", None),
        (b"EXT4-fs: mounted\n", None),
    ],
)
def test_a_line_that_was_cut_off_acknowledges_nothing(line, acknowledged):
    assert power_cuts.parse_acknowledgement(line) == acknowledged


# -- calls of models -----------------------------------------------------------------------------------------

FEWEST_POINTS = 100
"""Crash points that every run of the sweep has."""
KILLS = 2


@pytest.mark.slow
@pytest.mark.parametrize("wire", FORMATS.values(), ids=FORMATS)
def test_no_kill_makes_a_run_buy_an_answer_again_or_end_otherwise(folder, wire):
    lives, cases = Lives(), []
    points = sorted(random.Random(wire.name).sample(range(1, FEWEST_POINTS), KILLS))
    try:
        llm_kill_sweep.sweep(folder, lives, wire, points, report=cases.append)
    finally:
        lives.close()
    assert [str(case) for case in cases if case.wrong] == []
    (found,) = llm_kill_sweep.summarize(cases).values()
    assert found["kills"] == KILLS
    assert (found["calm"]["further"] > 0) == (found["calm"]["shares_spent"] > 0) == wire.is_ambitious
    assert found["repeats"] <= found["in_flight"]
    assert found["answers"] == found["kills"] * found["calm"]["answered"]
    assert cases[0].figures["failed"] == cases[0].figures["recovered"]
    assert 0 < found["most_usd"] <= CAP_USD


@pytest.mark.slow
def test_no_event_boundary_makes_planners_sessions_buy_an_answer_again(folder):
    """Killed behind each commit of a small run; a full run takes two of them, SWEEP=all every one."""
    lives, cases, wire = Lives(), [], FORMATS["openai sessions, planners' too"]
    points = itertools.count(1) if is_exhaustive() else (7, 23)
    try:
        llm_kill_sweep.sweep(folder, lives, wire, points, at="log.after_commit", report=cases.append)
    finally:
        lives.close()
    assert [str(case) for case in cases if case.wrong] == []
    assert len(cases) > (60 if is_exhaustive() else 2)


def test_every_third_request_has_a_fault_and_all_kinds_come_round():
    def question(number: int) -> Asked:
        return Asked(vendor="openai", body={"stream": True}, headers={}, count=2, number=number)

    faults = [create_faulty_script(first)(question(3)) for first in range(len(FAULTS))]
    assert faults == list(FAULTS)
    assert [create_faulty_script(0)(question(3 * turn)) for turn in (1, 2, 3)] == list(FAULTS[:3])


CALM = Story(hash="a", decisions="b", ended=True, started=4, answered=3, lost=1)


def test_a_sweep_is_kept_and_read_again(made_up, tmp_path):
    calm = replace(CALM, failed=Counter(rate=1), recovered=Counter(rate=1))
    killed = KilledRun(point=5, in_flight=1, requests=4, story=calm)

    def run(_: argparse.Namespace, report: Report) -> None:
        report(Case(llm_kill_sweep.CALM, "openai", "ended", figures={"format": "openai", **vars(calm)}))
        report(llm_kill_sweep.make_case(FORMATS["openai"], killed, calm))

    made_up(replace(SCENARIOS["llm"], run=run))
    out, again = tmp_path / "out.json", tmp_path / "again.json"
    assert runner.main(["--scenario", "made_up", "--out", str(out)]) == 0
    assert runner.main(["--scenario", "made_up", "--read", str(out), "--out", str(again)]) == 0
    first, second = (json.loads(path.read_text()) for path in (out, again))
    assert first["cases"] == second["cases"]
    assert first["summary"] == second["summary"]
    assert first["summary"]["openai"]["failed"] == {"rate": 1}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"ended": False}, "did not end"),
        ({"hash": "c"}, "another state"),
        ({"bought_again": 1}, "bought again"),
        ({"lost": 2}, "2 calls were repeated"),
        ({"started": 9}, "requests were sent"),
        ({"over_cap": [7]}, "exceeded the cap"),
        ({"faults": ("a row is missing",)}, "a row is missing"),
    ],
)
def test_what_a_killed_run_must_not_do(changes, told):
    killed = KilledRun(point=5, in_flight=1, requests=4, story=replace(CALM, **changes))
    found = list(killed.find_wrong(CALM))
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


# -- hosts ---------------------------------------------------------------------------------------------------

TRIALS = dict(hosts.list_trials())
RIGHT = Outcome(status="done", right=True, begun=1, ended=1, cores_free=True, litter=(), seconds=1.0)


@pytest.mark.parametrize(
    ("name", "changes", "wrong"),
    [
        ("link cut", {}, ""),
        ("link cut", {"status": "host_lost"}, "expected done"),
        ("link cut", {"right": False}, "the result is not right"),
        ("link cut", {"begun": 2}, "began 2 times, not 1"),
        ("link cut", {"ended": 2}, "did not end exactly once"),
        ("link cut", {"cores_free": False}, "a core is held"),
        ("link cut", {"litter": ("a",)}, "left 1 files"),
        ("host rebooted", {}, "began 1 times, not 2"),
        ("host rebooted", {"begun": 2}, ""),
    ],
)
def test_what_a_fault_of_a_host_must_not_do(name, changes, wrong):
    assert hosts.find_wrong(replace(RIGHT, **changes), TRIALS[name]) == wrong


def test_a_link_is_cut_before_and_after_each_verb():
    assert sum(name.startswith(("link cut before", "link cut after")) for name in TRIALS) == 14
    assert len(TRIALS) == 33


# -- fast kills ----------------------------------------------------------------------------------------------


def test_each_run_of_a_struck_home_is_judged(folder) -> None:
    ended, other = (fakes.submit_run(folder, one) for one in (fakes.CONFIG, fakes.REFUTING))
    open_ = fakes.submit_run(folder)
    fakes.finish_runs(folder, ended, other)
    with LogReader.open(folder) as reader:
        wanted = ends(reader, [ended, other, ended])
    wanted[1] = ("another state", None)
    struck = kills.Struck(folder, [ended, other, open_], Counter(agentd=3))
    cases = list(kills.judge_home("kills", struck, wanted, 1.0))
    assert [case.place for case in cases] == [ended, other, open_]
    assert [case.outcome == "same state" for case in cases][:2] == [True, False]
    assert "another state or best kernel" in cases[1].wrong
    summary = kills.summarize(cases)
    assert (summary["runs"], summary["strikes"], summary["doubled"]) == (3, {"agentd": 3}, 0)
    assert "| 3 agentd |" in list(kills.format_table(summary))[-1]
