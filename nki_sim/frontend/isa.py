"""`nki.isa`: the instructions, built from the operator table; missing ones are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from enum import Enum
from typing import Any, NoReturn, Self

from nki_sim.dtypes import DTYPES, nki_dtype_name
from nki_sim.frontend import right_forms
from nki_sim.frontend.argument_values import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from nki_sim.frontend.context import current_recorder, current_target
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.mx import prepare_product, prepare_quantisation
from nki_sim.frontend.namespace import Namespace
from nki_sim.frontend.psum import begin_accumulation, infer_accumulate
from nki_sim.frontend.registers import (
    NkiScalar,
    VirtualRegister,
    register_alloc,
    register_load,
    register_move,
    register_store,
    scalar_load,
    scalar_store,
)
from nki_sim.frontend.sync import core_barrier, sendrecv
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.functions import LANGUAGE_ALONE
from nki_sim.operators import OPERATORS, Operator

__all__ = [
    "NkiInstruction", "NkiScalar", "NkiValidationError", "VirtualRegister", "core_barrier", "dge_mode",
    "dma_engine", "engine", "get_nc_sub_version", "get_nc_version", "gpsimd_engine", "matmul_perf_mode",
    "nc_version", "oob_mode", "reduce_cmd", "register_alloc", "register_load", "register_move",
    "register_store", "scalar_engine", "scalar_load", "scalar_store", "sendrecv", "tensor_engine",
    "unknown_engine", "vector_engine",
]  # fmt: skip

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown

# Accepted and ignored: they steer the vendor's compiler and do not change results.
_HINTS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "keepdims": lambda value: isinstance(value, bool),
    # Releases before 0.3 took it; the destination's own type decides.
    "dtype": lambda value: nki_dtype_name(value) in DTYPES,
}
_ENUMS: dict[str, type[Enum]] = {
    "engine": engine, "oob_mode": oob_mode, "perf_mode": matmul_perf_mode, "reduce_cmd": reduce_cmd,
    "dge_mode": dge_mode,
}  # fmt: skip
# Sequencers that may start a DMA; the hardware then makes its descriptors.
_TRIGGERS = frozenset({engine.sync, engine.scalar})
_ENUM_NAMES = frozenset(_ENUMS)
# Values that ask for the default behaviour, for operators without the argument.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "oob_mode": (oob_mode.error,),
    "perf_mode": (matmul_perf_mode.none,),
    "reduce_cmd": (reduce_cmd.idle, reduce_cmd.reset_reduce),
    "unique_indices": (True,),
}


def _prepare_memset(given: dict[str, Any]) -> None:
    """A constant must be of its tile's kind: a float does not become an integer, even if it is whole."""
    dst, value = given.get("dst"), given.get("value")
    kind = DTYPES[dst._storage.dtype].kind if isinstance(dst, Tensor) else "float"
    if isinstance(dst, Tensor) and isinstance(value, float) and kind in {"int", "uint"}:
        fail(
            "memset_value", f"nisa.memset: value={value!r} is a float, {dst.name} is {dst._storage.dtype}",
            "give an integer, or declare the tile with a float type",
        )  # fmt: skip
    begin_accumulation(dst)


def _refuse_language_operators(given: dict[str, Any]) -> None:
    """Refuse division operators, which the language has but no engine does."""
    for name in ("op", "op0", "op1"):
        function = getattr(given.get(name), "_name", None)
        if function in LANGUAGE_ALONE:
            fail(
                "op", f"{name}=nl.{function} is no operator of the hardware",
                "multiply by nisa.reciprocal of the divisor",
            )  # fmt: skip


# Defaults that depend on other arguments, and values that only programs may hold.
_ARGUMENT_CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "nc_matmul": infer_accumulate,
    "nc_matmul_mx": prepare_product,
    "quantize_mx": prepare_quantisation,
    "memset": _prepare_memset,
    **dict.fromkeys(
        ("tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "tensor_scalar_reduce",
         "tensor_scalar_cumulative", "tensor_tensor_scan"), _refuse_language_operators,
    ),
}  # fmt: skip


class NkiValidationError(Exception):
    """The vendor's error of this name; here broken rules raise `nki_sim.errors.KernelError`."""


class NkiInstruction(KernelValue):
    """The result of an instruction. Edges between instructions are hints: program order is kept anyway."""

    __slots__ = ()

    def depends_on(self, *producers: NkiInstruction) -> Self:
        """Run this instruction after those."""
        if any(not isinstance(producer, NkiInstruction) for producer in producers):
            fail("argument_type", "depends_on takes what nisa instructions return")
        return self


_ISSUED = NkiInstruction()


def _build_instruction(operator: Operator) -> Callable[..., NkiInstruction]:
    names = (*(argument.name for argument in operator.signature), "engine")
    known = frozenset(names)
    look = _ARGUMENT_CHECKS.get(operator.name)

    def call(*args: Any, **given: Any) -> NkiInstruction:
        for name, value in zip(names, args, strict=False):
            if name in given:
                fail("argument_twice", f"nisa.{operator.name}: {name} given twice")
            given[name] = value
        if len(args) > len(names):
            fail(
                "too_many_arguments",
                f"nisa.{operator.name} takes {len(names)} arguments, not {len(args)}",
                f"they are {', '.join(names)}",
            )
        if not given.keys() <= known:
            _refuse_unknown(operator, given.keys() - known, given)
        if not _ENUM_NAMES.isdisjoint(given):
            _check_enums(operator, given)
        if look is not None:
            look(given)
        current_recorder().emit(operator, given)
        return _ISSUED

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.doc
    return call


def _check_enums(operator: Operator, given: dict[str, Any]) -> None:
    """Refuse numbers and texts that stand for enumerations, as releases from 0.3 on do.

    Descriptor modes may still be numbers, because public kernels pass them so.
    """
    mode = given.get("dge_mode")
    if type(mode) is int and 0 <= mode < len(dge_mode):
        given["dge_mode"] = tuple(dge_mode)[mode]
    for name, wanted in _ENUMS.items():
        value = given.get(name)
        if value is not None and not isinstance(value, wanted):
            fail(
                "argument_type", f"nisa.{operator.name}: {name}={value!r} is {type(value).__name__}",
                f"one of {', '.join(f'nisa.{wanted.__name__}.{item.name}' for item in wanted)}",
            )  # fmt: skip
    if operator.engines == ("dma",):
        _check_trigger(operator, given)


def _check_trigger(operator: Operator, given: dict[str, Any]) -> None:
    """Only a DMA whose descriptors the hardware makes can be triggered by an engine."""
    trigger = given.get("engine")
    hardware = given.get("dge_mode") is dge_mode.hwdge
    if trigger not in {None, engine.unknown, *(_TRIGGERS if hardware else ())}:
        fail(
            "engine",
            f"nisa.{operator.name} is not triggered by {trigger} with dge_mode={given.get('dge_mode')}",
            "engine=nisa.engine.sync or scalar goes with dge_mode=nisa.dge_mode.hwdge alone",
        )  # fmt: skip


def _refuse_unknown(operator: Operator, extra: set[str], given: dict[str, Any]) -> None:
    for name in sorted(extra):
        value = given[name]
        fits = _HINTS.get(name)
        if fits is None and value in (None, (), *_NEUTRAL.get(name, ())):
            continue
        if fits is None:
            _refuse_argument(operator, name, value)
        if value is not None and not fits(value):
            fail("argument_type", f"nisa.{operator.name}: {name} cannot be {value!r}")


def _refuse_argument(operator: Operator, name: str, value: Any) -> NoReturn:
    fail(
        "unsupported_argument",
        f"nisa.{operator.name} takes no {name}={value!r}",
        hint_at_argument(operator.name, name),
    )


def is_known_argument(operator: str, name: str) -> bool:
    """Return whether an instruction may be given an argument of this name, with some values at least."""
    names = {argument.name for argument in OPERATORS[operator].signature}
    return name in names | {"engine"} | _HINTS.keys() | _NEUTRAL.keys()


def hint_at_argument(operator: str, name: str) -> str:
    """Return what to write instead of an argument that an instruction lacks, and what it takes."""
    names = [argument.name for argument in OPERATORS[operator].signature]
    meant = right_forms.ARGUMENTS.get(name)
    near = get_close_matches(name, names, n=1)
    hint = meant or (f"did you mean {near[0]}=?" if near else "")
    return "; ".join(filter(None, (hint, f"it takes {', '.join(names)}")))


_INSTRUCTIONS = {
    name: _build_instruction(operator)
    for name, operator in OPERATORS.items()
    if not operator.internal and name not in __all__
}


def get_nc_version() -> nc_version:
    """The generation of the target being traced; generations compare by age."""
    return nc_version(current_target().generation)


def get_nc_sub_version() -> int:
    """The revision within the generation: always the first."""
    return 0


globals().update(_INSTRUCTIONS)
__all__ += list(_INSTRUCTIONS)

_namespace = Namespace(
    "nisa",
    __all__,
    {},
    right_forms=right_forms.INSTRUCTIONS,
)


def __getattr__(name: str) -> Any:
    return _namespace.refuse_name(name)
