"""The spec in `problem.toml`: sizes, inputs, outputs, tolerance, and the least work that any kernel must do.

`parse_spec` parses it and reports every fault at once (`faults`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StringConstraints, ValidationError

from seeds import faults
from seeds.distributions import parse_distribution
from seeds.errors import UnknownSizeError
from seeds.expressions import evaluate_expression
from state.model import FrozenModel

ITEMSIZE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}


def _check_distribution(text: str) -> str:
    parse_distribution(text)
    return text


IdentifierName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
SingleLine = Annotated[str, StringConstraints(pattern=r"^[^\n]+$", max_length=200)]
DType = Literal["float32", "bfloat16", "float16", "int32"]
Dimension = Annotated[int, Field(ge=1, le=1 << 24, strict=True)]
SizeExpression = Annotated[int, Field(ge=0, strict=True)] | str
Shape = Annotated[tuple[SizeExpression, ...], Field(min_length=1, max_length=8)]
DistributionName = Annotated[str, AfterValidator(_check_distribution)]
ScalarValue = StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)]


class ArgumentSpec(FrozenModel):
    """One array: its name, its shape as expressions over the dimensions, its data type."""

    name: IdentifierName
    shape: Shape
    dtype: DType = "float32"

    def resolve_shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in elements."""
        return tuple(evaluate_expression(size, dims) for size in self.shape)

    def nbytes(self, dims: Mapping[str, int]) -> int:
        return prod(self.resolve_shape(dims)) * ITEMSIZE_BYTES[self.dtype]


class InputSpec(ArgumentSpec):
    """An input and its distribution (`seeds.distributions`), whose numbers are multiplied by `scale`."""

    distribution: DistributionName = "normal"
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False, strict=True)
    kernel_shape: Shape | None = None
    """The shape in which kernels get it, with the same elements in the same order; by default `shape`."""

    def resolve_kernel_shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in which kernels get the input."""
        return tuple(evaluate_expression(size, dims) for size in self.kernel_shape or self.shape)


class OutputSpec(ArgumentSpec):
    """An output. With `kernel_shape = "any"`, kernels may return its elements in any shape, in order."""

    kernel_shape: Literal["any"] | None = None


class ScalarSpec(FrozenModel):
    """A number that kernel and reference get among the arrays, as a Python number.

    `position` counts all arguments from 0; without it, the scalar comes last.
    """

    name: IdentifierName
    value: ScalarValue
    position: Annotated[int, Field(ge=0, le=64, strict=True)] | None = None


class RelationSpec(FrozenModel):
    """What must hold for every kernel, whatever its inputs are; `seeds.relations` has the vocabulary.

    It gives either changes of inputs by name and the resulting changes of outputs (an output not named stays
    as it is), or the inputs that all outputs are linear in, taken together.
    """

    name: SingleLine
    inputs: dict[IdentifierName, str] = Field(default_factory=dict)
    outputs: dict[IdentifierName, str] = Field(default_factory=dict)
    linear: tuple[IdentifierName, ...] = ()


class WorkSpec(FrozenModel):
    """The operations of the mathematics, as expressions; bytes follow from the arrays.

    FLOPs count for the plain roofline. A target's model bound also counts elements: `activation_elements`
    need a transcendental function, `elementwise_elements` any operation but a matrix product (outputs of
    products included). `matmul_dtype` is the type whose rate the products may use.
    """

    matmul_flops: SizeExpression = 0
    matmul_dtype: DType = "float32"
    other_flops: SizeExpression = 0
    activation_elements: SizeExpression = 0
    elementwise_elements: SizeExpression = 0


@dataclass(frozen=True, slots=True)
class ProblemWork:
    """The least work of any kernel: read each input once, write each output once, do the operations.

    `mx`: the problem allows products in MX types.
    """

    read_bytes: int
    write_bytes: int
    matmul_flops: int
    matmul_dtype: str
    other_flops: int
    activation_elements: int
    elementwise_elements: int
    mx: bool = False

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


class ProblemSpec(FrozenModel):
    """A problem as its author wrote it.

    `rel_l2` is the tolerance: ||out - reference|| / ||reference|| must be below it. `shape_generic` says that
    a kernel that is correct at size `reduced` is built the same way at `full`. Other problems need only one
    size, which may be either. `mx` says that kernels may quantise operands of products to MX, which changes
    numbers; otherwise that is low precision.
    """

    name: IdentifierName
    formula: SingleLine
    rel_l2: float = Field(gt=0, lt=1, strict=True)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63, strict=True)], ...] = Field(min_length=1, max_length=64)
    shape_generic: StrictBool
    mx: StrictBool = False
    sizes: dict[IdentifierName, dict[IdentifierName, Dimension]]
    inputs: tuple[InputSpec, ...] = Field(min_length=1, max_length=32)
    scalars: tuple[ScalarSpec, ...] = Field(default=(), max_length=32)
    outputs: tuple[OutputSpec, ...] = Field(min_length=1, max_length=32)
    relations: tuple[RelationSpec, ...] = Field(default=(), max_length=32)
    work: WorkSpec

    def dims(self, size: str) -> dict[str, int]:
        """Return the dimensions of a size: `full`, `reduced`, or another one in the spec.

        Raises:
            UnknownSizeError: the spec has no such size.
        """
        if size not in self.sizes:
            raise UnknownSizeError(size, self.sizes)
        return self.sizes[size]

    def call_arguments(self, arrays: Sequence[Any], scalar: Callable[[ScalarValue], Any]) -> list[Any]:
        """Return the arguments of kernel and reference: one array per input, with the scalars among them."""
        found, end = list(arrays), len(arrays) + len(self.scalars)
        places = [end if item.position is None else item.position for item in self.scalars]
        for place, item in sorted(zip(places, self.scalars, strict=True), key=lambda pair: pair[0]):
            found.insert(place, scalar(item.value))
        return found

    def minimal_work(self, size: str) -> ProblemWork:
        """Return the minimal work at a size.

        Raises:
            UnknownSizeError: the spec has no such size.
        """
        dims = self.dims(size)
        return ProblemWork(
            read_bytes=sum(item.nbytes(dims) for item in self.inputs),
            write_bytes=sum(item.nbytes(dims) for item in self.outputs),
            matmul_flops=evaluate_expression(self.work.matmul_flops, dims),
            matmul_dtype=self._products_dtype(),
            other_flops=evaluate_expression(self.work.other_flops, dims),
            activation_elements=evaluate_expression(self.work.activation_elements, dims),
            elementwise_elements=evaluate_expression(self.work.elementwise_elements, dims),
            mx=self.mx,
        )

    def _products_dtype(self) -> str:
        """The type whose rate products may use: a narrower one if some array has it."""
        narrow = [item.dtype for item in (*self.inputs, *self.outputs) if "float16" in item.dtype]
        return narrow[0] if narrow and self.work.matmul_dtype == "float32" else self.work.matmul_dtype


def parse_spec(data: bytes) -> tuple[ProblemSpec | None, list[str]]:
    """Parse a `problem.toml`; return the spec, or None with every fault."""
    try:
        raw = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, [f"problem.toml: not TOML: {error}"]
    found = list(faults.find_semantic_faults(raw))
    try:
        spec = ProblemSpec.model_validate(raw)
    except ValidationError as error:
        return None, [*faults.find_schema_faults(error, ProblemSpec), *found]
    return (None if found else spec), found
