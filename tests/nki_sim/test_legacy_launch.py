"""Launches of legacy kernels: grids, decorators, written arguments, source text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.errors import KernelError
from nki_sim.forms import ArraySpec
from nki_sim.frontend.entry import trace_bytes
from nki_sim.frontend.legacy import api as nki
from nki_sim.frontend.legacy import language as nl
from nki_sim.frontend.legacy import typing as nt
from nki_sim.program.ir import Program

F32 = np.float32
RAMP = np.arange(32, dtype=F32).reshape(4, 8)


@pytest.mark.parametrize("grid", [(2, 3), (nl.nc(2), 3), (nl.spmd_dim(1, nl.nc(2)), 3)])
def test_every_program_of_a_grid_writes_its_part(grid: Any) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        i, j = nl.program_id(0), nl.program_id(1)
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y[i, j], nl.multiply(nl.load(x[i, j]), float(1 + 10 * i + j)))
        assert (nl.num_programs(0), nl.num_programs(1), nl.program_ndim()) == (2, 3, 2)
        return y

    x = np.ones((2, 3, 4, 8), dtype=F32)
    wanted = x * (1 + 10 * np.arange(2)[:, None, None, None] + np.arange(3)[None, :, None, None])
    assert np.array_equal(nki.simulate_kernel(kernel[grid], x), wanted)


@pytest.mark.parametrize("size", [0, 1.5, "a"])
def test_grids_are_made_of_positive_integers(size: Any) -> None:
    with pytest.raises(KernelError) as found:
        nki.jit(lambda x: x)[size]
    assert found.value.code == "grid"


def test_kernels_call_kernels_and_decorators_run_them() -> None:
    @nki.jit(mode="trace")
    def double(t: Any) -> Any:
        return t + t

    @nki.baremetal
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y, double(nl.load(x)))
        return y

    x = RAMP.copy()
    assert np.array_equal(kernel(x), 2 * x)
    assert np.array_equal(nki.profile(kernel)(x), 2 * x)
    timed = nki.benchmark(warmup=1, iters=2)(kernel)
    assert timed(x) is None
    latency = timed.benchmark_result.nc_latency
    assert latency.get_latency_percentile(50) == latency.get_latency_percentile(99) > 0
    assert repr(latency) == f"Latency({latency.get_latency_percentile(50):.4g} us predicted)"
    with pytest.raises(KernelError, match="nki_api_outside_of_nki_kernel"):
        double(x)


def test_arguments_that_are_written_are_outputs_when_nothing_is_returned() -> None:
    def kernel(x: Any, y: Any) -> None:
        nl.store(y, nl.load(x) + 1.0)

    x, y = RAMP.copy(), np.zeros((4, 8), dtype=F32)
    nki.simulate_kernel(kernel, x, y)
    assert np.array_equal(y, x + 1)


def _writing(annotation: Any, *, give: bool) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        nl.store(y, t)
        nl.store(x, t + 1.0)
        return (x, y) if give else y

    kernel.__annotations__["x"] = annotation
    return kernel


def test_written_arguments_are_mutable_and_returned() -> None:
    for annotation, give, code in (
        (Any, True, "cannot_update_immutable_parameter"),
        (nt.mutable_tensor, False, "mutable_parameter_not_returned"),
    ):
        with pytest.raises(KernelError) as found:
            nki.simulate_kernel(_writing(annotation, give=give), RAMP.copy())
        assert found.value.code == code
    x = RAMP.copy()
    changed, copied = nki.simulate_kernel(_writing(nt.mutable_tensor, give=True), x.copy())
    assert np.array_equal(changed, x + 1)
    assert np.array_equal(copied, x)


SOURCE = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.typing as nt
from neuronxcc.nki import trace
from neuronxcc.nki.language import par_dim

@nki.jit
def kernel(x, eps):
    from neuronxcc import nki as again
    y: nt.tensor[4, 8] = nl.ndarray((4, 8), dtype=np.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(1):
        nl.store(y, nl.load(x) + eps)
        ' end loop i '
    return y
"""


def test_source_text_is_traced_with_the_legacy_modules() -> None:
    made = Program.from_bytes(trace_bytes(SOURCE, args=[ArraySpec((4, 8), "float32"), 1e-5]))
    assert (made.dialect, made.kernel, len(made)) == ("neuronxcc", "kernel", 3)
    assert made.lines.tolist() == [15, 15, 15]
