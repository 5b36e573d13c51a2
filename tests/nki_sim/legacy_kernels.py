"""Short ways to run, trace and look into kernels of the legacy namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.frontend.entry import trace_function
from nki_sim.frontend.legacy import api as nki
from nki_sim.frontend.legacy import language as nl
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY

Array = np.ndarray[Any, Any]
F32 = np.float32
NAMES = {dtype: name for name, dtype in NUMPY.items()}
HEADER = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.compiler as ncc


"""
EXPRESSION = """
@nki.jit
def kernel({names}):
    {names}, = [nl.load(x) for x in ({names},)]
    {before}
    r = {body}
    out = nl.ndarray(r.shape, dtype=r.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=r)
    return out
"""


def run(kernel: Callable[..., Any], *arrays: Any) -> Any:
    return nki.simulate_kernel(kernel, *arrays)


def program(kernel: Callable[..., Any], *args: Any) -> Program:
    return Program.from_bytes(trace_function(nki.jit(kernel), args).program)


def operators(kernel: Callable[..., Any], *args: Any) -> Counter[str]:
    made = program(kernel, *args)
    return Counter(made.forms[form].op for form in made.form_ids.tolist())


def code(kernel: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(KernelError) as found:
        run(kernel, *args)
    assert found.value.line > 0
    return found.value.code


def ramp(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=F32).reshape(shape)


def output(like: Any, shape: Any = None) -> Any:
    # Functions may not declare tensors in shared HBM.
    return nl.ndarray(shape or like.shape, dtype=like.dtype, buffer=nl.hbm)


def tracer(text: str, *arrays: Any, target: str = "trn2") -> Program:
    """The program of a kernel's text, for arrays of these shapes and types."""
    specs = [ArraySpec(array.shape, NAMES[array.dtype]) for array in arrays]
    return nki_sim.trace(HEADER + text, args=specs, target=target)


def traced(body: str, *arrays: Any, before: str = "pass", target: str = "trn2") -> Program:
    names = ", ".join("abcd"[: len(arrays)])
    return tracer(EXPRESSION.format(names=names, before=before, body=body), *arrays, target=target)


def evaluate(body: str, *arrays: Any, before: str = "pass", target: str = "trn2") -> Any:
    """What an expression over tiles named a, b... gives, after some statements."""
    return numerics.run(traced(body, *arrays, before=before, target=target), list(arrays))[0]
