"""Elements that nobody wrote may be moved about; an output, an address or a loop may not use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.running import numerics

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, eye, at):
    out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    full = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    one = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    i = nl.ndarray((32, 8), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=full, src=x)
    nisa.dma_copy(dst=one, src=eye)
    nisa.dma_copy(dst=i, src=at)
    everywhere = nl.ndarray((32, 32), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(everywhere, 1)
    nisa.dma_copy(dst=out, src=full)
    a = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    p = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=a[{loaded}], src=x[{loaded}])
    {body}
    nisa.dma_copy(dst=out[{stored}], src={result}[{stored}])
    return out
"""

MATMUL = "nisa.nc_matmul(dst=p, stationary={}, moving={}); nisa.tensor_copy(b, p)"
GATHER = "nisa.nc_n_gather(b[:, 0:8], {}, i)"

THROUGH_HBM = """h = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(h, a)
    nisa.dma_copy(b, h)"""
IN_PART = """nisa.tensor_copy(b[:, 0:16], full[:, 0:16])
    nisa.tensor_copy_predicated(b, a, everywhere)"""
TRANSPOSED = "nisa.nc_transpose(b, a, engine=nisa.engine.vector)"
# Body; what is loaded of a; what of the result can be stored, and what cannot: it depends on the rest of a.
CASES = {
    "copy": ("nisa.tensor_copy(b, a)", "0:32, 0:5", "0:32, 0:5", "0:32, 5:6"),
    "strides": ("nisa.tensor_copy(b, a)", "0:32, 0:32:2", "3:4, 4:5", "3:4, 5:6"),
    "sum": ("nisa.tensor_tensor(b, full, a, op=nl.add)", "0:7, 0:32", "0:7, 0:32", "7:8, 0:32"),
    "scalars": ("nisa.tensor_scalar(b, full, nl.add, a[:, 0:1])", "0:7, 0:1", "0:7, 0:32", "6:8, 3:4"),
    "transpose": (TRANSPOSED, "0:32, 0:5", "0:5, 0:32", "5:6, 9:10"),
    "stationary": (MATMUL.format("a", "full"), "0:32, 0:5", "0:5, 0:32", "5:6, 0:32"),
    "moving": (MATMUL.format("full", "a"), "0:32, 0:5", "0:32, 0:5", "0:32, 4:6"),
    "maximum": ("nisa.tensor_reduce(b[:, 0:1], nl.maximum, a, axis=1)", "0:7, 0:32", "0:7, 0:1", "7:8, 0:1"),
    "through HBM": (THROUGH_HBM, "0:32, 0:5", "0:32, 0:5", "0:32, 5:6"),
    "in part": (IN_PART, "0:32, 0:5", "0:32, 0:5", "0:32, 5:6"),
    "gathered": ("nisa.tensor_copy(b, a)\n    " + GATHER.format("b"), "0:32, 0:4", "0:32, 0:8", "0:32, 9:10"),
}  # fmt: skip


def outcome(tracing: Any, case: str, stored: str, target: str = "trn2") -> set[str]:
    """Codes of what checking and running find."""
    body, loaded, _, _ = CASES[case]
    text = KERNEL.format(body=body, loaded=loaded, stored=stored, result="b")
    at = np.tile(np.arange(8) % 4, (32, 1)).astype(np.uint32)
    arrays = [np.arange(1024, dtype=np.float32).reshape(32, 32), np.eye(32, dtype=np.float32), at]
    program = tracing(text, *arrays, target=target)
    codes = {found.code for found in checks.check(program, targets.load(target))}
    try:
        (result,) = numerics.run(program, arrays)
    except KernelError as error:
        codes.add(error.code)
    else:
        assert codes or np.isfinite(result).all()
    return codes


@pytest.mark.parametrize("case", CASES)
def test_what_depends_on_unwritten_elements_may_not_be_stored(case: str, tracing: Any) -> None:
    _, _, good, bad = CASES[case]
    assert outcome(tracing, case, good) == set()
    assert outcome(tracing, case, bad) == {"uninitialised_read"}
