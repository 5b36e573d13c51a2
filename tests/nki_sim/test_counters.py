"""Counters against hand counts and the profiler's identities; explanations of kernels built to need them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.counters import profile
from nki_sim.timing.explain import explain
from nki_sim.timing.forecast import forecast

TRN2 = targets.load("trn2")


def spec(*shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(shape, dtype)


@pytest.fixture(scope="module")
def counted(tracing: Any, texts: Any) -> dict[str, float | int]:
    program = tracing(texts.matmul, spec(256, 256), spec(256, 1024))
    return profile(forecast(program, TRN2))


def test_traffic_is_what_the_kernel_moves(counted: dict[str, float | int]) -> None:
    m, k, n = 256, 256, 1024
    assert counted["hbm_read_bytes"] == 4 * (m * k + (m // 128) * k * n)
    assert counted["hbm_write_bytes"] == 4 * m * n
    # PSUM is written by one transpose and by k / 128 products per output element, read once for each.
    assert counted["psum_write_bytes"] == 4 * (m * k + m * n * (k // 128))
    assert counted["psum_read_bytes"] == 4 * (m * k + m * n)
    # DMA fills SBUF with what it reads from HBM; the vector engine with transposes and results.
    assert counted["sbuf_write_bytes"] == counted["hbm_read_bytes"] + 4 * (m * k + m * n)
    assert counted["spill_save_bytes"] == counted["spill_reload_bytes"] == 0


def test_flops_and_ratios(counted: dict[str, float | int]) -> None:
    m, k, n = 256, 256, 1024
    transposes = 2 * 128**3 * (m // 128) * (k // 128)
    assert counted["transpose_flops"] == transposes
    assert counted["hardware_flops"] == 2 * m * k * n + transposes
    assert counted["matmul_instruction_count"] == 4 + 2 * 2 * 2
    moved = counted["hbm_read_bytes"] + counted["hbm_write_bytes"]
    assert counted["mm_arithmetic_intensity"] == pytest.approx(2 * m * k * n / moved)
    peak = 2 * 128 * 128 * 2.4e9
    assert counted["hfu_estimated_percent"] == pytest.approx(
        100 * counted["hardware_flops"] / peak / counted["total_time"]
    )


MEETING = """import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ds(64 * nl.program_id(0), 64)
    nisa.dma_copy(dst=out[rows, :], src=x[rows, :])
    nisa.core_barrier(out, (0, 1), engine=nisa.engine.tensor)
    return out
"""


def test_a_barrier_on_the_tensor_engine_multiplies_nothing(tracing: Any) -> None:
    program = tracing(f"{MEETING}\nkernel = kernel[2]\n", spec(128, 64))
    counters = profile(forecast(program, TRN2))
    assert counters["hardware_flops"] == counters["matmul_instruction_count"] == 0


def test_bandwidth_ratio_is_that_of_real_profiles(tracing: Any, texts: Any) -> None:
    program = tracing(texts.stream(), spec(128, 512), target="trn1")
    trn1 = targets.load("trn1")
    counters = profile(forecast(program, trn1))
    assert counters["peak_flops_bandwidth_ratio"] == pytest.approx(223.781463973542)


def test_dma_and_engine_activity(counted: dict[str, float | int]) -> None:
    assert counted["dma_transfer_count"] == 2 + 8 + 4
    assert counted["dma_transfer_average_bytes"] == counted["dma_transfer_total_bytes"] / 14
    for name in ("tensor", "vector", "scalar", "gpsimd"):
        percent = counted[f"{name}_engine_active_time_percent"]
        assert percent == pytest.approx(100 * counted[f"{name}_engine_active_time"] / counted["total_time"])
        assert 0 <= percent <= 100
    assert counted["tensor_engine_active_time_percent"] > counted["vector_engine_active_time_percent"] > 0
    assert counted["scalar_engine_instruction_count"] == 0


def test_counters_are_plain_json(counted: dict[str, float | int]) -> None:
    assert json.loads(json.dumps(counted, allow_nan=False)) == counted


def test_what_cannot_be_filled_is_absent(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel():
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        return out
    """
    program = tracing(text)
    counters = profile(forecast(program, TRN2))
    assert "mm_arithmetic_intensity" not in counters
    assert "dma_transfer_average_bytes" not in counters
    assert "model_flops" not in counters


def test_intermediates_in_hbm_count_as_spill(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        keep = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.hbm)
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=t, src=x)
        nisa.dma_copy(dst=keep, src=t)
        nisa.dma_copy(dst=out[0:64], src=keep[0:64])
        nisa.dma_copy(dst=out[64:128], src=keep[0:64])
        return out
    """
    program = tracing(text, spec(128, 64))
    counters = profile(forecast(program, TRN2))
    assert (counters["spill_save_bytes"], counters["spill_reload_bytes"]) == (32768, 2 * 16384)


def explained(tracing: Any, text: str, *args: ArraySpec) -> Any:
    program = tracing(text, *args)
    return explain(forecast(program, TRN2))


LOOP = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    u = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=t, src=x[0:128, 0:512])
    for i in range(50):
        BODY
    return out
"""


@pytest.mark.parametrize(
    ("body", "bottleneck"),
    [
        ("nisa.nc_matmul(acc, t[:, 0:128], t)", "tensor"),
        ("nisa.tensor_tensor(u, t, t, nl.add)", "vector"),
        ("nisa.activation(u, nl.exp, t)", "scalar"),
        ("nisa.tensor_copy(u, t, engine=nisa.engine.gpsimd)", "gpsimd"),
        ("nisa.dma_copy(out[:, i * 128:i * 128 + 128], x[:, i * 128:i * 128 + 128])", "dma"),
        ("nisa.activation(t, nl.copy, t); nisa.tensor_tensor(t, t, t, nl.add)", "dependency"),
    ],
)
def test_the_bottleneck_is_named(body: str, bottleneck: str, tracing: Any) -> None:
    found = explained(tracing, LOOP.replace("BODY", body), spec(128, 8192))
    assert found.bottleneck == bottleneck


def test_an_idle_chip_is_underutilised(tracing: Any) -> None:
    chain = (
        "nisa.dma_copy(t[0:1, 0:8], out[0:1, 0:8]) if i % 2 else nisa.dma_copy(out[0:1, 0:8], t[0:1, 0:8])"
    )
    found = explained(tracing, LOOP.replace("BODY", chain), spec(128, 512))
    assert found.bottleneck in {"underutilised", "dependency"}
    assert found.busy_ms["tensor"] == 0.0


def test_the_critical_path_adds_up_to_the_latency(tracing: Any, texts: Any) -> None:
    program = tracing(texts.matmul, spec(256, 256), spec(256, 1024))
    found = explain(forecast(program, TRN2))
    spent = [part.ms for part in found.critical_path]
    assert sum(spent) == pytest.approx(found.latency_ms)
    assert spent == sorted(spent, reverse=True)
    source = texts.source_of(texts.matmul).splitlines()
    assert all(part.op in source[part.line - 1] for part in found.critical_path if part.line)


def test_busy_times_are_the_counters(tracing: Any, texts: Any) -> None:
    program = tracing(texts.matmul, spec(256, 256), spec(256, 1024))
    predicted = forecast(program, TRN2)
    busy, counters = explain(predicted).busy_ms, profile(predicted)
    for name in ("tensor", "vector"):
        assert np.isclose(busy[name], 1e3 * counters[f"{name}_engine_active_time"])
    assert np.isclose(busy["dma"], 1e3 * counters["dma_active_time"])
