"""What `nki.jit` takes for one kernel, and the names of NKI 0.7 beside it."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets, trace
from nki_sim.dtypes import DType
from nki_sim.errors import IRError, KernelError
from nki_sim.frontend import api, isa
from nki_sim.frontend import language as nl
from nki_sim.frontend.compile_options import AddressRotation, CompileConfig, SpecializationConfig
from nki_sim.frontend.modules import MODULES, install_modules
from nki_sim.program import wire
from nki_sim.program.ir import Program
from nki_sim.timing.forecast import forecast_program

TRN2 = targets.load("trn2")
X = np.arange(128, dtype=np.float32).reshape(16, 8)
LOOSE = SpecializationConfig(allow_nested_config_override=True)
CHECKED = CompileConfig(barrier_check=True)


def double(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    isa.dma_copy(dst=tile.data, src=x.data)
    isa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    isa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("name", ["AddressRotation", "CompileConfig", "SpecializationConfig"])
def test_the_compilers_module_has_the_configurations(name: str) -> None:
    with install_modules(MODULES):
        assert getattr(importlib.import_module("nki.compiler"), name).__name__ == name


def test_a_configuration_changes_no_result() -> None:
    config = CompileConfig(address_rotation=AddressRotation.DISABLE, dead_code_elim=True, prefetch_auto=True)
    kernel = api.jit(compile_config=config, specialization_config=LOOSE)(double)
    np.testing.assert_array_equal(api.simulate(kernel)(X), 2 * X)
    assert kernel[1]._config == kernel._config


SHIFT_ROWS = """
import nki
import nki.isa as nisa
import nki.language as nl
from nki.compiler import AddressRotation, CompileConfig

@nki.jit{options}
def shift_rows(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)  # once, for all rows
    for row in range(8):
        nisa.dma_copy(dst=tile, src=x[row * 128 : (row + 1) * 128, 0:512])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[row * 128 : (row + 1) * 128, 0:512], src=tile)
    return out
"""


def trace_shifted_rows(chosen: AddressRotation | None) -> Program:
    options = f"(compile_config=CompileConfig(address_rotation={chosen}))" if chosen else ""
    return trace(SHIFT_ROWS.format(options=options), args=[ArraySpec((1024, 512), "float32")])


def test_address_rotation_decides_whether_tiles_wait_for_one_another() -> None:
    programs = {chosen: trace_shifted_rows(chosen) for chosen in (None, *AddressRotation)}
    latency_ms = {name: forecast_program(program, TRN2).latency_ms for name, program in programs.items()}
    assert latency_ms[AddressRotation.AUTO] == latency_ms[AddressRotation.ENABLE] == latency_ms[None]
    assert latency_ms[AddressRotation.DISABLE] > 1.5 * latency_ms[None]
    in_place = replace(TRN2, address_rotation=False)
    assert forecast_program(programs[None], in_place).latency_ms == latency_ms[AddressRotation.DISABLE]
    assert forecast_program(programs[AddressRotation.ENABLE], in_place).latency_ms == latency_ms[None]


@pytest.mark.parametrize("chosen", [None, *AddressRotation])
def test_a_program_keeps_what_its_kernel_says_of_rotation(chosen: AddressRotation | None) -> None:
    told = {AddressRotation.ENABLE: True, AddressRotation.DISABLE: False}.get(chosen)  # type: ignore[arg-type]
    data = trace_shifted_rows(chosen).to_bytes()
    assert Program.from_bytes(data).address_rotation is told
    assert (b"address_rotation" in data) is (told is not None)


def test_a_program_with_another_word_for_rotation_is_refused() -> None:
    data = trace_shifted_rows(AddressRotation.ENABLE).to_bytes()
    header, columns = wire.unpack(data)
    with pytest.raises(IRError, match="address_rotation is 'maybe'"):
        Program.from_bytes(wire.pack(header | {"address_rotation": "maybe"}, columns))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompileConfig(address_rotation=True),  # type: ignore[arg-type]
        lambda: CompileConfig(barrier_check=1),  # type: ignore[arg-type]
        lambda: SpecializationConfig(allow_nested_config_override="yes"),  # type: ignore[arg-type]
        lambda: api.jit(double, compile_config={"barrier_check": True}),
        lambda: api.jit(double, specialization_config=CompileConfig()),
    ],
)
def test_options_of_other_types_are_refused(make: Any) -> None:
    with pytest.raises(KernelError, match="argument_type"):
        make()


@pytest.mark.parametrize(
    ("outer", "inner", "allowed"),
    [
        ({}, {}, True),
        ({"compile_config": CHECKED}, {}, True),
        ({"compile_config": CHECKED}, {"compile_config": CHECKED}, True),
        ({}, {"compile_config": CompileConfig()}, True),
        ({}, {"compile_config": CHECKED}, False),
        ({"compile_config": CHECKED}, {"compile_config": CompileConfig()}, False),
        ({"specialization_config": LOOSE}, {"compile_config": CHECKED}, True),
    ],
)
def test_a_called_kernel_may_not_disagree(outer: Any, inner: Any, allowed: bool) -> None:
    called = api.jit(double, **inner)

    @api.jit(**outer)
    def kernel(x: Any) -> Any:
        return called(x)

    if allowed:
        np.testing.assert_array_equal(api.simulate(kernel)(X), 2 * X)
    else:
        with pytest.raises(KernelError, match="nested_config"):
            api.simulate(kernel)(X)


def test_frameworks_enter_by_the_simulators_module() -> None:
    with install_modules(MODULES):
        entry = importlib.import_module("nki.simulator").simulate_kernel
    np.testing.assert_array_equal(entry(double, (X,), {}), 2 * X)
    np.testing.assert_array_equal(entry(api.jit(double), (), {"x": X}, _lnc=1), 2 * X)


@pytest.mark.parametrize("name", ["all_gather_v_prepare", "all_to_all_v_trigger"])
def test_split_collectives_are_refused_by_name(name: str) -> None:
    with pytest.raises(KernelError, match=name):
        getattr(MODULES["nki.collectives"], name)()


def test_types_of_data_have_a_class() -> None:
    assert isinstance(nl.float32, nl.DType)
    assert nl.DType is DType
