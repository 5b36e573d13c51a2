"""What kernels of the current namespace are refused for: one that is, and one that just is not."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nki_sim
from nki_sim import rulebook

Refusals = Callable[..., set[str]]


@pytest.fixture(autouse=True)
def _older_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps loops over registers, whose rules are among those here."""
    monkeypatch.setenv("NKI_COMPILER_FRONTEND", "custom")


PRELUDE = """
import nki
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt

@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    def tile(rows=128, columns=512, dtype=nl.float32, buffer=nl.sbuf):
        made = nl.ndarray((rows, columns), dtype=dtype, buffer=buffer)
        nisa.memset(made, 1)
        return made
    t, u, i = tile(), tile(), tile(dtype=nl.int32)
    p = tile(buffer=nl.psum)
    rows = tile(columns=1, dtype=nl.uint32)
    register = nisa.register_alloc(2)
    nisa.register_load(register, i[0:1, 0:1])
    long = nl.ndarray((1, 1), dtype=nl.int64, buffer=nl.private_hbm)
    nisa.dma_copy(dst=long, src=i[0:1, 0:1])
    scalar, wide = nisa.scalar_load(i[0:1, 0:1]), nisa.scalar_load(long)
    private = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=private, src=x)
    nisa.dma_copy(dst=out, src=x)
{body}
    return out
"""

LAUNCHED = """
import nki
import nki.isa as nisa
import nki.language as nl

def two(x):
    rank = nl.program_id(0)
    out = nl.ndarray((2, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    here = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    there = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    register = nisa.register_alloc(2)
    nisa.register_load(register, count())
    nisa.dma_copy(dst=here, src=x)
    def swap(*_):
        nisa.sendrecv(src=here, dst=there, send_to_rank=1 - rank, recv_from_rank=1 - rank, pipe_id=0)
{body}
    nisa.dma_copy(dst=out[rank], src=here)
    return out

def count():
    made = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(made, 2)
    return made

kernel = nki.jit(two)[2]
"""

WHILE = """
with nl.no_reorder():
    {inside}
nl.fori_loop(0, register, lambda i: None)
"""
STARTED = (
    "acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)\n"
    "nisa.nc_matmul(acc[:, 0:32], t[:, 0:64], t[:, 0:32])\n"
    "nisa.nc_matmul(acc{part}, t[:, 0:64], t[:, 0:{width}])"
)
GRID = "nl.alloc_tiles(tile_shape=(64, 8), element_shape=(128, 16), buffer=nl.sbuf, dtype=nl.float32)"
GATHER = "nisa.dma_copy(t[0:128], private.ap([[512, 128], [1, 512]], vector_offset={}, indirect_dim=0))"
NESTED = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def inner(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out

@nki.jit
def kernel(x):
    return inner{grid}(x)
"""
RETURNS = """
import nki
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt

@nki.jit
def kernel(x{more}):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    {end}
"""

# Code -> what follows the prelude in the kernel that is refused, and in the one that is not; or whole files.
PAIRS: dict[str, tuple[str, str]] = {
    # declarations
    "address": (
        "nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf, address=(0, -4))",
        "nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)",
    ),
    "dtype": ("tile(dtype='float99')", "tile(dtype='float32')"),
    "name": (
        "nl.ndarray((8, 8), nl.float32, buffer=nl.sbuf, name=3)",
        "nl.ndarray((8, 8), nl.float32, buffer=nl.sbuf, name='three')",
    ),
    "shape": ("tile(columns=0)", "tile(columns=1)"),
    "tile_rank": (
        "nl.ndarray((128,), nl.float32, buffer=nl.sbuf)",
        "nl.ndarray((128,), nl.float32, buffer=nl.private_hbm)",
    ),
    # indices and views
    "access_pattern": ("t.ap([[512, 128], [1, 0]])", "t.ap([[512, 128], [1, 1]])"),
    "partition_step": ("t.ap([[1024, 64], [1, 8]])", "t.ap([[512, 64], [1, 8]])"),
    "too_many_indices": ("t[0, 0, 0]", "t[0, 0]"),
    "index_type": ("t[:, 'a']", "t[:, 1]"),
    "axis": ("t.permute((0, 2))", "t.permute((0, 1))"),
    "permute": ("t.permute((1, 0))", "t.permute((0, 1))"),
    "broadcast": ("t[:, 0:2].broadcast(1, 4)", "t[:, 0:1].broadcast(1, 4)"),
    "expand_dim": ("t.expand_dim(0)", "t.expand_dim(1)"),
    "index_range": ("nl.tiles(x, tile_shape=(64, 64))[9, 0]", "nl.tiles(x, tile_shape=(64, 64))[1, 0]"),
    "slice": ("nl.tiles(x, tile_shape=(8, 8))[0:8:2]", "nl.tiles(x, tile_shape=(8, 8))[0:8]"),
    "grid_selection": (
        f"{GRID}[:, 0].data",
        f"{GRID}[0].data",
    ),
    "squeeze_dim": ("t.squeeze_dim(1)", "t[:, 0:1].expand_dim(1).squeeze_dim(1)"),
    "reshape": ("t.reshape((128, 511))", "t.reshape((128, 2, 256))"),
    "rearrange": ("t.rearrange(('p',), ('p',))", "t.rearrange(('p', 'f'), ('p', 'f'))"),
    "reinterpret": (
        "tile(columns=7, dtype=nl.uint8).view(nl.float32)",
        "tile(columns=8, dtype=nl.uint8).view(nl.float32)",
    ),
    "cannot_assign_to_index": ("t[0, 0] = 1.0", "nisa.memset(t[0:1, 0:1], 1.0)"),
    "operator_on_tensor": ("t + u", "nisa.tensor_tensor(t, t, u, nl.add)"),
    "iterate_tensor": ("list(t)", "[t[row] for row in range(2)]"),
    "indirect_index_shape": (GATHER.format("rows[0:64]"), GATHER.format("rows")),
    "indirect_index_type": (GATHER.format("tile(columns=1)"), GATHER.format("rows")),
    "indirect_partition": ("t[nl.ds(register, 1), 0:8]", "t[0:1, nl.ds(register, 1)]"),
    "indirect_view": ("private.vector_select(1, rows)", "private.vector_select(0, rows)"),
    # arguments
    "missing_argument": ("nisa.tensor_copy(t)", "nisa.tensor_copy(t, u)"),
    "argument_twice": ("nisa.tensor_copy(t, u, dst=t)", "nisa.tensor_copy(t, src=u)"),
    "too_many_arguments": (
        "nisa.reciprocal(t, u, u, u)",
        "nisa.reciprocal(t, u)",
    ),
    "argument_type": ("nisa.tensor_copy(t, 1.0)", "nisa.tensor_copy(t, u)"),
    "argument_value": (
        "nisa.iota(i, [[1, 0]], 0, 0)",
        "nisa.iota(i, [[1, 512]], 0, 0)",
    ),
    "unsupported_argument": ("nisa.tensor_copy(t, u, colour=1)", "nisa.tensor_copy(t, u, name='copy')"),
    "unsupported": ("nki.baremetal(t)", "nisa.reciprocal(t, u)"),
    "unknown_name": ("nisa.reciprocate(t, u)", "nisa.reciprocal(t, u)"),
    "forbidden_statement": ("nl.exp = nl.tanh", "exp = nl.tanh"),
    "op": ("nisa.tensor_tensor(t, t, u, nl.exp)", "nisa.tensor_tensor(t, t, u, nl.add)"),
    "function_arguments": ("nl.exp(t, 1, 2, 3, 4)", "nl.exp(t)"),
    # functions of the language
    "exceed_max_supported_dimension": (
        "nl.transpose(t[:, 0:64].reshape((128, 8, 8)))",
        "nl.transpose(t[:, 0:64])",
    ),
    "size_of_dimension_exceed_arch_limit": ("nl.transpose(t[:, 0:129])", "nl.transpose(t[:, 0:128])"),
    "store_dst_shape_smaller": ("nl.store(private[:, 0:1], t)", "nl.store(private, t[:, 0:1])"),
    "accumulate_overlap": (
        STARTED.format(part="", width=64),
        STARTED.format(part="[:, 0:32]", width=32),
    ),
    # registers, scalars, loops of the device
    "dynamic_control_flow_not_supported": ("range(register)", "nl.fori_loop(0, register, lambda i: None)"),
    "scalar_comparison": ("scalar < 3", "scalar + 3"),
    "scalar_operator": ("scalar // 2", "scalar * 2"),
    "scalar_width": ("scalar + wide", "scalar + scalar"),
    "frozen_register": (
        "for i in nl.dynamic_range(register):\n    nisa.register_move(i, 0)",
        "for i in nl.dynamic_range(register):\n    nisa.register_move(register, 0)",
    ),
    "loop_bound": ("nl.fori_loop(0, 2.5, lambda i: None)", "nl.fori_loop(0, 2, lambda i: None)"),
    "loop_step": (
        "nl.fori_loop(0, register, lambda i: None, step=0)",
        "nl.fori_loop(0, register, lambda i: None, step=1)",
    ),
    "loop_result": ("nl.fori_loop(0, 2, lambda i: 3)", "nl.fori_loop(0, 2, lambda i: None)"),
    "loop_condition": (
        "nl.while_loop(register, lambda c: None)",
        "nl.while_loop(register, lambda c: nisa.register_alloc(0))",
    ),
    "loop_in_no_reorder": (
        WHILE.format(inside="nl.fori_loop(0, register, lambda i: None)"),
        WHILE.format(inside="pass"),
    ),
    "loop_left": (
        "for _ in nl.dynamic_range(register):\n    break",
        "for _ in nl.dynamic_range(register):\n    pass",
    ),
    # launches
    "lnc": ("nisa.core_barrier(out, (0, 1))", "nl.num_programs()"),
    "core_sync_mismatch": (
        LAUNCHED.format(body="    if rank:\n        swap()"),
        LAUNCHED.format(body="    swap()"),
    ),
    "core_barrier_cores": (
        LAUNCHED.format(body="    nisa.core_barrier(out, (0, 1, 2))"),
        LAUNCHED.format(body="    nisa.core_barrier(out, (0, 1))"),
    ),
    "sendrecv_rank": (
        LAUNCHED.format(body="    nisa.sendrecv(here, there, rank, rank, 0)"),
        LAUNCHED.format(body="    nisa.sendrecv(here, there, 1 - rank, 1 - rank, 0)"),
    ),
    "sendrecv_overlap": (
        LAUNCHED.format(body="    nisa.sendrecv(here[:, 0:9], here[:, 8:17], 1 - rank, 1 - rank, 0)"),
        LAUNCHED.format(body="    nisa.sendrecv(here[:, 0:8], here[:, 8:16], 1 - rank, 1 - rank, 0)"),
    ),
    "shared_hbm_mismatch": (
        LAUNCHED.format(body="    nl.ndarray((4, 4 + rank), nl.float32, buffer=nl.shared_hbm)"),
        LAUNCHED.format(body="    nl.ndarray((4, 4 + rank), nl.float32, buffer=nl.private_hbm)"),
    ),
    "launch_grid": (
        LAUNCHED.format(body="    pass").replace("[2]", "[3]"),
        LAUNCHED.format(body="    pass"),
    ),
    "nested_kernel_with_spmd_grid": (NESTED.format(grid="[2]"), NESTED.format(grid="")),
    "nested_simulation": (
        NESTED.format(grid="").replace("return inner(x)", "return nki.simulate(inner)(x)"),
        NESTED.format(grid=""),
    ),
    # files, arguments and results
    "syntax_error": (NESTED.format(grid="["), NESTED.format(grid="")),
    "entry": (NESTED.format(grid="").replace("def kernel", "def outer"), NESTED.format(grid="")),
    "no_device": (NESTED.format(grid="") + "\nkernel(3)", NESTED.format(grid="")),
    "nki_api_outside_of_nki_kernel": (
        NESTED.format(grid="") + "\nnisa.register_alloc(1)",
        NESTED.format(grid="") + "\nnl.tile_size.pmax",
    ),
    "kernel_exit": (NESTED.format(grid="") + "\nraise SystemExit", NESTED.format(grid="")),
    "kernel_exception": (NESTED.format(grid="") + "\n1 / 0", NESTED.format(grid="") + "\n1 / 1"),
    "arguments ": (
        RETURNS.format(more=", y", end="return out"),
        RETURNS.format(more=", y=1", end="return out"),
    ),
    "no_output": (RETURNS.format(more="", end="return ()"), RETURNS.format(more="", end="return out")),
    "output_type": (RETURNS.format(more="", end="return 3"), RETURNS.format(more="", end="return out")),
    "output_twice": (
        RETURNS.format(more="", end="return out, out"),
        RETURNS.format(more="", end="return out"),
    ),
    "annotation_shape_mismatch": (
        RETURNS.format(more=": nt.tensor[128, 511]", end="return out"),
        RETURNS.format(more=": nt.tensor[128, 512]", end="return out"),
    ),
    "schedule": (
        RETURNS.format(more="", end="return out") + "\nkernel = kernel.with_schedule([(1, 'a')])",
        RETURNS.format(more="", end="return out") + "\nkernel = kernel.with_schedule([('b', 'a')])",
    ),
}


def source(text: str) -> str:
    """The file: the text itself, or the prelude with it as the end of its kernel."""
    whole = text.lstrip().startswith("import")
    return text if whole else PRELUDE.format(body=textwrap.indent(text, "    "))


@pytest.mark.parametrize("code", sorted(PAIRS))
def test_a_kernel_that_is_refused_and_one_that_just_is_not(code: str, refusals: Refusals) -> None:
    refused, accepted = PAIRS[code]
    assert refusals(source(refused)) == {code.strip()}
    assert refusals(source(accepted)) == set()


def test_limits_of_the_caller(refusals: Refusals) -> None:
    text = source("for _ in range(8):\n    nisa.memset(t, 0)")
    assert refusals(text, max_instructions=12) == {"limit_instructions"}
    assert refusals(text, max_instructions=100) == set()


# Codes whose pairs are where what they need is built, in these tests of the same folder.
ELSEWHERE = {
    "nested_config": "test_compile_options",
    "limit_instructions": "test_error_pairs_current", "limit_tensors": "test_frontend",
    "limit_memory": "test_numerics", "limit_work": "test_machine", "no_values": "test_eager",
    "reduce_cmd": "test_statistics", "duplicate_indices": "test_rules_documented",
    "mx_scale_index": "test_indirection",
    "lnc_mismatch": "test_launch", "mx_scale_quadrant": "test_mx", "mx_scale_shape": "test_mx",
    "latency_unknown": "test_simulate", "trace_differs": "test_tracer",
}  # fmt: skip

# Codes without a kernel that just does not break them: what is refused there is the call itself.
ALONE = {
    "eager_launch": "any exchange between cores while a kernel runs eagerly",
    "unsupported_expression_in_mask": "masks are the other namespace's, whose table has the pair",
    "limit_loops": "a depth that no kernel needs",
}


def tables(name: str) -> set[str]:
    """The codes in the tables of a test file of this folder: the keys of its dictionaries."""
    tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text())
    found = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    keys = [key for value in found if isinstance(value, ast.Dict) for key in value.keys]
    return {str(key.value).strip() for key in keys if isinstance(key, ast.Constant)}


def raised(part: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(part.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", "")
            if name in {"fail", "KernelError", "LimitError"} and node.args:
                yield from rulebook.extract_codes(node.args[0])


@pytest.mark.parametrize("legacy", [False, True])
def test_no_code_of_the_source_is_in_no_table(legacy: bool) -> None:
    """Those that only the legacy front end raises are in its table."""
    known = tables("test_rule_pairs") | tables("test_error_pairs_current")
    if legacy:
        known |= tables("test_error_pairs_legacy")
    missing = {
        code: path.name
        for path in sorted(Path(nki_sim.__file__).parent.rglob("*.py"))
        if ("legacy" in path.parts) == legacy
        for code in raised(path)
        if code not in known
    }
    assert missing == {}
    for code, name in ELSEWHERE.items():
        assert f'"{code}"' in Path(__file__).with_name(f"{name}.py").read_text()
