"""What `problem.toml` says: sizes, inputs, outputs, tolerance and the least work any kernel must do.

`parse` reads it and reports every fault at once: those of structure, found by the schema, and those of
meaning (an unknown dimension, a size without one that another has), found on the raw table, so that one
kind never hides the other.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from seeds.errors import ExpressionError, UnknownSizeError
from seeds.expressions import evaluate
from state.model import Frozen

ITEMSIZE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Line = Annotated[str, StringConstraints(pattern=r"^[^\n]+$", max_length=200)]
DType = Literal["float32", "bfloat16", "float16", "int32"]
Dimension = Annotated[int, Field(ge=1, le=1 << 24)]
Expression = Annotated[int, Field(ge=0)] | str
REQUIRED_SIZES = frozenset({"full", "reduced"})


class ArgumentSpec(Frozen):
    """One array: its name, its shape as expressions over the dimensions, its data type."""

    name: Name
    shape: tuple[Expression, ...] = Field(min_length=1, max_length=5)
    dtype: DType = "float32"

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in elements."""
        return tuple(evaluate(size, dims) for size in self.shape)

    def nbytes(self, dims: Mapping[str, int]) -> int:
        return prod(self.resolve(dims)) * ITEMSIZE_BYTES[self.dtype]


class InputSpec(ArgumentSpec):
    """An input and what it is drawn from: `normal` is N(0, scale^2), `abs_normal` its absolute value."""

    distribution: Literal["normal", "abs_normal"] = "normal"
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class WorkSpec(Frozen):
    """The mathematics' operations, as expressions; bytes follow from the arrays.

    FLOPs count for the plain roofline. The elements bound the simulator's engines: `activation_elements`
    need a function table, `elementwise_elements` any engine but the tensor engine (outputs leaving PSUM
    included). `matmul_dtype` is the type whose rate the products are entitled to.
    """

    matmul_flops: Expression = 0
    matmul_dtype: DType = "float32"
    other_flops: Expression = 0
    activation_elements: Expression = 0
    elementwise_elements: Expression = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The least that any kernel must do: each input read once, each output written once, the operations."""

    read_bytes: int
    write_bytes: int
    matmul_flops: int
    matmul_dtype: str
    other_flops: int
    activation_elements: int
    elementwise_elements: int

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


class ProblemSpec(Frozen):
    """A problem as its author wrote it down.

    `rel_l2` is the tolerance: ||out - reference|| / ||reference|| must be below it. `shape_generic` says
    that a kernel correct at the reduced size is built the same way at the full one.
    """

    name: Name
    formula: Line
    rel_l2: float = Field(gt=0, lt=1)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(min_length=1, max_length=64)
    shape_generic: bool
    sizes: dict[Name, dict[Name, Dimension]]
    inputs: tuple[InputSpec, ...] = Field(min_length=1, max_length=32)
    outputs: tuple[ArgumentSpec, ...] = Field(min_length=1, max_length=32)
    work: WorkSpec

    def dims(self, size: str) -> dict[str, int]:
        """Return the dimensions of a size, `full` or `reduced` or another that the spec has.

        Raises:
            UnknownSizeError: the spec has no such size.
        """
        if size not in self.sizes:
            raise UnknownSizeError(size, self.sizes)
        return self.sizes[size]

    def work_at(self, size: str) -> Work:
        """Return the minimal work at a size.

        Raises:
            UnknownSizeError: the spec has no such size.
        """
        dims = self.dims(size)
        return Work(
            read_bytes=sum(item.nbytes(dims) for item in self.inputs),
            write_bytes=sum(item.nbytes(dims) for item in self.outputs),
            matmul_flops=evaluate(self.work.matmul_flops, dims),
            matmul_dtype=self.work.matmul_dtype,
            other_flops=evaluate(self.work.other_flops, dims),
            activation_elements=evaluate(self.work.activation_elements, dims),
            elementwise_elements=evaluate(self.work.elementwise_elements, dims),
        )


def parse(data: bytes) -> tuple[ProblemSpec | None, list[str]]:
    """Read a `problem.toml`; return the spec, or None with everything that is wrong with it."""
    try:
        raw = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, [f"problem.toml: not TOML: {error}"]
    faults = list(_meaning(raw))
    try:
        spec = ProblemSpec.model_validate(raw)
    except ValidationError as error:
        return None, [*_structure(error), *faults]
    return (None if faults else spec), faults


_MESSAGES = {"extra_forbidden": "unknown key", "missing": "required"}
"""Faults by the library's type where its own words assume its user wrote the schema."""


def _structure(error: ValidationError) -> Iterator[str]:
    """The schema's complaints; `too short` is left out where it only counts an entry complained about."""
    found = error.errors()
    for item in found:
        place = item["loc"]
        inside = any(other["loc"][: len(place)] == place and other is not item for other in found)
        if item["type"] == "too_short" and inside:
            continue
        shown = "" if item["type"] in {"missing", "extra_forbidden"} else f" (found {item['input']!r:.60})"
        message = _MESSAGES.get(item["type"]) or item["msg"][0].lower() + item["msg"][1:]
        yield f"problem.toml: {'.'.join(map(str, place))}: {message}{shown}"


def _meaning(raw: Mapping[str, Any]) -> Iterator[str]:
    """What the schema cannot see; tolerant of any shape of table, since the schema reports those."""
    sizes = {name: dims for name, dims in _table(raw, "sizes").items() if isinstance(dims, dict)}
    for missing in sorted(REQUIRED_SIZES - sizes.keys()):
        yield f"problem.toml: sizes.{missing}: there must be a size of this name"
    known = {dim for dims in sizes.values() for dim in dims}
    for name, dims in sizes.items():
        for dim in sorted(known - dims.keys()):
            yield f"problem.toml: sizes.{name}: has no {dim}, which another size has"
    yield from _duplicates(raw)
    # Any positive value does: what is checked is that expressions read and know their names.
    trial = dict.fromkeys(known, 1)
    for place, expression in _expressions(raw):
        try:
            evaluate(expression, trial)
        except ExpressionError as error:
            yield f"problem.toml: {place}: {error}"
    yield from _empty_arrays(raw, sizes)


def _empty_arrays(raw: Mapping[str, Any], sizes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for place, expression in _expressions(raw):
        for name, dims in sizes.items():
            whole = {key: value for key, value in dims.items() if type(value) is int and value > 0}
            try:
                value = evaluate(expression, whole)
            except ExpressionError:
                continue  # reported by the trial evaluation
            if value < 0 or (value == 0 and ".shape" in place):
                yield f"problem.toml: {place}: {expression!r} is {value} at size {name}"


def _expressions(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group in ("inputs", "outputs"):
        for index, item in enumerate(_list(raw, group)):
            shape = item.get("shape") if isinstance(item, dict) else None
            for axis, size in enumerate(shape if isinstance(shape, list) else []):
                if isinstance(size, str):
                    yield f"{group}.{index}.shape.{axis}", size
    for key, value in _table(raw, "work").items():
        if isinstance(value, str) and key != "matmul_dtype":
            yield f"work.{key}", value


def _duplicates(raw: Mapping[str, Any]) -> Iterator[str]:
    seen: set[str] = set()
    for group in ("inputs", "outputs"):
        for index, item in enumerate(_list(raw, group)):
            name = item.get("name") if isinstance(item, dict) else None
            if isinstance(name, str) and name in seen:
                yield f"problem.toml: {group}.{index}.name: {name!r} names two arrays"
            if isinstance(name, str):
                seen.add(name)


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    return value if isinstance(value, list) else []
