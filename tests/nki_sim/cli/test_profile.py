"""`nki-sim profile` and `nki-sim compare`: what people see, what files hold, what tools read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nki_sim import targets
from nki_sim.cli import compare, profile, profile_text
from nki_sim.timing.bounds import MinimalWork, plain_bound

ARGS = ("--arg", "256x1024")


@pytest.fixture
def slow_file(tmp_path: Path, texts: Any) -> Path:
    """The same stream, with tiles that the kernel keeps in one place."""
    path = tmp_path / "slow.py"
    source: str = texts.source_of(texts.stream(fresh=False))
    for byte in (0, 65536):
        source = source.replace("buffer=nl.sbuf)", f"buffer=nl.sbuf, address=(0, {byte}))", 1)
    path.write_text(source)
    return path


def test_a_profile_is_a_screen_for_people(kernel_file: Path, cli: Any) -> None:
    status, out, _ = cli("profile", kernel_file, *ARGS)
    lines = out.splitlines()
    assert status == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("kernel on trn2: ")
    assert " predicted (" in lines[0]
    assert out == cli("profile", kernel_file, *ARGS, "--text")[1]
    for part in (
        "waits for",
        "critical path (adds up to",
        "nisa.tensor_tensor(",
        "SBUF peak",
        "HBM  predicted: read",
    ):
        assert part in out
    assert "what if  " in out


def test_each_engine_adds_up_to_a_hundred_percent(kernel_file: Path, cli: Any) -> None:
    lines = cli("profile", kernel_file, *ARGS)[1].splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("engine"))
    table = "\n".join(lines[first + 1 : lines.index("", first)])
    rows = re.split(r"\n(?=\w)", table)
    assert sorted(row.split()[0] for row in rows) == ["dma", "scalar", "vector"]
    for row in rows:
        assert sum(int(share) for share in re.findall(r"(\d+)%", row)) == 100
        assert "overhead" in row


def test_shares_are_rounded_together() -> None:
    track = {"busy_ms": 1.0, "done_ms": 0.0, "waits": [{"cause": "port", "on": "vector", "ms": 1.0}]}
    assert profile_text.latency_shares(track, 1.0, 3.0) == [
        ("busy", 34),
        ("vector port", 33),
        ("overhead", 33),
    ]
    few = {**track, "waits": [{"cause": "start", "on": "", "ms": 0.004}] * 3}
    assert profile_text.latency_shares(few, 0.0, 1.012) == [("busy", 99), ("other", 1)]


def test_a_tile_that_keeps_iterations_apart_is_a_hint(slow_file: Path, kernel_file: Path, cli: Any) -> None:
    slow = " ".join(cli("profile", slow_file, "--arg", "1024x512")[1].split())
    assert re.search(
        r"hint: t of line \d+ keeps one place for all iterations: iterations wait for each other", slow
    )
    assert "hint" not in cli("profile", kernel_file, "--arg", "1024x512")[1]


def test_transfers_are_told_by_what_they_cost(kernel_file: Path, cli: Any) -> None:
    out = " ".join(cli("profile", kernel_file, "--arg", "128x512")[1].split())
    assert "2 transfers, 0 at the fixed cost of a small one (0.25 us), 262.1 KB on average" in out
    assert "most time goes to that fixed cost" not in out


def test_long_programs_are_asked_what_if_on_demand(kernel_file: Path, monkeypatch: Any, cli: Any) -> None:
    monkeypatch.setattr(profile, "MAX_WHAT_IFS", 3)
    assert json.loads(cli("profile", kernel_file, *ARGS, "--json")[1])["what_ifs"] == []
    asked = json.loads(cli("profile", kernel_file, *ARGS, "--json", "--what-if")[1])["what_ifs"]
    fields = {"assumption", "latency_ms", "saved_ms", "saved_percent", "measured_pairs", "pairs_within"}
    assert fields == set(asked[0])
    assert {item["assumption"] for item in asked} >= {"dma free", "no dependences"}


def test_memory_over_time_is_thinned_out_in_a_report(kernel_file: Path, cli: Any) -> None:
    report = json.loads(cli("profile", kernel_file, "--arg", "4096x4096", "--json")[1])
    for use in report["explanation"]["occupancy"]:
        assert len(use["over_time"]) <= profile.POINTS
        assert max(point["used"] for point in use["over_time"]) == use["peak"]


@pytest.mark.parametrize("convention", ["explorer", "legacy"])
def test_counters_and_the_summary_file_follow_a_convention(
    convention: str, kernel_file: Path, tmp_path: Path, cli: Any
) -> None:
    path = tmp_path / "summary.json"
    argv = ("profile", kernel_file, *ARGS, "--counters", convention, "--summary-json", path, "--json")
    report = json.loads(cli(*argv, "--target", "trn1")[1])
    (fields,) = json.loads(path.read_text()).values()
    assert report["counters_convention"] == convention
    scale = 100 if convention == "explorer" else 1
    assert fields.keys() == report["counters"].keys()
    for name, value in report["counters"].items():
        if "dma_active" not in name:  # a profiler counts a transfer until it is known to be complete
            assert fields[name] == pytest.approx(value / scale if name.endswith("_percent") else value)
    assert fields["dma_active_time"] > report["counters"]["dma_active_time"]
    rows = 128 if convention == "explorer" else 1
    # Written by DMA in all partitions, and by activation as the convention counts; tensor_tensor or not.
    engines = report["counters"]["sbuf_write_bytes"] - report["counters"]["hbm_read_bytes"]
    assert engines == 4 * 512 * rows * 4 * (2 if convention == "explorer" else 1)


def test_a_trace_is_written_next_to_the_report(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "trace.json"
    report = json.loads(cli("profile", kernel_file, *ARGS, "--trace", path, "--json")[1])
    content = json.loads(path.read_text())
    assert content["otherData"]["latency_ms"] == report["predicted"]["latency_ms"]
    sources = {event["args"]["source"] for event in content["traceEvents"] if "source" in event["args"]}
    assert sources <= {f"{kernel_file.name}:{line}" for line in range(1, 60)}
    assert sources


def test_a_trace_that_cannot_be_written_is_said(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    status, _, err = cli("profile", kernel_file, *ARGS, "--trace", tmp_path / "none" / "trace.json")
    assert status == 2
    assert "none/trace.json: No such file" in err


def test_the_problem_may_say_its_work(kernel_file: Path, cli: Any) -> None:
    work = "read_bytes=1000000000,write_bytes=0,matmul_flops=10,matmul_dtype=bfloat16"
    report = json.loads(cli("profile", kernel_file, *ARGS, "--work", work, "--json")[1])
    found = report["explanation"]["roofline"]
    wanted = MinimalWork(read_bytes=10**9, write_bytes=0, matmul_flops=10, matmul_dtype="bfloat16")
    assert (found["work_of"], found["plain_ms"]) == ("problem", plain_bound(wanted, targets.load("trn2")))
    assert (found["model_bound_ms"], found["percent_of_model_bound"]) == (
        found["tight_ms"], found["tight_percent"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("", "'' is not NAME=VALUE; an example: read_bytes="),
        ("read_bytes", "'read_bytes' is not NAME=VALUE"),
        ("read_bytes=1", "write_bytes missing"),
        ("matmul_flops=1", "read_bytes and write_bytes missing"),
        ("read_bytes=x,write_bytes=1", "read_bytes=x: a whole number from 0 is wanted"),
        ("more=1", "'more' is unknown; there are read_bytes, write_bytes, matmul_flops"),
        ("read_bytes=-1,write_bytes=1", "read_bytes=-1: a whole number from 0 is wanted"),
        ("read_bytes=1,read_bytes=1", "read_bytes is given twice"),
        (
            "read_bytes=1,write_bytes=1,elementwise_dtype=wide",
            "elementwise_dtype=wide: no data type; there are tfloat32, float32, bfloat16",
        ),
    ],
)
def test_work_that_is_none_is_refused_with_the_reason(
    work: str, said: str, kernel_file: Path, cli: Any
) -> None:
    status, _, err = cli("profile", kernel_file, *ARGS, "--work", work)
    assert status == 2
    assert f"argument --work: {said}" in err


def test_files_that_are_written_are_said(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    trace, summary = tmp_path / "trace.json", tmp_path / "summary.json"
    _, _, err = cli("profile", kernel_file, *ARGS, "--trace", trace, "--summary-json", summary)
    assert err.splitlines() == [
        f"nki-sim: wrote a trace for ui.perfetto.dev to {trace}",
        f"nki-sim: wrote the predicted counters (explorer) to {summary}",
    ]


def test_nothing_is_written_of_a_kernel_that_breaks_rules(
    kernel_file: Path, tmp_path: Path, cli: Any
) -> None:
    unwritten, trace = tmp_path / "unwritten.py", tmp_path / "trace.json"
    unwritten.write_text(kernel_file.read_text().replace("        nisa.dma_copy(dst=out[part], src=u)\n", ""))
    status, _, err = cli("profile", unwritten, *ARGS, "--trace", trace)
    assert status == 1
    assert f"nki-sim: the kernel breaks rules: nothing is written to {trace}" in err
    assert not trace.exists()


def test_a_trace_goes_to_standard_output_alone(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        kernel_file.read_text().replace("    m, n = x.shape\n", "    m, n = x.shape\n    print(m)\n")
    )
    status, out, err = cli("profile", noisy, *ARGS, "--trace", "-")
    assert status == 0
    assert json.loads(out)["otherData"]["predicted"]
    assert "256\n" in err
    assert "critical path (adds up to" in err
    status, out, err = cli("profile", noisy, *ARGS, "--trace", "-", "--json")
    assert status == 2
    assert json.loads(out)["error"]["message"].startswith("--trace - and --json")


@pytest.mark.parametrize(("speedup", "small"), [(1.0049, True), (1.0051, False)])
def test_gains_below_what_the_model_resolves_are_too_small_to_tell(speedup: float, small: bool) -> None:
    predicted = {"latency_ms": 1.0, "lo_ms": 0.9, "hi_ms": 1.1, "draws_ms": [1.0] * 4, "unlike": ""}
    kernel = {"predicted": predicted, "bottleneck": "dma", "file": "k.py"}
    found = {
        "a_ms": 1.0, "b_ms": 1.0, "faster": "b", "speedup": speedup, "share_of_draws": 1.0,
        "order_percent": 90.0, "same_outputs": True, "reasons": [],
    }  # fmt: skip
    said = " ".join(compare._format_head({"comparison": found, "kernels": [kernel, kernel]}))
    assert ("too small to tell" in said) is small
    assert ("wins in 100% of the draws (of 4)" in said) is not small


def test_a_second_kernel_is_for_compare(kernel_file: Path, cli: Any) -> None:
    status, _, err = cli("profile", kernel_file, kernel_file, *ARGS)
    assert status == 2
    assert "two by nki-sim compare A.py B.py" in err
    assert "compare" not in cli("profile", kernel_file, "--no-such")[2].splitlines()[-1]


def test_a_number_for_an_array_is_a_hint(kernel_file: Path, cli: Any) -> None:
    status, _, err = cli("profile", kernel_file, "--arg", "2048")
    assert status == 3
    assert "arrays are written SHAPE:DTYPE, 2048:float32 is one of one dimension" in err


def test_compare_says_who_wins_and_why(kernel_file: Path, slow_file: Path, cli: Any) -> None:
    argv = ("compare", slow_file, kernel_file, "--arg", "1024x2048")
    status, out, _ = cli(*argv, "--json")
    report = json.loads(out)
    found = report["comparison"]
    assert status == 0
    assert [kernel["file"] for kernel in report["kernels"]] == [str(slow_file), str(kernel_file)]
    assert (found["faster"], found["share_of_draws"]) == ("b", 1.0)
    times = [kernel["predicted"]["latency_ms"] for kernel in report["kernels"]]
    assert times == [found["a_ms"], found["b_ms"]]
    assert found["instructions"] == []
    assert found["same_outputs"]
    text = cli(*argv)[1]
    assert max(map(len, text.splitlines())) <= 80
    assert "b is predicted to be " in text
    assert "wins in 100% of" in text
    assert 50 < found["order_percent"] < 100, "draws that all agree do not make an order certain"
    assert f"makes the order {found['order_percent']:.0f} % sure" in " ".join(text.split())
    path = [line.split()[0] for line in text.partition("most of it\n")[2].splitlines()]
    assert path == [part["part"] for part in found["path"] if abs(part["a_ms"] - part["b_ms"]) > 1e-6]
    assert "e-" not in text


def test_other_outputs_are_other_work(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    narrow = tmp_path / "narrow.py"
    text = kernel_file.read_text()
    narrow.write_text(
        text.replace("(m, n), dtype=x.dtype, buffer=nl.shared", "(m, n), nl.bfloat16, buffer=nl.shared")
    )
    assert "their outputs differ" in cli("compare", kernel_file, narrow, *ARGS)[1]
    assert "their outputs differ" not in cli("compare", kernel_file, kernel_file, *ARGS)[1]


def test_a_kernel_is_not_faster_than_itself(kernel_file: Path, cli: Any) -> None:
    out = cli("compare", kernel_file, kernel_file, *ARGS)[1]
    assert out.splitlines()[-1] == "neither is predicted to be faster"


LOOPED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    rounds = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=rounds, value=3)
    last = nisa.register_alloc()
    nisa.register_load(last, rounds)
    def body(_):
        t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=t, value=0.0)
    nl.fori_loop(0, last, body)
    return out
"""


def test_nobody_wins_where_data_decide_how_often_a_loop_runs(
    kernel_file: Path, tmp_path: Path, cli: Any
) -> None:
    looped = tmp_path / "looped.py"
    looped.write_text(LOOPED)
    for files in ((looped, kernel_file), (kernel_file, looped)):
        found = json.loads(cli("compare", *files, *ARGS, "--json")[1])["comparison"]
        assert (found["faster"], found["speedup"], found["share_of_draws"]) == ("unknown", None, None)
        assert found["reasons"] == []
        text = cli("compare", *files, *ARGS)[1]
        assert max(map(len, text.splitlines())) <= 80
        assert "latency unknown; " in text
        assert "nothing says which is faster" in text
        assert "times as fast" not in text


def test_the_one_of_two_that_is_at_fault_is_named(kernel_file: Path, tmp_path: Path, cli: Any) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(kernel_file.read_text().replace("dst=u, op=nl.exp", "dst=u, op=nl.no_such"))
    status, _, err = cli("compare", kernel_file, broken, *ARGS)
    assert status == 3
    assert err.startswith(f"{broken}: line ")
    unwritten = tmp_path / "unwritten.py"
    unwritten.write_text(kernel_file.read_text().replace("        nisa.dma_copy(dst=out[part], src=u)\n", ""))
    status, out, _ = cli("compare", kernel_file, unwritten, *ARGS, "--json")
    report = json.loads(out)
    assert (status, report["file"], report["comparison"]) == (1, str(unwritten), None)
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]


SPILLING = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.add(nl.load(x), float(i)) for i in range(40)]
    for tile in tiles:
        nl.store(out, tile)
    return out
"""


def test_spilled_tiles_are_said_with_their_line(tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "spilling.py"
    path.write_text(SPILLING)
    out = cli("profile", path, "--arg", "128x2048", "--target", "trn1")[1]
    assert re.search(r"; of it\n     spilled [\d.]+ MB, reloaded [\d.]+ MB\n", out)
    assert re.search(r" of line 9: [\d.]+ MB saved, [\d.]+ MB reloaded, for line 11\n", out)
