"""Every rule has a kernel that breaks it and one that just does not; no code in the source is left out."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import nki_sim
from nki_sim import ArraySpec, targets, xorwow
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.forms import Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.operators.sync import GPSIMD_ELEMENTS
from nki_sim.program.ir import Program

PRELUDE = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    def tile(rows=128, columns=512, dtype=nl.float32, buffer=nl.sbuf, value=1):
        made = nl.ndarray((rows, columns), dtype=dtype, buffer=buffer)
        nisa.memset(made, value)
        return made
    t, u, c = tile(), tile(), tile(columns=1)
    i, h = tile(dtype=nl.int32), tile(dtype=nl.bfloat16)
    p, q = tile(buffer=nl.psum), tile(buffer=nl.psum)
    bare = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    private = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=out, src=x)
{body}
    return out
"""


# The transpose of rows that indices choose, and their sum with a tile.
GATHERED = """
w = nl.ndarray((128, 128), dtype=nl.{dtype}, buffer=nl.private_hbm)
nisa.dma_copy(w, t[:, 0:128])
rows = i[:, 0:1].view(nl.uint32)
chosen = w.ap([[128, 128], [1, 128]], vector_offset=rows, indirect_dim=0)
nisa.dma_transpose(tile(columns=128, dtype=nl.{dtype}), chosen)
"""
ADDED = """
nisa.dma_copy(private, t)
chosen = private.ap([[512, 128], [1, 512]], vector_offset=i[:, 0:1], indirect_dim=0)
nisa.dma_compute(chosen, [chosen, t{more}], nl.add)
"""


class Pair(NamedTuple):
    """What follows the prelude in the kernel that breaks the rule, and in the one that does not."""

    breaks: str
    keeps: str
    target: str = "trn2"


PAIRS: dict[str, Pair] = {
    # shapes and places of one access
    "access_rank": Pair(
        "nisa.tensor_copy(t.reshape((128, 2, 2, 2, 4, 16)), u.reshape((128, 2, 2, 2, 4, 16)))",
        "nisa.tensor_copy(t.reshape((128, 2, 2, 2, 64)), u.reshape((128, 2, 2, 2, 64)))",
    ),
    "access_size": Pair(
        "nisa.memset(nl.ndarray((1, 65537), dtype=nl.uint8, buffer=nl.sbuf), 0)",
        "nisa.memset(nl.ndarray((1, 65536), dtype=nl.uint8, buffer=nl.sbuf), 0)",
    ),
    "start_partition": Pair("nisa.memset(t[33:65], 0.0)", "nisa.memset(t[32:64], 0.0)"),
    "num_partition_exceed_arch_limit": Pair("tile(rows=129)", "tile(rows=128)"),
    "write_overlap": Pair(
        "nisa.tensor_copy(t.ap(pattern=[[512, 128], [7, 2], [1, 8]]), u[:, 0:16])",
        "nisa.tensor_copy(t.ap(pattern=[[512, 128], [8, 2], [1, 8]]), u[:, 0:16])",
    ),
    "shape_mismatch": Pair(
        "nisa.tensor_copy(t[:, 0:8], u[:, 0:9])", "nisa.tensor_copy(t[:, 0:8], u[:, 1:9])"
    ),
    "dtype_mismatch": Pair(
        "nisa.nc_transpose(tile(buffer=nl.psum, columns=128), h[:, 0:128])",
        "nisa.nc_transpose(tile(buffer=nl.psum, columns=128), t[:, 0:128])",
    ),
    "index_dtype": Pair(
        "w = h[:, 0:1].view(nl.int16)\n"
        "nisa.dma_copy(t, x.ap([[512, 128], [1, 512]], vector_offset=w, indirect_dim=0))",
        "nisa.dma_copy(t, x.ap([[512, 128], [1, 512]], vector_offset=i[:, 0:1], indirect_dim=0))",
    ),
    # memories and engines
    "gpsimd_psum": Pair(
        "nisa.tensor_copy(t, p, engine=nisa.engine.gpsimd)",
        "nisa.tensor_copy(t, u, engine=nisa.engine.gpsimd)",
    ),
    "both_inputs_psum": Pair("nisa.tensor_tensor(t, p, q, nl.add)", "nisa.tensor_tensor(t, p, u, nl.add)"),
    "unsupported_memory": Pair("nisa.dma_copy(p, x)", "nisa.dma_copy(t, x)"),
    "engine": Pair(
        "nisa.tensor_tensor(t, t, u, nl.power, engine=nisa.engine.vector)",
        "nisa.tensor_tensor(t, t, u, nl.power, engine=nisa.engine.gpsimd)",
    ),
    "generation": Pair(
        "mode = nisa.matmul_perf_mode.double_row\n"
        "nisa.nc_matmul(p[0:32, 0:32], h[0:8, 0:64], h[0:8, 0:64], perf_mode=mode)",
        "nisa.nc_matmul(p[0:64, 0:64], h[0:8, 0:64], h[0:8, 0:64])",
        "trn1",
    ),
    # products
    "matmul_size": Pair(
        "nisa.nc_matmul(p[0:128, 0:512], t[0:8, 0:129], u[0:8])", "nisa.nc_matmul(p, t[0:8, 0:128], u[0:8])"
    ),
    "matmul_shape": Pair(
        "nisa.nc_matmul(p, t[0:8, 0:128], u[0:9])", "nisa.nc_matmul(p, t[0:8, 0:128], u[0:8])"
    ),
    "matmul_dtype": Pair(
        "nisa.nc_matmul(p, t[0:8, 0:128], h[0:8])", "nisa.nc_matmul(p, h[0:8, 0:128], h[0:8])"
    ),
    "matmul_tile": Pair(
        "nisa.nc_matmul(p[0:32], h[0:32, 0:32], h[0:32], tile_position=(16, 0), tile_size=(32, 32))",
        "nisa.nc_matmul(p[0:32], h[0:32, 0:32], h[0:32], tile_position=(32, 0), tile_size=(32, 32))",
    ),
    "psum_bank": Pair(
        "w = tile(columns=1024, buffer=nl.psum)\nnisa.nc_matmul(w[:, 1:513], h[:, 0:128], h)",
        "w = tile(columns=1024, buffer=nl.psum)\nnisa.nc_matmul(w[:, 512:1024], h[:, 0:128], h)",
    ),
    "transpose_size": Pair(
        "nisa.nc_transpose(t[0:33, 0:32], u[0:32, 0:33], engine=nisa.engine.vector)",
        "nisa.nc_transpose(t[0:32, 0:32], u[0:32, 0:32], engine=nisa.engine.vector)",
    ),
    # arguments
    "reduce_axis": Pair(
        "nisa.tensor_reduce(c, nl.add, t, axis=0)", "nisa.tensor_reduce(c, nl.add, t, axis=1)"
    ),
    "argument_pair": Pair(
        "nisa.tensor_scalar(t, u, nl.add, 1.0, op1=nl.add)",
        "nisa.tensor_scalar(t, u, nl.add, 1.0, op1=nl.add, operand1=1.0)",
    ),
    "activation_bias_invalid_type": Pair(
        "nisa.activation(t, nl.exp, u, bias=1.0)", "nisa.activation(t, nl.exp, u, bias=c)", "trn1"
    ),
    "activation_scale_invalid_type": Pair(
        "nisa.activation(t, nl.exp, u, scale=h[:, 0:1])", "nisa.activation(t, nl.exp, u, scale=c)"
    ),
    "activation_bias": Pair(
        "nisa.activation(t, nl.reciprocal, u, bias=c)", "nisa.activation(t, nl.reciprocal, u)", "trn1"
    ),
    "indirect_transpose": Pair(GATHERED.format(dtype="float32"), GATHERED.format(dtype="bfloat16")),
    "indirect_sources": Pair(ADDED.format(more=", u"), ADDED.format(more="")),
    "operand_invalid_type": Pair(
        "nisa.tensor_scalar(t, u, nl.add, h[:, 0:1])", "nisa.tensor_scalar(t, u, nl.add, c)"
    ),
    "memset_value": Pair("nisa.memset(i, 1.0)", "nisa.memset(i, 1)"),
    "bitvec_dtype": Pair(
        "nisa.tensor_tensor(i, t, i, nl.bitwise_and)", "nisa.tensor_tensor(i, i, i, nl.bitwise_and)"
    ),
    "register_size": Pair(
        "nisa.register_load(nisa.register_alloc(), i[0:1, 0:2])",
        "nisa.register_load(nisa.register_alloc(), i[0:1, 0:1])",
    ),
    # whole programs
    "sbuf_capacity": Pair(
        "nisa.memset(tile(columns=60000), 0.0)",
        "for _ in range(3):\n    w = tile(columns=25000)\n    nisa.memset(w, 0.0)",
    ),
    "psum_capacity": Pair(
        "w = [tile(buffer=nl.psum) for _ in range(9)]\nfor y in w:\n    nisa.memset(y, 0.0)",
        "w = [tile(buffer=nl.psum) for _ in range(8)]\nfor y in w:\n    nisa.memset(y, 0.0)",
    ),
    "hbm_capacity": Pair(
        "nl.ndarray((1 << 17, 1 << 16), dtype=nl.float32, buffer=nl.private_hbm)",
        "nl.ndarray((1 << 14, 1 << 16), dtype=nl.float32, buffer=nl.private_hbm)",
    ),
    "uninitialised_read": Pair(
        "nisa.tensor_copy(t, bare)\nnisa.dma_copy(out, t)", "nisa.tensor_copy(t, bare)\nnisa.memset(t, 0.0)"
    ),
    "psum_accumulate_undefined": Pair(
        "nisa.nc_matmul(p, h[:, 0:128], h, accumulate=True)",
        "nisa.nc_matmul(p, h[:, 0:128], h, accumulate=False)",
    ),
    "tensor_output_not_written_to": Pair(
        "more = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)\n"
        "nisa.dma_copy(more[0:7], t[0:7, 0:8])\nout = (out, more)",
        "more = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)\n"
        "nisa.dma_copy(more, t[0:8, 0:8])\nout = (out, more)",
    ),
    "cannot_update_immutable_parameter": Pair("nisa.dma_copy(x, t)", "nisa.dma_copy(private, t)"),
    "tensor_access_out_of_bound": Pair("nisa.memset(t[:, 0:513], 0.0)", "nisa.memset(t[:, 0:512], 0.0)"),
    "output_buffer": Pair("out = private\nnisa.dma_copy(private, t)", "nisa.dma_copy(private, t)"),
}

# Rules whose pairs are where their programs are built: in these tests of the same folder.
ELSEWHERE = {
    "write_write_race": "test_races", "read_write_race": "test_races",
    "unexpected_output_dependencies": "test_iterations", "mixed_allocation": "test_placement",
    "placement_bounds": "test_placement", "placement_alignment": "test_placement",
    "overwritten_by_overlap": "test_placement", "indirect_access": "test_indexed",
}  # fmt: skip

X = ArraySpec((128, 512), "float32")
Trace = Callable[..., Program]


def codes(tracing: Trace, body: str, target: str) -> set[str]:
    """What the kernel with that body breaks, while it is traced or as a program."""
    text = PRELUDE.format(body=textwrap.indent(body, "    "))
    try:
        program = tracing(text, X, target=target)
    except KernelError as error:
        return {error.code}
    return {item.code for item in checks.check(program, targets.load(target))}


@pytest.mark.parametrize("code", sorted(PAIRS))
def test_a_kernel_that_breaks_the_rule_and_one_that_just_does_not(code: str, tracing: Trace) -> None:
    pair = PAIRS[code]
    assert codes(tracing, pair.breaks, pair.target) == {code}
    assert codes(tracing, pair.keeps, pair.target) == set()


def moved(free: int) -> Form:
    """A tile that GpSimd's own DMA takes from the other core."""
    items = [Operand(role, ((free, 128), (1, free)), "float32", "sbuf", free, 0) for role in ("dst", "src")]
    return Form("sendrecv", "gpsimd", tuple(items), ())


def drawn(width: int) -> Form:
    """Random bits from a generator with a state of that many words."""
    dst = Operand("dst", ((8, 128), (1, 8)), "uint32", "sbuf", 8, 0)
    state = Operand("rng_state", ((width, 128), (1, width)), "uint32", "register", width, 0)
    return Form("rng", "vector", (dst, state), ())


# Rules that a program made elsewhere breaks, and no kernel.
FORMS = {
    "sendrecv_size": (moved(GPSIMD_ELEMENTS + 1), moved(GPSIMD_ELEMENTS)),
    "engine_state": (drawn(xorwow.WORDS + 1), drawn(xorwow.WORDS)),
}


@pytest.mark.parametrize("code", sorted(FORMS))
def test_a_form_that_breaks_the_rule_and_one_that_just_does_not(code: str) -> None:
    target = targets.load("trn2")
    found = [
        {breach.code for breach in OPERATORS[form.op].find_breaches(form, target)} for form in FORMS[code]
    ]
    assert found == [{code}, set()]


def found_in_source() -> dict[str, str]:
    """Code -> file, of every `Breach` and `Violation` made in the source."""
    found = {}
    root = Path(nki_sim.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Breach", "Violation"}:
                code = node.args[0]
                named = [] if isinstance(code, ast.JoinedStr) else list(ast.walk(code))
                texts = [str(item.value) for item in named if isinstance(item, ast.Constant)]
                found.update(dict.fromkeys(texts, path.name))
    return found


def test_no_rule_is_without_a_test() -> None:
    """Either a pair here, or the code is asserted by a test file of this folder."""
    folder = Path(__file__).parent
    texts = {path.stem: path.read_text() for path in folder.glob("test_*.py") if path != Path(__file__)}
    for code, name in ELSEWHERE.items():
        assert f'"{code}"' in texts[name]
    missing = {
        code: file
        for code, file in found_in_source().items()
        if code not in {*PAIRS, *FORMS} and not any(f'"{code}"' in text for text in texts.values())
    }
    assert missing == {}
