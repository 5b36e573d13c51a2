"""Workloads' files, read by a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seeds.inputs import draw_inputs
from targets.nki.knobs.tuning.workload import Workload, WorkloadFileError, load_workload, workload_problem
from targets.nki.knobs.tuning.workload_module import target_mfu
from targets.nki.knobs.tuning.workload_reader import kernel_name
from targets.nki.knobs.tuning.workload_reader import read_workload as read_file
from targets.nki.knobs.workload_file import load_graph
from tests.support.tuning_jobs import FUNCTIONS, HEAD, NAMES, WORKLOAD

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "matmul_512.py"
        path.write_text(text)
        return path

    return written


def faults(path: Path, **options: float) -> tuple[str, ...]:
    with pytest.raises(WorkloadFileError) as caught:
        load_workload(path, "trn2", **options)
    assert caught.value.code == "invalid_workload"
    assert str(path) in str(caught.value)
    return caught.value.faults


def test_a_workload_says_what_its_six_names_say(write: Write, tmp_path: Path) -> None:
    found = load_workload(write(WORKLOAD), "trn2")
    assert (found.name, found.hosts, found.target_mfu) == ("matmul_512", (), 0.25)
    assert found.cache_root == str(tmp_path / "cache")
    graph = load_graph(found.graphs.encode(), "full", "trn2")
    assert graph.shape("rhs") == (512, 1024)
    assert [call.operator for call in graph.calls] == ["NKITranspose", "NKIMatmul"]
    small = load_graph(found.graphs.encode(), "reduced", "trn2")
    assert small.shape("lhs") == (256, 256)


def test_its_reference_stands_alone_and_computes_f_numpy(write: Write) -> None:
    path = write(WORKLOAD)
    problem = workload_problem(path, load_workload(path, "trn2"), "reduced", "trn2")
    space: dict[str, Callable[..., np.ndarray]] = {}
    text = problem.files["reference.py"].decode()
    exec(text, space)  # type: ignore[arg-type]
    assert "nkigym" not in text
    assert set(problem.spec.sizes) == {"reduced"}
    lhs, rhs = draw_inputs(problem.spec, "reduced", 0)
    truth = lhs.astype(np.float64) @ rhs
    assert np.allclose(space["reference"](lhs, rhs), truth, rtol=1e-5, atol=1e-4)


def test_the_problem_has_the_shapes_and_the_least_work(write: Write) -> None:
    path = write(WORKLOAD)
    problem = workload_problem(path, load_workload(path, "trn2"), "full", "trn2")
    work = problem.spec.minimal_work("full")
    assert work.matmul_flops == 2 * 512 * 512 * 1024
    assert work.elementwise_elements == 512 * 1024
    assert work.total_bytes == 4 * (512 * 512 + 512 * 1024 + 512 * 1024)
    assert not problem.spec.shape_generic
    assert "def matmul_512(lhs, rhs):" in problem.kernel


def test_all_names_that_are_missing_or_malformed_are_in_one_error(write: Write) -> None:
    specs = "INPUT_SPECS = {'x': ((0, 2), 'int4'), 'y': 3}\n"
    found = faults(write(f"{HEAD}f_numpy = 3\n{specs}HOSTS = 'host'\nTARGET_MFU = 120\n"))
    names = ["f_nkigym", "f_numpy", *["INPUT_SPECS"] * 3, "CACHE_ROOT", "HOSTS", "TARGET_MFU"]
    assert [item.split(":")[0] for item in found] == names
    assert found[0] == "f_nkigym: missing"
    assert "'x' has shape (0, 2)" in found[2]
    assert "'x' has the type 'int4'" in found[3]


FAULTS = {
    "end": ("return output", "return NKITranspose()(data=output)", "does not end in `return NAME`"),
    "parameters": ("f_numpy(lhs, rhs)", "f_numpy(lhs, other)", "f_numpy: takes lhs, other; f_nkigym takes"),
    "inputs": ('"rhs": (', '"other": (', "f_nkigym: takes lhs, rhs; INPUT_SPECS has lhs,"),
    "shapes": (
        '"rhs": ((512',
        '"rhs": ((256',
        "NKIMatmul: K is 512, but 256 in moving (stationary is (512, 512), moving is (256, 1024))",
    ),
    "unused": ("moving=rhs)", "moving=lhs)", "f_nkigym: "),
    "operand": ("moving=rhs)", "turning=rhs)", ": NKIMatmul "),
    "other": ("SCALE = 1.0", "SCALE = 1.5", "it is not f_numpy: on normal inputs they differ by 0.33"),
    "infinite": ("SCALE = 1.0", "SCALE = np.inf", "f_numpy is not finite everywhere"),
    "rank": ("matmul(lhs, rhs)", "matmul(lhs, rhs)[0]", "has shape (512, 1024), that of f_numpy (1024,)"),
    "raises": ("np.matmul(lhs, rhs)", "np.matmul(rhs, lhs)", ": ValueError: matmul"),
    "reference": ("scaled", "reference", "f_numpy: needs a name 'reference'"),
    "truth": ("TARGET_MFU = 0.25", "TARGET_MFU = True", "TARGET_MFU: is True"),
    "large": ("TARGET_MFU = 0.25", "TARGET_MFU = 10**400", "TARGET_MFU: is 1000000000"),
    "nan": ("TARGET_MFU = 0.25", "TARGET_MFU = float('nan')", "TARGET_MFU: is nan"),
    "root": ('CACHE_ROOT = "cache"', 'CACHE_ROOT = "a\\0b"', "CACHE_ROOT: is 'a\\x00b'; it is a path"),
    "tiny": ("TARGET_MFU = 0.25", "TARGET_MFU = 5e-324", "TARGET_MFU: is 5e-324; it is a share"),
    "interrupt": ("SCALE = 1.0", "raise KeyboardInterrupt", "line 4: KeyboardInterrupt"),
    "exit": ("SCALE = 1.0", "raise SystemExit(0)", "SystemExit: 0"),
    "nested": ("def f_nkigym", "if True:\n  def f_nkigym", "f_nkigym: is not defined by `def` at the top"),
    "module": ("import numpy as np", "import numpy as np\nimport no_such_module", "ModuleNotFoundError"),
    "syntax": ("SCALE = 1.0", "SCALE = ", "SyntaxError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_said(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    old, new, message = FAULTS[name]
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = write(WORKLOAD.replace(old, new))
    found = read_file(path, "trn2")["faults"]
    assert any(message in item for item in found), found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import os; os._exit(3)", "its process ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "its process ended with status -9"),
        ("import os; os._exit(0)", "its process ended before it had answered"),
    ],
)
def test_a_process_that_ends_by_itself_is_told_of(write: Write, line: str, message: str) -> None:
    assert message in faults(write(f"{line}\n{WORKLOAD}"))[0]


def test_an_error_of_the_file_says_where(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = WORKLOAD.replace("np.matmul(lhs, rhs)", "np.matmul(rhs, lhs)")
    (line,) = [number for number, row in enumerate(text.splitlines(), 1) if "np.matmul(rhs, lhs)" in row]
    (found,) = read_file(write(text), "trn2")["faults"]
    assert found.startswith("matmul_512.py, ")
    assert f", line {line}: ValueError: " in found


@pytest.mark.parametrize("helper", [False, True])
def test_an_operator_that_does_not_fit_says_where(
    write: Write, monkeypatch: pytest.MonkeyPatch, helper: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    call = "NKIMatmul()(stationary=lhs_T, moving=lhs)"
    text = WORKLOAD.replace("NKIMatmul()(stationary=lhs_T, moving=rhs)", call)
    if helper:
        text = text.replace(call, "product(lhs_T, lhs)")
        text += f"\n\ndef product(lhs_T, lhs):\n    return {call}\n"
    text = text.replace('"lhs": ((512, 512)', '"lhs": ((512, 256)')
    (line,) = [number for number, row in enumerate(text.splitlines(), 1) if call in row]
    (found,) = read_file(write(text), "trn2")["faults"]
    assert found.startswith(
        f"f_nkigym, {'product, ' if helper else ''}line {line}: NKIMatmul: K is 256, but 512"
    )


def test_a_file_that_is_no_text(write: Write) -> None:
    path = write("")
    path.write_bytes(b"\xff\xfe")
    assert "UnicodeDecodeError" in faults(path)[0]


def test_a_file_that_is_called_as_a_module_does_not_take_its_place(tmp_path: Path) -> None:
    path = tmp_path / "numpy.py"
    path.write_text(WORKLOAD.replace("import numpy as np", "import sys\nnp = sys.modules['numpy']"))
    assert isinstance(load_workload(path, "trn2"), Workload)


def test_what_the_file_prints_is_not_taken_for_its_answer(write: Write) -> None:
    path = write('print(\'{"ok": 1}\')\nimport os\nos.write(1, b"more")\n' + WORKLOAD)
    assert isinstance(load_workload(path, "trn2"), Workload)


def test_a_file_that_does_not_end_is_ended(write: Write) -> None:
    found = faults(write("import time\ntime.sleep(3600)\n" + WORKLOAD), deadline_seconds=2.0)
    assert found == ("it did not end within 2 s",)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert faults(tmp_path / "nothing.py") == ("there is no such file",)


def test_a_constant_that_holds_at_its_own_shapes_alone_takes_away_the_small_size(write: Write) -> None:
    functions = FUNCTIONS.replace(
        "    return output\n",
        "    mean = NKITensorScalar(op0='multiply')(data=output, operand0=1 / 512)\n    return mean\n",
    ).replace("np.matmul(lhs, rhs)", "np.matmul(lhs, rhs) / lhs.shape[1]")
    path = write(HEAD.replace("NKITranspose", "NKITranspose, NKITensorScalar") + functions + NAMES)
    found = load_workload(path, "trn2")
    assert workload_problem(path, found, "full", "trn2").name == "matmul_512"
    with pytest.raises(WorkloadFileError, match="no graph for the size 'reduced'"):
        workload_problem(path, found, "reduced", "trn2")


def test_percent_and_share_mean_the_same_target() -> None:
    assert target_mfu({"TARGET_MFU": 25}) == target_mfu({"TARGET_MFU": 0.25}) == 0.25


NAMED = {"2-layers": "f_2_layers", "lhs": "lhs_kernel", "nl": "nl_kernel", "-": "workload", "for": "f_for"}


@pytest.mark.parametrize("stem", NAMED)
def test_a_file_of_any_name_gives_its_kernel_a_name(stem: str) -> None:
    assert kernel_name(stem, {"lhs"}) == NAMED[stem]
