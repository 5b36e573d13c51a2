"""No kernel is predicted to be faster than the bound of its own work."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.roofline import roofline

BESIDE_BOUNDS = {
    "copied from HBM to HBM": """
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
    """,
    "FP8 in double rows": """
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 2, 512), dtype=nl.float8_e4m3, buffer=nl.sbuf)
        nisa.memset(dst=a, value=1.0)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for i in range(512):
            nisa.nc_matmul(dst=p, stationary=a[:, :, 0:128], moving=a,
                           perf_mode=nisa.matmul_perf_mode.double_row)
        s = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=s, src=p)
        nisa.dma_copy(dst=out, src=s)
    """,
    "float32 with ones and zeros": """
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=a, value=1.0)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for i in range(512):
            nisa.nc_matmul(dst=p, stationary=a[:, 0:128], moving=a, is_moving_onezero=True)
        s = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=s, src=p)
        nisa.dma_copy(dst=out, src=s)
    """,
}


def predicted(body: str, shape: tuple[int, int], tracing: Any) -> Forecast:
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    program = tracing(f"@nki.jit\ndef kernel(x):{lines}    return out\n", ArraySpec(shape, "float32"))
    return forecast_program(program, targets.load("trn2"))


@pytest.mark.parametrize("body", BESIDE_BOUNDS.values(), ids=BESIDE_BOUNDS)
def test_what_does_little_else_is_just_above_its_bound(body: str, tracing: Any) -> None:
    found = roofline(predicted(body, (4096, 4096), tracing))
    assert 40.0 < found.tight_percent <= 100.0


def test_copies_are_what_goes_from_inputs_to_outputs_directly(tracing: Any) -> None:
    found = predicted(BESIDE_BOUNDS["copied from HBM to HBM"], (4096, 4096), tracing)
    assert roofline(found).work.copied_bytes == 4 * 4096 * 4096
    body = """
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[0:128, :])
        nisa.dma_copy(dst=out[0:128, :], src=t)
        nisa.dma_copy(dst=out[128:192, :], src=x[128:192, :])
    """
    assert roofline(predicted(body, (192, 64), tracing)).work.copied_bytes == 4 * 64 * 64


def test_flops_of_double_rows_count_once(tracing: Any) -> None:
    found = predicted(BESIDE_BOUNDS["FP8 in double rows"], (8, 8), tracing)
    assert profile_counters(found)["hardware_flops"] == 512 * 2 * 256 * 128 * 512
