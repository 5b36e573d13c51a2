"""The command line: verbs, exit statuses, what is printed where, and the kernel's own reference files."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, cli, harness
from nki_sim.cli import watch
from nki_sim.operators import OPERATORS

SHIMS = Path(cli.__file__).parents[1] / "shims"


@pytest.fixture
def kernel_file(tmp_path: Path, texts: Any) -> Path:
    path = tmp_path / "stream.py"
    path.write_text(texts.source_of(texts.stream()))
    return path


def command(capsys: Any, *argv: Any) -> tuple[int, str, str]:
    status = cli.main([str(item) for item in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_run_compares_with_a_reference(kernel_file: Path, tmp_path: Path, capsys: Any) -> None:
    reference = tmp_path / "reference.py"
    for factor, status in ((1.0, 0), (1.001, 1)):
        reference.write_text(f"import numpy as np\ndef forward(x): return np.exp(x) * {factor} + x\n")
        argv = ("run", kernel_file, "--arg", "128x512", "--reference", reference, "--seeds", "0,21", "--json")
        found, out, _ = command(capsys, *argv)
        report = json.loads(out)
        assert (found, report["correct"]) == (status, status == 0)
        assert report["rel_l2"].keys() == {"0", "21"}
        assert report["error"] is None
        assert report["counters"]["hbm_read_bytes"] == 128 * 512 * 4


def test_run_without_a_reference_claims_nothing(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(capsys, "run", kernel_file, "--arg", "128x512:float32", "--json")
    assert (status, json.loads(out)["correct"]) == (0, None)


def test_a_broken_rule_is_reported_as_incorrect(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(capsys, "run", kernel_file, "--arg", "128x600", "--json")
    report = json.loads(out)
    assert (status, report["correct"]) == (1, False)
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert command(capsys, "trace", kernel_file, "--arg", "128x600")[0] == 1


def test_profile_calls_latency_predicted(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(
        capsys, "profile", kernel_file, "--arg", "256x1024", "--target", "trn1", "--json"
    )
    report = json.loads(out)
    assert status == 0
    assert report["predicted"]["lo_ms"] <= report["predicted"]["latency_ms"] <= report["predicted"]["hi_ms"]
    assert report["explanation"]["bottleneck"]
    text = command(capsys, "profile", kernel_file, "--arg", "256x1024")[1]
    assert re.search(r"^predicted:\n  latency_ms: \S+ ms predicted$", text, re.MULTILINE)


def test_kernel_errors_have_their_own_status(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import nki\n\n\n@nki.jit\ndef kernel(x):\n    return 1 / 0\n")
    status, out, _ = command(capsys, "run", path, "--arg", "4x4", "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]["line"]) == (3, False, 6)
    status, _, err = command(capsys, "run", path, "--arg", "4x4")
    assert status == 3
    assert "line 6: kernel_exception: ZeroDivisionError" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("trace", "missing.py"),
        ("trace", "KERNEL", "--arg", "4xfour"),
        ("trace", "KERNEL", "--arg", "4x4:float99"),
        ("trace", "KERNEL", "--arg", "128x512", "--target", "trn9"),
        ("run", "KERNEL", "--arg", "128x512", "--reference", "KERNEL"),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", "a,b"),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", ""),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", "0,-1"),
    ],
)
def test_usage_errors_are_one_line(argv: tuple[str, ...], kernel_file: Path, capsys: Any) -> None:
    if argv[-1] == "KERNEL":
        kernel_file.with_name("empty.py").write_text("x = 1\n")
        argv = (*argv[:-1], str(kernel_file.with_name("empty.py")))
    status, _, err = command(capsys, *[str(kernel_file) if item == "KERNEL" else item for item in argv])
    assert status == 2
    assert err.startswith("nki-sim: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def forward(x): return x[:5]", "arrays of [(5, 512)], the kernel of [(128, 512)]"),
        ("def forward(x): return 1.0", "arrays of [()], the kernel of [(128, 512)]"),
        ("def forward(x): return x, x", "the kernel of [(128, 512)]"),
        ("def forward(): return 0", "the reference raised TypeError"),
        ("def forward(x): return x + y", "the reference raised NameError"),
        ("1 / 0", "the reference raised ZeroDivisionError"),
        ("def forward(x:", "the reference raised SyntaxError"),
    ],
)
def test_a_reference_at_fault_is_usage(
    text: str, message: str, kernel_file: Path, tmp_path: Path, capsys: Any
) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text(text + "\n")
    status, out, err = command(capsys, "run", kernel_file, "--arg", "128x512", "--reference", reference)
    assert (status, out) == (2, "")
    assert message in err


def test_a_kernel_file_that_is_no_text_is_usage(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "binary.py"
    path.write_bytes(b"\xff\xfe\x00")
    status, _, err = command(capsys, "trace", path)
    assert status == 2
    assert err.startswith("nki-sim: ")


def test_profile_applies_the_checks_first(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(capsys, "profile", kernel_file, "--arg", "128x600", "--json")
    report = json.loads(out)
    assert status == 1
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert report["predicted"] is None


def test_an_interrupt_while_tracing_ends_the_command(tmp_path: Path) -> None:
    """It is not taken for an exception of the kernel, which may catch what it likes."""
    kernel, started = tmp_path / "endless.py", tmp_path / "started"
    kernel.write_text(
        "import nki\n\n\n@nki.jit\ndef kernel(x):\n"
        f"    open({str(started)!r}, 'w').close()\n"
        "    while True:\n        try:\n            pass\n        except BaseException:\n            pass\n"
    )
    process = subprocess.Popen([sys.executable, "-m", "nki_sim.cli", "run", str(kernel), "--arg", "4x4"])
    try:
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-5", 1e-5), ("2.5", 2.5), ("4x4", ArraySpec((4, 4), "float32")),
     ("8:bfloat16", ArraySpec((8,), "bfloat16")), ("2x3x4:int32", ArraySpec((2, 3, 4), "int32"))],
)  # fmt: skip
def test_arguments_are_shapes_or_numbers(text: str, value: Any) -> None:
    assert harness.parse_argument(text) == value


def test_path_is_the_folder_of_the_shims(capsys: Any) -> None:
    assert command(capsys, "path")[1].strip() == str(SHIMS)


def test_ops_lists_what_the_tables_hold(capsys: Any) -> None:
    report = json.loads(command(capsys, "ops", "--json")[1])
    wanted = {name for name, operator in OPERATORS.items() if not operator.internal}
    assert report["supported"].keys() == wanted
    assert not set(report["supported"]) & set(report["unsupported"])
    assert report["supported"]["nc_matmul"]["targets"] == ["trn1", "trn2"]
    assert report["supported"]["range_select"]["targets"] == ["trn2"]
    for module in ("nki", "neuronxcc.nki"):
        assert "jit" in report["namespaces"][module]
        assert {"nc_matmul", "activation"} <= set(report["namespaces"][f"{module}.isa"])
        assert {"ndarray", "exp", "float32"} <= set(report["namespaces"][f"{module}.language"])
    assert {"sbuf", "psum", "shared_hbm"} <= set(report["namespaces"]["nki.language"])
    assert {"NkiScalar", "register_alloc", "core_barrier"} <= set(report["namespaces"]["nki.isa"])
    assert {"sequential_range", "mgrid", "par_dim"} <= set(report["namespaces"]["neuronxcc.nki.language"])
    assert "nki.collectives" not in report["namespaces"]


def test_ops_lists_no_name_that_only_the_simulator_uses(capsys: Any) -> None:
    spaces = json.loads(command(capsys, "ops", "--json")[1])["namespaces"]
    tools = {"annotations", "Any", "fail", "current", "issue", "masked", "op_value", "promote", "value_of",
             "as_tile", "boxes_of", "LegacyRecorder", "LegacyKernel", "Kernel", "Operator", "spelled",
             "infer_accumulate", "tile", "Decorated", "check_mutations", "copied"}  # fmt: skip
    assert not {name: found for name, names in spaces.items() if (found := tools & set(names))}


def test_ops_for_people_names_every_instruction(capsys: Any) -> None:
    out = command(capsys, "ops")[1]
    for name, operator in OPERATORS.items():
        assert (f"  {name}(" in out) is not operator.internal


def test_rules_lists_every_code_with_text_and_advice(capsys: Any) -> None:
    found = {rule["code"]: rule for rule in json.loads(command(capsys, "rules", "--json")[1])["rules"]}
    assert "nothing says which comes first" in found["write_write_race"]["says"]
    assert "core_barrier" in found["write_write_race"]["fix"]
    assert found["uninitialised_read"]["says"] == "{name} is read before it is written"
    assert found["{memory_name}_capacity"]["fix"].startswith("use smaller tiles")
    assert {"kernel_exception", "limit_work", "1d_arange_not_supported", "start_partition"} <= found.keys()
    assert [code for code, rule in found.items() if not rule["says"]] == []
    assert "| `uninitialised_read` | {name} is read" in command(capsys, "rules")[1]


def test_the_modules_that_the_page_names_exist() -> None:
    package = Path(cli.__file__).parents[1]
    page = (package.parent / "docs/nki-sim.md").read_text(encoding="utf-8")
    table = page.split("## The modules")[1].split("\n\n")[1]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(names) > 20
    patterns = [name if name.endswith("/") else f"{name}.py" for name in names]
    assert [pattern for pattern in patterns if not list(package.glob(pattern))] == []


def test_every_command_on_the_page_parses() -> None:
    page = (Path(cli.__file__).parents[2] / "docs/nki-sim.md").read_text(encoding="utf-8")
    commands = [line.split("#")[0] for line in page.splitlines() if line.startswith("    nki-sim ")]
    assert len(commands) >= 8
    for line in commands:
        argv = shlex.split(line.replace("...", "--arg 1"))[1:]
        assert cli.parser().parse_args(argv).verb == argv[0]


def test_relative_error_of_equal_arrays_is_zero() -> None:
    assert harness.relative_l2(np.ones(4), np.ones(4)) == 0.0
    assert harness.relative_l2(np.zeros(4), np.ones(4)) == pytest.approx(1.0)


def test_relative_error_is_that_of_the_whole_array(monkeypatch: Any) -> None:
    monkeypatch.setattr(harness, "_BLOCK", 7)
    rng = np.random.default_rng(0)
    wanted, found = rng.standard_normal((3, 11)), rng.standard_normal((3, 11)).astype(np.float32)
    exact = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert harness.relative_l2(found, wanted) == pytest.approx(exact, rel=1e-12)
    found[2, 10] = np.nan
    assert np.isnan(harness.relative_l2(found, wanted))
    assert harness.relative_l2(np.ones(3, dtype=np.int8), np.ones(3, dtype=np.int8)) == 0.0


# -- reference files that draw their own inputs ---------------------------------------------------

KERNEL = """
import nki
import nki.language as nl
import nki.isa as nisa


@nki.jit
def {name}(x, scale):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

REFERENCE = """
import numpy as np

def get_inputs():
    return [np.random.normal(size=(2, 64, 32)).astype(np.float32), 3.0]

def forward(x, scale):
    return x * scale * {factor}

def transform_to_nki_inputs(inputs):
    return [np.reshape(inputs[0], (128, 32)), inputs[1]]

def transform_nki_outputs(k_res, ref):
    return [np.reshape(k_res, ref.shape)]
"""


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    def write(name: str = "kernel", factor: float = 1.0, reference: str = REFERENCE) -> list[Any]:
        kernel, other = tmp_path / "scaled.py", tmp_path / "scaled_numpy.py"
        kernel.write_text(KERNEL.format(name=name))
        other.write_text(reference.replace("{factor}", str(factor)))
        return ["run", kernel, "--reference", other, "--json"]

    return write


@pytest.mark.parametrize("name", ["kernel", "optimized_kernel"])
def test_a_reference_may_draw_the_inputs_and_reshape_both_ways(pair: Any, name: str, capsys: Any) -> None:
    status, out, _ = command(capsys, *pair(name), "--seeds", "0,21,42")
    report = json.loads(out)
    assert (status, report["correct"], report["rel_l2"].keys()) == (0, True, {"0", "21", "42"})
    assert report["seconds"].keys() == {"trace", "run"}


def test_an_error_above_the_tolerance_is_incorrect(pair: Any, capsys: Any) -> None:
    argv = pair(factor=1.0001)
    status, out, _ = command(capsys, *argv)
    assert (status, json.loads(out)["rel_l2"]["0"]) == (1, pytest.approx(1e-4, rel=0.01))
    assert command(capsys, *argv, "--tolerance", "2e-4")[0] == 0


def test_a_result_that_is_no_number_is_incorrect_and_valid_json(pair: Any, capsys: Any) -> None:
    status, out, _ = command(capsys, *pair(factor="np.nan"))
    report = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert (status, report["correct"], report["rel_l2"]) == (1, False, {"0": None})


def test_seeds_must_give_inputs_of_one_shape(pair: Any, capsys: Any) -> None:
    grows = REFERENCE.replace("32)).astype", "np.random.randint(30, 32))).astype")
    status, _, err = command(capsys, *pair(reference=grows), "--seeds", "0,1,2,3,4,5,6,7")
    assert status == 2
    assert "the reference raised ValueError" in err or "other shapes or types" in err


def test_every_outcome_of_run_has_the_same_keys(pair: Any, tmp_path: Path, capsys: Any) -> None:
    good = command(capsys, *pair())[1]
    broken = tmp_path / "broken.py"
    broken.write_text("import nki\n\n@nki.jit\ndef kernel(x):\n    return x.nothing\n")
    usage = command(capsys, "run", broken, "--json", "--arg", "1x")[1]
    fault = command(capsys, "run", broken, "--json", "--arg", "4x4")[1]
    reports = [json.loads(text) for text in (good, usage, fault)]
    assert len({tuple(report) for report in reports}) == 1
    assert reports[1]["error"]["code"] == "invalid_input"
    assert reports[2]["error"]["line"] == 5


def test_errors_show_the_line_they_are_about(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import nki\n\n\n@nki.jit\ndef kernel(x):\n    return 1 / 0  # here\n")
    _, _, err = command(capsys, "run", path, "--arg", "4x4")
    assert err.splitlines()[0].startswith(f"{path}: line 6: kernel_exception: ZeroDivisionError")
    assert err.splitlines()[1] == "    6 | return 1 / 0  # here"


def test_findings_show_the_line_they_are_about(kernel_file: Path, capsys: Any) -> None:
    _, out, _ = command(capsys, "run", kernel_file, "--arg", "128x600")
    lines = out.splitlines()
    place = next(index for index, text in enumerate(lines) if "tensor_output_not_written_to" in text)
    assert lines[place + 1].strip().partition(" | ")[2] in kernel_file.read_text()
    assert lines[place + 2].strip() == "hint: cover every element of the output, also the tails"


def test_a_kernel_may_import_its_neighbours(tmp_path: Path, pair: Any, capsys: Any) -> None:
    argv = pair()
    (tmp_path / "factors_of_this_test.py").write_text("FACTOR = 1.0\n")
    kernel = tmp_path / "scaled.py"
    text = kernel.read_text().replace("operand0=scale", "operand0=scale * FACTOR")
    kernel.write_text("from factors_of_this_test import FACTOR\n" + text)
    assert command(capsys, *argv)[0] == 0


# -- parts of outputs ------------------------------------------------------------------------------

TILED = """
import nki
import nki.language as nl
import nki.isa as nisa


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 128, :])
        nisa.dma_copy(dst=out[row : row + 128, :], src=tile)
    return out
"""


def test_a_slice_is_run_and_compared_alone(tmp_path: Path, capsys: Any) -> None:
    kernel, reference = tmp_path / "tiled.py", tmp_path / "reference.py"
    kernel.write_text(TILED)
    reference.write_text(
        "import numpy as np\ndef forward(x):\n    y = x.copy()\n    y[128:] = 0\n    return y\n"
    )
    argv = ["run", kernel, "--arg", "256x8", "--reference", reference, "--json"]
    assert command(capsys, *argv)[0] == 1
    status, out, _ = command(capsys, *argv, "--slice", "0[0:64,0:8]", "--slice", "0[64:128,2:4]")
    assert (status, json.loads(out)["rel_l2"]) == (0, {"0": 0.0})
    assert command(capsys, *argv, "--slice", "0[100:130,0:8]")[0] == 1


def test_a_slice_follows_the_references_reshaping(pair: Any, capsys: Any) -> None:
    assert command(capsys, *pair(), "--slice", "0[3:5,0:32]")[0] == 0
    assert command(capsys, *pair(factor=1.1), "--slice", "0[3:5,0:32]")[0] == 1


@pytest.mark.parametrize(
    "text", ["0", "0[0:1]x", "[0:1]", "0[0-1]", "0[0:1,]", "1[0:1,0:1]", "0[0:1,0:33]", "0[0:1]"]
)
def test_a_slice_that_is_none_is_usage(text: str, pair: Any, capsys: Any) -> None:
    assert command(capsys, *pair(), "--slice", text)[0] == 2


# -- looking into kernels ---------------------------------------------------------------------------


def test_eager_shows_values_and_compares(pair: Any, tmp_path: Path, capsys: Any) -> None:
    argv = pair()
    kernel = tmp_path / "scaled.py"
    text = kernel.read_text()
    kernel.write_text(
        text.replace("    return out", "    print('first', float(tile.numpy()[0, 0]))\n    return out")
    )
    status, out, err = command(capsys, *argv, "--eager", "--seeds", "0,1")
    report = json.loads(out)
    assert (status, report["correct"], report["rel_l2"]) == (0, True, {"0": 0.0, "1": 0.0})
    first = harness.Reference(argv[3]).inputs(0)[0]
    assert f"first {float(first[0, 0, 0] * 3)}" in err
    assert command(capsys, *argv, "--eager", "--slice", "0[0:1,0:1]")[0] == 2
    assert command(capsys, *pair(factor=1.1), "--eager")[0] == 1


def test_eager_takes_arguments_from_the_command_line(kernel_file: Path, tmp_path: Path, capsys: Any) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text("import numpy as np\ndef forward(x): return np.exp(x) + x\n")
    argv = ("run", kernel_file, "--arg", "128x512", "--reference", reference, "--eager")
    assert command(capsys, *argv)[0] == 0


def test_provenance_says_where_tiles_come_from(tmp_path: Path, capsys: Any) -> None:
    kernel = tmp_path / "tiled.py"
    kernel.write_text(TILED)
    argv = ["trace", kernel, "--arg", "256x8"]
    argv = [*argv, "--provenance"]
    tiles = json.loads(command(capsys, *argv, "tiles", "--json")[1])["provenance"]["tiles"]
    assert [tile["output"]["rows"] for tile in tiles] == [[0, 128], [128, 256]]
    text = command(capsys, *argv, "tiles")[1]
    assert "line 13: out[128:256, 0:8] <- x[128:256, 0:8] (float32)" in text
    found = json.loads(command(capsys, *argv, "0[3,5]", "--json")[1])["provenance"]
    one = {"tensor": "x", "shape": [256, 8], "count": 1, "boxes": [[[3, 4], [5, 6]]]}
    assert found == {"element": "0[3,5]", "elements": [one]}
    assert "\n    x[3, 5]\n" in command(capsys, *argv, "0[3,5]")[1]
    for wrong in ("0[300,5]", "1[0,0]", "0"):
        assert command(capsys, *argv, wrong)[0] == 2


# -- what surrounds a long command -----------------------------------------------------------------


def endless(tmp_path: Path) -> Path:
    kernel = tmp_path / "endless.py"
    kernel.write_text(
        "import nki\n\n\n@nki.jit\ndef kernel(x):\n"
        "    while True:\n        try:\n            pass\n        except BaseException:\n            pass\n"
    )
    return kernel


def test_a_deadline_ends_what_the_kernel_cannot_be_asked_to(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "nki_sim.cli", "run", str(endless(tmp_path)), "--arg", "4x4"]
    done = subprocess.run(
        [*argv, "--deadline", "0.5", "--json"], check=False, capture_output=True, text=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["correct"], report["error"]["code"]) == (3, None, "limit_time")


def test_what_takes_long_says_so_on_stderr(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(watch, "QUIET_S", 0.0)
    with watch.stage("thinking"):
        time.sleep(0.05)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "nki-sim: thinking ..."
    assert last.startswith("nki-sim: thinking: ")


def test_what_is_quick_says_nothing(capsys: Any) -> None:
    with watch.stage("thinking"):
        pass
    assert capsys.readouterr().err == ""
