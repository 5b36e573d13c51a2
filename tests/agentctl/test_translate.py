"""`agentctl translate` and `problems new --reference`: from a reference to a judged kernel."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import seeds
from daemon import exits

EXPORTED = Path(__file__).parents[1] / "seeds" / "from_torch" / "exported" / "block.json"

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


def test_an_exported_module_becomes_a_reference_and_a_kernel_that_is_proven(ctl, tmp_path):
    kernel = tmp_path / "kernel.py"
    called = ctl("translate", "--from-torch", EXPORTED, "-o", kernel, "--json")
    assert (called.status, called.json["evaluation"]["identity"]["verdict"]) == (exits.OK, "proven")
    assert "def block(norm_weight, up_weight, up_bias, x):" in kernel.read_text()
    assert "op=nl.gelu" in kernel.read_text(), "exact GELU is one instruction"
    assert "linear = layer_norm @ up_weight.T + up_bias" in called.json["reference"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "swiglu"])
def test_modules_as_torch_exported_them_are_proven(ctl, name):
    called = ctl("translate", "--from-torch", EXPORTED.with_name(f"{name}.json"), "--json")
    assert (called.status, called.json["evaluation"]["identity"]["verdict"]) == (exits.OK, "proven")


@pytest.mark.slow
def test_the_numpy_text_of_a_module_is_shown_and_is_the_problem_s_reference(ctl, tmp_path):
    out = ctl("translate", "--from-torch", EXPORTED).out
    assert f"{EXPORTED} in NumPy, as kernels are compared with:" in out
    assert "linear = layer_norm @ up_weight.T + up_bias" in out
    called = ctl("problems", "new", "mine", "--from-torch", EXPORTED, "--into", tmp_path)
    assert called.status == exits.OK
    problem = seeds.load_problem(tmp_path / "mine")
    assert b"linear = layer_norm @ up_weight.T + up_bias" in problem.files["reference.py"]
    assert "def mine(norm_weight, up_weight, up_bias, x):" in problem.kernel


def test_the_numpy_text_is_shown_with_what_has_no_translation(ctl, tmp_path):
    graph = json.loads(EXPORTED.read_text())
    graph["nodes"][2]["target"] = "aten.round.default"
    path = tmp_path / "rounds.json"
    path.write_text(json.dumps(graph))
    called = ctl("translate", "--from-torch", path)
    assert called.status == exits.FAILURE
    assert "    gelu_ = np.rint(linear)" in called.out
    assert "no translation: " in called.out
    assert "np.rint" in called.out.splitlines()[-1]


MODULE = """import torch

INPUT_SPECS = {"x": ((128, 64), "float32")}


class Twice(torch.nn.Module):
    def forward(self, x):
        return x + x
"""


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_one_error_says_what_to_install(ctl, home, tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(MODULE)
    called = ctl("translate", "--from-torch", f"{path}:Twice")
    assert called.status == exits.USAGE
    assert "pip install 'torch>=2.6,<3'" in called.err
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a REFERENCE, or a module with --from-torch FILE.py:MODULE"),
        (("any.py", "--from-torch", "m.py:M"), "not both"),
        (("--from-torch", "m.py"), "name a module as FILE.py:MODULE"),
        (("--from-torch", "none.py:M"), "none.py: No such file"),
        (("--from-torch", "none.json"), "none.json: No such file"),
    ],
)
def test_how_a_module_is_named_is_said(ctl, arguments, message):
    called = ctl("translate", *arguments)
    assert called.status == exits.USAGE
    assert message in called.err
