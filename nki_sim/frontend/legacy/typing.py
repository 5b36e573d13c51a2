"""`nki.typing`: annotations of tensors; `tensor[128, 512]` gives a shape, `mutable_tensor` marks outputs."""

from __future__ import annotations

from typing import Any

from nki_sim.frontend.types import TensorType


class tensor:  # noqa: N801  the documented spelling
    """A tensor of the shape in brackets; arguments and assignments with this annotation must have it."""

    __slots__ = ()

    def __class_getitem__(cls, shape: Any) -> TensorType:
        return TensorType(cls.__name__, shape if isinstance(shape, tuple) else (shape,))


class mutable_tensor(tensor):  # noqa: N801
    """A kernel argument that the kernel writes."""

    __slots__ = ()
