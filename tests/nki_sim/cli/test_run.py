"""`nki-sim run`: inputs, references, tolerances, slices, eager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nki_sim import harness
from tests.nki_sim.cli.conftest import REFERENCE


def test_run_compares_with_a_reference(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    reference = tmp_path / "reference.py"
    for factor, status in ((1.0, 0), (1.001, 1)):
        reference.write_text(f"import numpy as np\ndef forward(x): return np.exp(x) * {factor} + x\n")
        argv = ("run", kernel_file, "--arg", "128x512", "--reference", reference, "--seeds", "0,21", "--json")
        found, out, _ = cli(*argv)
        report = json.loads(out)
        assert (found, report["correct"]) == (status, status == 0)
        assert report["rel_l2"].keys() == {"0", "21"}
        assert report["error"] is None
        assert report["counters"]["hbm_read_bytes"] == 128 * 512 * 4


def test_run_without_a_reference_claims_nothing(kernel_file: Path, cli: Any) -> None:
    status, out, _ = cli("run", kernel_file, "--arg", "128x512:float32", "--json")
    assert (status, json.loads(out)["correct"]) == (0, None)


@pytest.mark.parametrize("name", ["kernel", "optimized_kernel"])
def test_a_reference_may_draw_the_inputs_and_reshape_both_ways(pair: Any, name: str, cli: Any) -> None:
    status, out, _ = cli(*pair(name), "--seeds", "0,21,42")
    report = json.loads(out)
    assert (status, report["correct"], report["rel_l2"].keys()) == (0, True, {"0", "21", "42"})
    assert report["seconds"].keys() == {"trace", "run"}


def test_an_error_above_the_tolerance_is_incorrect(pair: Any, cli: Any) -> None:
    argv = pair(factor=1.0001)
    status, out, _ = cli(*argv)
    assert (status, json.loads(out)["rel_l2"]["0"]) == (1, pytest.approx(1e-4, rel=0.01))
    assert cli(*argv, "--tolerance", "2e-4")[0] == 0


def test_a_result_that_is_no_number_is_incorrect_and_valid_json(pair: Any, cli: Any) -> None:
    status, out, _ = cli(*pair(factor="np.nan"))
    report = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert (status, report["correct"], report["rel_l2"]) == (1, False, {"0": None})


def test_seeds_must_give_inputs_of_one_shape(pair: Any, cli: Any) -> None:
    grows = REFERENCE.replace("32)).astype", "np.random.randint(30, 32))).astype")
    status, _, err = cli(*pair(reference=grows), "--seeds", "0,1,2,3,4,5,6,7")
    assert status == 2
    assert "the reference raised ValueError" in err or "other shapes or types" in err


def test_a_kernel_may_import_its_neighbours(tmp_path: Path, pair: Any, cli: Any) -> None:
    argv = pair()
    (tmp_path / "factors_of_this_test.py").write_text("FACTOR = 1.0\n")
    kernel = tmp_path / "scaled.py"
    text = kernel.read_text().replace("operand0=scale", "operand0=scale * FACTOR")
    kernel.write_text("from factors_of_this_test import FACTOR\n" + text)
    assert cli(*argv)[0] == 0


def test_a_reference_may_import_its_neighbours(tmp_path: Path, pair: Any, cli: Any) -> None:
    argv = pair(
        reference="from factors_of_that_test import FACTOR\n" + REFERENCE.replace("{factor}", "FACTOR")
    )
    (tmp_path / "factors_of_that_test.py").write_text("FACTOR = 1.0\n")
    assert cli(*argv)[0] == 0


@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_inputs_of_a_type_that_devices_lack_are_usage(eager: Any, pair: Any, cli: Any) -> None:
    argv = pair(reference=REFERENCE.replace(".astype(np.float32)", ""))
    status, out, err = cli(*argv, *eager)
    assert (status, json.loads(out)["correct"]) == (2, None)
    assert err.startswith("nki-sim: an argument is an array of float64; use one of ")


def test_a_slice_is_run_and_compared_alone(tiled_file: Path, tmp_path: Path, cli: Any) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text(
        "import numpy as np\ndef forward(x):\n    y = x.copy()\n    y[128:] = 0\n    return y\n"
    )
    argv = ["run", tiled_file, "--arg", "256x8", "--reference", reference, "--json"]
    assert cli(*argv)[0] == 1
    status, out, _ = cli(*argv, "--slice", "0[0:64,0:8]", "--slice", "0[64:128,2:4]")
    assert (status, json.loads(out)["rel_l2"]) == (0, {"0": 0.0})
    assert cli(*argv, "--slice", "0[100:130,0:8]")[0] == 1


def test_a_slice_follows_the_references_reshaping(pair: Any, cli: Any) -> None:
    assert cli(*pair(), "--slice", "0[3:5,0:32]")[0] == 0
    assert cli(*pair(factor=1.1), "--slice", "0[3:5,0:32]")[0] == 1


@pytest.mark.parametrize(
    "text", ["0", "0[0:1]x", "[0:1]", "0[0-1]", "0[0:1,]", "1[0:1,0:1]", "0[0:1,0:33]", "0[0:1]"]
)
def test_a_slice_that_is_none_is_usage(text: str, pair: Any, cli: Any) -> None:
    assert cli(*pair(), "--slice", text)[0] == 2


def test_eager_shows_values_and_compares(pair: Any, tmp_path: Path, cli: Any) -> None:
    argv = pair()
    kernel = tmp_path / "scaled.py"
    text = kernel.read_text()
    kernel.write_text(
        "import nki_sim\n"
        + text.replace(
            "    return out", "    print('first', float(nki_sim.read_values(tile)[0, 0]))\n    return out"
        )
    )
    status, out, err = cli(*argv, "--eager", "--seeds", "0,1")
    report = json.loads(out)
    assert (status, report["correct"], report["rel_l2"]) == (0, True, {"0": 0.0, "1": 0.0})
    first = harness.ReferenceModule(argv[3]).draw_inputs(0)[0]
    assert f"first {float(first[0, 0, 0] * 3)}" in err
    assert cli(*argv, "--eager", "--slice", "0[0:1,0:1]")[0] == 2
    assert cli(*pair(factor=1.1), "--eager")[0] == 1


def test_eager_takes_arguments_from_the_command_line(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text("import numpy as np\ndef forward(x): return np.exp(x) + x\n")
    argv = ("run", kernel_file, "--arg", "128x512", "--reference", reference, "--eager")
    assert cli(*argv)[0] == 0


# -- what kernel and reference are given ----------------------------------------------------------


@pytest.fixture
def scaled(pair: Any) -> tuple[Path, Path]:
    """A kernel of an array and a number, and a reference that draws nothing."""
    _, kernel, _, reference, _ = pair()
    reference.write_text("def forward(x, scale): return x * scale\n")
    return kernel, reference


@pytest.mark.parametrize("eager", [(), ("--eager",)])
def test_numbers_reach_the_reference(eager: Any, scaled: Any, cli: Any) -> None:
    kernel, reference = scaled
    argv = ("run", kernel, "--arg", "128x32", "--arg", "2.5", "--reference", reference, *eager, "--json")
    status, out, _ = cli(*argv)
    assert (status, json.loads(out)["rel_l2"]) == (0, {"0": 0.0})


def test_inputs_that_are_drawn_here_are_documented(scaled: Any, cli: Any) -> None:
    kernel, reference = scaled
    reference.write_text(
        "import numpy as np\n"
        "def forward(x, scale):\n"
        "    wanted = np.random.default_rng(7).standard_normal((128, 32)).astype(np.float32)\n"
        "    assert np.array_equal(x, wanted)\n"
        "    return x * scale\n"
    )
    argv = ("run", kernel, "--arg", "128x32", "--arg", "2", "--reference", reference, "--seeds", "7")
    status, out, err = cli(*argv)
    assert (status, err) == (0, "")
    assert f"\ninputs: {harness.RANDOM}\n" in out


def test_arguments_go_before_inputs_of_the_reference_and_say_so(pair: Any, tmp_path: Path, cli: Any) -> None:
    """They stand for what `get_inputs` returns, so what follows it is done with them too."""
    argv = pair()
    status, out, err = cli(*argv)
    assert (status, err) == (0, "")
    assert json.loads(out)["inputs"].startswith("get_inputs() of ")
    status, out, err = cli(*argv, "--arg", "8x16x32", "--arg", "0.5")
    report = json.loads(out)
    assert (status, report["correct"], report["inputs"]) == (0, True, harness.RANDOM)
    assert report["counters"]["hbm_read_bytes"] == 8 * 16 * 32 * 4
    assert err == f"nki-sim: --arg is given: get_inputs() of {tmp_path / 'scaled_numpy.py'} is not called\n"


def test_a_reference_that_ends_the_process_is_at_fault(scaled: Any, cli: Any) -> None:
    kernel, reference = scaled
    reference.write_text("import sys\ndef forward(x, scale):\n    sys.exit(0)\n")
    status, _, err = cli("run", kernel, "--arg", "128x32", "--arg", "2", "--reference", reference)
    assert status == 2
    assert f"{reference} line 3: the reference raised SystemExit" in err


def test_an_exact_result_is_within_a_tolerance_of_zero(pair: Any, cli: Any) -> None:
    assert cli(*pair(), "--tolerance", "0")[0] == 0


# -- for people -----------------------------------------------------------------------------------


def test_figures_have_units_and_predictions_say_so(pair: Any, cli: Any) -> None:
    argv = [item for item in pair() if item != "--json"]
    lines = [line.strip() for line in cli(*argv, "--slice", "0[0:1,0:1]")[1].splitlines()]
    assert "counters (of the whole kernel, predicted):" in lines
    counted = lines[lines.index("counters (of the whole kernel, predicted):") + 1 : lines.index("seconds:")]
    units = {line.split(": ")[0]: line.split(" ", 2)[2] for line in counted if line.count(" ") > 1}
    assert units["total_time"] == "s predicted"
    assert units["hbm_read_bytes"] == "bytes"
    assert units["dma_active_time_percent"] == "% predicted"
    bare = {line.split(": ")[0] for line in counted} - units.keys()
    assert {name for name in bare if not name.endswith("count")} == set()
    assert [line.endswith(" s, taken here") for line in lines[lines.index("seconds:") + 1 :]] == [True, True]


def test_what_was_not_judged_says_why(kernel_file: Path, cli: Any) -> None:
    out = cli("run", kernel_file, "--arg", "128x512")[1]
    assert "correct: not judged, there is no --reference\n" in out
    assert "checks: no rule is broken\n" in out
