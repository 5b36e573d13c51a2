"""The legacy `nki.language`: types, memories, indices, loops, declarations, and functions that compute.

The functions are those of `lowering`, called as SDK 2.20 to 2.26 document them: with `mask=`, on tiles and
numbers, returning tiles. Each can also be passed as `op=`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from nki_sim.dtypes import DTYPES
from nki_sim.frontend import context
from nki_sim.frontend.language import tile_size
from nki_sim.frontend.legacy.call_arguments import mask_result, product_boxes, to_operand_value
from nki_sim.frontend.legacy.compiler import psum, sbuf
from nki_sim.frontend.legacy.grid import nc, num_programs, program_id, program_ndim, spmd_dim
from nki_sim.frontend.legacy.index import arange, mgrid
from nki_sim.frontend.legacy.loops import affine_range, loop_reduce, sequential_range, static_range
from nki_sim.frontend.legacy.tensors import empty_like, full, ndarray, ones, par_dim, zeros, zeros_like
from nki_sim.frontend.legacy.tiles import Tile, as_tile, refuse_outside
from nki_sim.frontend.legacy.tiles import mask_boxes as boxes_of
from nki_sim.frontend.lowering import FUNCTIONS
from nki_sim.frontend.lowering.emit import broadcast_tiles, issue_instruction, require_on_chip
from nki_sim.frontend.lowering.matrix import transpose_boxes
from nki_sim.frontend.lowering.promotion import type_name
from nki_sim.frontend.namespace import Namespace
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import MemoryRegion, Tensor, fail
from nki_sim.functions import ACTIVATIONS, ALU, REDUCE
from nki_sim.refusals import DocumentedNames

__all__ = [
    "affine_range", "arange", "atomic_rmw", "bfp16", "device_print", "ds", "empty_like", "finfo", "fp32",
    "full", "hbm", "loop_reduce", "mgrid", "nc", "ndarray", "num_programs", "ones", "par_dim", "private_hbm",
    "program_id", "program_ndim", "psum", "sbuf", "sequential_range", "shared_constant", "shared_hbm",
    "shared_identity_matrix", "spmd_dim", "static_cast", "static_range", "tile_size", "zeros", "zeros_like",
]  # fmt: skip

hbm, private_hbm, shared_hbm = MemoryRegion.hbm, MemoryRegion.private_hbm, MemoryRegion.shared_hbm

# Comparisons and logic give booleans in this namespace.
_BOOLEAN = frozenset({
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "logical_not", "all",
})  # fmt: skip

# This namespace's parameter names.
_PARAMETERS = {"copy": {"src": "x"}, "broadcast_to": {"src": "x"}, "expand_dims": {"data": "x"}}

# Options that the functions accept here and ignore.
_DEFAULTS: dict[str, dict[str, Any]] = {"var": {"keepdims": False}}


class fp32:  # noqa: N801  the documented spelling
    """Constants of float32."""

    min = -3.4028234663852886e38


class bfp16:  # noqa: N801
    """Constants of bfloat16."""

    min = -3.3895313892515355e38


class Function(DocumentedNames):
    """A function of the language: called on tiles it computes; passed as `op=` it names the operation."""

    __slots__ = ("_call", "_defaults", "_name", "_parameters")

    def __init__(self, name: str) -> None:
        self._name = name
        self._call = FUNCTIONS.get(name)
        self._parameters = _PARAMETERS.get(name, {})
        self._defaults = _DEFAULTS.get(name, {})

    def __repr__(self) -> str:
        return f"nl.{self._name}"

    def __call__(self, *args: Any, mask: Any = None, **options: Any) -> Any:
        if self._call is None:
            fail(
                "unsupported", f"not supported: calling nl.{self._name}(...)", "it is an op= of instructions"
            )
        values = [to_operand_value(value) for value in args]
        given = {self._parameters.get(name, name): to_operand_value(value) for name, value in options.items()}
        if given.get("dtype") is None and self._name in _BOOLEAN:
            given["dtype"] = "bool_"
        shape: Sequence[int] = ()
        if mask is None:
            refuse_outside([*values, *given.values()])
        else:
            shape = self._masked_shape([*values, *given.values()])
            given["where"] = boxes_of(mask, shape)
        result = self._call(*values, **{**self._defaults, **given})
        if not isinstance(result, Tensor):
            return result
        boxes = given.get("where")
        if self._name == "matmul":
            return mask_result(result, product_boxes(result, boxes), result.shape)
        if self._name == "transpose":
            return mask_result(result, transpose_boxes(boxes), result.shape)
        return mask_result(result, boxes, shape)

    def _masked_shape(self, values: Sequence[Any]) -> Sequence[int]:
        """The shape that a mask is over: that of the result, or of a product's right operand."""
        tiles = [value for value in values if isinstance(value, Tensor)]
        return tiles[-1].shape if self._name == "matmul" else broadcast_tiles(*tiles, strict=False)[0]


_FUNCTIONS = {name: Function(name) for name in sorted({*FUNCTIONS, *ALU, *REDUCE, *ACTIVATIONS})}


def ds(start: Any, size: int) -> Any:
    """`size` elements from `start`, which may be known only when the kernel runs."""
    from nki_sim.frontend.tensor import DynamicSlice

    return slice(int(start), int(start) + size) if isinstance(start, int) else DynamicSlice(start, size)


def static_cast(input_data: Any, dtype: Any) -> Any:
    """Copy a tile to another type, or convert a NumPy array or number."""
    if hasattr(input_data, "_tile") or isinstance(input_data, Tensor):
        return _FUNCTIONS["copy"](input_data, dtype=dtype)
    import numpy as np

    return np.asarray(input_data).astype(_numpy_dtype(dtype))[()]


def _numpy_dtype(dtype: Any) -> Any:
    """Return the NumPy type of a type of the language; NumPy is loaded only for kernels that use it."""
    from nki_sim.semantics.arrays import NUMPY

    name = type_name(dtype)
    if name not in NUMPY:
        fail("dtype", f"{dtype!r} is not a supported data type", f"one of {', '.join(NUMPY)}")
    return NUMPY[name]


def finfo(dtype: Any) -> Any:
    """Return the limits of a floating-point type, as `numpy.finfo` does."""
    import ml_dtypes

    return ml_dtypes.finfo(_numpy_dtype(dtype))  # type: ignore[no-untyped-call]


_constants: WeakKeyDictionary[Any, dict[Any, Tile]] = WeakKeyDictionary()


def shared_constant(constant: Any, dtype: Any = None, **_: object) -> Tile:
    """Return a tensor in HBM that holds an array from the start; equal data shares one tensor."""
    import numpy as np

    array = np.asarray(constant)
    kind = type_name(array.dtype if dtype is None else dtype)
    data = np.ascontiguousarray(array.astype(_numpy_dtype(kind))).tobytes()
    made = _constants.setdefault(current_recorder(), {})
    key = array.shape, kind, data
    if key not in made:
        made[key] = as_tile(current_recorder().declare_constant("constant", array.shape, kind, data))
    return made[key]


def shared_identity_matrix(n: int, dtype: Any = "uint8", **_: object) -> Tile:
    """Return the n x n identity as a constant in HBM."""
    import numpy as np

    return shared_constant(np.identity(n), dtype)


def atomic_rmw(dst: Any, value: Any, op: Any, *, mask: Any = None, **_: object) -> None:
    """dst = op(dst, value) in HBM, row after row: a row that several indices name gets all their values."""
    from nki_sim.frontend.legacy.isa import alu

    if mask is not None:
        fail("unsupported_argument", "not supported: nl.atomic_rmw(mask=)", "update a part")
    goal, tile = to_operand_value(dst), require_on_chip("nl.atomic_rmw: value", to_operand_value(value))
    rows = (
        [slice(row, row + 1) for row in range(goal.shape[0])] if goal._lookup is not None else [slice(None)]
    )
    for row in rows:
        issue_instruction("dma_compute", dst=goal[row], srcs=[goal[row], tile[row]], reduce_op=alu(op))


def device_print(prefix: str, x: Any, **_: object) -> None:
    """Print if the kernel runs eagerly; a traced program prints nothing."""
    context.device_print(prefix, to_operand_value(x))


globals().update(_FUNCTIONS)
globals().update(DTYPES)
__all__ += list({**_FUNCTIONS, **DTYPES})

_namespace = Namespace("nl", __all__, {"all_reduce": "there is one device here"})


def __getattr__(name: str) -> Any:
    return _namespace.refuse_name(name)
