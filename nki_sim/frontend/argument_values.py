"""Constants that instructions take, such as `nl.exp`, enums and numbers, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

from nki_sim.forms import ParamValue
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.functions import ACTIVATIONS, ACTIVATIONS2, ALIASES, ALU, FUNCTIONS, REDUCE, REGISTER_ALU
from nki_sim.operators import Argument, Operator
from nki_sim.refusals import DocumentedNames


class LanguageFunction(DocumentedNames):
    """An `nl.*` function used as an `op=` value."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"nl.{self._name}"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Compute on tiles and return a new one, if the language documents the function."""
        from nki_sim.frontend.lowering import FUNCTIONS as COMPUTE

        if self._name == "divide":
            fail(
                "op", "nl.divide(...): no engine divides, and the build for trn2 refuses it",
                "multiply by nl.reciprocal(...) of the divisor",
            )  # fmt: skip
        compute = COMPUTE.get(self._name)
        if compute is None:
            known = self._name in FUNCTIONS or self._name in ALIASES
            hint = f"pass it as op=nl.{self._name} to a nisa instruction" if known else "see nki-sim ops"
            fail("unsupported", f"not supported: calling nl.{self._name}(...)", hint)
        try:
            return compute(*args, **options)
        except TypeError as error:
            fail("function_arguments", f"nl.{self._name}: {error}", "see its documented signature")


class engine(DocumentedNames, Enum):  # noqa: N801  the documented spelling
    """The engine that runs an instruction."""

    tensor = "tensor"
    vector = "vector"
    scalar = "scalar"
    gpsimd = "gpsimd"
    dma = "dma"
    sync = "sync"
    unknown = "unknown"


class dge_mode(DocumentedNames, Enum):  # noqa: N801
    """How DMA descriptors are made; a hint here."""

    unknown = "unknown"
    swdge = "swdge"
    hwdge = "hwdge"
    none = "none"


class oob_mode(DocumentedNames, Enum):  # noqa: N801
    """What a DMA does with an index out of bounds: fail, or skip that place."""

    error = "error"
    skip = "skip"


class reduce_cmd(DocumentedNames, Enum):  # noqa: N801
    """What happens to the accumulation registers."""

    idle = "idle"
    reset = "reset"
    reduce = "reduce"
    reset_reduce = "reset_reduce"
    load_reduce = "load_reduce"


class matmul_perf_mode(DocumentedNames, Enum):  # noqa: N801
    """How the tensor engine feeds its rows: `double_row` takes two products of 8-bit types at a time."""

    none = "none"
    double_row = "double_row"


class dma_engine(DocumentedNames, Enum):  # noqa: N801
    """The DMA engines that exchange tiles between cores."""

    dma = "dma"
    gpsimd_dma = "gpsimd_dma"


class nc_version(DocumentedNames, IntEnum):  # noqa: N801
    """Generations of NeuronCore, ordered by age."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


def argument_name(value: Any) -> Any:
    """Return the name of a function or of an enumeration's member; other values as they are."""
    return getattr(value, "_name", None) or getattr(value, "name", value)


def normalise_argument(operator: Operator, argument: Argument, value: Any) -> ParamValue | Tensor | None:
    """Return the value as recorded; missing optional arguments get their default."""
    if value is None:
        if argument.required:
            names = ", ".join(one.name for one in operator.signature)
            fail("missing_argument", f"nisa.{operator.name} needs {argument.name}=", f"it takes {names}")
        return argument.default
    if isinstance(value, Tensor):
        if not argument.is_tensor:
            fail("argument_type", f"nisa.{operator.name}: {argument.name} must not be a tensor")
        return value
    what = f"nisa.{operator.name}: {argument.name}"
    return (
        _validate_choice(what, value, argument)
        if argument.kind == "choice"
        else _KINDS[argument.kind](what, value)
    )


def split_list_argument(operator: Operator, name: str, roles: list[str], value: Any) -> list[Any]:
    """Split a list argument into its items."""
    if not isinstance(value, list | tuple):
        fail("argument_type", f"nisa.{operator.name}: {name} must be a list, not {type(value).__name__}")
    if not 0 < len(value) <= len(roles):
        fail("argument_value", f"nisa.{operator.name}: {len(value)} {name}, between 1 and {len(roles)} go")
    return list(value)


def _validate_choice(what: str, value: Any, argument: Argument) -> ParamValue:
    name = argument_name(value)
    name = ALIASES.get(str(name), name)
    if name not in argument.choices:
        fail("argument_value", f"{what} cannot be {value!r}", f"one of {', '.join(argument.choices)}")
    return str(name)


def _refuse_non_tensor(what: str, value: Any) -> ParamValue:
    fail("argument_type", f"{what} must be a tensor, not {type(value).__name__}")


def _validate_float(what: str, value: Any) -> ParamValue:
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail("argument_type", f"{what} must be a number, not {type(value).__name__}")
    return float(value)


def _validate_int(what: str, value: Any) -> ParamValue:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        fail("argument_type", f"{what} must be an integer, not {value!r}")
    return value


def _validate_bool(what: str, value: Any) -> ParamValue:
    if not isinstance(value, bool):
        fail("argument_type", f"{what} must be True or False, not {value!r}")
    return value


def _function_validator(allowed: frozenset[str]) -> Callable[[str, Any], ParamValue]:
    def check(what: str, value: Any) -> ParamValue:
        name = getattr(value, "_name", None)
        name = ALIASES.get(str(name), name)
        if name not in allowed:
            fail("op", f"{what} cannot be {value!r}", f"one of {', '.join(sorted(allowed))}")
        return str(name)

    return check


def _validate_ints(what: str, value: Any) -> ParamValue:
    found = tuple(value) if isinstance(value, tuple | list) else (value,)
    if any(type(entry) is not int or entry < 0 for entry in found):
        fail(
            "argument_type", f"{what} must be a tuple of integers that are not negative, not {value!r}",
            "pass integers that are known while tracing",
        )  # fmt: skip
    return found


def _validate_pattern(what: str, value: Any) -> ParamValue:
    """Flatten [[step, count], ...] to one row of integers."""
    pairs = list(value) if isinstance(value, tuple | list) else []
    made = all(isinstance(pair, tuple | list) and [type(n) for n in pair] == [int, int] for pair in pairs)
    if not pairs or not made:
        fail(
            "argument_type", f"{what} must be a list of [step, count], not {value!r}",
            "a single dimension is a list of one pair: [[step, count]]",
        )  # fmt: skip
    if any(count < 1 for _, count in pairs):
        fail("argument_value", f"{what} has a count below 1: {value!r}", "leave out empty dimensions")
    return tuple(number for pair in pairs for number in pair)


def _require_ones(what: str, value: Any) -> ParamValue | None:
    found = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(entry, bool) or entry != 1.0 for entry in found):
        fail("argument_value", f"{what} is {value!r}, the hardware takes nothing other than 1.0")
    return None


def _validate_axes(what: str, value: Any) -> ParamValue:
    axes = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not axes or any(not isinstance(axis, int) for axis in axes):
        fail("argument_type", f"{what} must be an axis or a tuple of axes, not {value!r}")
    return axes


_KINDS: dict[str, Callable[[str, Any], ParamValue | None]] = {
    "out": _refuse_non_tensor,
    "tensor": _refuse_non_tensor,
    "tensor_or_float": _validate_float,
    "tensor_or_int": _validate_int,
    "float": _validate_float,
    "int": _validate_int,
    "bool": _validate_bool,
    "alu": _function_validator(ALU),
    "activation": _function_validator(ACTIVATIONS),
    "activation2": _function_validator(ACTIVATIONS2),
    "reduce": _function_validator(REDUCE),
    "register_alu": _function_validator(REGISTER_ALU),
    "axes": _validate_axes,
    "ints": _validate_ints,
    "ones": _require_ones,
    "pattern": _validate_pattern,
}
