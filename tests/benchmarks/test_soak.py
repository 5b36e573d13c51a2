"""The scenario `soak` in short: half an hour of it; and that it tells what grows."""

from __future__ import annotations

import gc
import json
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import simulation
from benchmarks.faults import runner
from benchmarks.faults.soak import gauges, query_costs, scenario
from benchmarks.faults.soak.chart import draw_svg
from benchmarks.faults.soak.gauges import Sample
from benchmarks.faults.soak.growth import ALLOWED_PERCENT, Quantity, format_table, list_quantities
from benchmarks.faults.soak.week import Week, World
from state.fold import RunState
from state.log import EventLog
from state.verify import verify_log

KEPT = 8
"""States of ended runs that the log keeps in memory."""

IN_HAND = 4
"""States that somebody is about to leave: of before a decision, say."""

SAMPLE = Sample(
    events=0,
    hours=0.0,
    runs=3,
    active=2,
    resident_bytes=100_000_000,
    handles=14,
    threads=2,
    log_bytes=0,
    wal_bytes=4_000_000,
    start_s=0.1,
    start_ratio=1.2,
    replayed=500,
    query_s={"status": 0.01},
    query_ratio={"status": 1.0},
)


def samples(**growing: float) -> list[Sample]:
    """Return twenty samples, of which some quantity grows by so much of itself over all of them."""
    found = []
    for n in range(1, 21):
        factors = {name: 1 + share * n / 20 for name, share in growing.items()}
        events = 1000 * n
        log_bytes = round(1100 * events * factors.pop("log_bytes", 1.0))
        changed = {name: getattr(SAMPLE, name) * factor for name, factor in factors.items()}
        found.append(replace(SAMPLE, events=events, log_bytes=log_bytes, **changed))
    return found


def list_growing(taken: list[Sample]) -> list[str]:
    return [one.name for one in list_quantities(taken) if not one.is_flat]


def list_states() -> list[RunState]:
    """Return all states of runs that the process holds."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, RunState)]


def test_what_does_not_change_is_flat():
    assert list_growing(samples()) == []
    assert len(list_quantities(samples())) == 7


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("resident_bytes", "resident memory, MB"),
        ("handles", "open files"),
        ("threads", "threads"),
        ("wal_bytes", "WAL, MB"),
        ("start_ratio", "start, to its control"),
        ("log_bytes", "log, bytes per event"),
    ],
)
def test_what_grows_is_found(field: str, name: str):
    assert list_growing(samples(**{field: 0.2})) == [name]
    assert list_growing(samples(**{field: -0.2})) == []


def test_a_query_that_slows_down_is_found():
    taken = [replace(one, query_ratio={"status": 1.0, "show": 1.0 + one.events / 1e5}) for one in samples()]
    assert list_growing(taken) == ["show, to its control"]


@pytest.mark.parametrize(("percent", "flat"), [(ALLOWED_PERCENT - 1, True), (ALLOWED_PERCENT + 1, False)])
def test_the_last_quarter_is_held_against_the_second(percent: float, flat: bool):
    early = [(n, 9.0) for n in range(1, 26)]
    second = [(n, 100.0) for n in range(26, 51)]
    third = [(n, 900.0) for n in range(51, 76)]
    last = [(n, 100.0 + percent) for n in range(76, 101)]
    one = Quantity("one", early + second + third + last)
    assert one.percent == pytest.approx(percent)
    assert one.is_flat is flat
    row = {"name": one.name, "before": 1.0, "after": 1.0, "percent": percent, "is_flat": one.is_flat}
    assert ("not flat" in format_table([row])[1]) is not flat


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="no sample in quarter 2 of 9 events"):
        _ = Quantity("one", [(9, 1.0)]).is_flat


def test_the_picture_has_a_panel_for_each_quantity():
    found = list_quantities(samples(resident_bytes=0.3))
    drawn = ET.fromstring(draw_svg(found, "a <caption>"))
    lines = [one for one in drawn.iter() if one.tag.endswith("polyline")]
    texts = {one.text for one in drawn.iter() if one.tag.endswith("text")}
    assert len(lines) == len(found)
    assert len({line.get("stroke") for line in lines}) == 2
    assert {one.name for one in found} | {"a <caption>"} <= texts


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, if there is one; no power is cut here."""
    with tempfile.TemporaryDirectory(dir=simulation.folder()) as name:
        yield Path(name)


@pytest.fixture
def _once(monkeypatch) -> None:
    """Time everything once, and queries in this process: here only that it works is of interest."""
    monkeypatch.setattr(gauges, "STARTS", 1)
    monkeypatch.setattr(gauges, "measure_queries", query_costs.measure_here)
    monkeypatch.setattr(query_costs, "REPEATS", 1)
    monkeypatch.setattr(query_costs, "ENOUGH_SECONDS", 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("_once")
def test_a_short_soak_measures_everything(folder: Path):
    home, aside, taken = folder / "home", folder / "aside", []
    aside.mkdir()
    scenario.soak(Week(events=600, runs=2, hours=0.5), home, aside, intervals=4, take=taken.append)
    assert len(taken) >= 2
    for one in taken:
        assert 0 < one.events <= one.log_bytes / 500
        assert min(one.start_s, one.start_ratio) > 0
        assert set(one.query_s) == set(one.query_ratio) == set(query_costs.COMMANDS)
        assert min(one.query_s.values()) > 0
    assert [path.name for path in aside.iterdir()] == ["short"]
    assert verify_log(home).is_ok


@pytest.mark.slow
def test_states_of_runs_that_ended_do_not_pile_up(folder: Path):
    """As the process holds them: those of active runs, and of the last few others."""
    before = list_states()  # of tests before this one: kept, so that no state made here gets one's id
    others = {id(one) for one in before}
    held: list[tuple[int, int, int]] = []

    def look(log: EventLog) -> None:
        made = sum(id(one) not in others for one in list_states())
        held.append((len(log.run_ids()), len(log.active_runs()), made))

    World(folder / "home", Week(events=1200, runs=20, hours=2), every=150, measure=look).run()
    runs, _, _ = held[-1]
    assert runs > 16
    assert [one for one in held if one[2] > one[1] + KEPT + IN_HAND] == []


def test_what_fails_ends_the_week_and_leaves_nothing_behind(folder: Path, monkeypatch, capsys):
    def broken(self, log: EventLog, hours: float) -> Sample:
        raise OSError("the disk is gone")

    monkeypatch.setattr(gauges.Gauges, "take_sample", broken)
    monkeypatch.setattr(scenario, "folder", lambda: folder)
    assert runner.main(["--scenario", "soak", "--events", "300", "--runs", "1", "--hours", "0.2"]) == 1
    assert "OSError: the disk is gone" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_ctrl_c_ends_the_week_and_leaves_nothing_behind(folder: Path, monkeypatch):
    def interrupted(self, log: EventLog, hours: float) -> Sample:
        raise KeyboardInterrupt

    monkeypatch.setattr(gauges.Gauges, "take_sample", interrupted)
    monkeypatch.setattr(scenario, "folder", lambda: folder)
    assert runner.main(["--scenario", "soak", "--events", "300", "--runs", "1", "--hours", "0.2"]) == 130
    assert list(folder.iterdir()) == []


def test_what_was_measured_is_judged_and_drawn_again(tmp_path: Path, capsys):
    out, drawn = tmp_path / "soak.json", tmp_path / "soak.svg"
    for grows, status in ((0.0, 0), (0.3, 1)):
        cases = [asdict(scenario.make_case(one)) for one in samples(resident_bytes=grows)]
        out.write_text(json.dumps({"cases": cases}))
        arguments = ["--scenario", "soak", "--read", str(out), "--svg", str(drawn)]
        assert runner.main(arguments) == status
        assert ("resident memory, MB grew by" in capsys.readouterr().out) is bool(status)
        assert ET.parse(drawn).getroot().tag.endswith("svg")


def test_few_samples_are_not_judged():
    cases = [scenario.make_case(one) for one in samples()[:4]]
    assert scenario.judge(cases) == ["4 samples are too few to judge growth by; take at least 5"]


def test_a_home_that_is_there_is_not_taken(tmp_path: Path, capsys):
    assert runner.main(["--scenario", "soak", "--home", str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err
