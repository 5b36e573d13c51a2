"""Explanations of kernels built to need them: bottlenecks, critical path, waits, roofline, what-ifs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.bounds import MinimalWork, tight_bound
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.critical_path import queue_gaps_ns
from nki_sim.timing.explain import explain_latency
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.roofline import roofline
from nki_sim.timing.schedule import CAUSES
from nki_sim.timing.what_if import NO_DEPENDENCES, what_ifs

TRN2 = targets.load("trn2")


def spec(*shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(shape, dtype)


def explained(tracing: Any, text: str, *args: ArraySpec) -> Any:
    program = tracing(text, *args)
    return explain_latency(forecast_program(program, TRN2))


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
    assert found.bottleneck == "dependency"
    assert found.busy_ms["tensor"] == 0.0


def test_the_critical_path_adds_up_to_the_latency(tracing: Any, texts: Any) -> None:
    program = tracing(texts.matmul, spec(256, 256), spec(256, 1024))
    found = explain_latency(forecast_program(program, TRN2))
    spent = [part.ms for part in found.critical_path]
    assert sum(spent) == pytest.approx(found.latency_ms)
    assert spent == sorted(spent, reverse=True)
    source = texts.source_of(texts.matmul).splitlines()
    assert all(part.op in source[part.line - 1] for part in found.critical_path if part.line)


def test_busy_times_are_the_counters(tracing: Any, texts: Any) -> None:
    program = tracing(texts.matmul, spec(256, 256), spec(256, 1024))
    predicted = forecast_program(program, TRN2)
    busy, counters = explain_latency(predicted).busy_ms, profile_counters(predicted)
    for name in ("tensor", "vector"):
        assert np.isclose(busy[name], 1e3 * counters[f"{name}_engine_active_time"])
    assert np.isclose(busy["dma"], 1e3 * counters["dma_active_time"])


def test_busy_waits_and_the_rest_are_the_whole_span(tracing: Any, texts: Any) -> None:
    predicted = forecast_program(tracing(texts.matmul, spec(256, 256), spec(256, 1024)), TRN2)
    found = explain_latency(predicted)
    span = found.latency_ms - found.overhead_ms
    assert {track.engine for track in found.tracks} == {"tensor", "vector", "dma"}
    for track in found.tracks:
        waited = sum(wait.ms for wait in track.waits)
        assert track.busy_ms + waited + track.done_ms == pytest.approx(span)
        assert track.busy_ms == pytest.approx(found.busy_ms[track.engine])
        assert {wait.cause for wait in track.waits} <= {*CAUSES, "latency"}
        assert all(wait.ms > 0 for wait in track.waits)
    tensor = next(track for track in found.tracks if track.engine == "tensor")
    assert tensor.waits[0].on in {"dma", "vector"}


def test_gaps_are_idle_time_before_instructions(tracing: Any, texts: Any) -> None:
    timeline = forecast_program(tracing(texts.stream(), spec(256, 1024)), TRN2).timeline
    gaps = queue_gaps_ns(timeline)
    for queue in set(timeline.queue.tolist()):
        mine = timeline.queue == queue
        for gap, start in zip(gaps[mine], timeline.begin_ns[mine], strict=True):
            before = timeline.end_ns[mine & (timeline.begin_ns < start)]
            assert gap == pytest.approx(max(0.0, start - before.max(initial=0.0)))


def test_waiting_for_room_is_said(tracing: Any) -> None:
    """Four tiles fill SBUF and the vector engine is slower than DMA: loads wait until one comes free."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        r = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf)
        for i in range(8):
            t = nl.ndarray((128, 12_800), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[128 * i:128 * i + 128, :])
            nisa.tensor_tensor(t, t, t, nl.add)
            nisa.tensor_reduce(r[:, i:i + 1], nl.add, t, axis=1)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    found = explain_latency(forecast_program(tracing(text, spec(1024, 12_800)), TRN2))
    dma = next(track for track in found.tracks if track.engine == "dma")
    assert ("memory", "vector") in {(wait.cause, wait.on) for wait in dma.waits}
    sbuf = next(use for use in found.occupancy if use.memory == "sbuf")
    assert 4 * 12_800 * 4 <= sbuf.peak <= sbuf.capacity
    assert (sbuf.holders[0].name, sbuf.holders[0].tiles) == ("t", 4)


def test_two_cores_have_tracks_of_their_own(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows = nl.ds(64 * nl.program_id(0), 64)
        t = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[rows, :])
        nisa.dma_copy(dst=out[rows, :], src=t)
        return out

    kernel = kernel[2]
    """
    found = explain_latency(forecast_program(tracing(text, spec(128, 64)), TRN2))
    assert [(track.core, track.engine) for track in found.tracks] == [(0, "dma"), (1, "dma")]
    assert [(use.memory, use.core, use.peak) for use in found.occupancy if use.memory == "sbuf"] == [
        ("sbuf", 0, 256 // 2), ("sbuf", 1, 256 // 2),
    ]  # fmt: skip


def test_work_is_read_off_the_kernel_where_nobody_says_it(tracing: Any, texts: Any) -> None:
    m, k, n = 256, 256, 1024
    predicted = forecast_program(tracing(texts.matmul, spec(m, k), spec(k, n)), TRN2)
    found = roofline(predicted)
    # The kernel reads rhs once for each row of tiles and transposes lhs; neither is in the work.
    assert found.work == MinimalWork(
        read_bytes=4 * (m * k + k * n), write_bytes=4 * m * n, matmul_flops=2 * m * k * n
    )
    assert found.work_of == "kernel"
    assert found.tight_ms == tight_bound(found.work, TRN2)
    assert found.plain_ms < found.tight_ms < predicted.latency_ms
    assert found.tight_percent == pytest.approx(100 * found.tight_ms / predicted.latency_ms)
    moved = found.work.read_bytes + found.work.write_bytes
    assert found.flops_per_byte == pytest.approx(2 * m * k * n / moved)


def test_the_roofline_has_two_sides(tracing: Any, texts: Any) -> None:
    predicted = forecast_program(tracing(texts.stream(), spec(128, 512)), TRN2)
    moving = roofline(predicted, MinimalWork(read_bytes=10**9, write_bytes=0, matmul_flops=1))
    assert moving.work_of == "problem"
    assert moving.plain_ms == pytest.approx(10**9 / TRN2.hbm_bytes_per_ns / 1e6)
    for dtype, passes in (("float32", 4), ("bfloat16", 1)):
        work = MinimalWork(read_bytes=1, write_bytes=0, matmul_flops=10**12, matmul_dtype=dtype)
        found = roofline(predicted, work)
        assert found.plain_ms == pytest.approx(passes * 10**12 / (2 * 128 * 128 * 2.4) / 1e6)
        ridge = found.ridge_flops_per_byte * TRN2.hbm_bytes_per_ns
        assert passes * ridge == pytest.approx(2 * 128 * 128 * 2.4)


def test_inputs_count_as_far_as_they_are_read(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[0:128, :])
        nisa.dma_copy(dst=out, src=t)
        return out
    """
    work = roofline(forecast_program(tracing(text, spec(1024, 64)), TRN2)).work
    assert (work.read_bytes, work.write_bytes) == (4 * 128 * 64, 4 * 128 * 64)


def test_what_ifs_take_the_bottleneck_away(tracing: Any) -> None:
    body = "nisa.tensor_tensor(u, t, t, nl.add)"
    predicted = forecast_program(tracing(LOOP.replace("BODY", body), spec(128, 8192)), TRN2)
    found = {item.assumption: item for item in what_ifs(predicted)}
    assert found.keys() == {"vector free", "dma free", NO_DEPENDENCES}
    assert found["vector free"].latency_ms == min(item.latency_ms for item in found.values())
    assert found["vector free"].saved_percent > 60.0
    assert found[NO_DEPENDENCES].latency_ms > found["vector free"].latency_ms
    for item in found.values():
        assert item.saved_ms == pytest.approx(predicted.latency_ms - item.latency_ms)


SOFTWARE = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(4):
        t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[:, 64 * i:64 * i + 64], dge_mode=nisa.dge_mode.swdge)
        nisa.activation(dst=t, op=(nl.exp, nl.tanh)[i % 2], data=t)
        nisa.dma_copy(dst=out[:, 64 * i:64 * i + 64], src=t)
    return out
"""


def test_gpsimd_works_for_transfers_and_scalar_waits_for_tables(tracing: Any) -> None:
    found = explain_latency(forecast_program(tracing(SOFTWARE, spec(128, 256)), TRN2))
    tracks = {track.engine: track for track in found.tracks}
    assert tracks["gpsimd"].busy_ms == pytest.approx(4 * TRN2.dma_software_descriptor_ns / 1e6)
    for engine in ("gpsimd", "scalar", "dma"):  # loads of tables are a wait in both
        assert found.busy_ms[engine] == pytest.approx(tracks[engine].busy_ms)
    tables = [wait.ms for wait in tracks["scalar"].waits if wait.cause == "table"]
    assert sum(tables) > 0
    span = found.latency_ms - found.overhead_ms
    for track in found.tracks:
        assert track.busy_ms + sum(wait.ms for wait in track.waits) + track.done_ms == pytest.approx(span)
