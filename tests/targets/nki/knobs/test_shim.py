"""Workloads that import their operators from `nkigym.ops`."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from targets.nki.knobs import ops
from targets.nki.knobs.nkigym_shim import provide_nkigym
from targets.nki.knobs.tracing import trace_workload

SOURCE = """
from nkigym.ops import nkigym_kernel
from nkigym.ops.activation import NKIActivation
from nkigym.ops.activation_reduce import NKIActivationReduce
from nkigym.ops.dma_transpose import NKIDMATranspose
from nkigym.ops.load import NKILoad
from nkigym.ops.matmul import NKIMatmul
from nkigym.ops.store import NKIStore
from nkigym.ops.tensor_copy import NKITensorCopy
from nkigym.ops.tensor_scalar import NKITensorScalar


@nkigym_kernel
def f_nkigym(lhs, rhs):
    sbuf_lhs = NKILoad()(src=lhs)
    square_sum = NKIActivationReduce(op="square", reduce_op="add")(data=sbuf_lhs)
    inverse = NKIActivation(op="rsqrt", scale=1.0 / 256, bias=1e-6)(data=square_sum)
    normed = NKITensorScalar(op0="multiply")(data=sbuf_lhs, operand0=inverse)
    normed_T = NKIDMATranspose()(src=normed)
    product = NKIMatmul()(stationary=normed_T, moving=NKILoad()(src=rhs))
    hbm_output = NKIStore()(src=NKITensorCopy()(src=product))
    return hbm_output
"""


def test_a_workload_runs_as_it_is() -> None:
    names: dict[str, object] = {}
    with provide_nkigym():
        exec(SOURCE, names)
    function = names["f_nkigym"]
    assert callable(function)
    graph = trace_workload(function, {"lhs": ((128, 256), "bfloat16"), "rhs": ((256, 512), "bfloat16")})
    assert [call.operator for call in graph.calls] == [
        *("NKIActivationReduce", "NKIActivation", "NKITensorScalar", "NKITranspose", "NKIMatmul"),
    ]
    assert [value.name for value in graph.values] == [
        *("lhs", "rhs", "square_sum", "inverse", "normed", "normed_T", "output"),
    ]
    rng = np.random.default_rng(0)
    lhs, rhs = rng.standard_normal((128, 256)), rng.standard_normal((256, 512))
    wanted = lhs / np.sqrt(np.mean(lhs**2, axis=1, keepdims=True) + 1e-6) @ rhs
    np.testing.assert_allclose(
        function(lhs.astype(np.float32), rhs.astype(np.float32)), wanted, rtol=1e-3, atol=1e-3
    )


def test_nothing_is_left_behind() -> None:
    with provide_nkigym():
        import nkigym.ops  # type: ignore[import-not-found]

        assert nkigym.ops.NKISoftmax is ops.NKISoftmax
    assert not [name for name in sys.modules if name.split(".")[0] == "nkigym"]


def test_a_package_of_that_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    real = ModuleType("nkigym")
    monkeypatch.setitem(sys.modules, "nkigym", real)
    with provide_nkigym():
        import nkigym

        assert nkigym is real
        with pytest.raises(ImportError):
            import nkigym.ops
    assert sys.modules["nkigym"] is real
