"""The operators that workloads are written in: one entry each.

An entry says over which axes an operand lies, which axis is summed away, how far one instruction reaches
along an axis, what is computed (in float32, on rows), on which engine, and as which `nki.isa` instructions
it is written down. Nothing else knows an operator by name, but for the three that every plan puts in by
itself: `LOAD`, `DRAIN` and `STORE`.

Axes are letters local to an entry. The first axis of an operand lies on the partitions; an operand of one
axis is a column, one number per partition, kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from targets.nki.knobs.functions import ACTIVATIONS, BINARY, LOWEST, REDUCTIONS, Array

Settings = Mapping[str, Any]
Arrays = Mapping[str, Array]

REQUIRED = object()
"""Stands where a setting has no default."""


@dataclass(frozen=True, slots=True)
class Use:
    """An argument that is a tile: an operand's slot, `result`, or one of the scratch tiles below."""

    slot: str


Arguments = tuple[tuple[str, Use | str], ...]
"""Keywords with tiles, or with texts as they stand in the source."""

BEFORE = "before"
"""The tile in which an operator carries its operand from one round to the next."""

PARTIAL, SCRATCH = "partial", "scratch"
"""Tiles of one statement alone: a column, and a tile like the first operand."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call of `nki.isa`."""

    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator. `limits` name the field of the target that bounds an instruction along an axis.

    `functions` are the settings that name a function, with the table of those; `numbers` are slots that take
    a constant as well as a column; in `rows` are slots of one row for all partitions. The result has the type
    of the operand `like`; columns are float32. What it `reads` in HBM are arrays as they are, without
    partitions. What `carries` its operand to the next round starts from that number. What `fades` adds up the
    parts of rounds: before it adds one, what is there is multiplied by that operand. `emit` gets the
    settings, with slots that are constants, and whether the result is added to.
    """

    name: str
    operands: Mapping[str, tuple[str, ...]]
    result: tuple[str, ...]
    engine: str
    meaning: Callable[[Settings, Arrays], Array]
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
    def spells(self) -> tuple[str, ...]:
        """The settings that a workload may give."""
        return (*self.settings, *self.numbers)

    def combines(self, settings: Settings) -> str:
        """The function that parts of the result are put together with."""
        for key in ("reduce_op", "op"):
            if self.functions.get(key) is REDUCTIONS:
                return str(settings[key])
        return "add"


# -- what is computed ------------------------------------------------------------------------------


def _data(settings: Settings, arrays: Arrays) -> Array:
    return arrays["data"]


def _transposed(settings: Settings, arrays: Arrays) -> Array:
    return arrays["data"].T


def _inverse(settings: Settings, arrays: Arrays) -> Array:
    return np.reciprocal(arrays["data"])


def _fade(settings: Settings, arrays: Arrays) -> Array:
    return np.asarray(np.exp(arrays[BEFORE] - arrays["data"]))


def _matmul(settings: Settings, arrays: Arrays) -> Array:
    return arrays["stationary"].T @ arrays["moving"]


def _binary(settings: Settings, arrays: Arrays) -> Array:
    return np.asarray(BINARY[settings["op"]](arrays["data1"], arrays["data2"]))


def _binary_row(settings: Settings, arrays: Arrays) -> Array:
    return _binary(settings, {"data1": arrays["data"], "data2": arrays["row"]})


def _scalar(settings: Settings, arrays: Arrays) -> Array:
    found = arrays["data"]
    for number in ("0", "1"):
        if settings[f"op{number}"] is not None:
            pair = (found, arrays[f"operand{number}"])
            found = BINARY[settings[f"op{number}"]](*(pair[::-1] if settings[f"reverse{number}"] else pair))
    return found


def _scalar_tensor(settings: Settings, arrays: Arrays) -> Array:
    pair = (arrays["data"], arrays["operand0"])
    found = BINARY[settings["op0"]](*(pair[::-1] if settings["reverse0"] else pair))
    last = (found, arrays["operand1"])
    return np.asarray(BINARY[settings["op1"]](*(last[::-1] if settings["reverse1"] else last)))


def _activation(settings: Settings, arrays: Arrays) -> Array:
    return np.asarray(ACTIVATIONS[settings["op"]](arrays["data"] * arrays["scale"] + arrays["bias"]))


def _reduced(settings: Settings, arrays: Arrays) -> Array:
    return np.asarray(REDUCTIONS[settings["op"]].fold(arrays["data"], axis=1, keepdims=True))


def _activation_reduced(settings: Settings, arrays: Arrays) -> Array:
    return _reduced({"op": settings["reduce_op"]}, {"data": _activation(settings, arrays)})


# -- how it is written -----------------------------------------------------------------------------


def _one(name: str, *tiles: str, **texts: str) -> tuple[Instruction, ...]:
    """An instruction whose keywords are the operand's slots."""
    uses = (("dst", Use("result")), *((slot, Use(slot)) for slot in tiles))
    return (Instruction(name, (*uses, *texts.items())),)


def _fixed(name: str, *tiles: str) -> Callable[[Settings, bool], tuple[Instruction, ...]]:
    def emit(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
        return _one(name, *tiles)

    return emit


def _function(name: str) -> str:
    return f"nl.{name}"


def _into(op: str, part: str) -> Instruction:
    tiles = (("dst", Use("result")), ("data1", Use("result")), ("data2", Use(part)))
    return Instruction("tensor_tensor", (*tiles, ("op", _function(op))))


def _emit_copy(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    plain = Instruction("tensor_copy", (("dst", Use("result")), ("src", Use("data"))))
    return (_into("add", "data"),) if adds else (plain,)


def _emit_move(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    return (Instruction("dma_copy", (("dst", Use("result")), ("src", Use("data")))),)


def _emit_flip(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    return (Instruction("dma_transpose", (("dst", Use("result")), ("src", Use("data")))),)


def _emit_fade(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    to, data, before = Use("result"), Use("data"), Use(BEFORE)
    change = (("dst", to), ("data1", before), ("data2", data), ("op", _function("subtract")))
    return (
        Instruction("tensor_tensor", change),
        Instruction("activation", (("dst", to), ("op", _function("exp")), ("data", to))),
        Instruction("tensor_copy", (("dst", before), ("src", data))),
    )


def _emit_fading_sum(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    if not adds:
        return _emit_copy(settings, adds)
    faded = (("op0", _function("multiply")), ("operand0", Use("scale")), ("op1", _function("add")))
    tiles = (("dst", Use("result")), ("data", Use("result")))
    return (Instruction("scalar_tensor_tensor", (*tiles, *faded, ("operand1", Use("data")))),)


def _emit_reduce(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    op = settings["op"]
    to = Use(PARTIAL if adds else "result")
    arguments: Arguments = (("dst", to), ("op", _function(op)), ("data", Use("data")), ("axis", "1"))
    part = Instruction("tensor_reduce", arguments)
    return (part, _into(op, PARTIAL)) if adds else (part,)


def _emit_activation_reduce(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    to = Use(PARTIAL if adds else "result")
    arguments: Arguments = (
        *(("dst", Use(SCRATCH)), ("op", _function(settings["op"])), ("data", Use("data"))),
        *(("reduce_op", _function(settings["reduce_op"])), ("reduce_res", to)),
        *_operand(settings, "scale", 1.0),
        *_operand(settings, "bias", 0.0),
    )
    part = Instruction("activation_reduce", arguments)
    return (part, _into(settings["reduce_op"], PARTIAL)) if adds else (part,)


def _operand(settings: Settings, slot: str, unless: float | None) -> Arguments:
    """An operand that is a column or a constant; none where it is what the instruction takes anyway."""
    if slot not in settings:
        return ((slot, Use(slot)),)
    return () if settings[slot] == unless else ((slot, repr(settings[slot])),)


def _emit_activation(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    arguments: Arguments = (
        *(("dst", Use("result")), ("op", _function(settings["op"])), ("data", Use("data"))),
        *_operand(settings, "scale", 1.0),
        *_operand(settings, "bias", 0.0),
    )
    return (Instruction("activation", arguments),)


def _emit_pairs(name: str) -> Callable[[Settings, bool], tuple[Instruction, ...]]:
    """An instruction of two functions, each with an operand of its own."""

    def emit(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
        arguments: list[tuple[str, Use | str]] = [("dst", Use("result")), ("data", Use("data"))]
        for number in ("0", "1"):
            if settings[f"op{number}"] is not None:
                arguments.append((f"op{number}", _function(settings[f"op{number}"])))
                arguments.extend(_operand(settings, f"operand{number}", None))
                arguments.extend([(f"reverse{number}", "True")] if settings[f"reverse{number}"] else [])
        return (Instruction(name, tuple(arguments)),)

    return emit


def _emit_row(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    tiles = (("dst", Use("result")), ("data1", Use("data")), ("data2", Use("row")))
    return (Instruction("tensor_tensor", (*tiles, ("op", _function(settings["op"])))),)


def _emit_binary(settings: Settings, adds: bool) -> tuple[Instruction, ...]:
    return _one("tensor_tensor", "data1", "data2", op=_function(settings["op"]))


# -- the table -------------------------------------------------------------------------------------

_AFFINE = frozenset({"scale", "bias"})
_ROWS: Mapping[str, tuple[str, ...]] = {"data": ("P", "F")}

LOAD = Operator(
    name="NKILoad", operands=_ROWS, result=("P", "F"), engine="dma", reads="hbm", like="data",
    meaning=_data, emit=_emit_move,
)  # fmt: skip
SPREAD = Operator(
    name="NKILoadRow", operands={"data": ("F",)}, result=("*", "F"), engine="dma", reads="hbm", like="data",
    rows=frozenset({"data"}), meaning=_data, emit=_emit_move,
)  # fmt: skip
STORE = Operator(
    name="NKIStore", operands=_ROWS, result=("P", "F"), engine="dma", like="data",
    meaning=_data, emit=_emit_move,
)  # fmt: skip
DRAIN = Operator(
    name="NKITensorCopy", operands=_ROWS, result=("P", "F"), engine="vector", like="data",
    meaning=_data, emit=_emit_copy,
)  # fmt: skip

_ENTRIES = (
    LOAD,
    SPREAD,
    STORE,
    DRAIN,
    Operator(
        name="NKIMatmul", operands={"stationary": ("K", "M"), "moving": ("K", "N")}, result=("M", "N"),
        engine="tensor", memory="psum", reduces="K", like="moving", limits={"N": "matmul_moving_max"},
        meaning=_matmul, emit=_fixed("nc_matmul", "stationary", "moving"),
    ),
    Operator(
        name="NKITranspose", operands=_ROWS, result=("F", "P"), engine="tensor", memory="psum", like="data",
        meaning=_transposed, emit=_fixed("nc_transpose", "data"),
    ),
    Operator(
        name="NKILoadTranspose", operands=_ROWS, result=("F", "P"), engine="dma", reads="hbm", like="data",
        meaning=_transposed, emit=_emit_flip,
    ),
    Operator(
        name="NKITensorTensor", operands={"data1": ("P", "F"), "data2": ("P", "F")}, result=("P", "F"),
        engine="vector", like="data1", settings={"op": REQUIRED}, functions={"op": BINARY},
        meaning=_binary, emit=_emit_binary,
    ),
    Operator(
        name="NKITensorRow", operands={"data": ("P", "F"), "row": ("F",)}, result=("P", "F"),
        engine="vector", like="data", rows=frozenset({"row"}), settings={"op": REQUIRED},
        functions={"op": BINARY}, meaning=_binary_row, emit=_emit_row,
    ),
    Operator(
        name="NKITensorScalar",
        operands={"data": ("P", "F"), "operand0": ("P",), "operand1": ("P",)}, result=("P", "F"),
        engine="vector", like="data", numbers=frozenset({"operand0", "operand1"}),
        settings={"op0": REQUIRED, "reverse0": False, "op1": None, "reverse1": False},
        functions={"op0": BINARY, "op1": BINARY}, meaning=_scalar, emit=_emit_pairs("tensor_scalar"),
    ),
    Operator(
        name="NKIScalarTensorTensor",
        operands={"data": ("P", "F"), "operand0": ("P",), "operand1": ("P", "F")}, result=("P", "F"),
        engine="vector", like="data", numbers=frozenset({"operand0"}),
        settings={"op0": REQUIRED, "reverse0": False, "op1": REQUIRED, "reverse1": False},
        functions={"op0": BINARY, "op1": BINARY},
        meaning=_scalar_tensor, emit=_emit_pairs("scalar_tensor_tensor"),
    ),
    Operator(
        name="NKIActivation", operands={"data": ("P", "F"), "scale": ("P",), "bias": ("P",)},
        result=("P", "F"), engine="scalar", like="data", numbers=_AFFINE,
        settings={"op": REQUIRED}, functions={"op": ACTIVATIONS},
        meaning=_activation, emit=_emit_activation,
    ),
    Operator(
        name="NKIReciprocal", operands=_ROWS, result=("P", "F"), engine="vector", like="data",
        meaning=_inverse, emit=_fixed("reciprocal", "data"),
    ),
    Operator(
        name="NKITensorReduce", operands=_ROWS, result=("P",), engine="vector", like="data", reduces="F",
        settings={"op": REQUIRED}, functions={"op": REDUCTIONS},
        meaning=_reduced, emit=_emit_reduce,
    ),
    Operator(
        name="NKIActivationReduce", operands={"data": ("P", "F"), "scale": ("P",), "bias": ("P",)},
        result=("P",), engine="scalar", like="data", reduces="F", numbers=_AFFINE,
        settings={"op": REQUIRED, "reduce_op": "add"},
        functions={"op": ACTIVATIONS, "reduce_op": {"add": REDUCTIONS["add"]}},
        meaning=_activation_reduced,
        emit=_emit_activation_reduce,
    ),
    Operator(
        name="NKIFade", operands={"data": ("P",)}, result=("P",), engine="vector", like="data",
        carries=LOWEST, meaning=_fade, emit=_emit_fade,
    ),
    Operator(
        name="NKIFadingSum", operands={"data": ("P", "F"), "scale": ("P",)}, result=("P", "F"),
        engine="vector", like="data", fades="scale", meaning=_data, emit=_emit_fading_sum,
    ),
)  # fmt: skip

OPERATORS: Mapping[str, Operator] = {entry.name: entry for entry in _ENTRIES}
