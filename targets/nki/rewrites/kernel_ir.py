"""A kernel as the rewrites see it: loops, statements, and what each statement reads and writes.

The tree mirrors the source: every node knows its LibCST node, so a rewrite moves and edits real syntax and
keeps the rest as it was written, including comments.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod

import libcst as cst

from nki_sim.forms import Form
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.source_tree import SourceTree, StatementPath
from targets.nki.rewrites.values import Affine, Tensor, TensorView, Value


class StatementKind(StrEnum):
    """What a statement does, as far as rewrites care."""

    DECLARE = "declare"
    OPERATE = "operate"
    BIND = "bind"
    """Names a value: a size, an index, a view."""
    INERT = "inert"
    """Docstrings, assertions, pass, return."""
    OPAQUE = "opaque"
    """Anything the reader cannot express; it may have any effect."""


@dataclass(frozen=True, slots=True)
class Access:
    """One operand of one instruction; a written operand may also be read, or be written only in part."""

    role: str
    view: TensorView
    writes: bool
    reads: bool

    @property
    def tensor(self) -> Tensor:
        return self.view.tensor


@dataclass(frozen=True, eq=False)
class Statement:
    """A leaf. `uses` are the Python names it reads, `binds` the names it assigns."""

    order: int
    kind: StatementKind
    tree: SourceTree = field(repr=False)
    place: StatementPath
    path: tuple[Loop, ...]
    guards: tuple[Guard, ...] = ()
    uses: frozenset[str] = frozenset()
    binds: frozenset[str] = frozenset()
    form: Form | None = None
    """An instruction in the form that the simulator's cost table and rules expect."""
    arguments: Mapping[str, Value] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Source of each keyword argument of an instruction or declaration.

    A min or max that always returns the same argument is replaced by that argument.
    """
    accesses: tuple[Access, ...] = ()
    tensor: Tensor | None = None
    """The tensor that a declaration declares."""
    reason: str = ""
    undecided: Affine | None = None
    """If a min or max makes it unreadable: the value whose sign changes between iterations."""

    @property
    def node(self) -> cst.BaseStatement:
        return self.tree.find_statement(self.place)

    @property
    def op(self) -> str:
        return self.form.op if self.form is not None else ""

    @property
    def engine(self) -> str:
        return self.form.engine if self.form is not None else ""

    @property
    def trips(self) -> int:
        """How often it runs; a guard allows one iteration of its loop."""
        return prod(loop.trips for loop in self.free_loops)

    @property
    def free_loops(self) -> tuple[Loop, ...]:
        """The loops around it in all of whose iterations it runs."""
        fixed = {loop for guard in self.guards for loop in guard.loops}
        return tuple(loop for loop in self.path if loop not in fixed)

    @property
    def loops(self) -> frozenset[str]:
        """Ids of the loops that its operands and arguments depend on."""
        numbers = (value.loops for value in self.arguments.values() if isinstance(value, Affine))
        return frozenset().union(*(access.view.loops for access in self.accesses), *numbers)

    @property
    def mentions(self) -> frozenset[str]:
        """The names that it uses, except those of the tensors that it touches or declares."""
        if self.kind is StatementKind.OPERATE:
            return self.uses - {access.tensor.name for access in self.accesses}
        return self.uses - self.binds if self.kind is StatementKind.DECLARE else self.uses

    def writes_tensor(self, tensor: Tensor) -> bool:
        return any(access.writes and access.tensor.id == tensor.id for access in self.accesses)

    def touches_tensor(self, tensor: Tensor) -> bool:
        return any(access.tensor.id == tensor.id for access in self.accesses)

    def find_access(self, role: str) -> Access | None:
        return next((access for access in self.accesses if access.role == role), None)


@dataclass(frozen=True, eq=False)
class Loop:
    """`for var in range(...)` with a known number of trips; `id` is unique in the kernel."""

    id: str
    var: str
    start: Affine
    step: int
    trips: int
    first: str
    """Source of the first value of `var`."""
    stop: str
    """Source of the end of the range, which `var` does not reach."""
    tree: SourceTree = field(repr=False)
    place: StatementPath
    path: tuple[Loop, ...]
    body: list[Node] = field(default_factory=list)

    @property
    def node(self) -> cst.For:
        found = self.tree.find_statement(self.place)
        assert isinstance(found, cst.For)
        return found

    @property
    def is_outermost(self) -> bool:
        """Whether only loops of one iteration are around it."""
        return all(outer.trips == 1 for outer in self.path)

    @property
    def count_text(self) -> str:
        """Source of the number of trips."""
        return self.stop if self.start == Affine(0) and self.step == 1 else str(self.trips)

    @property
    def mentions(self) -> frozenset[str]:
        """The names in its range."""
        return names_in(f"{self.first}, {self.stop}")

    @property
    def index_text(self) -> str | None:
        """Source of the iteration number 0, 1, ...; None if it has no short form."""
        if self.step != 1:
            return None
        if self.start == Affine(0):
            return self.var
        parts = (self.start.const, *(factor for _, factor in self.start.terms))
        return None if any(part % self.trips for part in parts) else f"{self.var} % {self.trips}"


@dataclass(frozen=True, eq=False)
class Guard:
    """`if index == value:` that is true in one iteration of the `loops` that make up the index."""

    loops: tuple[Loop, ...]
    difference: Affine
    """The value that is zero in that iteration only."""
    tree: SourceTree = field(repr=False)
    place: StatementPath
    path: tuple[Loop, ...]
    body: list[Node] = field(default_factory=list)

    @property
    def is_first(self) -> bool:
        """Whether that is the first iteration of all of its loops, which the index counts from zero."""
        return self.difference.const == 0

    @property
    def node(self) -> cst.If:
        found = self.tree.find_statement(self.place)
        assert isinstance(found, cst.If)
        return found

    @property
    def mentions(self) -> frozenset[str]:
        """The names in its condition."""
        (found,) = self.tree.find_line(self.place)
        assert isinstance(found, ast.If)
        return names_in(ast.unparse(found.test))


Node = Statement | Loop | Guard


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """Shape and data type name of one kernel argument."""

    shape: tuple[int, ...]
    dtype: str


KernelArgument = ArrayArgument | bool | int | float


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel function of a module, read for a target."""

    tree: SourceTree = field(repr=False)
    place: StatementPath
    body: list[Node]
    arguments: tuple[KernelArgument, ...]
    constants: Mapping[str, IntegerConstant]
    nisa: str
    """The name of `nki.isa` in the source."""
    nl: str

    @property
    def module(self) -> cst.Module:
        return self.tree.module

    @property
    def function(self) -> cst.FunctionDef:
        found = self.tree.find_statement(self.place)
        assert isinstance(found, cst.FunctionDef)
        return found

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """All identifiers in the module's text."""
        return frozenset(re.findall(r"[A-Za-z_]\w*", self.tree.text))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(walk_nodes(self.body))

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Statement))

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Loop))

    @cached_property
    def trips(self) -> dict[str, int]:
        return {loop.id: loop.trips for loop in self.loops}

    @cached_property
    def declarations(self) -> dict[int, Statement]:
        return {item.tensor.id: item for item in self.statements if item.tensor is not None}

    @cached_property
    def escaping_ids(self) -> frozenset[int]:
        """Ids of tensors with a second name, with described properties, or that reading loses.

        A property is described if a tensor's size has a name, is an operand or another tile's size, is the
        count of a loop, or occurs in an assertion. The names and shapes of these tensors may not change.
        Being returned does not count.
        """
        binds = [item for item in self.statements if item.kind is StatementKind.BIND]
        values = [value for item in binds for value in item.arguments.values()]
        renamed = frozenset(tensor.id for value in values for tensor in _tensors_in(value))
        said = [self._described_names(item) for item in self.nodes]
        names = frozenset[str]().union(*said)
        return renamed | {key for key, item in self.declarations.items() if item.binds & names}

    def _described_names(self, item: Node) -> frozenset[str]:
        """The names that a node describes, except those that only stand for themselves."""
        if not isinstance(item, Statement):
            return item.mentions
        if item.kind is StatementKind.DECLARE:
            return names_in(item.texts["shape"])
        return frozenset() if self._only_returns(item) else item.mentions

    def _only_returns(self, item: Statement) -> bool:
        """Whether a statement only returns tensors."""
        if item.kind is not StatementKind.INERT:
            return False
        (line,) = self.tree.find_line(item.place)
        value = line.value if isinstance(line, ast.Return) else None
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        return all(isinstance(part, ast.Name) for part in parts)

    @cached_property
    def binding_counts(self) -> Counter[str]:
        """How many readable statements and loops bind each name."""
        loops = Counter(loop.var for loop in self.loops)
        return loops + Counter(
            name for item in self.statements if item.kind is not StatementKind.OPAQUE for name in item.binds
        )

    def operations(self) -> Iterator[Statement]:
        return (item for item in self.statements if item.kind is StatementKind.OPERATE)

    @cached_property
    def forms(self) -> KeysView[Form]:
        """The forms of its instructions, each once, in source order."""
        return dict.fromkeys(item.form for item in self.operations() if item.form is not None).keys()

    def users_of(self, tensor: Tensor) -> list[Statement]:
        """The instructions that touch a tensor, in source order."""
        return list(self._users_by_tensor.get(tensor.id, ()))

    def uses_of(self, tensor: Tensor) -> list[tuple[Statement, Access]]:
        """Every operand that is a tensor or part of it, with its instruction, in source order."""
        return [
            (item, access)
            for item in self.users_of(tensor)
            for access in item.accesses
            if access.tensor.id == tensor.id
        ]

    @cached_property
    def _users_by_tensor(self) -> Mapping[int, list[Statement]]:
        found: dict[int, list[Statement]] = {}
        for item in self.statements:
            for key in {access.tensor.id for access in item.accesses}:
                found.setdefault(key, []).append(item)
        return found

    def may_change(self, tensor: Tensor, first: Statement, last: Statement) -> bool:
        """Whether something between two statements may write a tensor."""
        return any(
            item.writes_tensor(tensor)
            or (
                item.kind is StatementKind.OPAQUE
                and (tensor.id in self.escaping_ids or tensor.name in item.uses)
            )
            for item in self._statements_between(first, last)
        )

    def may_rebind(self, text: str, first: Statement, last: Statement) -> bool:
        """Whether a name in an expression may mean something else at `last` than at `first`."""
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        return any(
            names & (item.binds | {loop.var for loop in item.path if loop not in first.path})
            for item in self._statements_between(first, last)
        )

    def _statements_between(self, first: Statement, last: Statement) -> list[Statement]:
        return [item for item in self.statements if first.order < item.order < last.order]

    @cached_property
    def unread_source(self) -> str:
        """Source of everything that the reader did not follow: opaque statements, other functions."""
        opaque: list[cst.CSTNode] = [
            item.node for item in self.statements if item.kind is StatementKind.OPAQUE
        ]
        others = [item for item in self.module.body if item is not self.function]
        return "\n".join(self.module.code_for_node(item) for item in [*opaque, *others])

    def unique_label(self, item: Loop | Tensor) -> str:
        """A readable name that is unique in the kernel: the variable, numbered if it is bound again."""
        if isinstance(item, Loop):
            name, twins = item.var, [loop.id for loop in self.loops if loop.var == item.var]
            place = twins.index(item.id)
        else:
            name, same = item.name, [key for key, it in self.declarations.items() if item.name in it.binds]
            place = same.index(item.id)
        return name if place == 0 else f"{name}#{place + 1}"

    def fresh_name(self, base: str) -> str:
        """A name that the module does not use yet."""
        name, count = base, 2
        while name in self.identifiers:
            name, count = f"{base}_{count}", count + 1
        return name


@dataclass(frozen=True, slots=True)
class IntegerConstant:
    """An integer constant that is assigned once: at module level or at the top of the kernel."""

    name: str
    value: int
    place: StatementPath


def _tensors_in(value: Value) -> Iterator[Tensor]:
    """The tensors that a value is, or holds."""
    if isinstance(value, tuple):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, Tensor | TensorView):
        yield value.tensor if isinstance(value, TensorView) else value


def walk_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """All nodes, outer before inner, in source order."""
    for node in nodes:
        yield node
        if not isinstance(node, Statement):
            yield from walk_nodes(node.body)


def list_statements(nodes: Iterable[Node]) -> list[Statement]:
    """All statements in these nodes, at any depth, in source order."""
    return [item for item in walk_nodes(nodes) if isinstance(item, Statement)]


def loop_contains(loop: Loop, node: Node) -> bool:
    """Whether a node lies in a loop's body, at any depth."""
    return loop in node.path
