"""`benchmarks.vs_dbos` in short: nothing is lost by kills, and what is lost in a story would be told."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.vs_dbos import comparison
from benchmarks.vs_dbos.lives import Life, Recovery, Story, struck, undisturbed
from benchmarks.vs_dbos.steps import BEGIN, END, UP, Line, Steps, Work, digest_of, text_of

DBOS, DBOS_ON_WAL = comparison.OTHERS
KILLS = 2


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk that is fast, if there is one: only processes are killed here."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else None) as name:
        yield Path(name)


SIDES = [(comparison.OURS, 5), *([(DBOS_ON_WAL, 20)] if comparison.HAVE_DBOS else [])]
"""Each with the steps of its workflows; DBOS where somebody installed it."""


@pytest.mark.slow
@pytest.mark.parametrize(("side", "length"), SIDES, ids=lambda value: getattr(value, "name", ""))
def test_workflows_that_are_killed_lose_no_result_and_repeat_what_was_in_flight(side, length, folder):
    work = Work(workflows=2, length=length, step_ms=2)
    story = struck(side, work, folder / "struck", kills=KILLS, chosen=random.Random(3))
    assert story.lost() == set()
    assert len(story.lives) == KILLS + 1
    assert {workflow for workflow, _ in story.steps} == set(story.results)
    assert len(story.steps) >= 2 * 20
    for steps in story.repeated():
        assert len(steps) <= work.workflows
    for back in story.recoveries():
        assert 0 < back.loaded <= back.first <= back.every
    assert story.pragmas == {"journal_mode": "wal", "synchronous": 2}


@pytest.mark.slow
def test_a_run_of_the_benchmark_has_as_many_steps_when_it_is_killed_as_when_it_is_not(folder):
    work = Work(workflows=1, length=2, step_ms=0)
    whole = undisturbed(comparison.OURS, work, folder / "whole")
    cut = struck(comparison.OURS, work, folder / "cut", kills=1, chosen=random.Random(0))
    assert cut.steps == whole.steps
    assert cut.results == whole.results
    assert whole.steps_per_second() > 0
    assert (whole.repeated(), whole.recoveries()) == ([], [])


# --- stories made up -------------------------------------------------------------------------------

WORK = Work(workflows=1, length=2, step_ms=1, result_bytes=8)


def story(*events: tuple[str, float, str], lives: list[Life], stored: dict[str, str] | None = None) -> Story:
    """A story of one workflow, `w`; unless it is given, the store has what the steps returned."""
    lines = [Line(kind, at, "-" if kind == UP else "w", step) for kind, at, step in events]
    begun = {step for kind, _, step in events if kind == BEGIN}
    whole = {step: digest_of(text_of("w", step, WORK.result_bytes)) for step in begun}
    return Story(WORK, lives, lines, {"w": whole if stored is None else stored}, {})


ONE = [Life(0, 100)]
TWO = [Life(0, 10), Life(20, 100)]


def test_a_step_done_again_is_work_lost_but_no_lost_result():
    cut = story((UP, 1, "-"), (BEGIN, 2, "a"), (UP, 21, "-"), (BEGIN, 23, "a"), (END, 24, "a"), lives=TWO)
    assert cut.repeated() == [[8]]
    assert cut.recoveries() == [Recovery(loaded=1, first=3, every=3)]
    assert cut.lost() == set()
    late = story((BEGIN, 2, "a"), (END, 5, "a"), (BEGIN, 23, "a"), (END, 24, "a"), lives=TWO)
    assert late.repeated() == [[3]]
    assert late.lost() == set()


def test_a_result_is_lost_when_its_step_is_done_again_after_a_later_one_began():
    done = (BEGIN, 2, "a"), (END, 3, "a"), (BEGIN, 4, "b"), (END, 5, "b")
    assert story(*done, (BEGIN, 23, "b"), (END, 24, "b"), lives=TWO).lost() == set()
    assert story(*done, (BEGIN, 23, "a"), (END, 24, "a"), lives=TWO).lost() == {("w", "a")}


def test_a_result_is_lost_when_the_store_has_none_or_another_one():
    done = (BEGIN, 2, "a"), (END, 3, "a")
    assert story(*done, lives=ONE).lost() == set()
    assert story(*done, lives=ONE, stored={}).lost() == {("w", "a")}
    assert story(*done, lives=ONE, stored={"a": digest_of("")}).lost() == {("w", "a")}


def test_a_line_that_is_being_written_is_read_when_it_is_whole(folder):
    from benchmarks.vs_dbos.steps import Journal

    with Steps(folder, WORK).body("w", "a") as (seconds, text):
        assert (seconds, len(text)) == (0.001, 8)
    journal = Journal(folder)
    assert [(line.kind, line.step) for line in journal.fresh()] == [(UP, "-"), (BEGIN, "a"), (END, "a")]
    path = folder / "journal"
    with path.open("a") as file:
        file.write("begin 7000000000 w")
    assert journal.fresh() == []
    with path.open("a") as file:
        file.write(" b\n")
    assert journal.fresh() == [Line(BEGIN, 7.0, "w", "b")]


# --- the report ------------------------------------------------------------------------------------


def numbers(value: float) -> dict[str, float]:
    return {"median": value, "min": value, "max": value}


def result(*, lost: list[str]) -> dict[str, object]:
    def cost(factor: float) -> dict[str, object]:
        keys = [key for _, key, _ in comparison.ROWS]
        return {
            **{key: numbers(factor) for key in keys},
            "steps": 7,
            "lost": lost,
            "pragmas": {"journal_mode": "wal", "synchronous": 2},
        }

    about = {"system": "S", "cpus": 2, "load_average": 1.0, "python": "P", "sqlite": "Q", "dbos": None}
    rate = {comparison.OURS.name: numbers(300), DBOS.name: numbers(150)}
    return {
        "machine": {**about, "sync_ms": numbers(0.25)},
        "rates": [{"workflows": 8, "step_ms": 5.0, "steps": 44, "steps_per_s": rate}],
        "kills": {
            "workflows": 8,
            "step_ms": 5.0,
            "kills": 12,
            "sides": {comparison.OURS.name: cost(2.0), DBOS.name: cost(3.0)},
        },
    }


def test_the_table_says_how_many_times_ours_the_others_are():
    text = "\n".join(comparison.lines(result(lost=[])))
    assert "300 (300-300)" in text
    assert "150 (150-150) x0.50" in text
    assert "3.00 (3.00-3.00) x1.50" in text


def test_a_lost_result_of_ours_is_named_and_the_exit_status(monkeypatch, capsys, tmp_path):
    for lost, status in (([], 0), (["w a"], 1)):
        monkeypatch.setattr(comparison, "measure", lambda *_, lost=lost, **__: result(lost=lost))
        assert comparison.main(["--out", str(tmp_path / "out.json")]) == status
        assert ("lost: w a" in capsys.readouterr().err) is bool(status)
    assert json.loads((tmp_path / "out.json").read_text())["kills"]["sides"][comparison.OURS.name]["lost"]
