"""Kernels of a run side by side: counters with their units, latencies with their intervals."""

from __future__ import annotations

import errno

import pytest

from agentctl.formatting import format_counter, format_scaled, name_counter
from daemon import exits
from tests.support import simulated_logs as recorded


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("total_time", 0.000_929_5, "0.9295 ms"),
        ("dma_active_time", 0.0, "0 ms"),
        ("dma_active_time_percent", 48.12, "48.1 %"),
        ("hbm_read_bytes", 285_212_672, "285.2 MB"),
        ("spill_save_bytes", 0, "0 B"),
        ("dma_transfer_average_bytes", 2048.0, "2.0 kB"),
        ("hardware_flops", 1.5e12, "1.5 Tflop"),
        ("matmul_instruction_count", 65_536, "65,536"),
        ("mm_arithmetic_intensity", 12.34567, "12.35"),
    ],
)
def test_a_counter_has_its_unit(name, value, text):
    assert format_counter(name, value) == text


@pytest.mark.parametrize(("value", "text"), [(999, "999 B"), (1000, "1.0 kB"), (2.5e9, "2.5 GB")])
def test_values_are_scaled(value, text):
    assert format_scaled(value, "B") == text


def test_shares_whose_name_does_not_say_of_what_are_explained():
    assert "peak" in name_counter("hfu_estimated_percent")


def test_the_best_kernel_says_how_sure_its_gain_is(ctl, finished, tmp_path):
    said = ctl("best", finished, "--json").json
    text = ctl("best", finished, "-o", tmp_path / "best.py").out
    assert 90 <= said["wins_percent"] <= 100
    assert f"faster with {said['wins_percent']:.1f} % confidence" in text
    assert ctl("diff", finished, "--json").json["wins_percent"] == said["wins_percent"]


def test_diff_explains_latencies_below_the_model_bound(ctl, tmp_path):
    run = "toy-1"
    recorded.record(tmp_path / "low", {run: recorded.world_of(tight_ms=50.0).finish()})
    content = ctl("diff", run, "--json", home=tmp_path / "low").json
    text = ctl("diff", run, home=tmp_path / "low").out
    for side in "ab":
        note = content[f"{side}_below_bound"]
        assert note.startswith("impossible: ")
        assert f"{content[side]}: {note}" in text.splitlines()


def test_diff_shows_readable_counters(ctl, finished):
    text = ctl("diff", finished).out
    content = ctl("diff", finished, "--json").json
    assert "predicted counters that changed, most changed first:" in text
    shown = [line for line in text.splitlines() if line.startswith("  ") and " -> " in line]
    for name, (was, now) in content["counters"].items():
        before, after = format_counter(name, was), format_counter(name, now)
        assert (before != after) == any(line.split()[0] == name for line in shown)
        assert before == after or f"{before} -> {after}" in text
    assert content["a_lo_ms"] <= content["a_ms"] <= content["a_hi_ms"]
    assert content["b_lo_ms"] <= content["b_ms"] <= content["b_hi_ms"]


def test_a_kernel_is_written_whole_and_never_over_the_log(ctl, home, finished, tmp_path, monkeypatch):
    source = ctl("best", finished, "--json").json["source"]
    for verb in (("best", finished), ("resume", finished), ("run", "--problem", "silu")):
        for name in ("events.db", "events.db-shm", "HEAD", "reserve", "agentd.lock"):
            called = ctl(*verb, "-o", home / name)
            assert (called.status, called.out) == (exits.USAGE, "")
            assert "belongs to the log itself" in called.err
    assert ctl("verify").status == exits.OK
    out = tmp_path / "best.py"
    out.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("state.output_files.Path.write_bytes", full)
        called = ctl("best", finished, "-o", out)
    assert (called.status, called.out) == (exits.STORAGE, "")
    assert called.err == f"agentctl: {out}: no space left for it; free some and retry\n"
    assert out.read_text() == "old"
    assert ctl("best", finished, "-o", out).status == exits.OK
    assert out.read_text() == source
    assert ctl("best", finished, "-o", tmp_path / "no" / "best.py").status == exits.USAGE
