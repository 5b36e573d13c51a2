"""Inputs, reference files and relative errors for running a kernel and checking its results.

A reference file defines `forward` (or `reference`) on NumPy arrays. It may also define these functions, as
NKIBench's files do:
- `get_inputs()` draws inputs from NumPy's global generator, which is seeded before the call;
- `transform_to_nki_inputs(inputs)` returns the kernel's arguments;
- `transform_nki_outputs(result, wanted)` gives the kernel's results the shapes of the reference's results.

Without `get_inputs`, or with arguments on the command line, this module draws the inputs array by array from
`numpy.random.default_rng(seed)`: standard normal floats, integers from 0 to 7, booleans. The reference gets
all inputs in order, including plain numbers.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from nki_sim.dtypes import PACKED_ELEMENTS
from nki_sim.errors import InputError
from nki_sim.flow.slices import ElementBox
from nki_sim.forms import ArraySpec
from nki_sim.frontend.modules import create_module, register_module
from nki_sim.semantics.arrays import NUMPY, Array
from nki_sim.semantics.mx import pack_numbers

ENTRIES = ("kernel", "optimized_kernel")

RANDOM = "random: normal(0, 1), integers 0 to 7, booleans; numpy.random.default_rng(seed)"
"""Description of what `fill_arguments` draws."""

_BLOCK = 1 << 20
"""Elements compared at a time."""

_BOX_PATTERN = re.compile(r"\d+\[\d+:\d+(,\d+:\d+)*\]")

_ELEMENT_PATTERN = re.compile(r"\d+\[\d+(,\d+)*\]")

_LITERALS: dict[str, bool | None] = {"True": True, "False": False, "None": None}

_NAMES = {dtype: name for name, dtype in NUMPY.items() if not dtype.metadata}


ParsedArgument = ArraySpec | int | float | bool | None


def parse_argument(text: str) -> ParsedArgument:
    """Parse `4096x512:bfloat16`, `4096x512` (float32), a number, or True, False, None.

    Raises:
        InputError: the text has none of these forms.
    """
    if text in _LITERALS:
        return _LITERALS[text]
    shape, colon, dtype = text.partition(":")
    if colon and dtype not in NUMPY:
        raise InputError(f"--arg {text!r}: unknown data type {dtype!r}; known: {', '.join(NUMPY)}")
    try:
        return _parse_shape(shape, dtype) if colon or "x" in text else _parse_number(text)
    except ValueError as error:
        raise InputError(f"--arg {text!r} is neither a shape such as 128x512:float32 nor a number") from error


def _parse_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _parse_shape(text: str, dtype: str) -> ArraySpec:
    sizes = tuple(int(size) for size in text.split("x"))
    if min(sizes) < 1:
        raise InputError(f"--arg {text!r}: sizes are 1 or more")
    return ArraySpec(sizes, dtype or "float32")


def parse_seeds(text: str) -> list[int]:
    """Parse comma-separated seeds.

    Raises:
        InputError: an item is not a non-negative integer.
    """
    try:
        seeds = [int(item) for item in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds {text!r} is not a list such as 0,21,42") from error
    if min(seeds) < 0:
        raise InputError(f"--seeds {text!r}: seeds start at 0")
    return seeds


def parse_parts(texts: Sequence[str]) -> dict[int, list[ElementBox]]:
    """Parse texts such as `0[0:128,512:1024]`, a box of elements of output 0; group the boxes by output.

    Raises:
        InputError: a text is not of this form.
    """
    parts: dict[int, list[ElementBox]] = {}
    for text in texts:
        if not _BOX_PATTERN.fullmatch(text):
            raise InputError(f"--slice {text!r} is not of the form 0[0:128,512:1024]: output, then ranges")
        output, *ends = (int(number) for number in re.findall(r"\d+", text))
        parts.setdefault(output, []).append(tuple(zip(ends[::2], ends[1::2], strict=True)))
    return parts


def parse_element(text: str) -> tuple[int, tuple[int, ...]]:
    """Parse `0[3,5]`: output 0, element (3, 5).

    Raises:
        InputError: the text is not of this form.
    """
    if not _ELEMENT_PATTERN.fullmatch(text):
        raise InputError(f"{text!r} is not of the form 0[3,5]: output, then an index")
    output, *index = (int(number) for number in re.findall(r"\d+", text))
    return output, tuple(index)


def find_entry(source: str) -> str | None:
    """Return the default entry point: `kernel`, else `optimized_kernel`, else None."""
    try:
        names = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # tracing reports the syntax error
    return next((name for name in ENTRIES if name in names), None)


def read_text(path: Path) -> str:
    """Read a source file as text.

    Raises:
        InputError: the file is not text.
        OSError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from error


@contextmanager
def extended_import_path(file: Path) -> Iterator[None]:
    """Let a kernel's or reference's file import modules from its own folder."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def collect_arrays(value: Any) -> list[Array]:
    """Return the arrays in a kernel's arguments, depth first, in order; scalars do not count as arrays."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [array for item in value for array in collect_arrays(item)]
    return [value] if isinstance(value, np.ndarray) else []


def make_specs(value: Any) -> Any:
    """Return the arguments with each array replaced by its shape and type.

    Raises:
        InputError: the device has no type for an array's type.
    """
    if isinstance(value, np.ndarray):
        if value.dtype not in _NAMES:
            raise InputError(f"an argument is an array of {value.dtype}; use one of {', '.join(NUMPY)}")
        return ArraySpec(value.shape, _NAMES[value.dtype])
    if isinstance(value, dict):
        return {name: make_specs(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(make_specs(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def fill_arguments(arguments: Sequence[Any], seed: int) -> list[Any]:
    """Replace each specification among the arguments by a random array; `RANDOM` describes how."""
    rng = np.random.default_rng(seed)
    return [_draw_array(item, rng) if isinstance(item, ArraySpec) else item for item in arguments]


def _draw_array(spec: ArraySpec, rng: np.random.Generator) -> Array:
    dtype = NUMPY[spec.dtype]
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else 8, spec.shape).astype(dtype)
    if dtype.names:
        return pack_numbers(rng.standard_normal((*spec.shape, PACKED_ELEMENTS)), dtype)
    return rng.standard_normal(spec.shape).astype(dtype)


def relative_l2(found: Array, wanted: Array) -> float:
    """||found - wanted|| / ||wanted|| in float64, NaN if either has NaN; works in blocks to save memory."""
    mine, theirs = np.asarray(found).reshape(-1), np.asarray(wanted).reshape(-1)
    error = size = 0.0
    for start in range(0, len(theirs), _BLOCK):
        exact = theirs[start : start + _BLOCK].astype(np.float64)
        size += float(np.dot(exact, exact))
        exact -= mine[start : start + _BLOCK]
        error += float(np.dot(exact, exact))
    return math.sqrt(error) / max(math.sqrt(size), np.finfo(np.float64).tiny)


class ReferenceModule:
    """A reference file, executed once.

    Raises:
        InputError: the file defines neither forward nor reference, or raises.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._module = create_module("reference", str(path))
        self._names = self._module.__dict__
        text = read_text(path)
        with self._report_faults():
            exec(compile(text, str(path), "exec"), self._names)  # noqa: S102  the user's own file
        forward = self._names.get("forward") or self._names.get("reference")
        if not callable(forward):
            raise InputError(f"{path} defines neither forward nor reference")
        self._forward: Callable[..., Any] = forward
        self.draws = callable(self._names.get("get_inputs"))
        self.transforms = callable(self._names.get("transform_to_nki_inputs"))

    def draw_inputs(self, seed: int) -> list[Any]:
        """Return what `get_inputs` returns with NumPy's global generator seeded with `seed`."""
        with self._report_faults():
            np.random.seed(seed)  # noqa: NPY002  the generator that get_inputs draws from
            return list(self._names["get_inputs"]())

    def make_arguments(self, inputs: list[Any]) -> list[Any]:
        """The kernel's arguments for these inputs."""
        with self._report_faults():
            return list(self._names["transform_to_nki_inputs"](inputs)) if self.transforms else inputs

    def relative_errors(
        self,
        inputs: Sequence[Any],
        outputs: list[Array],
        parts: Mapping[int, Sequence[ElementBox]] | None = None,
    ) -> list[float]:
        """Return the relative L2 error of each output; for outputs named in `parts`, only inside their boxes.

        Raises:
            InputError: the reference raises, or its results do not fit the kernel's outputs.
        """
        with self._report_faults():
            result = self._forward(*inputs)
        wanted = [np.asarray(item) for item in (result if isinstance(result, tuple | list) else [result])]
        found = self._transform_outputs(outputs, result)
        shapes, expected = [item.shape for item in wanted], [item.shape for item in found]
        if shapes != expected:
            raise InputError(f"the reference returns arrays of {shapes}, the kernel of {expected}")
        if parts is None:
            return [relative_l2(*pair) for pair in zip(found, wanted, strict=True)]
        inside = self._transform_outputs(_box_masks(outputs, parts), result)
        chosen = [mask.astype(bool) for mask in inside]
        triples = zip(found, wanted, chosen, strict=True)
        return [relative_l2(mine[mask], theirs[mask]) for mine, theirs, mask in triples if mask.any()]

    def _transform_outputs(self, outputs: list[Array], result: Any) -> list[Array]:
        transform = self._names.get("transform_nki_outputs")
        if transform is None:
            return outputs
        with self._report_faults():
            made = transform(outputs[0] if len(outputs) == 1 else tuple(outputs), result)
        return [np.asarray(item) for item in (made if isinstance(made, tuple | list) else [made])]

    @contextmanager
    def _report_faults(self) -> Iterator[None]:
        """Turn anything the file raises into an InputError; even `sys.exit` in it is not a verdict on the
        kernel.
        """
        try:
            with extended_import_path(self.path), register_module(self._module):
                yield
        except (Exception, SystemExit) as error:  # the user's file may raise anything
            lines = [
                frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(self.path)
            ]
            place = f"{self.path} line {lines[-1]}" if lines else str(self.path)
            raise InputError(f"{place}: the reference raised {type(error).__name__}: {error}") from error


def _box_masks(outputs: Sequence[Array], parts: Mapping[int, Sequence[ElementBox]]) -> list[Array]:
    """Arrays shaped like the outputs: 1 inside a wanted box, 0 elsewhere. Reshaping them keeps track of the
    boxes.
    """
    masks: list[Array] = [np.zeros(output.shape, dtype=np.float32) for output in outputs]
    for number, boxes in parts.items():
        for box in boxes:
            masks[number][tuple(slice(first, end) for first, end in box)] = 1
    return masks
