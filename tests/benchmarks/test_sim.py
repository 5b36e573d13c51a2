"""The simulator's benchmark runs, small, and says what it is documented to say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks import sim, simulated


def test_every_part_is_measured_in_time_and_memory(capsys: Any) -> None:
    argv = ["--size", "reduced", "--only", "silu", "--repeats", "1", "--threads", "1", "--json"]
    assert sim.main(argv) == 0
    result = json.loads(capsys.readouterr().out)
    (row,) = result["problems"]
    assert row["problem"] == "silu"
    assert row["instructions"] > 0
    for name in (
        "trace_s",
        "check_s",
        "run_s",
        "numpy_s",
        "trace_peak_mib",
        "run_peak_mib",
        "numpy_peak_mib",
    ):
        assert row[name] > 0
    assert row["share"] == row["numpy_s"] / row["run_s"]


def test_a_part_that_fails_is_named(capsys: Any) -> None:
    assert sim.main(["--size", "no_such_size", "--only", "silu", "--repeats", "1"]) == 1
    assert "silu" in (out := capsys.readouterr().out)
    assert "trace: " in out


def test_numpys_part_computes_in_float32() -> None:
    source = "import numpy as np\ndef reference(x): return np.square(x.astype(np.float64))\n"
    found = simulated.in_float32(source)(np.ones(3, dtype=np.float32))
    assert found.dtype == np.float32


def test_the_best_of_the_repeats_counts() -> None:
    calls: list[int] = []
    seconds, result = simulated.best(lambda: calls.append(1) or len(calls), 3)
    assert (result, len(calls)) == (3, 3)
    assert seconds >= 0
