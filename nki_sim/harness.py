"""What a kernel is tried on and compared with: inputs, reference files, relative errors.

A reference file defines `forward` (or `reference`) on NumPy arrays. The functions that NKIBench's files have
besides are used where they are there: `get_inputs()` draws inputs from NumPy's global generator, which is
seeded before; `transform_to_nki_inputs(inputs)` gives the kernel's arguments; `transform_nki_outputs(result,
wanted)` gives the kernel's results the shapes of the reference's.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nki_sim.errors import InputError
from nki_sim.flow.slices import Box
from nki_sim.forms import ArraySpec
from nki_sim.semantics.arrays import NUMPY, Array

ENTRIES = ("kernel", "optimized_kernel")

_BLOCK = 1 << 20
"""Elements that are compared at a time."""

_PART = re.compile(r"\d+\[\d+:\d+(,\d+:\d+)*\]")

_ELEMENT = re.compile(r"\d+\[\d+(,\d+)*\]")

_NAMES = {dtype: name for name, dtype in NUMPY.items() if not dtype.metadata}


def parse_argument(text: str) -> ArraySpec | int | float | bool:
    """`4096x512:bfloat16`, `4096x512` (float32), or a number.

    Raises:
        InputError: neither a shape nor a number.
    """
    shape, _, dtype = text.partition(":")
    try:
        return float(text) if "." in text or ("e" in text.lower() and not dtype) else _sizes(shape, dtype)
    except ValueError as error:
        raise InputError(f"--arg {text!r} is neither a shape such as 128x512:float32 nor a number") from error


def _sizes(shape: str, dtype: str) -> ArraySpec | int:
    sizes = tuple(int(size) for size in shape.split("x"))
    if len(sizes) == 1 and not dtype:
        return sizes[0]
    if (dtype or "float32") not in NUMPY or min(sizes) < 1:
        raise ValueError(dtype)
    return ArraySpec(sizes, dtype or "float32")


def parse_seeds(text: str) -> list[int]:
    """Comma-separated seeds.

    Raises:
        InputError: something in between is not a number from 0.
    """
    try:
        seeds = [int(item) for item in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds {text!r} is not a list such as 0,21,42") from error
    if min(seeds) < 0:
        raise InputError(f"--seeds {text!r}: seeds start at 0")
    return seeds


def parse_parts(texts: Sequence[str]) -> dict[int, list[Box]]:
    """`0[0:128,512:1024]`: the box of elements of the first output; several of one output are joined.

    Raises:
        InputError: a text is not of this form.
    """
    parts: dict[int, list[Box]] = {}
    for text in texts:
        if not _PART.fullmatch(text):
            raise InputError(f"--slice {text!r} is not of the form 0[0:128,512:1024]: output, then ranges")
        output, *ends = (int(number) for number in re.findall(r"\d+", text))
        parts.setdefault(output, []).append(tuple(zip(ends[::2], ends[1::2], strict=True)))
    return parts


def parse_element(text: str) -> tuple[int, tuple[int, ...]]:
    """`0[3,5]`: that element of the first output.

    Raises:
        InputError: the text is not of this form.
    """
    if not _ELEMENT.fullmatch(text):
        raise InputError(f"{text!r} is not of the form 0[3,5]: output, then an index")
    output, *index = (int(number) for number in re.findall(r"\d+", text))
    return output, tuple(index)


def entry_of(source: str) -> str | None:
    """The function to run when nobody names one: `kernel`, else `optimized_kernel`, else None."""
    try:
        names = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # tracing reports what is wrong with it
    return next((name for name in ENTRIES if name in names), None)


def arrays_of(value: Any) -> list[Array]:
    """The arrays in a kernel's arguments, depth first, in order; scalars are no arrays."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [array for item in value for array in arrays_of(item)]
    return [value] if isinstance(value, np.ndarray) else []


def spec_of(value: Any) -> Any:
    """The same arguments with each array's shape and type in its place.

    Raises:
        InputError: an array's type has no counterpart on the device.
    """
    if isinstance(value, np.ndarray):
        if value.dtype not in _NAMES:
            raise InputError(f"an argument is an array of {value.dtype}; use one of {', '.join(NUMPY)}")
        return ArraySpec(value.shape, _NAMES[value.dtype])
    if isinstance(value, dict):
        return {name: spec_of(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(spec_of(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def random_inputs(specs: Sequence[ArraySpec], seed: int) -> list[Array]:
    """Standard normal arrays (small integers for integer types)."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for spec in specs:
        dtype = NUMPY[spec.dtype]
        values = rng.integers(0, 8, spec.shape) if dtype.kind in "iu" else rng.standard_normal(spec.shape)
        made.append(values.astype(dtype))
    return made


def relative_l2(found: Array, wanted: Array) -> float:
    """||found - wanted|| / ||wanted|| in float64, in blocks to save memory; NaN where either holds one."""
    mine, theirs = np.asarray(found).reshape(-1), np.asarray(wanted).reshape(-1)
    error = size = 0.0
    for start in range(0, len(theirs), _BLOCK):
        exact = theirs[start : start + _BLOCK].astype(np.float64)
        size += float(np.dot(exact, exact))
        exact -= mine[start : start + _BLOCK]
        error += float(np.dot(exact, exact))
    return math.sqrt(error) / max(math.sqrt(size), np.finfo(np.float64).tiny)


class Reference:
    """A reference file, executed once.

    Raises:
        InputError: the file defines neither forward nor reference, or raises.
    """

    def __init__(self, path: Path) -> None:
        self._names: dict[str, Any] = {"__name__": "reference", "__file__": str(path)}
        text = path.read_text()
        with _faults():
            exec(compile(text, str(path), "exec"), self._names)  # noqa: S102  the person's own file
        forward = self._names.get("forward") or self._names.get("reference")
        if not callable(forward):
            raise InputError(f"{path} defines neither forward nor reference")
        self._forward: Callable[..., Any] = forward
        self.draws = callable(self._names.get("get_inputs"))

    def inputs(self, seed: int) -> list[Any]:
        """What `get_inputs` returns with NumPy's global generator at `seed`."""
        with _faults():
            np.random.seed(seed)  # noqa: NPY002  the generator that get_inputs draws from
            return list(self._names["get_inputs"]())

    def arguments(self, inputs: list[Any]) -> list[Any]:
        """The kernel's arguments for these inputs."""
        transform = self._names.get("transform_to_nki_inputs")
        with _faults():
            return list(transform(inputs)) if transform else inputs

    def errors(
        self, inputs: Sequence[Any], outputs: list[Array], parts: Mapping[int, Sequence[Box]] | None = None
    ) -> list[float]:
        """Relative L2 error of each output of the kernel; with `parts` of those outputs, inside the boxes.

        Raises:
            InputError: the reference raises, or its results do not fit the kernel's outputs.
        """
        with _faults():
            result = self._forward(*inputs)
        wanted = [np.asarray(item) for item in (result if isinstance(result, tuple | list) else [result])]
        found = self._shaped(outputs, result)
        shapes, expected = [item.shape for item in wanted], [item.shape for item in found]
        if shapes != expected:
            raise InputError(f"the reference returns arrays of {shapes}, the kernel of {expected}")
        if parts is None:
            return [relative_l2(*pair) for pair in zip(found, wanted, strict=True)]
        inside = self._shaped(_masks(outputs, parts), result)
        chosen = [mask.astype(bool) for mask in inside]
        triples = zip(found, wanted, chosen, strict=True)
        return [relative_l2(mine[mask], theirs[mask]) for mine, theirs, mask in triples if mask.any()]

    def _shaped(self, outputs: list[Array], result: Any) -> list[Array]:
        transform = self._names.get("transform_nki_outputs")
        if transform is None:
            return outputs
        with _faults():
            made = transform(outputs[0] if len(outputs) == 1 else tuple(outputs), result)
        return [np.asarray(item) for item in (made if isinstance(made, tuple | list) else [made])]


def _masks(outputs: Sequence[Array], parts: Mapping[int, Sequence[Box]]) -> list[Array]:
    """1 where an element is in a wanted box, 0 elsewhere; reshaped like the outputs they say where."""
    masks: list[Array] = [np.zeros(output.shape, dtype=np.float32) for output in outputs]
    for number, boxes in parts.items():
        for box in boxes:
            masks[number][tuple(slice(first, end) for first, end in box)] = 1
    return masks


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the person's own file may raise anything
        raise InputError(f"the reference raised {type(error).__name__}: {error}") from error
