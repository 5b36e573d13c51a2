"""`nki.typing`: annotations of tensors; `tensor[128, 512]` gives a shape, `mutable_tensor` marks outputs.

`tensor[[128, 512], nl.float32]` stands in for an array of that shape and type in the call of a kernel.
"""

from __future__ import annotations

from typing import Any

from nki_sim.forms import ArraySpec
from nki_sim.frontend.operands import dtype_name
from nki_sim.frontend.types import TensorType

__all__ = ["mutable_tensor", "tensor"]

_SPECIFICATION = 2
"""Items in the brackets of a stand-in for an array: its shape and its type."""


class tensor:  # noqa: N801  the documented spelling
    """A tensor of the shape in brackets; arguments and assignments with this annotation must have it."""

    __slots__ = ()

    def __class_getitem__(cls, shape: Any) -> TensorType | ArraySpec:
        if isinstance(shape, tuple) and len(shape) == _SPECIFICATION and isinstance(shape[0], list | tuple):
            return ArraySpec(tuple(shape[0]), dtype_name(shape[1]))
        return TensorType(cls.__name__, shape if isinstance(shape, tuple) else (shape,))


class mutable_tensor(tensor):  # noqa: N801
    """A kernel argument that the kernel writes."""

    __slots__ = ()
