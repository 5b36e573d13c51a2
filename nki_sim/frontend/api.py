"""`nki` itself: the `jit` decorator, which marks a kernel and leaves it callable from other kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Kernel:
    """A function marked with `@nki.jit`. Calling it runs its Python; `kernel[lnc](...)` is accepted for 1."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Kernel:
        from nki_sim.frontend.tensor import fail

        if grid not in {1, (1,)}:
            fail("unsupported", f"not supported yet: {self.__name__}[{grid}], only one core")
        return self


def jit(function: Callable[..., Any] | None = None, **options: object) -> Any:
    """Mark a kernel; with or without parentheses. Options are for the vendor's compiler."""
    del options
    return jit if function is None else Kernel(function)
