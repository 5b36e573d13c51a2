"""`nki.isa`: the instructions, built from the operator table; what is missing is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nki_sim.frontend.psum import infer_accumulate
from nki_sim.frontend.recorder import current
from nki_sim.frontend.tensor import fail
from nki_sim.frontend.values import dge_mode, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from nki_sim.operators import OPERATORS, UNSUPPORTED, Operator

__all__ = ["dge_mode", "engine", "get_nc_version", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd"]

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown

# Accepted and not acted on: they steer the vendor's compiler, not what is computed.
_HINTS = frozenset({"name", "priority", "dge_mode", "keepdims"})
# Accepted with these values, which ask for what is done anyway.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "oob_mode": (oob_mode.error,),
    "perf_mode": (matmul_perf_mode.none,),
    "reduce_cmd": (reduce_cmd.idle, reduce_cmd.reset_reduce),
}


# What an argument that was left out depends on.
_INFER: dict[str, Callable[[dict[str, Any]], None]] = {"nc_matmul": infer_accumulate}
_GENERATIONS = {"trn1": nc_version.gen2, "trn2": nc_version.gen3}


def _instruction(operator: Operator) -> Callable[..., None]:
    names = (*(argument.name for argument in operator.signature), "engine")
    known = frozenset(names)
    infer = _INFER.get(operator.name)

    def call(*args: Any, **given: Any) -> None:
        for name, value in zip(names, args, strict=False):
            if name in given:
                fail("argument_twice", f"nisa.{operator.name}: {name} given twice")
            given[name] = value
        if len(args) > len(names):
            fail("too_many_arguments", f"nisa.{operator.name} takes {len(names)} arguments, not {len(args)}")
        if not given.keys() <= known:
            _refuse_unknown(operator, given.keys() - known, given)
        if infer is not None:
            infer(given)
        current().emit(operator, given)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.doc
    return call


def _refuse_unknown(operator: Operator, extra: set[str], given: dict[str, Any]) -> None:
    for name in sorted(extra - _HINTS):
        value = given[name]
        if value in (None, (), *_NEUTRAL.get(name, ())):
            continue
        fail("unsupported_argument", f"not supported yet: nisa.{operator.name}({name}={value!r})")


_INSTRUCTIONS = {
    name: _instruction(operator) for name, operator in OPERATORS.items() if not operator.internal
}


def get_nc_version() -> nc_version:
    """The generation of the target being traced; generations compare by age."""
    return _GENERATIONS[current().target.name]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    known = " (documented, not there yet)" if name in UNSUPPORTED else ""

    def missing(*_: object, **__: object) -> NoReturn:
        fail("unsupported", f"not supported yet: nisa.{name}{known}", f"supported: {', '.join(OPERATORS)}")

    return missing


globals().update(_INSTRUCTIONS)
