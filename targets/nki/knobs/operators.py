"""The table of operators in which workloads are written, one entry each.

An entry defines the axes of the operands, the axis that is summed, how far one instruction reaches along an
axis, what is computed (in float32, on rows), on which engine, and the `nki.isa` instructions that it becomes.
Nothing else knows an operator by name, except for the three that every plan inserts: `LOAD`, `DRAIN` and
`STORE`.

Axes are letters local to an entry. The first axis of an operand lies on the partitions. An operand of one
axis is a column, one number per partition, kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from nki_sim.operators import OPERATORS as SIMULATED
from targets.nki.knobs.functions import ACTIVATIONS, BINARY, LOWEST, REDUCTIONS, FloatArray

Settings = Mapping[str, Any]
Arrays = Mapping[str, FloatArray]

REQUIRED = object()
"""Marks a setting without a default."""


@dataclass(frozen=True, slots=True)
class TileUse:
    """An argument that is a tile: an operand's slot, `result`, or one of the scratch tiles below."""

    slot: str


Arguments = tuple[tuple[str, TileUse | str], ...]
"""Keywords with tiles, or with source text."""

STATE_SLOT = "before"
"""The tile in which an operator carries its operand from one round to the next."""

PARTIAL, SCRATCH = "partial", "scratch"
"""Tiles used within one statement: a column, and a tile like the first operand."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call of `nki.isa`, which the simulator must know: it has the instruction's cost and rules."""

    name: str
    arguments: Arguments

    def __post_init__(self) -> None:
        if self.name not in SIMULATED:
            near = get_close_matches(self.name, SIMULATED, n=3, cutoff=0.4)
            raise ValueError(
                f"nisa.{self.name} is not in nki_sim/operators/; names near it: {', '.join(near)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator. `limits` name the field of the target that bounds an instruction along an axis.

    `functions` are the settings that name a function, each with its table. `numbers` are slots that take a
    constant or a column. `rows` are slots of one row for all partitions. The result has the type of the
    operand `like`; columns are float32. Slots in `reads` are whole arrays in HBM, without partitions.
    `carries` names the operand that is carried to the next round, with its start value. `fades` names an
    operand for sums over rounds: before a part is added, the sum so far is multiplied by it. `emit` gets the
    settings, with slots that are constants, and whether the result is added to.
    """

    name: str
    operands: Mapping[str, tuple[str, ...]]
    result: tuple[str, ...]
    engine: str
    meaning: Callable[[Settings, Arrays], FloatArray]
    emit: Callable[[Settings, bool], tuple[Instruction, ...]]
    like: str
    settings: Settings = field(default_factory=dict)
    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    rows: frozenset[str] = frozenset()
    reduces: str | None = None
    memory: str = "sbuf"
    reads: str = "sbuf"
    carries: float | None = None
    fades: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)

    @property
    def setting_names(self) -> tuple[str, ...]:
        """The settings that a workload may give."""
        return (*self.settings, *self.numbers)

    def combining_function(self, settings: Settings) -> str:
        """The function that combines parts of the result."""
        for key in ("reduce_op", "op"):
            if self.functions.get(key) is REDUCTIONS:
                return str(settings[key])
        return "add"


# -- what is computed ------------------------------------------------------------------------------


def _identity(settings: Settings, arrays: Arrays) -> FloatArray:
    return arrays["data"]


def _transpose(settings: Settings, arrays: Arrays) -> FloatArray:
    return arrays["data"].T


def _reciprocal(settings: Settings, arrays: Arrays) -> FloatArray:
    return np.reciprocal(arrays["data"])


def _fade_factor(settings: Settings, arrays: Arrays) -> FloatArray:
    return np.asarray(np.exp(arrays[STATE_SLOT] - arrays["data"]))


def _matmul(settings: Settings, arrays: Arrays) -> FloatArray:
    return arrays["stationary"].T @ arrays["moving"]


def _apply_binary(settings: Settings, arrays: Arrays) -> FloatArray:
    return np.asarray(BINARY[settings["op"]](arrays["data1"], arrays["data2"]))


def _apply_binary_row(settings: Settings, arrays: Arrays) -> FloatArray:
    return _apply_binary(settings, {"data1": arrays["data"], "data2": arrays["row"]})


def _apply_scalar(settings: Settings, arrays: Arrays) -> FloatArray:
    found = arrays["data"]
    for number in ("0", "1"):
        if settings[f"op{number}"] is not None:
            pair = (found, arrays[f"operand{number}"])
            found = BINARY[settings[f"op{number}"]](*(pair[::-1] if settings[f"reverse{number}"] else pair))
    return found


def _apply_scalar_tensor(settings: Settings, arrays: Arrays) -> FloatArray:
    pair = (arrays["data"], arrays["operand0"])
    found = BINARY[settings["op0"]](*(pair[::-1] if settings["reverse0"] else pair))
    last = (found, arrays["operand1"])
    return np.asarray(BINARY[settings["op1"]](*(last[::-1] if settings["reverse1"] else last)))


def _apply_activation(settings: Settings, arrays: Arrays) -> FloatArray:
    return np.asarray(ACTIVATIONS[settings["op"]](arrays["data"] * arrays["scale"] + arrays["bias"]))


def _reduce_rows(settings: Settings, arrays: Arrays) -> FloatArray:
    return np.asarray(REDUCTIONS[settings["op"]].fold(arrays["data"], axis=1, keepdims=True))


def _apply_activation_reduce(settings: Settings, arrays: Arrays) -> FloatArray:
    return _reduce_rows({"op": settings["reduce_op"]}, {"data": _apply_activation(settings, arrays)})


# -- how it is written -----------------------------------------------------------------------------


def _single_instruction(name: str, *tiles: str, **texts: str) -> tuple[Instruction, ...]:
    """An instruction whose keywords are the operand's slots."""
    uses = (("dst", TileUse("result")), *((slot, TileUse(slot)) for slot in tiles))
    return (Instruction(name, (*uses, *texts.items())),)


def _emit_fixed(name: str, *tiles: str) -> Callable[[Settings, bool], tuple[Instruction, ...]]:
    def emit(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
        return _single_instruction(name, *tiles)

    return emit


def _language_name(name: str) -> str:
    return f"nl.{name}"


def _accumulate_into(op: str, part: str) -> Instruction:
    tiles = (("dst", TileUse("result")), ("data1", TileUse("result")), ("data2", TileUse(part)))
    return Instruction("tensor_tensor", (*tiles, ("op", _language_name(op))))


def _emit_copy(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    plain = Instruction("tensor_copy", (("dst", TileUse("result")), ("src", TileUse("data"))))
    return (_accumulate_into("add", "data"),) if adds else (plain,)


def _emit_move(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    return (Instruction("dma_copy", (("dst", TileUse("result")), ("src", TileUse("data")))),)


def _emit_flip(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    return (Instruction("dma_transpose", (("dst", TileUse("result")), ("src", TileUse("data")))),)


def _emit_fade(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    to, data, before = TileUse("result"), TileUse("data"), TileUse(STATE_SLOT)
    change = (("dst", to), ("data1", before), ("data2", data), ("op", _language_name("subtract")))
    return (
        Instruction("tensor_tensor", change),
        Instruction("activation", (("dst", to), ("op", _language_name("exp")), ("data", to))),
        Instruction("tensor_copy", (("dst", before), ("src", data))),
    )


def _emit_fading_sum(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    if not adds:
        return _emit_copy(settings, adds)
    faded = (
        ("op0", _language_name("multiply")),
        ("operand0", TileUse("scale")),
        ("op1", _language_name("add")),
    )
    tiles = (("dst", TileUse("result")), ("data", TileUse("result")))
    return (Instruction("scalar_tensor_tensor", (*tiles, *faded, ("operand1", TileUse("data")))),)


def _emit_reduce(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    op = settings["op"]
    to = TileUse(PARTIAL if adds else "result")
    arguments: Arguments = (("dst", to), ("op", _language_name(op)), ("data", TileUse("data")), ("axis", "1"))
    part = Instruction("tensor_reduce", arguments)
    return (part, _accumulate_into(op, PARTIAL)) if adds else (part,)


def _emit_activation_reduce(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    to = TileUse(PARTIAL if adds else "result")
    arguments: Arguments = (
        *(("dst", TileUse(SCRATCH)), ("op", _language_name(settings["op"])), ("data", TileUse("data"))),
        *(("reduce_op", _language_name(settings["reduce_op"])), ("reduce_res", to)),
        *_operand_argument(settings, "scale", 1.0),
        *_operand_argument(settings, "bias", 0.0),
    )
    part = Instruction("activation_reduce", arguments)
    return (part, _accumulate_into(settings["reduce_op"], PARTIAL)) if adds else (part,)


def _operand_argument(settings: Settings, slot: str, unless: float | None) -> Arguments:
    """An operand that is a column or a constant; empty if it is the instruction's default anyway."""
    if slot not in settings:
        return ((slot, TileUse(slot)),)
    return () if settings[slot] == unless else ((slot, repr(settings[slot])),)


def _emit_activation(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    arguments: Arguments = (
        *(("dst", TileUse("result")), ("op", _language_name(settings["op"])), ("data", TileUse("data"))),
        *_operand_argument(settings, "scale", 1.0),
        *_operand_argument(settings, "bias", 0.0),
    )
    return (Instruction("activation", arguments),)


def _emit_pairs(name: str) -> Callable[[Settings, bool], tuple[Instruction, ...]]:
    """An instruction of two functions, each with an operand of its own."""

    def emit(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
        arguments: list[tuple[str, TileUse | str]] = [("dst", TileUse("result")), ("data", TileUse("data"))]
        for number in ("0", "1"):
            if settings[f"op{number}"] is not None:
                arguments.append((f"op{number}", _language_name(settings[f"op{number}"])))
                arguments.extend(_operand_argument(settings, f"operand{number}", None))
                arguments.extend([(f"reverse{number}", "True")] if settings[f"reverse{number}"] else [])
        return (Instruction(name, tuple(arguments)),)

    return emit


def _emit_row(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    tiles = (("dst", TileUse("result")), ("data1", TileUse("data")), ("data2", TileUse("row")))
    return (Instruction("tensor_tensor", (*tiles, ("op", _language_name(settings["op"])))),)


def _emit_binary(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    return _single_instruction("tensor_tensor", "data1", "data2", op=_language_name(settings["op"]))


# -- the table -------------------------------------------------------------------------------------

_AFFINE = frozenset({"scale", "bias"})
_ROWS: Mapping[str, tuple[str, ...]] = {"data": ("P", "F")}

LOAD = Operator(
    name="NKILoad", operands=_ROWS, result=("P", "F"), engine="dma", reads="hbm", like="data",
    meaning=_identity, emit=_emit_move,
)  # fmt: skip
SPREAD = Operator(
    name="NKILoadRow", operands={"data": ("F",)}, result=("*", "F"), engine="dma", reads="hbm", like="data",
    rows=frozenset({"data"}), meaning=_identity, emit=_emit_move,
)  # fmt: skip
STORE = Operator(
    name="NKIStore", operands=_ROWS, result=("P", "F"), engine="dma", like="data",
    meaning=_identity, emit=_emit_move,
)  # fmt: skip
DRAIN = Operator(
    name="NKITensorCopy", operands=_ROWS, result=("P", "F"), engine="vector", like="data",
    meaning=_identity, emit=_emit_copy,
)  # fmt: skip

_ENTRIES = (
    LOAD,
    SPREAD,
    STORE,
    DRAIN,
    Operator(
        name="NKIMatmul", operands={"stationary": ("K", "M"), "moving": ("K", "N")}, result=("M", "N"),
        engine="tensor", memory="psum", reduces="K", like="moving", limits={"N": "matmul_moving_max"},
        meaning=_matmul, emit=_emit_fixed("nc_matmul", "stationary", "moving"),
    ),
    Operator(
        name="NKITranspose", operands=_ROWS, result=("F", "P"), engine="tensor", memory="psum", like="data",
        meaning=_transpose, emit=_emit_fixed("nc_transpose", "data"),
    ),
    Operator(
        name="NKILoadTranspose", operands=_ROWS, result=("F", "P"), engine="dma", reads="hbm", like="data",
        meaning=_transpose, emit=_emit_flip,
    ),
    Operator(
        name="NKITensorTensor", operands={"data1": ("P", "F"), "data2": ("P", "F")}, result=("P", "F"),
        engine="vector", like="data1", settings={"op": REQUIRED}, functions={"op": BINARY},
        meaning=_apply_binary, emit=_emit_binary,
    ),
    Operator(
        name="NKITensorRow", operands={"data": ("P", "F"), "row": ("F",)}, result=("P", "F"),
        engine="vector", like="data", rows=frozenset({"row"}), settings={"op": REQUIRED},
        functions={"op": BINARY}, meaning=_apply_binary_row, emit=_emit_row,
    ),
    Operator(
        name="NKITensorScalar",
        operands={"data": ("P", "F"), "operand0": ("P",), "operand1": ("P",)}, result=("P", "F"),
        engine="vector", like="data", numbers=frozenset({"operand0", "operand1"}),
        settings={"op0": REQUIRED, "reverse0": False, "op1": None, "reverse1": False},
        functions={"op0": BINARY, "op1": BINARY}, meaning=_apply_scalar, emit=_emit_pairs("tensor_scalar"),
    ),
    Operator(
        name="NKIScalarTensorTensor",
        operands={"data": ("P", "F"), "operand0": ("P",), "operand1": ("P", "F")}, result=("P", "F"),
        engine="vector", like="data", numbers=frozenset({"operand0"}),
        settings={"op0": REQUIRED, "reverse0": False, "op1": REQUIRED, "reverse1": False},
        functions={"op0": BINARY, "op1": BINARY},
        meaning=_apply_scalar_tensor, emit=_emit_pairs("scalar_tensor_tensor"),
    ),
    Operator(
        name="NKIActivation", operands={"data": ("P", "F"), "scale": ("P",), "bias": ("P",)},
        result=("P", "F"), engine="scalar", like="data", numbers=_AFFINE,
        settings={"op": REQUIRED}, functions={"op": ACTIVATIONS},
        meaning=_apply_activation, emit=_emit_activation,
    ),
    Operator(
        name="NKIReciprocal", operands=_ROWS, result=("P", "F"), engine="vector", like="data",
        meaning=_reciprocal, emit=_emit_fixed("reciprocal", "data"),
    ),
    Operator(
        name="NKITensorReduce", operands=_ROWS, result=("P",), engine="vector", like="data", reduces="F",
        settings={"op": REQUIRED}, functions={"op": REDUCTIONS},
        meaning=_reduce_rows, emit=_emit_reduce,
    ),
    Operator(
        name="NKIActivationReduce", operands={"data": ("P", "F"), "scale": ("P",), "bias": ("P",)},
        result=("P",), engine="scalar", like="data", reduces="F", numbers=_AFFINE,
        settings={"op": REQUIRED, "reduce_op": "add"},
        functions={"op": ACTIVATIONS, "reduce_op": {"add": REDUCTIONS["add"]}},
        meaning=_apply_activation_reduce,
        emit=_emit_activation_reduce,
    ),
    Operator(
        name="NKIFade", operands={"data": ("P",)}, result=("P",), engine="vector", like="data",
        carries=LOWEST, meaning=_fade_factor, emit=_emit_fade,
    ),
    Operator(
        name="NKIFadingSum", operands={"data": ("P", "F"), "scale": ("P",)}, result=("P", "F"),
        engine="vector", like="data", fades="scale", meaning=_identity, emit=_emit_fading_sum,
    ),
)  # fmt: skip

OPERATORS: Mapping[str, Operator] = {entry.name: entry for entry in _ENTRIES}
