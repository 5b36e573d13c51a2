"""What a launch of a legacy kernel gives back.

Outputs are what the kernel returns. A kernel that returns nothing and writes its arguments, as the first
release had it, has those arguments as outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from nki_sim.errors import KernelError
from nki_sim.frontend.legacy.recorder import LegacyRecorder
from nki_sim.frontend.legacy.typing import mutable_tensor
from nki_sim.frontend.tensor import Tensor, fail


def outputs(
    function: Callable[..., Any], arguments: Mapping[str, Any], result: Any, recorder: LegacyRecorder
) -> list[int]:
    """The numbers of a kernel's output tensors, from what it was given by name, returned and wrote.

    Raises:
        KernelError: it returns something else than whole tensors, or breaks the rules of mutable parameters.
    """
    returned = [_checked(item) for item in _flat(result)]
    if len(set(returned)) != len(returned):
        fail("output_twice", "the kernel returns a tensor twice", "return each output once")
    written = recorder.written_inputs
    if not returned and not written:
        fail("no_output", "the kernel returns nothing", "return the nl.shared_hbm tensor it writes")
    if returned:
        _check_mutations(function, arguments, returned, written)
    return returned or list(written)


def _flat(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [tensor for item in result for tensor in _flat(item)]
    return [] if result is None else [result]


def _checked(tensor: Any) -> int:
    """The number of a tensor that a kernel returns, which must be a whole one in HBM."""
    if not isinstance(tensor, Tensor):
        fail("output_type", f"the kernel returns {type(tensor).__name__}, not a tensor")
    site = tensor.storage.site
    if site.buffer not in {"shared_hbm", "hbm"} or tensor.offset or tensor.size != site.size:
        fail(
            "output_buffer", f"output {site.name} is a view {tensor.shape} of {site.shape} in {site.buffer}",
            "return whole tensors declared with buffer=nl.shared_hbm, not views of them",
        )  # fmt: skip
    return tensor.storage.id


def _check_mutations(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    returned: list[int],
    written: Mapping[int, int],
) -> None:
    """Arguments that are written are annotated as mutable and returned."""
    notes = inspect.signature(function).parameters
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or value.storage.id not in written:
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
    return isinstance(annotation, type) and issubclass(annotation, mutable_tensor)
