"""Checks which arguments a legacy kernel may write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from nki_sim.errors import KernelError
from nki_sim.frontend.legacy.typing import mutable_tensor
from nki_sim.frontend.tensor import Tensor
from nki_sim.frontend.types import TensorType


def check_mutations(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    returned: list[int],
    written: Mapping[int, int],
) -> None:
    """Check that the arguments that a kernel writes (number -> line) are annotated as mutable and returned.

    If a kernel returns nothing, they are its outputs, as in the first release.
    """
    notes = inspect.signature(function).parameters
    for name, value in arguments.items():
        if not returned or not isinstance(value, Tensor) or value.storage.id not in written:
            continue
        line = written[value.storage.id]
        if not _is_mutable(notes[name].annotation):
            raise KernelError(
                "cannot_update_immutable_parameter", f"parameter {name} is immutable, the kernel writes it",
                line, "annotate it as nt.mutable_tensor, or write to a tensor of the kernel's own",
            )  # fmt: skip
        if value.storage.id not in returned:
            raise KernelError(
                "mutable_parameter_not_returned", f"parameter {name} is written and not returned", line,
                "return every parameter that is annotated as mutable",
            )  # fmt: skip


def _is_mutable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].startswith("mutable_tensor")
    if isinstance(annotation, TensorType):
        return annotation.name == mutable_tensor.__name__
    return isinstance(annotation, type) and issubclass(annotation, mutable_tensor)
