"""Counters against hand counts and against the identities of published profiles, in both conventions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.counters import ConventionName, profile_counters, profile_summary
from nki_sim.timing.forecast import forecast_program

TRN1, TRN2 = targets.load("trn1"), targets.load("trn2")


def spec(*shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(shape, dtype)


@pytest.fixture(scope="module")
def counted(tracing: Any, texts: Any) -> dict[str, float | int]:
    program = tracing(texts.matmul, spec(256, 256), spec(256, 1024))
    return profile_counters(forecast_program(program, TRN2))


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
    counters = profile_counters(forecast_program(program, TRN2))
    assert counters["hardware_flops"] == counters["matmul_instruction_count"] == 0


def test_bandwidth_ratio_is_that_of_real_profiles(tracing: Any, texts: Any) -> None:
    program = tracing(texts.stream(), spec(128, 512), target="trn1")
    counters = profile_counters(forecast_program(program, TRN1))
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


def test_a_profiler_also_shows_preambles_and_completions(tracing: Any, texts: Any) -> None:
    program = tracing(texts.stream(), spec(128, 512))
    forecast = forecast_program(program, TRN2)
    own, shown = profile_counters(forecast), profile_counters(forecast, as_profiled=True)
    added = {name: shown[name] - value for name, value in own.items() if shown[name] != value}
    for name in ("tensor", "vector", "scalar", "gpsimd"):
        assert added[f"{name}_engine_active_time"] == pytest.approx(TRN2.profile_preamble_ns / 1e9)
    assert added["dma_active_time"] > TRN2.profile_dma_preamble_ns / 1e9
    assert all("active" in name for name in added)
    (summary,) = profile_summary(forecast).values()
    assert summary["gpsimd_engine_active_time"] == shown["gpsimd_engine_active_time"] > 0


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
    counters = profile_counters(forecast_program(program, TRN2))
    assert "mm_arithmetic_intensity" not in counters
    assert "dma_transfer_average_bytes" not in counters
    assert "model_flops" not in counters


def test_tensors_that_a_kernel_keeps_in_hbm_are_spills_in_the_legacy_convention(
    tracing: Any,
) -> None:
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
    counters = profile_counters(forecast_program(program, TRN2))
    assert (counters["hbm_read_bytes"], counters["hbm_write_bytes"]) == (2 * 32768, 2 * 32768)
    assert (counters["spill_save_bytes"], counters["spill_reload_bytes"]) == (0, 0)
    legacy = profile_counters(forecast_program(program, TRN2), "legacy")
    assert (legacy["spill_save_bytes"], legacy["spill_reload_bytes"]) == (32768, 2 * 16384)


# Of a published profile of a 4096 x 5120 x 12288 product on Trainium 1: matmuls, transposes, copied results.
PUBLISHED = (30_720, 15_360, 768)


def legacy_identities(matmuls: int, transposes: int, results: int) -> dict[str, int]:
    """What neuron-profile counts for float32 products of 128 x 128 x 512, with their inputs transposed."""
    copied = 4 * (512 * results + 128 * transposes)
    return {
        "hardware_flops": 2 * 2 * 128 * 128 * (512 * matmuls + 128 * transposes),
        "transpose_flops": 2 * 2 * 128**3 * transposes,
        "psum_write_bytes": 2 * 4 * (512 * matmuls + 128 * transposes),
        "psum_read_bytes": copied,
        "sbuf_read_bytes": 2 * 4 * ((512 + 128) * matmuls + (128 + 128) * transposes),
        "sbuf_write_bytes": copied,
    }


def test_the_identities_are_those_of_the_published_profile() -> None:
    assert legacy_identities(*PUBLISHED) == {
        "hardware_flops": 1_159_641_169_920,
        "transpose_flops": 128_849_018_880,
        "psum_write_bytes": 141_557_760,
        "psum_read_bytes": 9_437_184,
        "sbuf_read_bytes": 390_070_272 - 201_326_592,
        "sbuf_write_bytes": 9_069_199_360 - 9_059_762_176,
    }


@pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 512), (256, 256, 1024), (384, 128, 1536)])
def test_a_kernel_of_the_same_instructions_has_the_same_identities(
    m: int, k: int, n: int, tracing: Any, texts: Any
) -> None:
    program = tracing(texts.matmul, spec(m, k), spec(k, n), target="trn1")
    found = profile_counters(forecast_program(program, TRN1), "legacy")
    tiles = (m // 128) * (k // 128)
    wanted = legacy_identities(tiles * (n // 512), tiles, (m // 128) * (n // 512))
    # What DMA moves counts on SBUF as well.
    wanted["sbuf_read_bytes"] += int(found["hbm_write_bytes"])
    wanted["sbuf_write_bytes"] += int(found["hbm_read_bytes"])
    assert {name: found[name] for name in wanted} == wanted
    assert found["matmul_instruction_count"] == 2 * (tiles + tiles * (n // 512))


def test_conventions_agree_on_dma_and_times(tracing: Any, texts: Any) -> None:
    predicted = forecast_program(tracing(texts.matmul, spec(256, 256), spec(256, 1024), target="trn1"), TRN1)
    explorer, legacy = profile_counters(predicted), profile_counters(predicted, "legacy")
    assert explorer.keys() == legacy.keys()
    for name, value in explorer.items():
        if name.endswith("_percent") and not name.startswith(("hfu", "mfu")):
            assert legacy[name] == pytest.approx(value / 100)
        elif name.startswith(("hbm", "dma", "spill", "static", "total")) or name.endswith("_time"):
            assert legacy[name] == value
    assert legacy["hardware_flops"] == 2 * explorer["hardware_flops"]
    assert legacy["hfu_estimated_percent"] == pytest.approx(2 * explorer["hfu_estimated_percent"] / 100)


def engine_bytes(tracing: Any, body: str, *, dtype: str = "float32") -> dict[str, float | int]:
    """What engines move in SBUF and PSUM for one instruction, as the legacy profiler counts it."""
    text = f"""
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        one = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=a, src=x)
        {body}
        nisa.dma_copy(dst=out, src=a)
        return out
    """
    found = profile_counters(
        forecast_program(tracing(text, spec(128, 512, dtype=dtype), target="trn1"), TRN1), "legacy"
    )
    return {
        "sbuf_read": found["sbuf_read_bytes"] - found["hbm_write_bytes"],
        "sbuf_write": found["sbuf_write_bytes"] - found["hbm_read_bytes"],
        "psum_read": found["psum_read_bytes"],
        "psum_write": found["psum_write_bytes"],
    }


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("nisa.activation(b, nl.exp, a)", (2048, 2048, 0, 0)),
        ("nisa.activation(p, nl.exp, a)", (2048, 0, 0, 2048)),
        ("nisa.activation(p, nl.exp, a); nisa.activation(b, nl.exp, p)", (2048, 2048, 2048, 2048)),
        ("nisa.tensor_scalar(b, a, nl.multiply, 2.0)", (2048, 2048, 0, 0)),
        # Operands that the profiler leaves out.
        ("nisa.tensor_tensor(b, a, a, nl.add)", (0, 0, 0, 0)),
        ("nisa.memset(b, 0.0)", (0, 0, 0, 0)),
        ("nisa.tensor_tensor_scan(b, a, a, 0.0, nl.multiply, nl.add)", (0, 0, 0, 0)),
        ("nisa.memset(one, 1.0); nisa.tensor_scalar(b, a, nl.multiply, one)", (2048, 2048, 0, 0)),
        ("nisa.memset(one, 1.0); nisa.activation(b, nl.exp, a, bias=one)", (2048, 2048, 0, 0)),
        # A column by itself is data.
        ("nisa.memset(one, 1.0); nisa.reciprocal(one, one)", (4, 4, 0, 0)),
        # A product over one partition copies a row; over more, a float32 product is two instructions.
        ("nisa.nc_matmul(p, a[0:1, 0:128], a[0:1, :])", (4 * (512 + 128), 0, 0, 2048)),
        ("nisa.nc_matmul(p, a[0:2, 0:128], a[0:2, :])", (2 * 4 * (512 + 128), 0, 0, 2 * 2048)),
    ],
)
def test_legacy_engines_count_one_partition(body: str, wanted: tuple[int, ...], tracing: Any) -> None:
    assert tuple(engine_bytes(tracing, body).values()) == wanted


def test_narrow_products_are_one_instruction(tracing: Any) -> None:
    found = engine_bytes(tracing, "nisa.nc_matmul(p, a[:, 0:128], a)", dtype="bfloat16")
    assert (found["sbuf_read"], found["psum_write"]) == (2 * (512 + 128), 2048)


@pytest.mark.parametrize(
    ("dtype", "target", "times"),
    [
        ("float32", "trn1", 4),
        ("bfloat16", "trn1", 1),
        ("float8_e4m3", "trn1", 1),
        ("float8_e4m3", "trn2", 0.5),
    ],
)
def test_adjusted_flops_are_those_of_bfloat16(dtype: str, target: str, times: float, tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=a, src=x)
        nisa.nc_matmul(p, a[:, 0:128], a)
        nisa.tensor_copy(b, p, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out, src=b)
        return out
    """
    program = tracing(text, spec(128, 512, dtype=dtype), target=target)
    found = profile_counters(forecast_program(program, targets.load(target)))
    assert found["hardware_flops"] == 2 * 128 * 128 * 512
    assert found["adjusted_hardware_flops"] == times * found["hardware_flops"]
    assert found["adjusted_transpose_flops"] == 0
    assert (found["psum_read_sbuf_write_count"], found["psum_read_sbuf_write_bytes"]) == (1, 4 * 128 * 512)


@pytest.mark.parametrize(("target", "maker"), [("trn1", "static"), ("trn2", "hardware_dynamic")])
def test_transfers_are_counted_by_who_makes_descriptors(
    target: str, maker: str, tracing: Any, texts: Any
) -> None:
    program = tracing(texts.stream(), spec(128, 1024), target=target)
    found = profile_counters(forecast_program(program, targets.load(target)))
    assert found[f"{maker}_dma_size"] == found["dma_transfer_total_bytes"]
    assert found[f"{maker}_dma_size_percent"] == 100.0
    assert found[f"{maker}_dma_active_time"] == pytest.approx(found["dma_active_time"])
    assert found["software_dynamic_dma_size"] == 0
    assert found["dynamic_dma_size_percent"] == (0.0 if maker == "static" else 100.0)


def test_sizes_are_those_of_inputs_and_outputs(counted: dict[str, float | int]) -> None:
    m, k, n = 256, 256, 1024
    assert counted["inputs_and_weights_size_bytes"] == 4 * (m * k + k * n)
    assert counted["inputs_outputs_weights_size_bytes"] == 4 * (m * k + k * n + m * n)
    assert counted["weight_size_bytes"] == 0
    assert counted["mbu_min_read_util_percent"] < counted["mbu_estimated_percent"]


@pytest.mark.parametrize("convention", ["explorer", "legacy"])
def test_a_summary_file_is_read_like_those_of_the_profiler(
    convention: ConventionName, tracing: Any, texts: Any
) -> None:
    predicted = forecast_program(tracing(texts.matmul, spec(128, 128), spec(128, 512), target="trn1"), TRN1)
    content = json.loads(json.dumps(profile_summary(predicted, convention)))
    fields = content[next(iter(content))]
    assert fields["total_time"] == pytest.approx(predicted.latency_ms / 1e3)
    shares = [value for name, value in fields.items() if name.endswith("_percent")]
    assert all(0.0 <= value <= 1.0 for value in shares)
    wanted = {
        "hbm_read_bytes", "hbm_write_bytes", "psum_read_bytes", "psum_write_bytes", "sbuf_read_bytes",
        "sbuf_write_bytes", "spill_reload_bytes", "spill_save_bytes", "hardware_flops", "transpose_flops",
        "peak_flops_bandwidth_ratio", "mm_arithmetic_intensity", "hfu_estimated_percent",
        "scalar_engine_active_time_percent", "vector_engine_active_time_percent",
        "gpsimd_engine_active_time_percent",
    }  # fmt: skip
    assert wanted <= fields.keys()
