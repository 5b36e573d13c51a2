"""What `nki.jit` takes for one kernel, and the names of NKI 0.7 beside it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from nki_sim.dtypes import DType
from nki_sim.errors import KernelError
from nki_sim.frontend import api, isa
from nki_sim.frontend import language as nl
from nki_sim.frontend.compile_options import AddressRotation, CompileConfig, SpecializationConfig
from nki_sim.frontend.modules import MODULES, install_modules

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
    assert kernel[1].config == kernel.config


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
