"""What this machine is and can do: nominal rates, measured ones, and the command that measures them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from targets.c.machine import CpuFacts, CpuRates, load_rates, nominal_rates, read_cpu_facts, save_rates
from targets.registry import load_target


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_rates_are_nominal_until_they_are_measured_and_then_are_kept(cache: Path) -> None:
    assert load_rates() == nominal_rates(read_cpu_facts())
    assert not load_rates().measured
    path = save_rates(CpuRates(20.0, 100.0, 50.0))
    assert path.is_relative_to(cache)
    assert load_rates() == CpuRates(20.0, 100.0, 50.0)
    assert load_target("x86").peaks.bandwidth_gb_s == 20.0
    path.write_text("{")
    assert not load_rates().measured


def test_small_problems_move_at_the_rate_of_the_cache_that_holds_them() -> None:
    rates = CpuRates(20.0, 100.0, 50.0, cached_gb_s=((1 << 15, 200.0), (1 << 20, 100.0)))
    save_rates(rates)
    assert load_rates() == rates
    peaks = load_target("x86").peaks
    sizes = (1 << 15, (1 << 15) + 1, 1 << 20, 1 << 21)
    assert [peaks.bandwidth_for(size) for size in sizes] == [200.0, 100.0, 100.0, 20.0]


def test_nominal_rates_follow_from_clock_and_vector_width() -> None:
    facts = CpuFacts("A CPU", "x86_64", 4, ("avx2", "fma"), (), 3.0)
    rates = nominal_rates(facts)
    assert (rates.multiply_add_gflops, rates.other_gflops) == (3.0 * 8 * 2 * 2, 3.0 * 8 * 2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_command_measures_this_machine(home: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "agentctl",
        "calibrate",
        "--home",
        str(home),
        "--target",
        "x86",
        "--json",
    )
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert all(value > 0 for name, value in told.items() if name != "kept in")
    assert load_rates().measured
    assert told["memory, GB/s"] == load_rates().bandwidth_gb_s
    assert [size for size, _ in load_rates().cached_gb_s] == sorted(
        {size for _, size in read_cpu_facts().cache_bytes}
    )
