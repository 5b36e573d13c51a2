"""Random calls of every instruction: what the rules let through runs, whatever its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.operators import OPERATORS, V4_INSTRUCTIONS, Argument, Operator
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.timing.schedule import schedule
from tests.support.sweeps import scale_examples

X = ArraySpec((32, 16), "float32")

# Name -> shape, type, buffer; each is written before the call. Some fit each other, some fit nothing.
TILES = {
    "a": ((32, 16), "float32", "sbuf"),
    "b": ((32, 16), "float32", "sbuf"),
    "half": ((32, 16), "bfloat16", "sbuf"),
    "whole": ((32, 16), "int32", "sbuf"),
    "column": ((32, 1), "float32", "sbuf"),
    "other": ((32, 1), "float32", "sbuf"),
    "narrow": ((32, 1), "bfloat16", "sbuf"),
    "deep": ((32, 4, 4), "float32", "sbuf"),
    "flipped": ((16, 32), "float32", "sbuf"),
    "square": ((32, 32), "float32", "sbuf"),
    "sums": ((16, 16), "float32", "psum"),
    "turned": ((16, 32), "float32", "psum"),
    "banks": ((32, 16), "float32", "psum"),
    "eight": ((32, 8), "float32", "sbuf"),
    "places": ((32, 8), "uint32", "sbuf"),
    "marks": ((32, 16), "uint8", "sbuf"),
    "words": ((32, 1), "uint16", "sbuf"),
    "numbers": ((32, 16), "uint32", "sbuf"),
    "longer": ((32, 17), "int32", "sbuf"),
    "stats": ((32, 6), "float32", "sbuf"),
    "pair": ((32, 2), "float32", "sbuf"),
    "both": ((32, 2, 16), "float32", "sbuf"),
    "row": ((1, 16), "float32", "sbuf"),
    "least": ((32, 8), "bfloat16", "sbuf"),
    "seed": ((1, 1), "uint32", "sbuf"),
    "states": ((128, 6), "uint32", "sbuf"),
}
SLICES = ("", "", "", "[0:16]", "[:, 0:1]", "[:, 0:8]", "[:, 0:1].broadcast(1, 16)")
CHOICES = {
    "reduce_cmd": [
        f"nisa.reduce_cmd.{name}" for name in ("idle", "reset", "reduce", "reset_reduce", "load_reduce")
    ],
    "oob_mode": ["nisa.oob_mode.error", "nisa.oob_mode.skip"],
    "perf_mode": ["nisa.matmul_perf_mode.none", "nisa.matmul_perf_mode.double_row"],
}
# Registers have tests of their own: what they take are no tiles.
CALLED = sorted(
    name for name, operator in OPERATORS.items() if not operator.internal and operator.engines != ("sync",)
)
FUNCTIONS = ("add", "multiply", "power", "maximum", "less", "exp", "copy", "abs_max")


def likely(argument: Argument) -> st.SearchStrategy[str]:
    """Mostly what the argument takes, at times something else."""
    tensors = st.tuples(st.sampled_from(sorted(TILES)), st.sampled_from(SLICES)).map("".join)
    plain = st.sampled_from(["a", "b"])
    numbers = st.sampled_from(["0.0", "-0.0", "1", "2.5", "float('nan')", "True"])
    functions = st.sampled_from([f"nl.{name}" for name in FUNCTIONS])
    kinds: dict[str, st.SearchStrategy[str]] = {
        "out": plain | st.sampled_from(["column", "sums", "turned"]) | tensors,
        "tensor": plain | tensors,
        "tensor_or_float": numbers | st.sampled_from(["column", "a"]) | tensors,
        "float": numbers,
        "bool": st.sampled_from(["True", "False"]),
        "axes": st.sampled_from(["1", "-1", "(1, 2)", "(1, 0)", "0", "7"]),
        "int": st.sampled_from(["0", "1", "-3", "8", "7.5"]),
        "ints": st.sampled_from(["(0,) * 32", "(32, 0)", "()", "(-1,)"]),
        "pattern": st.sampled_from(["[[1, 16]]", "[[2, 4], [1, 4]]", "[]", "3"]),
        "ones": st.sampled_from(["1.0", "[1.0, 1.0]", "2.0"]),
        "choice": st.sampled_from(CHOICES.get(argument.name, ["nl.less", "nl.equal", "nl.add"])),
    }
    if argument.name == "srcs":
        return st.sampled_from(["[a, b]", "[x]", "[]", "a"])
    return kinds.get(argument.kind, st.sampled_from(["nl.add", "nl.multiply"]) | functions)


@st.composite
def calls(draw: Any, operator: Operator) -> str:
    """A call with some of its optional arguments, in pairs or not."""
    words = [
        f"{argument.name}={draw(likely(argument))}"
        for argument in operator.arguments
        if argument.required or draw(st.booleans())
    ]
    engine = draw(st.sampled_from(["unknown", "unknown", "vector", "scalar", "gpsimd", "tensor"]))
    return f"nisa.{operator.name}({', '.join([*words, f'engine=nisa.engine.{engine}'])})"


def kernel_of(call: str) -> str:
    tiles = [
        f"    {name} = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.{buffer})\n    nisa.memset({name}, 1)"
        for name, (shape, dtype, buffer) in TILES.items()
    ]
    return "\n".join([
        "@nki.jit", "def kernel(x):",
        "    out = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.shared_hbm)",
        *tiles, f"    {call}", "    nisa.dma_copy(dst=out, src=a)", "    return out",
    ])  # fmt: skip


def traced_or_refused(trace: Callable[[], Program]) -> Program | KernelError:
    try:
        return trace()
    except KernelError as error:
        return error


@pytest.mark.parametrize("name", CALLED)
@settings(max_examples=scale_examples(25))
@given(data=st.data())
def test_a_call_is_refused_at_its_line_or_runs(name: str, data: Any, tracing: Any, texts: Any) -> None:
    target = data.draw(st.sampled_from(targets.names()))
    call = data.draw(calls(OPERATORS[name]))
    text = kernel_of(call)
    line = texts.source_of(text).splitlines().index(f"    {call}") + 1
    made = traced_or_refused(lambda: tracing(text, X, target=target))
    if isinstance(made, KernelError):
        assert made.code != "kernel_exception"
        assert made.line == line
    elif not checks.check(made, targets.load(target)):
        (found,) = numerics.run(made, [np.ones((32, 16), np.float32)])
        assert found.shape == (32, 16)
        assert schedule(made, targets.load(target)).latency_ms > 0


PLAIN = {
    "dma_copy": "a, b",
    "dma_transpose": "flipped, b",
    "tensor_copy": "half, b",
    "memset": "whole, 3",
    "nc_matmul": "sums, a, b",
    "nc_transpose": "turned, b",
    "tensor_tensor": "a, b, b, nl.power",
    "tensor_scalar": "a, b, nl.add, column, op1=nl.power, operand1=2.0",
    "scalar_tensor_tensor": "a, b, nl.add, column, nl.add, half",
    "tensor_scalar_reduce": "a, b, nl.add, 1.0, nl.maximum, column",
    "tensor_reduce": "column, nl.add, deep, (1, 2)",
    "tensor_tensor_scan": "a, b, half, column, nl.add, nl.multiply",
    "activation": "a, nl.exp, b, column, other, nl.add, narrow, nisa.reduce_cmd.reset_reduce",
    "activation_reduce": "a, nl.exp, b, nl.add, column",
    "reciprocal": "deep, banks",
    "affine_select": "a, [[1, 16]], 1, b, 0.0, nl.less, -3",
    "bn_aggr": "pair, stats",
    "bn_stats": "stats, b",
    "dma_compute": "a, [x, b], nl.add",
    "dropout": "a, b, 0.5",
    "iota": "whole, [[1, 16]], 3, 2",
    "local_gather": "a, b, words, 1, 16",
    "max8": "eight, b",
    "nc_find_index8": "places, b, eight",
    "nc_match_replace8": "a, b, eight, 0.0",
    "nc_n_gather": "a, b, numbers",
    "nc_stream_shuffle": "a, b, (0,) * 32",
    "nonzero_with_count": "longer, whole",
    "rand_get_state": "states",
    "rand_set_state": "states",
    "range_select": "a, b, nl.greater, nl.less, column, other, reduce_res=column",
    "rng": "numbers",
    "select_reduce": "a, marks, b, 0.0",
    "sequence_bounds": "both[0:1], row",
    "set_rng_seed": "seed",
    "tensor_copy_predicated": "a, b, marks",
    "tensor_partition_reduce": "row, nl.add, b",
    "tensor_scalar_cumulative": "a, b, nl.multiply, nl.add, 1.0",
    "topk": "least, places, half, 16",
    "activate2": "a, nl.exp, b, 1.0, column, nl.multiply, nl.add",
    "exponential": "a, b, column",
    "nc_matmul_mx": "sums, b.view(nl.float8_e4m3fn_x4), b.view(nl.float8_e5m2_x4), marks, marks",
    "quantize_mx": "b[:, 0:4].view(nl.float8_e4m3fn_x4), half, marks[:, 0:4]",
    "rand2": "a, column, 3.0",
}


@pytest.mark.parametrize("name", CALLED)
def test_each_instruction_has_a_call_that_is_let_through(name: str, tracing: Any) -> None:
    """So that the property above is not about refusals alone."""
    target = "trn3" if name in V4_INSTRUCTIONS else "trn2"
    program = tracing(kernel_of(f"nisa.{name}({PLAIN[name]})"), X, target=target)
    assert checks.check(program, targets.load(target)) == []
    assert len(numerics.run(program, [np.ones((32, 16), np.float32)])) == 1
