"""What to write instead of names that kernels must not use: those of other frameworks and of older NKI.

People and models write them from memory. The nearest name by spelling is often a wrong one (`nl.arange` is
near `nl.average`), so these are looked up first. A value is either a name, or a hint as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping

_SLICES = "index by slices, integers or nl.ds(start, size); nisa.iota writes positions into a tile"
_OUTPUT = "declare it with nl.ndarray((p, n), dtype=..., buffer=nl.sbuf), and fill it with nisa.memset"
_VIEWS = "views are methods of a tile: tile.reshape(shape), tile.permute(dims)"
_JOIN = "declare the whole tile, and write its parts by slices: nisa.tensor_copy(dst=whole[:, 0:n], src=part)"
_CASTS = "instructions convert when they write: nisa.tensor_copy(dst=a tile of the other type, src=tile)"
_CLAMP = "nisa.tensor_scalar with op0=nl.maximum, operand0=low, op1=nl.minimum, operand1=high"
_FUNCTION = "functions are the op of an instruction: nisa.activation(dst=..., op=nl.{name}, data=...)"
_ELEMENTWISE = "nisa.tensor_tensor(dst=..., data1=..., data2=..., op=nl.{name}), or nisa.tensor_scalar"
_ROWS = "nisa.tensor_reduce(dst=..., op=nl.{name}, data=..., axis=1)"
_LARGEST = "nisa.max8 gives the eight largest of each row, nisa.nc_find_index8 where they are"
_WAITS = "there is nothing to wait for: instructions wait for what they read"
_GATHERS = (
    "nisa.nc_n_gather or nisa.local_gather in SBUF; from HBM, an access with .ap(..., vector_offset=...)"
)
_ONE_ROW = "row.broadcast(0, 128) as the src of nisa.dma_copy writes a row of HBM to all partitions"

_TAKEN_FOR_LANGUAGE = (
    *("activation", "activation_reduce", "affine_select", "bn_aggr", "bn_stats", "dma_copy", "dma_transpose"),
    *("iota", "max8", "memset", "nc_matmul", "nc_transpose", "range_select", "scalar_tensor_tensor"),
    *("tensor_copy", "tensor_reduce", "tensor_scalar", "tensor_tensor", "tensor_tensor_scan", "topk"),
)
_UNARY = (
    *("exp", "log", "sqrt", "rsqrt", "square", "tanh", "sigmoid", "silu", "gelu", "relu", "softplus", "erf"),
    "sin",
)
_BINARY = {
    "add": ("add", "tensor_add", "vector_add", "tensor_tensor_op"),
    "subtract": ("subtract", "tensor_sub"),
    "multiply": ("multiply", "mul", "tensor_mul", "tensor_scalar_mul", "scalar_multiply"),
    "maximum": ("maximum", "tensor_max"),
}
_REDUCTIONS = {"add": ("reduce", "reduce_sum", "tensor_sum", "sum"), "maximum": ("reduce_max", "max")}

LANGUAGE: Mapping[str, str] = {
    # older NKI
    "arange": _SLICES,
    "mgrid": _SLICES,
    "par_dim": "the first axis of a tile is its partition axis, without a mark: nl.ndarray((128, n), ...)",
    "spmd_dim": "launch the kernel with kernel[2](...), and ask nl.program_id(0)",
    "nc": "launch the kernel with kernel[2](...), and ask nl.program_id(0)",
    "hardswish": "x * clamp(x / 6 + 0.5): nisa.tensor_scalar twice, then nisa.tensor_tensor",
    # other frameworks
    "swish": "nl.silu",
    "elu": "max(x, 0) + exp(min(x, 0)) - 1: nisa.tensor_scalar and nisa.activation with op=nl.exp",
    "leaky_relu": "max(x, a * x): nisa.scalar_tensor_tensor(op0=nl.multiply, operand0=a, op1=nl.maximum)",
    "layer_norm": "nisa.bn_stats and nisa.bn_aggr give mean and variance of each row",
    "pow": "nl.power",
    "div": "nl.divide",
    "sub": "nl.subtract",
    "neg": "nl.negative",
    "clamp": _CLAMP,
    "clip": _CLAMP,
    "identity": "nl.shared_identity_matrix",
    "eye": "nl.shared_identity_matrix",
    "empty": "nl.ndarray",
    "ones_like": _OUTPUT,
    "reshape": _VIEWS,
    "permute": _VIEWS,
    "swapaxes": _VIEWS,
    "squeeze": _VIEWS,
    "concatenate": _JOIN,
    "concat": _JOIN,
    "cat": _JOIN,
    "stack": _JOIN,
    "cast": _CASTS,
    "astype": _CASTS,
    "static_cast": _CASTS,
    "dot": "nl.matmul",
    "einsum": "nisa.nc_matmul contracts the partition axes of both operands",
    "cumsum": "nisa.tensor_tensor_scan with a tile of ones and op0=nl.multiply, op1=nl.add",
    "argmax": _LARGEST,
    "sort": _LARGEST,
    "gather": _GATHERS,
    "scatter": _GATHERS,
    "take": _GATHERS,
    "range": "range is Python's own; nl.affine_range says that iterations are independent",
    "loop": "nl.affine_range",
    "bf16": "nl.bfloat16",
    "fp16": "nl.float16",
    "half": "nl.float16",
    "fp32": "nl.float32",
    "f32": "nl.float32",
    "float": "nl.float32",
    "int": "nl.int32",
    "bool": "nl.bool_",
    "fp8": "nl.float8_e4m3",
    "inf": "write a large float32 number: 3.0e38; an infinity spreads as NaN",
    # right names in the wrong module
    **{name: f"nisa.{name}: instructions are in nki.isa" for name in _TAKEN_FOR_LANGUAGE},
}
"""For `nl`."""

INSTRUCTIONS: Mapping[str, str] = {
    **{name: _ELEMENTWISE.format(name=op) for op, names in _BINARY.items() for name in names},
    **{name: _ROWS.format(name=op) for op, names in _REDUCTIONS.items() for name in names},
    **{name: _FUNCTION.format(name=name) for name in _UNARY},
    **dict.fromkeys(("load", "store", "dma_load", "dma_store", "dma_start", "dma"), "nisa.dma_copy"),
    **dict.fromkeys(("matmul", "matmult", "mm", "bmm", "gemm", "dot"), "nisa.nc_matmul"),
    "transpose": "nisa.nc_transpose",
    **dict.fromkeys(("copy", "nc_copy", "cast", "move"), "nisa.tensor_copy"),
    **dict.fromkeys(("fill", "zeros", "ones", "full"), "nisa.memset"),
    **dict.fromkeys(("activation_func", "tensor_activation"), "nisa.activation"),
    "divide": "nisa.reciprocal of the divisor, then a product",
    "tensor_tensor_reduce": "nisa.tensor_tensor, then nisa.tensor_reduce; of squares: nisa.activation_reduce",
    "softmax": "nisa.tensor_reduce(op=nl.maximum, negate=True), then nisa.activation_reduce(op=nl.exp, ...)",
    **dict.fromkeys(("select", "where", "tensor_select"), "nisa.select_reduce"),
    "mask": "nisa.affine_select chooses by position, nisa.select_reduce by a mask",
    **dict.fromkeys(("scan", "cumsum"), "nisa.tensor_tensor_scan"),
    **dict.fromkeys(("gather", "nc_gather", "dma_gather", "indirect_dma", "dma_scatter"), _GATHERS),
    "tensor_copy_dynamic_src": "nisa.tensor_copy, with .ap(..., scalar_offset=...) as src",
    "tensor_copy_dynamic_dst": "nisa.tensor_copy, with .ap(..., scalar_offset=...) as dst",
    **dict.fromkeys(("broadcast", "tensor_broadcast", "partition_broadcast"), _ONE_ROW),
    "tensor_partition_broadcast": _ONE_ROW,
    "partition_all_reduce": "nisa.nc_matmul with a matrix of ones leaves the sum in every partition",
    **dict.fromkeys(("wait", "dma_wait", "semaphore", "sync", "barrier"), _WAITS),
}
"""For `nisa`."""

ARGUMENTS: Mapping[str, str] = {
    "func": "the function is op=",
    "act": "the function is op=",
    "function": "the function is op=",
    "out": "the result is dst=",
    "output": "the result is dst=",
    "dest": "the result is dst=",
    "input": "the operand is data=, of copies src=",
    "source": "the operand is src=",
    "x": "operands are data=, or data1= and data2=",
    "a": "operands are data1= and data2=",
    "b": "operands are data1= and data2=",
    "lhs": "operands are data1= and data2=; of nc_matmul, stationary= and moving=",
    "rhs": "operands are data1= and data2=; of nc_matmul, stationary= and moving=",
    "lhsT": "the operand that is transposed is stationary=",
    "lhs_t": "the operand that is transposed is stationary=",
    "mask": "clamp the slices to what is there instead: t[0:min(128, m - i)]",
    "scalar": "the number or column is operand0=",
    "operand": "the number or column is operand0=, with its op0=",
    "value1": "the number or column is operand0=",
    "start": "nc_matmul takes accumulate=False where a sum begins",
    "stop": "nc_matmul takes accumulate=True where a sum goes on",
    "transpose": "nc_matmul transposes its stationary operand always: dst = stationary^T moving",
    "axes": "the axis to reduce is axis=",
    "dim": "the axis to reduce is axis=",
    "keepdim": "the destination's shape says what is kept",
    "shape": "a tile is declared before: nl.ndarray(shape, dtype=..., buffer=nl.sbuf)",
    "buffer": "a tile is declared before: nl.ndarray(shape, dtype=..., buffer=nl.sbuf)",
}
"""For arguments of instructions, whatever the instruction."""
