"""Short ways to run, trace and look into kernels of the legacy namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.errors import KernelError
from nki_sim.frontend.entry import trace_function
from nki_sim.frontend.legacy import api as nki
from nki_sim.frontend.legacy import language as nl
from nki_sim.program.ir import Program

Array = np.ndarray[Any, Any]
F32 = np.float32


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
