"""`nki.typing`, and the base class of kernels' own classes."""

from __future__ import annotations

import inspect
from typing import Any

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.storage import fail

__all__ = ["NKIObject", "mutable_tensor", "tensor"]

_NO_DEFAULTS = (property, staticmethod, classmethod, list, dict, set)


class NKIObject:
    """Base of the classes that kernels define; the annotated names of a class are its fields.

    A class without an `__init__` of its own (dataclasses have one) takes its fields by position or name. A
    name that a class only assigns is a field with that default, also for dataclasses.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        fields = inspect.get_annotations(cls)
        for name, value in vars(cls).items():
            if name[0] != "_" and not callable(value) and not isinstance(value, _NO_DEFAULTS):
                fields.setdefault(name, Any)
        cls.__annotations__ = fields

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = self._fields_of()
        if len(args) > len(fields) or not kwargs.keys() <= set(fields):
            raise TypeError(f"{type(self).__name__} takes {', '.join(fields) or 'nothing'}")
        for name, value in {**dict(zip(fields, args, strict=False)), **kwargs}.items():
            setattr(self, name, value)
        for name in fields:
            if not hasattr(self, name):
                setattr(self, name, None)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Hook for classes that compute something from their fields."""

    @classmethod
    def _fields_of(cls) -> list[str]:
        found: dict[str, None] = {}
        for base in reversed(cls.__mro__):
            found.update(dict.fromkeys(inspect.get_annotations(base)))
        return list(found)


class TensorType(KernelValue):
    """An annotation for a tensor, optionally with a shape: `nt.tensor[128, 512]`."""

    def __init__(self, name: str, shape: tuple[Any, ...] | None = None) -> None:
        self._name = name
        self._shape = shape

    def __getitem__(self, shape: Any) -> TensorType:
        return TensorType(self._name, shape if isinstance(shape, tuple) else (shape,))

    def _describe(self) -> str:
        return f"nt.{self._name}{'' if self._shape is None else list(self._shape)}"

    def _check_shape(self, name: str, value: Any) -> None:
        """Refuse a tensor of another shape; sizes that are not integers match any size."""
        shape = getattr(value, "shape", None)
        if self._shape is None or shape is None:
            return
        pairs = list(zip(self._shape, shape, strict=False))
        if len(self._shape) != len(shape) or any(type(a) is int and a != b for a, b in pairs):
            fail(
                "annotation_shape_mismatch", f"{name} has shape {shape}, it is annotated {self!r}",
                "make the tensor of that shape, or change the annotation",
            )  # fmt: skip


tensor, mutable_tensor = TensorType("tensor"), TensorType("mutable_tensor")
