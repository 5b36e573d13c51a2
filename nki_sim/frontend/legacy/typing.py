"""`nki.typing`: annotations of tensors; `tensor[128, 512]` says a shape, `mutable_tensor` what is written."""

from __future__ import annotations

from typing import Any


class tensor:  # noqa: N801  the documented spelling
    """A tensor of the shape in brackets; an assignment annotated with it may be checked by `assert_shape`."""

    __slots__ = ()

    def __class_getitem__(cls, shape: Any) -> Shaped:
        return Shaped(shape if isinstance(shape, tuple) else (shape,))


class mutable_tensor(tensor):  # noqa: N801
    """A kernel argument that the kernel writes."""

    __slots__ = ()


class Shaped:
    """An annotation with a shape."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape

    def __repr__(self) -> str:
        return f"tensor{list(self.shape)}"
