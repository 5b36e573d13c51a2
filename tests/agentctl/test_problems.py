"""`agentctl problems`: the list, one problem, a new one; and what is wrong said in words."""

from __future__ import annotations

import re

import pytest

import seeds
from daemon import exits
from targets.registry import target_names
from tests.support import fakes


@pytest.fixture
def satisfied(monkeypatch):
    """A judge that takes every kernel for one that it finds correct."""
    answer = fakes.judge_source
    monkeypatch.setattr(fakes, "judge_source", lambda _, *rest: answer(fakes.KERNEL.encode(), *rest))
    monkeypatch.setenv("NKI_AGENT_RUN__EVALUATOR", "fake")


def test_the_list_has_every_problem_with_its_sizes(ctl):
    rows = ctl("problems", "--json").json
    assert [row["name"] for row in rows] == list(seeds.builtin_problems())
    text = ctl("problems").out
    assert all(f"{row['name']} " in text and row["formula"] in text for row in rows)
    assert "full: M4096 N7168" in text


def test_the_list_can_be_narrowed(ctl):
    assert [row["name"] for row in ctl("problems", "--only", "silu", "--json").json] == ["silu"]
    assert ctl("problems", "--only", "nothing").out == "\n"


def test_measured_kernels_have_shares_of_both_bounds(ctl, satisfied):
    called = ctl("problems", "--only", "silu", "--measure", "--target", "trn1", "--json")
    (row,) = called.json
    assert (row["target"], row["verdict"]) == ("trn1", "correct")
    assert row["percent_of_peak"] == pytest.approx(100 * row["roofline_ms"] / row["predicted_ms"])
    assert row["percent_of_tight_bound"] == pytest.approx(100 * row["tight_bound_ms"] / row["predicted_ms"])
    text = ctl("problems", "--only", "silu", "--measure", "--target", "trn1").out
    assert "predicted for trn1" in text
    assert f"{row['percent_of_peak']:.1f}" in text


def test_a_problem_says_what_it_asks_for(ctl):
    shown = ctl("problems", "show", "adamw", "--json").json
    assert shown["inputs"][3]["distribution"] == "abs_normal"
    assert set(shown["bounds"]) == set(target_names())
    assert set(shown["files"]) == {"kernel.c", "kernel.py", "problem.toml", "reference.py", "workload.json"}
    text = ctl("problems", "show", "adamw").out
    assert "input v [M, N] float32, |N(0, 1)|" in text
    assert "below 2e-05 on 5 seeds (0, 21, 42, 63, 84)" in text


def test_a_problem_that_allows_mx_says_so(ctl, tmp_path):
    found = seeds.load_problem("matmul")
    for name, text in found.files.items():
        (tmp_path / name).write_bytes(
            text.replace(b"shape_generic = true", b"shape_generic = true\nmx = true")
        )
    line = "products may be in MX types"
    assert line in ctl("problems", "show", str(tmp_path)).out
    assert line not in ctl("problems", "show", "matmul").out


def test_the_text_of_a_file_of_a_problem(ctl):
    assert ctl("problems", "show", "silu", "--file", "kernel.py").out == seeds.load_problem("silu").kernel
    called = ctl("problems", "show", "silu", "--file", "kernle.py")
    assert called.status == exits.USAGE
    assert "did you mean 'kernel.py'?" in called.err


def test_an_unknown_problem_is_bad_input_with_the_nearest_name(ctl):
    called = ctl("problems", "show", "slu")
    assert called.status == exits.USAGE
    assert "did you mean 'silu'?" in called.err


def test_a_new_problem_is_written_once_and_can_be_shown(ctl, tmp_path):
    called = ctl("problems", "new", "mine", "--into", tmp_path / "deep")
    assert called.status == 0
    assert re.search(
        rf"agentctl try .*--problem {re.escape(str(tmp_path))}/deep/mine$", called.out, re.MULTILINE
    )
    shown = ctl("problems", "show", tmp_path / "deep" / "mine", "--json").json
    assert shown["name"] == "mine"
    again = ctl("problems", "new", "mine", "--into", tmp_path / "deep")
    assert again.status == exits.USAGE
    assert "is there already" in again.err


def test_all_faults_of_a_wrong_folder_come_at_once_with_the_files_names(ctl, tmp_path):
    ctl("problems", "new", "mine", "--into", tmp_path)
    folder = tmp_path / "mine"
    spec = (folder / "problem.toml").read_text()
    (folder / "problem.toml").write_text(spec.replace('shape = ["M"]', 'shap = ["Q"]').replace("2e-5", "2"))
    (folder / "reference.py").write_text("def refrence(x):\n    return x\n")
    (folder / "kernel.py").write_text("def broken(:\n")
    called = ctl("try", "--problem", folder)
    assert called.status == exits.USAGE
    for words in ("did you mean 'shape'?", "rel_l2", "did you mean 'refrence'?", "kernel.py: not Python"):
        assert words in called.err


def test_without_a_kernel_the_problems_own_is_judged(ctl, satisfied):
    called = ctl("try", "--problem", "silu")
    assert called.status == 0
    assert called.out.startswith("initial kernel of silu: correct")
