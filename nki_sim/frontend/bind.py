"""Binds a kernel's arguments, with arrays anywhere in them, and collects its nested outputs."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki_sim.errors import KernelError
from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.operands import dtype_name
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.storage import fail
from nki_sim.frontend.tensor import Tensor, row_major_dims
from nki_sim.frontend.types import NKIObject, TensorType

DeclareArray = Callable[[str, Any], Tensor]


def bind_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], recorder: Recorder
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """Return the arguments with arrays and ArraySpecs replaced by tensors, and these in their order.

    Lists, tuples, dictionaries, dataclasses and NKI objects are searched; everything else is passed on.

    Raises:
        KernelError: the arguments do not fit the signature or the shapes it declares, or one is a tensor of a
            kernel that is being traced.
    """
    bound = _bind_signature(function, args, kwargs)
    arrays: list[Any] = []

    def declare(name: str, value: Any) -> Tensor:
        arrays.append(value)
        return recorder.declare_argument(name, tuple(value.shape), dtype_name(value.dtype))

    for name, value in bound.arguments.items():
        bound.arguments[name] = replace_arrays(value, name, declare)
        wanted = bound.signature.parameters[name].annotation
        if isinstance(wanted, TensorType):
            wanted._check_shape(name, bound.arguments[name])
    return bound.args, bound.kwargs, arrays


def _bind_signature(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    signature = inspect.signature(function)
    name = getattr(function, "__name__", "kernel")
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = ", ".join(signature.parameters)
        fail(
            "arguments",
            f"{name} takes {len(signature.parameters)} arguments, {len(args) + len(kwargs)} given: {error}",
            f"its parameters are {parameters}",
        )  # fmt: skip


def replace_arrays(value: Any, name: str, declare: DeclareArray) -> Any:
    """Replace each array in the value by what `declare` returns for it."""
    if isinstance(value, Tensor):
        raise KernelError(
            "nested_simulation", f"{name} is a tensor of a kernel that is being traced: it holds no numbers",
            current_recorder().current_line(), "call the other kernel itself: it then is a part of this one",
        )  # fmt: skip
    if is_array(value):
        return declare(name, value)
    if isinstance(value, list | tuple):
        items = [replace_arrays(item, f"{name}_{at}", declare) for at, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: replace_arrays(item, f"{name}_{key}", declare) for key, item in value.items()}
    if (dataclasses.is_dataclass(value) or isinstance(value, NKIObject)) and not isinstance(value, type):
        return _replace_in_object(value, name, declare)
    return value


def _replace_in_object(value: Any, name: str, declare: DeclareArray) -> Any:
    """Copy an object with its attributes replaced."""
    made = copy.copy(value)
    fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    for key in {**dict.fromkeys(fields), **getattr(value, "__dict__", {})}:
        object.__setattr__(made, key, replace_arrays(getattr(value, key), f"{name}_{key}", declare))
    return made


def is_array(value: Any) -> bool:
    """Whether a value is an array: a NumPy array, a torch tensor, or an array's specification."""
    plain = isinstance(value, Tensor | type) or not hasattr(value, "dtype")
    return not plain and bool(getattr(value, "shape", ()))


# -- outputs -------------------------------------------------------------------------------------


def collect_outputs(result: Any, recorder: Recorder, *, views: bool = False) -> list[Tensor]:
    """Return the tensors that a kernel returns, in order; skips None among them.

    With `views`, a reshaped view of a whole tensor may be returned instead of the tensor.
    """
    found: list[Tensor] = []
    map_tensors(result, found.append)
    numbers = [tensor._storage.id for tensor in found]
    if len(set(numbers)) != len(numbers):
        fail("output_twice", "the kernel returns a tensor twice", "return each output once")
    for tensor in found:
        _check_output(tensor, recorder, views=views)
    return found


def map_tensors(result: Any, use: Callable[[Tensor], Any]) -> Any:
    """Return a kernel's result with `use` applied to each tensor."""
    if isinstance(result, tuple | list):
        items: list[Any] = [None if item is None else map_tensors(item, use) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    if isinstance(result, dict):
        return {key: map_tensors(item, use) for key, item in result.items()}
    if not isinstance(result, Tensor):
        fail("output_type", f"the kernel returns {type(result).__name__}, not a tensor")
    return use(result)


def _check_output(tensor: Tensor, recorder: Recorder, *, views: bool) -> None:
    site = tensor._storage.site
    whole = tensor._offset == 0 and tensor._size == site.size and tensor._is_contiguous()
    fits = (
        whole and tensor._storage.root is tensor._storage
        if views
        else tensor._dims == row_major_dims(site.shape)
    )
    if not fits:
        fail(
            "output_buffer", f"the kernel returns a part or another view of {site.name}: {tensor.shape} of "
            f"{site.shape}", "return whole tensors declared with buffer=nl.shared_hbm",
        )  # fmt: skip
    # The documents also show outputs in plain nl.hbm, which the cores of a launch do not share.
    allowed = {"shared_hbm"} if recorder.core and recorder.dialect == "nki" else {"shared_hbm", "hbm"}
    own = tensor._storage.id not in recorder.inputs
    if (own and site.buffer in allowed) or tensor._storage.id in recorder.inputs_written():
        return
    if tensor._storage.id in recorder.inputs:
        fail(
            "output_buffer", f"the kernel returns its argument {site.name}, which it does not write",
            "copy it to a tensor declared with buffer=nl.shared_hbm and return that",
        )  # fmt: skip
    fail(
        "output_buffer", f"the kernel returns {site.name}, which is in {site.buffer}",
        "declare what is returned with buffer=nl.shared_hbm and copy the result there",
    )  # fmt: skip
