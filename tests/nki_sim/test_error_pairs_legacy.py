"""What kernels of the legacy namespace are refused for: one that is, and one that just is not.

The names are those of the error guide of SDK 2.26, without `err_`, where it has one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

Refusals = Callable[..., set[str]]

HEADER = """
import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt
import numpy as np
"""

PRELUDE = (
    HEADER
    + """
def declared():
    return nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)

@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.load(x)
    nl.store(out, t)
    i_p, i_f = nl.arange(128)[:, None], nl.arange(512)[None, :]
    column = nisa.memset((128, 1), 1, dtype=np.float32)
    rows = nisa.memset((128, 1), 1, dtype=np.uint32)
    scratch = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.hbm)
    blocks = nl.zeros((4, nl.par_dim(8), 8), dtype=nl.float32, buffer=nl.sbuf)
    nl.store(scratch, t)
{body}
    return out
"""
)

PLACED = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0))
    u = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=4096))
    zero = nl.ndarray((nl.par_dim(128), 1), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=8192))
    s = nl.ndarray((nl.par_dim(32), 32), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=12288))
    zero[...] = 0.0
    t[...] = nl.load(x)
{body}
    nl.store(out, t)
    return out
"""
)

WRITES = (
    HEADER
    + """
@nki.jit
def kernel(x{note}):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    nl.store({goal}, nl.load(out))
    return {result}
"""
)

NESTED = (
    HEADER
    + """
@nki.jit
def inner(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.hbm)
    nl.store(out, nl.load(x))
    return out

@nki.jit
def kernel(x):
    return inner{grid}(x)
"""
)


def placed(body: str) -> str:
    return PLACED.format(body=textwrap.indent(body, "    "))


MORE = "more = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)\n"
BRANCHES = """
for i in range(4):
    {first}
    if i < 2:
        tmp{part} = nl.load(x)
    else:
        tmp{part} = nl.load(scratch)
    nl.store(scratch, tmp)
"""

# Code -> what follows the prelude in the kernel that is refused, and in the one that is not; or whole files.
PAIRS: dict[str, tuple[str, str]] = {
    # index expressions and masks
    "1d_arange_not_supported": ("t[nl.arange(64), 0]", "t[nl.arange(64)[:, None], 0]"),
    "control_flow_condition_depending_on_arange": ("if i_f > 8:\n    pass", "if 9 > 8:\n    pass"),
    "cannot_assign_to_index": (
        "i_f[0, 5] = 3",
        "made = nisa.iota(i_f, dtype=nl.uint32)\nmade[0, 5] = 3",
    ),
    "index_empty": ("nl.arange(0)", "nl.arange(1)"),
    "index_not_affine": ("nl.exp(t[i_p, i_f // 2])", "nl.exp(t[i_p, i_f // 2 * 2 + i_f % 2])"),
    "index_shapes": ("i_f + nl.arange(8)[None, :]", "i_f + nl.arange(1)[None, :]"),
    "index_subscript": ("i_f[0:1]", "i_f[:, None]"),
    "index_type": ("t['a', 0]", "t[0, 0]"),
    "iterate_index": ("list(i_f)", "list(range(3))"),
    "too_many_indices": ("t[0, 0, 0]", "t[0, 0]"),
    "access_pattern": ("nl.load(x[i_p, 511 - i_f])", "nl.exp(t[i_p, 511 - i_f])"),
    "partition_step": (
        "nl.exp(t[2 * nl.arange(64)[:, None], i_f])",
        "nl.exp(t[nl.arange(64)[:, None], i_f])",
    ),
    "unsupported_mixing_basic_advanced_tensor_indexing": ("t[i_p, :]", "t[i_p, i_f]"),
    "unsupported_expression_in_mask": (
        "nl.exp(t[i_p, i_f], mask=(i_f < 3) | (i_p < 2))",
        "nl.exp(t[i_p, i_f], mask=(i_f < 3) & (i_p < 2))",
    ),
    "dma_partition_index": (
        "nisa.dma_copy(dst=nl.ndarray((128, 512), x.dtype), src=x[0:1].broadcast_to((128, 512)))",
        "nisa.dma_copy(dst=nl.ndarray((128, 512), x.dtype), src=x)",
    ),
    "tensor_access_out_of_bound": (
        "nl.load(scratch[i_p, i_f + 1])",
        "nl.load(scratch[i_p, i_f + 1], mask=i_f + 1 < 512)",
    ),
    "indirect_indices_free_dim": (
        "nl.load(scratch[i_p, rows[i_p, 0]])",
        "nl.load(scratch[rows[i_p, 0], i_f])",
    ),
    "indirect_partition": ("nl.copy(t[rows[0:1, 0:1], 0:8])", "nl.copy(t[0:1, rows[0:1, 0:1]])"),
    # tensors
    "failed_to_infer_tile_from_local_tensor": ("nl.add(blocks, 32)", "nl.add(blocks[0], 32)"),
    "hbm_tensor_with_init_value": (
        "nl.zeros((8, 8), dtype=nl.float32, buffer=nl.hbm)",
        "nl.zeros((8, 8), dtype=nl.float32, buffer=nl.sbuf)",
    ),
    "par_dim": (
        "nl.ndarray((nl.par_dim(8), nl.par_dim(8)), dtype=nl.float32)",
        "nl.ndarray((nl.par_dim(8), 8), dtype=nl.float32)",
    ),
    "num_partition_exceed_arch_limit": (
        "nl.zeros((129, 8), dtype=nl.float32, buffer=nl.sbuf)",
        "nl.zeros((128, 8), dtype=nl.float32, buffer=nl.sbuf)",
    ),
    "num_partition_mismatch": (
        "nisa.tensor_tensor(t, t[0:1], op=nl.add)",
        "nisa.tensor_tensor(t, t[0:1].broadcast_to((128, 512)), op=nl.add)",
    ),
    "store_dst_shape_smaller": ("column[...] = t", "t[...] = column"),
    "unsupported_memory": ("nl.exp(scratch)", "nl.exp(t)"),
    "annotation_shape_mismatch ": (
        "data: nt.tensor[128, 512] = nl.zeros((nl.par_dim(128), 128), dtype=np.float32)",
        "data: nt.tensor[128, 128] = nl.zeros((nl.par_dim(128), 128), dtype=np.float32)",
    ),
    "annotation_shape_mismatch": ("t.assert_shape((128, 511))", "t.assert_shape((128, 512))"),
    "shared_hbm_must_in_kernel_level": ("declared()", "nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.hbm)"),
    "shared_hbm_must_in_kernel_level ": (
        "if nl.program_id(0) >= 0:\n    nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)",
        "if True:\n    nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.hbm)",
    ),
    "local_variable_used_out_of_scope": (
        BRANCHES.format(first="pass", part=""),
        BRANCHES.format(first="tmp = nl.ndarray((128, 512), dtype=nl.float32)", part="[...]"),
    ),
    "local_variable_used_out_of_scope ": (
        "total = t\nfor i in nl.sequential_range(4):\n    total = total + t\nnl.store(scratch, total)",
        "for i in nl.sequential_range(4):\n    t[...] = t + t\nnl.store(scratch, t)",
    ),
    # control
    "dynamic_control_flow_not_supported": ("if column[0:1]:\n    pass", "if column.shape:\n    pass"),
    "ambiguous_tensor_truth_value": ("if t:\n    pass", "if t.shape:\n    pass"),
    "unexpected_output_dependencies": (
        "for i in nl.affine_range(4):\n    blocks[0] = i",
        "for i in nl.sequential_range(4):\n    blocks[0] = i",
    ),
    # arguments
    "activation_bias_invalid_type": (
        "nisa.activation(op=nl.exp, data=t, bias=nisa.memset((128, 1), 1, dtype=np.int8))",
        "nisa.activation(op=nl.exp, data=t, bias=nisa.memset((128, 1), 1.2, dtype=nl.bfloat16))",
    ),
    "activation_scale_invalid_type": (
        "nisa.activation(op=nl.exp, data=t, scale=nisa.memset((128, 1), 1.2, dtype=np.float16))",
        "nisa.activation(op=nl.exp, data=t, scale=nisa.memset((128, 1), 1.2, dtype=np.float32))",
    ),
    "activation_scale_scalar_or_vector": (
        "nisa.activation(op=nl.exp, data=t, scale=nisa.memset((1, 128), 1.2, dtype=np.float32))",
        "nisa.activation(op=nl.exp, data=t, scale=1.2)",
    ),
    "exceed_max_supported_dimension": (
        "nl.transpose(nl.zeros((64, 32, 2), dtype=np.float32))",
        "nl.transpose(nl.zeros((64, 64), dtype=np.float32))",
    ),
    "size_of_dimension_exceed_arch_limit": ("nl.transpose(t)", "nl.transpose(t[:, 0:128])"),
    "argument_twice": ("nisa.reciprocal(t, data=t)", "nisa.reciprocal(t)"),
    "argument_type": ("nisa.iota(3, dtype=nl.int32)", "nisa.iota(i_f, dtype=nl.int32)"),
    "argument_value": ("ncc.multi_buffer(0)", "ncc.multi_buffer(2)"),
    "missing_argument": ("nisa.tensor_copy()", "nisa.tensor_copy(t)"),
    "too_many_arguments": ("nisa.reciprocal(t, t, t, t, t)", "nisa.reciprocal(t)"),
    "unsupported": ("nisa.builtin_custom_op(t)", "nisa.reciprocal(t)"),
    "unknown_name": ("nisa.reciprocate(t)", "nisa.reciprocal(t)"),
    "unsupported_argument": ("nisa.reciprocal(t, colour=3)", "nisa.reciprocal(t, name='r')"),
    "op": ("nisa.tensor_tensor(t, t, op=3)", "nisa.tensor_tensor(t, t, op=np.add)"),
    "axis": (
        "nisa.dma_transpose(scratch[:, 0:128], axes=(0, 2))",
        "nisa.dma_transpose(scratch[:, 0:128], axes=(1, 0))",
    ),
    "dtype": ("nl.finfo('float99')", "nl.finfo(nl.bfloat16)"),
    # placement
    "allocation": (
        placed("v = nl.ndarray((nl.par_dim(8), 8), nl.float32, buffer=ncc.sbuf.alloc(lambda **_: 3))"),
        placed(
            "v = nl.ndarray((nl.par_dim(8), 8), nl.float32, buffer=ncc.sbuf.alloc(lambda **_: (0, 9000)))"
        ),
    ),
    "psum_bank": (
        placed("v = nl.ndarray((nl.par_dim(8), 513), nl.float32, buffer=ncc.psum.mod_alloc(base_bank=0))"),
        placed("v = nl.ndarray((nl.par_dim(8), 512), nl.float32, buffer=ncc.psum.mod_alloc(base_bank=0))"),
    ),
    "bias_tensor_must_be_specified_in_allocation": (
        placed("u[...] = nl.exp(t)"),
        placed("u[...] = nisa.activation(np.exp, t, bias=zero)"),
    ),
    "tensor_creation_on_scratchpad_with_init_value_not_allowed": (
        placed("v = nl.full((nl.par_dim(8), 8), 1.0, nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=9000))"),
        placed("v = nl.ndarray((nl.par_dim(8), 8), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=9000))"),
    ),
    "transpose_on_tensor_engine_not_allowed_in_allocated_kernel": (
        placed("s[...] = nisa.nc_transpose(t[0:32, 0:32])"),
        placed("s[...] = nisa.nc_transpose(t[0:32, 0:32], engine=nisa.vector_engine)"),
    ),
    # kernels
    "cannot_update_immutable_parameter": (
        WRITES.format(note="", goal="x", result="x"),
        WRITES.format(note="", goal="out", result="out"),
    ),
    "mutable_parameter_not_returned": (
        WRITES.format(note=": nt.mutable_tensor", goal="x", result="out"),
        WRITES.format(note=": nt.mutable_tensor[128, 512]", goal="x", result="out, x"),
    ),
    "tensor_output_not_written_to": (
        f"{MORE}nl.store(more[0:7], blocks[0][0:7])\nout = out, more",
        f"{MORE}nl.store(more, blocks[0])\nout = out, more",
    ),
    "nested_kernel_with_spmd_grid": (NESTED.format(grid="[4, 4]"), NESTED.format(grid="")),
    "grid": (
        NESTED.format(grid="") + "\nkernel = kernel[0]",
        NESTED.format(grid="") + "\nkernel = kernel[1]",
    ),
    "nki_api_outside_of_nki_kernel": (
        NESTED.format(grid="") + "\nnl.zeros((8, 8), dtype=nl.float32)",
        NESTED.format(grid="") + "\nnl.arange(8)",
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
