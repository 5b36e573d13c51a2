"""Defines an entry of the operator table (engines, arguments, rules, cost) and helpers to write one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nki_sim.dtypes import V4
from nki_sim.forms import HBM_BUFFERS, Form, Operand, Params, ParamValue
from nki_sim.operators import costs
from nki_sim.operators.rules import arguments, indirection
from nki_sim.operators.rules import shapes as rules
from nki_sim.operators.rules.shapes import Breach, Rule
from nki_sim.targets import Target

Kind = Literal[
    "out", "tensor", "tensor_or_float", "tensor_or_int", "float", "int", "bool", "alu", "activation",
    "activation2", "reduce", "register_alu", "axes", "ints", "pattern", "choice", "ones", "state",
]  # fmt: skip

Roles = Callable[[Form], frozenset[str]]

Prefers = Callable[[Params, "Sequence[Operand]"], "str | None"]

Effect = tuple[bool, bool]
"""Whether an instruction (writes, reads) an operand."""

COMMON_RULES: tuple[Rule, ...] = (
    rules.on_chip_operands, rules.index_operands, indirection.column_lookups, rules.gpsimd_sees_no_psum,
    arguments.scalar_dtypes, arguments.power_ops, arguments.wide_integers, arguments.newer_types,
    arguments.newer_functions,
)  # fmt: skip

ON_CHIP = frozenset({"sbuf", "psum"})
DMA = HBM_BUFFERS | {"sbuf"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its kind, where its tensor may live, and its default (None: may be left out).

    `choices` are the names that a "choice" takes. A "state" is memory inside the engine that outlives the
    instruction, one row per lane; the front end supplies it, not the kernel. `effect` gives what the
    instruction does to it, from the form. It covers the lanes of the operands, or `all_lanes`. Arguments of
    one `group` are passed as a list of that name. "ones" may be given but must hold 1.0.
    """

    name: str
    kind: Kind
    required: bool = True
    default: ParamValue | None = None
    buffers: frozenset[str] = ON_CHIP
    choices: tuple[str, ...] = ()
    effect: Callable[[Form], Effect] | None = None
    all_lanes: bool = False
    group: str = ""

    @property
    def is_tensor(self) -> bool:
        return self.kind in {"out", "tensor", "tensor_or_float", "tensor_or_int", "state"}


def fixed_roles(*roles: str) -> Roles:
    """Return a function that gives the same roles for every form."""
    found = frozenset(roles)
    return lambda _: found


_NO_ROLES = fixed_roles()


@dataclass(frozen=True)
class Operator:
    """An instruction of the machine; `internal` ones are not in the kernels' namespace.

    `updates` are outputs whose old elements matter to the result, so they are read as well as written.
    `partial` are roles for which data or parameters choose the elements touched: not all input elements need
    to have been written, and the other output elements keep their values. `prefers` names the engine if the
    first one cannot run it. `v4_engines` run it too from NeuronCore-v4 on, if a kernel asks for one.
    """

    name: str
    engines: tuple[str, ...]
    arguments: tuple[Argument, ...]
    cost: Callable[[Form, Target], costs.Cost]
    rules: tuple[Rule, ...] = ()
    doc: str = ""
    internal: bool = False
    updates: frozenset[str] = frozenset()
    partial: Roles = _NO_ROLES
    prefers: Prefers | None = None
    v4_engines: tuple[str, ...] = ()

    @cached_property
    def arguments_by_name(self) -> dict[str, Argument]:
        return {argument.name: argument for argument in self.arguments}

    @cached_property
    def signature(self) -> tuple[Argument, ...]:
        """The arguments that kernels pass, in the documented order; a list stands for the arguments of a
        group.
        """
        shown = [argument for argument in self.arguments if argument.kind != "state"]
        named = {argument.group or argument.name: argument for argument in reversed(shown)}
        return tuple(replace(argument, name=name) for name, argument in reversed(named.items()))

    @cached_property
    def signature_by_name(self) -> dict[str, Argument]:
        """The arguments that kernels pass, by the name that kernels give."""
        return {argument.name: argument for argument in self.signature}

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """For each list argument, the names of its items."""
        found: dict[str, list[str]] = {}
        for argument in self.arguments:
            if argument.group:
                found.setdefault(argument.group, []).append(argument.name)
        return found

    @cached_property
    def state(self) -> Argument | None:
        """The engine memory that the instruction uses, or None."""
        return next((argument for argument in self.arguments if argument.kind == "state"), None)

    def effect(self, form: Form, role: str) -> Effect:
        """Whether the instruction (writes, reads) its operand in that role."""
        argument = self.arguments_by_name.get(role)
        if argument is not None and argument.effect is not None:
            return argument.effect(form)
        if argument is None or argument.kind != "out":
            return False, True
        kept = self.updates | self.partial(form)
        return True, role in kept or (role == "dst" and bool(form.param("accumulate")))

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Roles that the instruction writes."""
        return frozenset(argument.name for argument in self.arguments if argument.kind == "out")

    def engines_of(self, target: Target) -> tuple[str, ...]:
        """The engines that run it on a target; the first one is the default."""
        return (*self.engines, *self.v4_engines) if target.generation >= V4 else self.engines

    def default_engine(self, params: Params, operands: Sequence[Operand] = ()) -> str:
        """The engine if the kernel names none: the first engine, unless only another one can."""
        chosen = self.prefers(params, operands) if self.prefers is not None else None
        return chosen or self.engines[0]

    def find_breaches(self, form: Form, target: Target) -> list[Breach]:
        """Return every rule that a form of this operator breaks on a target; shape rules first."""
        found = [breach for rule in (*COMMON_RULES, *self.rules) for breach in rule(form, target)]
        allowed = self.engines_of(target)
        if form.engine not in allowed:
            found.append(Breach(
                "engine", f"{self.name} does not run on the {form.engine} engine of {target.name}", "dst",
                "|".join(allowed), form.engine, "leave engine out",
            ))  # fmt: skip
        scattered = {item.role for item, _ in form.column_lookups}
        written = [item for item in form.operands if item.role in self.outputs - scattered]
        for item in written:
            # DMA moves elements in any order, and each element must be added once.
            repeats = "dma" not in self.engines and not self.effect(form, item.role)[1]
            found += rules.written_once(item, repeats=repeats)
        # Whatever else is wrong with an instruction that the target lacks does not matter.
        return sorted(found, key=lambda breach: breach.code != "generation")


def out(name: str = "dst", buffers: frozenset[str] = ON_CHIP, *, required: bool = True) -> Argument:
    return Argument(name, "out", required=required, buffers=buffers)


def tensor(name: str, buffers: frozenset[str] = ON_CHIP) -> Argument:
    return Argument(name, "tensor", buffers=buffers)


def scalar(name: str, default: float | None = None, *, required: bool = True) -> Argument:
    return Argument(name, "tensor_or_float", required=required, default=default)


def flag(name: str) -> Argument:
    return Argument(name, "bool", required=False, default=False)


def choice(name: str, *choices: str, default: str | None = None, required: bool = False) -> Argument:
    return Argument(name, "choice", required=required, default=default, choices=choices)


def function(name: str, kind: Kind = "alu", *, required: bool = True) -> Argument:
    return Argument(name, kind, required=required)


SBUF = frozenset({"sbuf"})
PSUM = frozenset({"psum"})
