"""The hardware's rules on what arguments are: which function runs where, in which types, with what else.

Rules like those of `rules`, which holds the ones on shapes and places.
"""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form
from nki_sim.rules import Breach, per_partition
from nki_sim.targets import Target


def scalar_engine_copy(form: Form, target: Target) -> Iterator[Breach]:
    """Some generations copy on ScalarE only through `activation`."""
    if form.engine == "scalar" and not target.scalar_tensor_copy:
        yield Breach(
            "engine", f"tensor_copy does not run on the scalar engine of {target.name}", "dst",
            "vector|gpsimd", "scalar", "use nisa.activation(op=nl.copy)",
        )  # fmt: skip


def scalar_engine_ops(form: Form, target: Target) -> Iterator[Breach]:
    """tensor_scalar on ScalarE does multiply, add, or multiply then add, not reversed."""
    ops = (form.param("op0"), form.param("op1"))
    allowed = {("multiply", None), ("add", None), ("multiply", "add")}
    plain = not (form.param("reverse0") or form.param("reverse1"))
    if form.engine == "scalar" and not (target.scalar_tensor_scalar and plain and ops in allowed):
        found = "+".join(str(op) for op in ops if op)
        yield Breach(
            "engine", f"tensor_scalar({found}) does not run on the scalar engine of {target.name}", "dst",
            "multiply|add|multiply+add", found, "use the vector engine",
        )  # fmt: skip


def activation_operands(form: Form, target: Target) -> Iterator[Breach]:
    """A bias without a tile is for NeuronCore-v3 on; activations sum, and reduce in no other way."""
    if form.param("bias") is not None and not target.activation_scalar_bias:
        yield Breach(
            "activation_bias_invalid_type", f"bias is a scalar, {target.name} takes a [P, 1] tile", "bias",
            "tile", "scalar", "memset a [P, 1] tile and pass it",
        )  # fmt: skip
    if form.param("reduce_op") is not None and form.param("reduce_op") != "add":
        yield Breach(
            "reduce_op", f"activation reduces with add, not {form.param('reduce_op')}", "reduce_res", "add",
            str(form.param("reduce_op")), "use nisa.tensor_reduce",
        )  # fmt: skip


# What an argument does nothing without; given alone it is a mistake, never ignored.
_NEEDS = (
    ("op1", "operand1"),
    ("operand1", "op1"),
    ("reverse1", "op1"),
    ("reduce_op", "reduce_res"),
    ("reduce_res", "reduce_op"),
)


def pairs(form: Form, target: Target) -> Iterator[Breach]:
    """Arguments that belong together are given together."""
    del target
    given = {item.role for item in form.operands} | {
        name for name, value in form.params if value is not False
    }
    for name, other in _NEEDS:
        if name in given and other not in given:
            yield Breach(
                "argument_pair", f"{name} is given without {other}", name, other, "absent",
                f"give {other} too, or leave {name} out",
            )  # fmt: skip


_SCALAR_CODES = {"bias": "activation_bias_invalid_type", "scale": "activation_scale_invalid_type"}


def scalar_dtypes(form: Form, target: Target) -> Iterator[Breach]:
    """Engines compute in float32, and so are the tiles of per-partition scalars that they compute with."""
    del target
    for item in form.operands:
        scalars = item.role in {"bias", "scale", "operand0", "operand1"} and per_partition(form, item)
        if scalars and item.dtype != "float32":
            yield Breach(
                _SCALAR_CODES.get(item.role, "operand_invalid_type"),
                f"{item.role} is {item.dtype}, a tile of scalars is float32", item.role, "float32",
                item.dtype, f"copy {item.role} to a float32 tile first",
            )  # fmt: skip


def memset_value(form: Form, target: Target) -> Iterator[Breach]:
    """The value is one of the destination's type: nothing is rounded or cut off."""
    del target
    dst, value = form["dst"], form.param("value")
    dtype = DTYPES[dst.dtype]
    if dtype.kind == "float" or not isinstance(value, float):
        return
    bits = 8 * dtype.itemsize - (dtype.kind == "int")
    least = -(1 << bits) if dtype.kind == "int" else 0
    if not (value.is_integer() and least <= value < 1 << bits):
        yield Breach(
            "memset_value", f"{value!r} is not a value of {dtype.name}", "dst", dtype.name, repr(value),
            "memset converts nothing: give an integer in range, or a tile of a float type",
        )  # fmt: skip


# Where VectorE may raise data to a power; the exponent is then one constant per partition.
_POWER = frozenset({
    ("tensor_scalar", "op0"), ("tensor_scalar", "op1"), ("tensor_scalar_reduce", "op0"),
    ("scalar_tensor_tensor", "op0"),
})  # fmt: skip


def power(form: Form, target: Target) -> Iterator[Breach]:
    """Data to a constant power anywhere, to the power of data on GpSimd alone.

    With data as the exponent any engine would compute exponentials, which are ScalarE's.
    """
    del target
    for name in ("op", "op0", "op1"):
        constant = (form.op, name) in _POWER and not form.param(f"reverse{name[2:]}")
        if form.param(name) == "power" and not constant and form.engine != "gpsimd":
            yield Breach(
                "engine", f"{name}=power with data as the exponent does not run on the {form.engine} engine",
                "dst", "gpsimd", form.engine, "use nisa.activation(op=nl.exp), or GpSimd",
            )  # fmt: skip
