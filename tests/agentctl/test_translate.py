"""`agentctl translate` and `problems new --reference`: from a reference to a judged kernel."""

from __future__ import annotations

import pytest

import seeds
from daemon import exits

REFERENCE = '''"""Centre each row."""
import numpy as np

INPUT_SPECS = {"x": ((140, 96), "float32")}


def reference(x):
    return np.maximum(x - x.mean(axis=1, keepdims=True), 0.0)
'''


@pytest.fixture
def reference(tmp_path):
    path = tmp_path / "centre.py"
    path.write_text(REFERENCE)
    return path


def test_a_reference_becomes_a_kernel_that_is_proven(ctl, reference, tmp_path):
    kernel, folder = tmp_path / "kernel.py", tmp_path / "centre"
    called = ctl("translate", reference, "-o", kernel, "--into", folder, "--json")
    assert (called.status, called.json["evaluation"]["identity"]["verdict"]) == (exits.OK, "proven")
    assert kernel.read_text() == called.json["kernel"] == seeds.load_problem(folder).kernel
    assert seeds.load_problem(folder).spec.outputs[0].shape == (140, 96)
    assert ctl("translate", reference, "--into", folder).status != exits.OK  # the folder is there already


@pytest.mark.slow
def test_the_screen_says_what_was_shown(ctl, reference):
    out = ctl("translate", reference).out
    assert "predicted, the best of" in out
    assert "identity: proven" in out
    assert "def centre(x):" in out


def test_what_has_no_translation_is_named(ctl, reference):
    reference.write_text(REFERENCE.replace("np.maximum(", "np.sort(").replace(", 0.0)", ")"))
    called = ctl("translate", reference)
    assert called.status == exits.FAILURE
    assert "no translation: " in called.out
    assert "np.sort" in called.out


@pytest.mark.slow
def test_a_new_problem_of_a_reference_is_ready_to_run(ctl, reference, tmp_path):
    called = ctl("problems", "new", "mine", "--reference", reference, "--into", tmp_path / "at", "--json")
    assert called.status == exits.OK
    problem = seeds.load_problem(tmp_path / "at" / "mine")
    assert "def mine(x):" in problem.kernel
    assert ctl("try", "--problem", tmp_path / "at" / "mine", "--json").json["identity"]["verdict"] == "proven"


def test_a_missing_file_is_named(ctl, tmp_path):
    called = ctl("translate", tmp_path / "none.py")
    assert called.status == exits.USAGE
    assert "none.py: No such file" in called.err
