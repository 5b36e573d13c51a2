"""What a kernel does in vain is named from its counters, whoever counted."""

from __future__ import annotations

import pytest

import nki_sim
from nki_sim import ArraySpec
from targets.nki import inefficiencies as vain

LEAN = {
    "total_time": 1e-3,
    "hbm_read_bytes": 1e6,
    "hbm_write_bytes": 1e6,
    "spill_save_bytes": 0.0,
    "spill_reload_bytes": 0.0,
    "hardware_flops": 9e10,
    "adjusted_hardware_flops": 9e10,
    "transpose_flops": 0.0,
    "tensor_engine_active_time": 1e-3,
}


def find(**changed: float) -> list[vain.Inefficiency]:
    return vain.find_inefficiencies({**LEAN, **changed}, input_bytes=1_000_000, peak_flops=1e14)


def test_a_lean_kernel_does_nothing_in_vain():
    assert find() == []


@pytest.mark.parametrize(
    ("changed", "code", "percent", "said"),
    [
        ({"hbm_read_bytes": 4e6}, vain.REDUNDANT_READS, 75.0, "4.00 times its inputs"),
        ({"spill_save_bytes": 1e6, "spill_reload_bytes": 0.0}, vain.SPILLS, 50.0, "1 MB of the traffic"),
        ({"transpose_flops": 4.5e10}, vain.TRANSPOSES, 50.0, "50 %"),
        ({"adjusted_hardware_flops": 2.5e10}, vain.SLOW_PRODUCTS, 75.0, "25 % of its rate"),
    ],
)
def test_each_kind_is_named_with_its_share(changed, code, percent, said):
    (found,) = find(**changed)
    assert (found.code, found.percent) == (code, pytest.approx(percent))
    assert said in found.message
    assert found.to_json() == {"code": code, "percent": percent, "message": found.message}


def test_values_read_back_are_spills_and_no_redundant_reads():
    found = find(hbm_read_bytes=3e6, spill_reload_bytes=2e6, spill_save_bytes=2e6, hbm_write_bytes=3e6)
    assert [one.code for one in found] == [vain.SPILLS]


def test_the_largest_share_comes_first():
    found = find(hbm_read_bytes=2e6, adjusted_hardware_flops=1e10)
    assert [one.code for one in found] == [vain.SLOW_PRODUCTS, vain.REDUNDANT_READS]


def test_reloaded_tensors_are_named():
    (found,) = vain.find_inefficiencies(
        {**LEAN, "hbm_read_bytes": 4e6}, input_bytes=1_000_000, peak_flops=1e14, loads={"w": 4.0, "x": 1.0}
    )
    assert "(w 4 times)" in found.message


LOADER = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, w):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    for _ in range(3):
        nisa.dma_copy(t, w)
    nisa.dma_copy(t[:, 0:32], x[:, 0:32])
    nisa.dma_copy(out, t)
    return out
"""


def test_inputs_that_a_program_loads_repeatedly_are_counted():
    program = nki_sim.trace(LOADER, args=[ArraySpec((128, 64), "float32")] * 2, target="trn2")
    assert vain.count_input_loads(program) == {"w": 3.0, "x": 0.5}


TRANSPOSES = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    b = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(a, x[:, 0:128])
    for i in range(4):
        {step}
        p = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(p, a)
        nisa.tensor_copy(b, p)
        {after}
    nisa.dma_copy(out, b)
    return out
"""


@pytest.mark.parametrize(
    ("step", "after", "ratio"),
    [
        ("pass", "pass", 0.75),
        ("nisa.dma_copy(a, x[:, 0:128])", "pass", 0.75),  # loaded again, the same data
        ("nisa.dma_copy(a, x[:, i * 128 : (i + 1) * 128])", "pass", 0.0),
        ("nisa.dma_copy(a, x[:, i % 2 * 128 : (i % 2 + 1) * 128])", "pass", 0.5),
        ("pass", "nisa.tensor_copy(a, p)", 0.0),
        ("pass", "nisa.tensor_scalar(a[0:32], a[0:32], op0=nl.add, operand0=1.0)", 0.0),
    ],
)
def test_transposes_of_the_same_data_are_repeated(step, after, ratio):
    source = TRANSPOSES.format(step=step, after=after)
    program = nki_sim.trace(source, args=[ArraySpec((128, 512), "bfloat16")], target="trn2")
    found = vain.find_repeated_transposes(program)
    assert found.ratio == ratio
    assert found.by_line == ({15: (4, 4 * ratio)} if ratio else {})
    named = [
        one
        for one in vain.find_inefficiencies(
            {**LEAN, "transpose_flops": 4.5e10}, input_bytes=1_000_000, peak_flops=1e14, program=program
        )
        if one.code == vain.REPEATED_TRANSPOSES
    ]
    assert [one.percent for one in named] == ([50 * ratio] if ratio else [])
    assert all(f"line 15: {4 * ratio:.0f} of 4" in one.message for one in named)


def test_a_program_without_transposes_or_with_loops_of_the_device_repeats_none():
    program = nki_sim.trace(LOADER, args=[ArraySpec((128, 64), "float32")] * 2, target="trn2")
    assert vain.find_repeated_transposes(program) is None
    source = TRANSPOSES.format(step="pass", after="pass").replace("for i in range(4):", "def body(i):")
    loop = "    nl.fori_loop(0, nisa.register_alloc(4), body)\n    nisa.dma_copy(out, b)"
    source = source.replace("    nisa.dma_copy(out, b)", loop)
    program = nki_sim.trace(source, args=[ArraySpec((128, 512), "bfloat16")], target="trn2")
    assert vain.find_repeated_transposes(program) is None


def test_long_programs_are_not_looked_at(monkeypatch):
    source = TRANSPOSES.format(step="pass", after="pass")
    program = nki_sim.trace(source, args=[ArraySpec((128, 512), "bfloat16")], target="trn2")
    monkeypatch.setattr(vain, "_MOST_INSTRUCTIONS", len(program) - 1)
    assert vain.find_repeated_transposes(program) is None


@pytest.mark.parametrize("counters", [{}, {"total_time": 1.0}, dict.fromkeys(LEAN, 0.0)])
def test_counters_that_are_not_there_say_nothing(counters):
    assert vain.find_inefficiencies(counters, input_bytes=1, peak_flops=1e14) == []


def test_an_idle_tensor_engine_is_not_called_slow():
    assert find(adjusted_hardware_flops=1e8, tensor_engine_active_time=1e-5) == []
