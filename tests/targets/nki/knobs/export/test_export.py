"""Runs told in files: whoever wrote their kernels, and whatever became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daemon.command_models import Propose
from daemon.inbox import put_command
from state.errors import BadTarget, StreamUnknown
from state.events import KernelRefuted
from state.reader import LogReader
from targets.nki.knobs.export.export import export_run
from targets.nki.knobs.export.gather import JudgedKernel, gather_run
from tests.support import fakes

FASTER = fakes.KERNEL.replace("TILE_M = 128", "TILE_M = 100")


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "root"


def results(root: Path) -> dict[str, dict[str, Any]]:
    """What was written of each kernel, by its id."""
    found = [json.loads(path.read_text()) for path in root.rglob("result.json")]
    return {one["kernel"]: one for one in found}


def folder_of(root: Path, kernel: str) -> Path:
    return next(p.parent for p in root.rglob("result.json") if json.loads(p.read_text())["kernel"] == kernel)


def test_every_kernel_of_a_run_has_a_folder_and_the_summary_ends_at_its_best(home, finished, root):
    done = export_run(home, finished, root)
    with LogReader.open(home) as reader:
        state, found = reader.run_state(finished), gather_run(reader, finished)
        sources = {kernel.id: reader.get_blob(kernel.source) for kernel in found.kernels}
    assert set(results(root)) == set(sources)
    for kernel, source in sources.items():
        assert (folder_of(root, kernel) / "kernel.py").read_bytes() == source
    summary = json.loads((root / "summary.json").read_text())
    assert len(summary["tuning"]) == state.round == found.rounds
    last = summary["tuning"][f"batch_{state.round - 1}"]
    assert folder_of(root, state.best.id) == root / last["running_best_kernel"]
    assert (last["min_ms"], last["running_best_kernel"]) == (state.best.latency_ms, done.best)
    assert done.files == sum(path.is_file() for path in root.rglob("*"))


def test_the_mathematics_without_products_has_no_mfu(home, finished, root):
    export_run(home, finished, root)
    assert {one["mfu"] for one in results(root).values()} == {None}
    assert {one["mfu_max_achievable_estimated_percent"] for one in results(root).values()} == {None}
    right = [one for one in results(root).values() if one["cpu_sim"]["passed"]]
    assert all(one["roofline_efficiency"] * one["min_ms"] > 0 for one in right)


def test_a_run_under_way_is_told_as_far_as_it_got(home, root):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    done = export_run(home, run, root)
    assert (done.best, done.mfu) == (None, None)
    summary = json.loads((root / "summary.json").read_text())
    assert (summary["tuning"], summary["baseline"]["min_ms"]) == ({}, None)
    assert results(root)["r0.b0.p0.k0.f0"]["cpu_sim"]["passed"] is None


def test_a_persons_kernel_is_an_edit_with_its_note(home, root):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    put_command(home, Propose(run=run, source=FASTER, note="rows of a hundred"))
    fakes.take_commands(home)
    fakes.finish_runs(home, run)
    export_run(home, run, root)
    notes = (folder_of(root, "r1.b1000.p0.k0.f0") / "NOTES.md").read_text()
    assert notes.startswith("# r1.b1000.p0.k0.f0\n\nBy `person`.\n")
    assert "rows of a hundred" in notes
    assert "Correct; " in notes
    assert " ms predicted." in notes


def test_a_kernel_that_was_found_wrong_later_did_not_pass(home, root):
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    with LogReader.open(home) as reader:
        events = reader.read(stream=run, types=[KernelRefuted.__name__])
    assert events
    export_run(home, run, root)
    for item in events:
        result = results(root)[item.event.candidate]
        assert result["cpu_sim"]["passed"] is False
        assert result["cpu_sim"]["error"]["code"] == item.event.error.code
        assert result["min_ms"] is None
        log = (folder_of(root, item.event.candidate) / "log.txt").read_text()
        assert log.index("correct (stage") < log.index("incorrect (stage")


def test_the_same_run_is_told_in_the_same_bytes(home, finished, root, tmp_path):
    export_run(home, finished, root)
    export_run(home, finished, tmp_path / "other")
    for path in root.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "other" / path.relative_to(root)).read_bytes()


def test_another_run_takes_the_place_of_one(home, finished, root):
    export_run(home, finished, root)
    second = fakes.submit_run(home, fakes.CONFIG.model_copy(update={"seed": 26}))
    fakes.finish_runs(home, second)
    export_run(home, second, root)
    with LogReader.open(home) as reader:
        ids = {kernel.id for kernel in gather_run(reader, second).kernels}
    assert set(results(root)) == ids
    assert json.loads((root / "summary.json").read_text())["run"] == second


@pytest.mark.parametrize("inside", ["batch_0", "batch_0/kernel_9"])
def test_what_a_link_leads_to_is_left_alone(home, finished, root, tmp_path, inside):
    theirs = tmp_path / "theirs"
    (theirs / "kernel_9").mkdir(parents=True)
    (theirs / "kernel_9" / "kernel.py").write_text("x = 1")
    (theirs / "kernel.py").write_text("x = 2")
    (root / inside).parent.mkdir(parents=True)
    (root / inside).symlink_to(theirs)
    export_run(home, finished, root)
    assert (theirs / "kernel_9" / "kernel.py").read_text() == "x = 1"
    assert (theirs / "kernel.py").read_text() == "x = 2"
    (root / "edit_0" / "kernel").rename(tmp_path / "moved")
    (root / "edit_0" / "kernel").symlink_to(tmp_path / "moved")
    with pytest.raises(BadTarget, match="a link is in the way"):
        export_run(home, finished, root)


def test_files_of_another_run_beside_this_ones_go(home, finished, root):
    export_run(home, finished, root)
    for folder in ("nkipy_baseline", "edit_0/kernel"):
        (root / folder / "ir.txt").write_text("of another run")
    (root / "nkipy_baseline" / "mine.txt").write_text("a person's")
    export_run(home, finished, root)
    assert not list(root.rglob("ir.txt"))
    assert (root / "nkipy_baseline" / "mine.txt").exists()


def test_a_folder_where_a_file_should_be_is_named(home, finished, root):
    (root / "batch_9" / "kernel_0" / "kernel.py").mkdir(parents=True)
    with pytest.raises(BadTarget, match="kernel_0: cannot be written"):
        export_run(home, finished, root)


def test_what_is_not_there_and_what_is_the_logs_own_is_refused(home, finished, root):
    with pytest.raises(StreamUnknown):
        export_run(home, "nothing", root)
    (root.parent / "taken").write_text("")
    with pytest.raises(BadTarget, match="taken"):
        export_run(home, finished, root.parent / "taken")


def test_a_kernel_without_a_verdict_has_no_latency(home, finished):
    with LogReader.open(home) as reader:
        first = gather_run(reader, finished).kernels[0]
    assert first.min_ms is not None
    assert JudgedKernel(first.key, first.source, "person").min_ms is None
    wrong = first.evaluation.model_copy(update={"verdict": "incorrect"})
    assert (
        JudgedKernel(first.key, first.source, "person", evaluation=first.evaluation, refuted=wrong).min_ms
        is None
    )
