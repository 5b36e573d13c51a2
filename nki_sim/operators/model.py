"""What an entry of the operator table is: engines, arguments, rules, cost; and short ways to write one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nki_sim import arguments, costs, rules
from nki_sim.forms import HBM_BUFFERS, Form, Params, ParamValue
from nki_sim.rules import Breach, Rule
from nki_sim.targets import Target

Kind = Literal[
    "out", "tensor", "tensor_or_float", "tensor_or_int", "float", "int", "bool", "alu", "activation",
    "reduce", "register_alu", "axes",
]  # fmt: skip

COMMON_RULES: tuple[Rule, ...] = (
    rules.on_chip_operands, rules.gpsimd_sees_no_psum, arguments.scalar_dtypes, arguments.power,
)  # fmt: skip

CHIP = frozenset({"sbuf", "psum"})
DMA = HBM_BUFFERS | {"sbuf"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: what it may be, where its tensor may live, and its default (None: may be left out)."""

    name: str
    kind: Kind
    required: bool = True
    default: ParamValue | None = None
    buffers: frozenset[str] = CHIP

    @property
    def is_tensor(self) -> bool:
        return self.kind in {"out", "tensor", "tensor_or_float", "tensor_or_int"}


@dataclass(frozen=True)
class Operator:
    """An instruction of the machine; `internal` ones are not in the kernels' namespace.

    `updates` are outputs whose former elements matter to the result: they are read as well as written.
    """

    name: str
    engines: tuple[str, ...]
    arguments: tuple[Argument, ...]
    cost: Callable[[Form, Target], costs.Cost]
    rules: tuple[Rule, ...] = ()
    doc: str = ""
    internal: bool = False
    updates: frozenset[str] = frozenset()

    @cached_property
    def by_name(self) -> dict[str, Argument]:
        return {argument.name: argument for argument in self.arguments}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Roles that the instruction writes."""
        return frozenset(argument.name for argument in self.arguments if argument.kind == "out")

    def default_engine(self, params: Params) -> str:
        """Where it runs when the kernel does not say: the first engine, GpSimd for powers of tensors."""
        return "gpsimd" if "gpsimd" in self.engines and ("op", "power") in params else self.engines[0]

    def breaches(self, form: Form, target: Target) -> list[Breach]:
        """Every rule that a form of this operator breaks on a target; shape rules first."""
        return [breach for rule in (*COMMON_RULES, *self.rules) for breach in rule(form, target)]


def out(name: str = "dst", buffers: frozenset[str] = CHIP, *, required: bool = True) -> Argument:
    return Argument(name, "out", required=required, buffers=buffers)


def tensor(name: str, buffers: frozenset[str] = CHIP) -> Argument:
    return Argument(name, "tensor", buffers=buffers)


def either(name: str, default: float | None = None, *, required: bool = True) -> Argument:
    return Argument(name, "tensor_or_float", required=required, default=default)


def flag(name: str) -> Argument:
    return Argument(name, "bool", required=False, default=False)


def function(name: str, kind: Kind = "alu", *, required: bool = True) -> Argument:
    return Argument(name, kind, required=required)


SBUF = frozenset({"sbuf"})
PSUM = frozenset({"psum"})
