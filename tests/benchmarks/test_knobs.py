"""The benchmark of the knob surface, on a workload of two instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.knobs import ops
from agent_core.knobs.ir import KernelIR
from agent_core.knobs.narrowing import default
from benchmarks import knobs
from benchmarks.surface import programs
from benchmarks.surface.workloads import Workload

SHAPE = (256, 512)


def exponential(x: Any) -> Any:
    return ops.NKIActivation(op="exp")(data=x)


TINY = Workload(exponential, {"x": SHAPE}, {"x": (SHAPE, "float32")})


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs, "WORKLOADS", {"tiny": TINY})
    monkeypatch.setattr(knobs, "DRAWN", 20)


def _run(out: Path, *arguments: str) -> int:
    return knobs.main(
        ["--out", str(out), "--workloads", "tiny", "--evaluations", "6", "--seeds", "2", *arguments]
    )


def test_a_run_leaves_a_row_and_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "knobs.json"
    assert _run(out) == 0
    told = json.loads(out.read_text())
    assert told["predicted"] is True
    whole, search = told["parts"]["tiny exhaustive"], told["parts"]["tiny search"]
    assert whole["whole"]
    assert whole["best_ms"] <= whole["default_ms"] <= whole["worst_ms"]
    assert len(whole["searched"]) == len(whole["drawn"]) == 2
    for one in (*whole["searched"], *whole["drawn"]):
        near = one["best_ms"] <= knobs.NEAR_RATIO * whole["best_ms"]
        assert one["evaluations"] <= whole["budget"]
        assert (one["near_after"] is not None) == near
    assert search["found"]["identity"]["evaluations"] <= 6
    *_, row = capsys.readouterr().out.splitlines()
    assert row.startswith("| tiny 256x512 | ")

    def never(ir: KernelIR) -> programs.Found:
        raise AssertionError("it was done before")

    monkeypatch.setattr(knobs, "predicted", never)
    monkeypatch.setattr(programs, "predicted", never)
    assert _run(out) == 0
    assert json.loads(out.read_text()) == told
    assert capsys.readouterr().out.splitlines()[-1] == row


def test_no_stage_begins_after_the_deadline(tmp_path: Path) -> None:
    assert _run(tmp_path / "none.json", "--deadline-seconds", "-1") == 1
    assert not (tmp_path / "none.json").exists()


def test_what_was_not_looked_at_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "some.json"
    assert _run(out, "--stages", "exhaustive", "--programs", "2") == 0
    assert not json.loads(out.read_text())["parts"]["tiny exhaustive"]["whole"]
    assert "| 2+ |" in capsys.readouterr().out


def test_the_rewrite_engines_best_is_that_of_the_same_target_at_full_size(tmp_path: Path) -> None:
    runs = [
        {"problem": "matmul", "size": "full", "target": "trn2", "best_ms": 2.0},
        {"problem": "matmul", "size": "full", "target": "trn1", "best_ms": 1.0},
        {"problem": "silu", "size": "reduced", "target": "trn2", "best_ms": 1.0},
        {"problem": "bmm", "size": "full", "target": "trn2", "best_ms": None},
    ]
    file = tmp_path / "search.json"
    file.write_text(json.dumps({"runs": dict(enumerate(runs))}))
    assert knobs.rewritten(file, "trn2") == {"matmul": 2.0}
    assert knobs.rewritten(None, "trn2") == {}


def test_searches_are_replayed_from_the_table_of_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--stages", "exhaustive", "--tables", str(tmp_path))
    assert _run(tmp_path / "one.json", *arguments) == 0
    asked: list[KernelIR] = []
    real = programs.predicted

    def counted(ir: KernelIR) -> programs.Found:
        asked.append(ir)
        return real(ir)

    monkeypatch.setattr(programs, "predicted", counted)
    assert _run(tmp_path / "two.json", *arguments) == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert set(asked) == {default(TINY.small("trn2"))}


def test_a_table_of_another_graph_is_not_used(tmp_path: Path) -> None:
    file, graph = tmp_path / "table.json.gz", TINY.small("trn2")
    part = programs.table_of(graph, file, lambda count: count == 3)
    assert (len(part.found), part.whole) == (3, False)
    other = Workload(exponential, {"x": (256, 1024)}, TINY.shapes).small("trn2")
    assert programs.table_of(other, file, lambda count: count == 0).found == {}
    programs.table_of(graph, file, lambda count: count == 3)
    whole = programs.table_of(graph, file, lambda _: False)
    assert whole.whole
    assert whole.found.items() >= part.found.items()


def test_a_program_that_is_missing_among_all_is_an_error() -> None:
    table = programs.Table(whole=True)
    with pytest.raises(LookupError, match="missing in the table"):
        table.of(default(TINY.small("trn2")))


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        knobs.main(["--stages", "sapce"])
    assert "'sapce' is unknown; known are space, exhaustive, search" in capsys.readouterr().err
