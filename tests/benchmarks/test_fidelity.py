"""Predictions beside measurements: what is found, how it is scored, and that nothing is dropped silently."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fidelity
from benchmarks.measured import cases, fit
from benchmarks.measured.cases import Case, CaseError
from nki_sim.targets import Target

HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
KERNEL = """

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128:(i + 1) * 128])
        for _ in range({times}):
            nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128], src=tile)
    return out
"""
REFERENCE = """
import numpy as np

def get_inputs():
    return [np.zeros((256, 512), dtype=np.float32)]

def forward(x):
    return np.exp(x)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kernel(path: Path, times: int = 1) -> Path:
    return write(path, HEADER + KERNEL.format(times=times))


def checkout(root: Path, **problems: int | None) -> Path:
    """A checkout with a kernel per problem, which applies its function so often; None: one that is broken."""
    summary = {}
    for name, times in problems.items():
        file = f"kernels/{name}_M256_0.py"
        if times is None:
            write(root / "NKIBench" / file, HEADER + "@nki.jit\ndef kernel(x):\n    return nothing\n")
        else:
            kernel(root / "NKIBench" / file, times)
        impl = {"task": f"./reference/{name}.py", "kernel": f"./{file}"}
        write(root / "NKIBench/reference" / f"{name}.py", REFERENCE)
        summary[name] = {"cases": {"2": {"values": {"M": 256, "N": 512}, "impls": [impl]}}}
    write(root / "NKIBench/summary.json", json.dumps(summary))
    return root


def row(problem: str, latency: float = 0.02, **changes: Any) -> dict[str, Any]:
    measured = {
        "latency": latency,
        "hbm_read_bytes": 256 * 512 * 4,
        "spill_save_bytes": 0,
        "no_such_field": 7,
    }
    plain = {"problem": problem, "config": {"N": 512, "M": 256}, "platform": "trn1", "measured": measured}
    return {**plain, **changes}


def data(path: Path, *rows: dict[str, Any]) -> Path:
    return write(path, json.dumps({"kernels": rows}))


def result_of(capsys: Any, *argv: Any) -> tuple[int, dict[str, Any]]:
    status = fidelity.main([str(item) for item in (*argv, "--json", "--timeout", 100)])
    return status, json.loads(capsys.readouterr().out)


# -- the command -----------------------------------------------------------------------------------


def test_kernels_are_matched_predicted_and_scored_and_failures_are_counted(
    tmp_path: Path, capsys: Any
) -> None:
    root = checkout(tmp_path / "corpus", short=1, long=8, broken=None)
    rows = [
        row("short", 0.02),
        row("long", 0.1),
        row("broken"),
        row("missing"),
        row("short", config={"M": 1}),
    ]
    status, result = result_of(
        capsys, "--corpus", root, "--data", data(tmp_path / "d.json", *rows), "--programs", tmp_path / "p"
    )
    assert (status, result["found"], result["predicted"], result["failed"]) == (1, 5, 2, 3)
    why = {item["kernel"]: item["error"] for item in result["failures"]}
    assert "kernel_exception" in why["broken_M256_0"]
    assert "no kernel of this problem" in why["missing_N512_M256"]
    assert "no kernel of this problem" in why["short_M1"]
    assert list(result["overall"]) == [
        "median_ape_percent", "worst_ape_percent", "spearman", "kendall", "pairwise_order_percent",
    ]  # fmt: skip
    assert set(result["baselines"]) == {
        "bytes_over_bandwidth", "flops_over_peak", "roofline", "busiest_engine", "sum_of_costs",
    }  # fmt: skip
    assert all(entry.keys() == result["overall"].keys() for entry in result["baselines"].values())
    assert result["overall"]["pairwise_order_percent"] == 100.0
    short = result["kernels"][0]
    assert short["ratio"] == short["predicted_ms"] / short["measured_ms"]
    assert short["lo_ms"] <= short["predicted_ms"] <= short["hi_ms"]
    assert short["counters"].keys() == {"hbm_read_bytes", "spill_save_bytes"}
    assert short["counters"]["hbm_read_bytes"]["relative_error"] == 0.0
    # The programs are kept: a second run predicts the same from them.
    _, again = result_of(
        capsys, "--corpus", root / "NKIBench", "--data", tmp_path / "d.json", "--programs", tmp_path / "p",
        "--only", "short_M256", "--no-interval",
    )  # fmt: skip
    assert [one["predicted_ms"] for one in again["kernels"]] == [short["predicted_ms"]]
    assert again["kernels"][0]["lo_ms"] is None


def test_variants_are_ordered_within_their_list(tmp_path: Path, capsys: Any) -> None:
    kernels = [{"file": kernel(tmp_path / f"k{times}.py", times).name} for times in (1, 4, 12)]
    for entry, latency in zip(kernels, (0.02, 0.021, 0.1), strict=True):
        entry["latency_ms"] = latency
    lists = [
        {"problem": "by_args", "args": ["256x512"], "kernels": kernels},
        {
            "problem": "by_reference",
            "reference": write(tmp_path / "r.py", REFERENCE).name,
            "kernels": kernels,
        },
    ]
    file = write(tmp_path / "pairs.json", json.dumps(lists))
    status, result = result_of(capsys, "--pairs", file, "--no-interval", "--target", "trn2")
    assert (status, result["predicted"]) == (0, 6)
    first, second = result["groups"].values()
    assert first == second
    assert (first["kernels"], first["pairs"]) == (3, 2)  # 0.02 and 0.021 are too near to be a pair
    assert result["overall"]["pairwise_order_percent"] == 100.0
    assert {one["platform"] for one in result["kernels"]} == {"trn2"}


def test_people_get_lines(tmp_path: Path, capsys: Any) -> None:
    root = checkout(tmp_path / "corpus", short=1)
    argv = [
        "--corpus",
        root,
        "--data",
        data(tmp_path / "d.json", row("short"), row("gone")),
        "--timeout",
        "100",
    ]
    assert fidelity.main([str(item) for item in argv]) == 1
    printed = capsys.readouterr()
    assert "of 2 done: short_M256_0" in printed.err
    assert "ratio" not in printed.err
    for said in ("predicted", "ratio", "hbm_read_bytes", "median APE", "busiest_engine", "failed: no kernel"):
        assert said in printed.out
    assert re.search(r"counter +unit +measured +predicted +error\n", printed.out)
    assert re.search(r"hbm_read_bytes +bytes +524288 +524288 +0\.00 %\n", printed.out)
    assert re.search(r"measured inside the predicted interval: [01] of 1\n", printed.out)
    assert "in-sample" in printed.out


def test_profiles_without_a_corpus_are_one_error(tmp_path: Path, capsys: Any) -> None:
    file = data(tmp_path / "d.json", row("short"), row("long"))
    assert fidelity.main(["--data", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "--data needs --corpus" in printed.err


@pytest.mark.slow
def test_a_kernel_that_takes_too_long_is_named(tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "slow.py", "import time\ntime.sleep(60)\n")
    lists = {"problem": "slow", "args": ["128x512"], "kernels": [{"file": file.name, "latency_ms": 1.0}]}
    pairs = write(tmp_path / "pairs.json", json.dumps(lists))
    assert fidelity.main(["--pairs", str(pairs), "--timeout", "3", "--json"]) == 1
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure["error"] == "not done after 3 s"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("--data", "[", "is not JSON"),
        ("--data", '{"kernels": 3}', "is not of the form"),
        ("--data", '{"kernels": [{"problem": "x"}]}', "kernels[0] is no measured profile"),
        ("--data", '{"kernels": []}', "nothing to compare"),
        ("--pairs", "{}", "holds no list of variants"),
        ("--pairs", '{"p": 3}', "is not of the form"),
        ("--pairs", "[]", "holds no list of variants"),
        ("--pairs", '[{"kernels": [{"latency_ms": 1}]}]', 'no object with a "file"'),
        ("--pairs", '[{"kernels": [{"file": "x", "latency_ms": "fast"}]}]', "no numbers were measured"),
    ],
)
def test_files_that_are_not_what_they_should_be_are_refused(
    file: str, text: str, said: str, tmp_path: Path, capsys: Any
) -> None:
    root = checkout(tmp_path / "corpus", short=1)
    path = write(tmp_path / "file.json", text)
    assert fidelity.main(["--corpus", str(root), file, str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_a_summary_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert fidelity.main(["--corpus", str(tmp_path), "--data", str(tmp_path / "none")]) == 2
    assert "NKIBench checkout" in capsys.readouterr().err
    write(tmp_path / "summary.json", '{"silu": {}}')
    assert fidelity.main(["--corpus", str(tmp_path), "--data", str(tmp_path / "none")]) == 2
    assert "is not an NKIBench summary" in capsys.readouterr().err


# -- matching --------------------------------------------------------------------------------------


def test_profiles_of_other_platforms_are_left_out_when_one_is_asked_for(tmp_path: Path) -> None:
    found = cases.corpus(checkout(tmp_path, short=1))
    file = data(tmp_path / "d.json", row("short"), row("short", platform="gen3"))
    assert [case.target for case in cases.profiles(file, found, None)] == ["trn1", "trn2"]
    assert [case.target for case in cases.profiles(file, found, "trn2")] == ["trn2"]


@pytest.mark.parametrize(
    ("group", "reference", "args"),
    [
        ({"problem": "short", "config": {"M": 256, "N": 512}}, "short.py", ()),
        ({"problem": "short"}, "short.py", ()),  # it is the problem's only kernel
        ({"problem": "short", "args": ["1x2"]}, None, ("1x2",)),
        ({"problem": "other", "reference": "NKIBench/reference/short.py"}, "short.py", ()),
        ({"problem": "other"}, None, ()),
    ],
)
def test_variants_find_how_their_arguments_are_made(
    group: dict[str, Any], reference: str | None, args: tuple[str, ...], tmp_path: Path
) -> None:
    root = checkout(tmp_path, short=1)
    told = {**group, "kernels": [{"path": "NKIBench/kernels/short_M256_0.py", "measured": {"latency": 1}}]}
    file = write(tmp_path / "lists" / "p.json", json.dumps({"groups": [told]}))
    (case,) = cases.Lists(file, [root], cases.corpus(root), "trn1").cases()
    assert (case.reference and case.reference.name, case.args) == (reference, args)
    assert case.kernel is not None
    assert case.kernel.is_file()
    assert (case.fault is None) == bool(reference or args)


KERNELS = [{"file": "a.py", "latency_ms": 1.0}, {"file": "b.py", "latency_ms": 2.0}]


@pytest.mark.parametrize(
    "value",
    [
        {"problem": "p", "kernels": KERNELS},
        [{"problem": "p", "kernels": KERNELS}],
        {"pairs": [{"problem": "p", "kernels": KERNELS}]},
        {"p": KERNELS},
        {"groups": {"p": {"kernels": KERNELS}}},
        [{"problem": "p", **entry} for entry in KERNELS],
        [
            {"problem": "p", "path": entry["file"], "measured": {"latency": entry["latency_ms"]}}
            for entry in KERNELS
        ],
    ],
)
def test_lists_of_variants_may_be_written_in_several_ways(value: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "p.json", json.dumps(value))
    found = cases.Lists(file, [], [], "trn1").cases()
    assert [(case.name, case.problem, case.measured) for case in found] == [
        ("a", "p", {"latency": 1.0}), ("b", "p", {"latency": 2.0}),
    ]  # fmt: skip
    assert len({case.group for case in found}) == 1


def test_what_cannot_be_predicted_says_why(tmp_path: Path) -> None:
    case = Case("a", "p", "trn1", {"latency": 1.0}, kernel=tmp_path / "none.py", args=("1x2",))
    assert case.fault == f"no file {tmp_path / 'none.py'}"
    there = kernel(tmp_path / "k.py")
    assert Case("a", "p", "trn1", {}, kernel=there, args=("1x2",)).fault == "no measured latency"


# -- fits ------------------------------------------------------------------------------------------


def test_fitted_constants_are_constants_of_the_tables() -> None:
    known = {field.name for field in fields(Target)}
    assert known >= fit.FITTED.keys()
    assert all(one.low < one.high for one in fit.FITTED.values())


def test_constants_to_fit_can_be_named() -> None:
    assert fit.chosen(None) is fit.FITTED
    named = fit.chosen("semaphore_ns=50:200,tensor_overhead_cycles")
    assert named["semaphore_ns"] == fit.Range(50, 200, compiles=True)
    assert named["tensor_overhead_cycles"] == fit.FITTED["tensor_overhead_cycles"]
    for wrong in ("no_such_constant", "semaphore_ns=low:high", "name"):
        with pytest.raises(CaseError):
            fit.chosen(wrong)


@pytest.mark.slow
def test_a_fit_finds_the_constant_that_made_the_measurements(tmp_path: Path, capsys: Any) -> None:
    """Latencies are made with another value than the table has; one kernel is predicted from the other."""
    root = checkout(tmp_path / "corpus", a=2, b=9)
    ranges = fit.chosen("scalar_overhead_sbuf_cycles=100:500")
    blind = data(tmp_path / "blind.json", *(row(name, 1.0) for name in "ab"))
    programs = tmp_path / "p"
    argv = ["--corpus", str(root), "--programs", str(programs), "--json", "--no-interval"]
    assert fidelity.main([*argv, "--data", str(blind)]) == 0
    found = cases.profiles(blind, cases.corpus(root), None)
    with fit.Timer(found, programs, 1, ranges) as timer:
        made = timer.latencies_ms([(number, {"scalar_overhead_sbuf_cycles": 400}) for number in range(2)])
    rows = [row(name, latency) for name, latency in zip("ab", made, strict=True)]
    file = data(tmp_path / "d.json", *rows)
    capsys.readouterr()
    options = [
        "--data",
        str(file),
        "--fit",
        "--leave-one-out",
        "--constants",
        "scalar_overhead_sbuf_cycles=100:500",
    ]
    assert fidelity.main([*argv, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fit"]["constants"]["scalar_overhead_sbuf_cycles"] == pytest.approx(400, abs=1)
    assert result["leave_one_out"]["overall"]["worst_ape_percent"] < 1.0
    said = "\n".join(fit.lines(result))
    assert "fitted on the others" in said
    for one in result["leave_one_out"]["kernels"]:
        assert f"measured {one['measured_ms']:.3f} ms, predicted {one['predicted_ms']:.3f} ms" in said
        assert one["outside"] == ["scalar_overhead_sbuf_cycles"]
    assert "outside the range that intervals assume: scalar_overhead_sbuf_cycles" in said


def test_a_constant_that_is_not_there_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert fidelity.main(["--data", str(tmp_path / "x"), "--constants", "no_such"]) == 2
    assert "no 'no_such'" in capsys.readouterr().err
