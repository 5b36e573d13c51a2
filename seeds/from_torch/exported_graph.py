"""The graph of a PyTorch module as data: what of `torch.export`'s graph a reference is written from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from seeds.errors import ScaffoldError
from state.model import FrozenModel, validation_reason

TensorKind = Literal["user_input", "parameter", "buffer", "constant_tensor"]


class ExportedInput(FrozenModel):
    """A tensor that the graph is given; `target` is a parameter's name in the module.

    `positive` says that all its numbers are. `values` has them, row by row, where kernels do not take it.
    """

    name: str = Field(pattern=r"^[A-Za-z_]\w*$")
    kind: TensorKind
    target: str | None = None
    shape: tuple[int, ...]
    dtype: str
    positive: bool = False
    values: tuple[bool | int | float | dict[str, str], ...] | None = None


class ExportedNode(FrozenModel):
    """A call of an operator; without a shape it gives several tensors, which `getitem` takes apart.

    In `args` and `kwargs`, `{"node": NAME}` is an earlier result, `{"number": "inf"}` a number that JSON
    lacks, and `{"dtype": NAME}` a type. `line` is where the module calls it.
    """

    name: str = Field(pattern=r"^[A-Za-z_]\w*$")
    target: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = Field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    line: str = ""


class ExportedGraph(FrozenModel):
    """A module's graph: what it is given, its calls in order, and which of them it returns."""

    version: Literal[1]
    module: str
    inputs: tuple[ExportedInput, ...] = Field(min_length=1)
    nodes: tuple[ExportedNode, ...]
    outputs: tuple[str, ...] = Field(min_length=1)


def read_graph(data: bytes, source: str) -> ExportedGraph:
    """Read what `export_program.py` prints; `source` is what errors name.

    Raises:
        ScaffoldError: it is no such graph.
    """
    try:
        return ExportedGraph.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "the file"
        reason = f"no exported graph: {where}: {validation_reason(fault)}"
        raise ScaffoldError(f"{source}: {reason}; export it anew with export_program.py") from None
