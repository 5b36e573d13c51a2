"""The benchmark of the knob surface, on a workload of two instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seeds
from agentctl.bench.runs import BenchJob, JobBudget
from benchmarks import knobs
from benchmarks.surface import programs, rewriting
from benchmarks.surface.workloads import WORKLOADS, Workload
from seeds import Problem
from seeds.inputs import dtype_of
from targets.nki.knobs import ops
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.tuning.problem import baseline_kernel
from targets.nki.knobs.workload_file import WORKLOAD_FILE, load_graph

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
    stages = ("--stages", "space,exhaustive,search")
    assert _run(out, *stages) == 0
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

    monkeypatch.setattr(knobs, "predict_point", never)
    monkeypatch.setattr(programs, "predict_point", never)
    assert _run(out, *stages) == 0
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


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_rewrite_engine_is_given_what_the_workload_computes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = WORKLOADS[name]
    asked: list[tuple[Problem, JobBudget]] = []

    def run(job: BenchJob, budget: JobBudget) -> dict[str, Any]:
        asked.append((seeds.load_problem(job.problem), budget))
        return {key: len(key) for key in (*rewriting.KEPT, "curve")}

    monkeypatch.setattr(rewriting, "run_job", run)
    found = rewriting.rewritten(workload, "trn2", minutes=0.5)
    assert found == {key: len(key) for key in rewriting.KEPT}
    ((problem, budget),) = asked
    assert budget == JobBudget(candidates=100, minutes=0.5)
    graph = workload.graph("trn2")
    assert load_graph(problem.files[WORKLOAD_FILE], "full", "trn2") == graph
    if isinstance(workload.shapes, str):
        assert problem.spec.name == workload.shapes
    else:
        assert problem.files["kernel.py"].decode() == baseline_kernel(graph)
        assert _error(problem.files["reference.py"].decode(), workload.small("trn2")) < 0.01


def _error(reference: str, graph: Graph) -> float:
    """How far the default kernel of a graph is from a reference on normal data."""
    random = np.random.default_rng(0)
    inputs = {
        name: random.standard_normal(graph.shape(name)).astype(dtype_of(graph.value[name].dtype))
        for name in graph.inputs
    }
    names: dict[str, Any] = {}
    exec(reference, names)
    wanted = names["reference"](*inputs.values())
    found = np.asarray(interpret_kernel(lower_kernel(default_ir(graph)), inputs), np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_what_the_rewrite_engine_found_stands_beside_what_the_search_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "initial_ms": 2.0,
        "best_ms": 1.5,
        "looked_at": 40,
        "evaluated": 7,
        "seconds": 1.0,
        "in_time": True,
    }
    minutes: list[float] = []

    def rewritten(workload: Workload, target: str, most: float) -> dict[str, Any]:
        minutes.append(most)
        return told

    monkeypatch.setattr(knobs, "rewritten", rewritten)
    assert _run(tmp_path / "out.json", "--stages", "rewrite") == 0
    assert minutes == [5.0]
    assert capsys.readouterr().out.splitlines()[2] == f"| tiny {'| - ' * 7}| 2 | 1.5 | 40 | 7 |"
    assert _run(tmp_path / "short.json", "--stages", "rewrite", "--stage-seconds", "60") == 0
    assert minutes[1] <= 1


def test_searches_are_replayed_from_the_table_of_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--stages", "exhaustive", "--tables", str(tmp_path))
    assert _run(tmp_path / "one.json", *arguments) == 0
    asked: list[KernelIR] = []
    real = programs.predict_point

    def counted(ir: KernelIR) -> programs.Found:
        asked.append(ir)
        return real(ir)

    monkeypatch.setattr(programs, "predict_point", counted)
    assert _run(tmp_path / "two.json", *arguments) == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert set(asked) == {default_ir(TINY.small("trn2"))}


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
        table.of(default_ir(TINY.small("trn2")))


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        knobs.main(["--stages", "sapce"])
    assert "'sapce' is unknown; known are space, exhaustive, search, rewrite" in capsys.readouterr().err
