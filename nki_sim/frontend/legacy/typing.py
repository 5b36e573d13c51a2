"""`nki.typing`: annotations of tensors; `tensor[128, 512]` says a shape, `mutable_tensor` what is written."""

from __future__ import annotations

from typing import Any

from nki_sim.frontend.types import TensorType


class tensor:  # noqa: N801  the documented spelling
    """A tensor of the shape in brackets, which arguments and assignments annotated with it must have."""

    __slots__ = ()

    def __class_getitem__(cls, shape: Any) -> TensorType:
        return TensorType(cls.__name__, shape if isinstance(shape, tuple) else (shape,))


class mutable_tensor(tensor):  # noqa: N801
    """A kernel argument that the kernel writes."""

    __slots__ = ()
