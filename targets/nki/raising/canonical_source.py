"""Writes a kernel in canonical form: one function, loops from 0, tiles declared where they are made.

This is the style of the problems' own kernels, which every rewrite reads. Comments have the lines of the
original kernel that issued the instructions.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from nki_sim.forms import index_role
from nki_sim.operators import OPERATORS
from nki_sim.operators.rules.mx import QUADRANT, SCALE_ROWS
from nki_sim.program.ir import Program
from targets.nki.raising.access_texts import LoopScope, access_text, affine_text
from targets.nki.raising.call_texts import call_text
from targets.nki.raising.constant_texts import constant_text
from targets.nki.raising.instruction_rows import (
    NotRaised,
    Parameter,
    RowKey,
    RowOperand,
    TileClass,
    held_constants,
)
from targets.nki.raising.loop_recognition import AffineNumber, Call, Node, Repeat
from targets.nki.raising.original_source import OriginalKernel
from targets.nki.raising.tile_families import LoopPath, TileFamily

MAX_COMMENT = 90
_LOOP_NAMES = ("i", "j", "k", "l", "m", "n", "p", "q")
_HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"


_DIVISORS = {"op": ("data2", ""), "op0": ("operand0", "reverse0"), "op1": ("operand1", "reverse1")}
"""For each operator argument, the role of its second operand, and the flag that swaps the two."""


@dataclass(frozen=True, slots=True)
class Reciprocal:
    """A tile to declare before a call, which holds the reciprocal of the operand in a role."""

    role: str
    home: TileClass


def find_divisions(key: RowKey) -> tuple[RowKey, tuple[Reciprocal, ...]]:
    """Return a call with products in place of divisions, and the reciprocals that it then takes.

    Raises:
        NotRaised: a division has its dividend second.
    """
    params = dict(key.params)
    if not any(params[name].value == "divide" for name in _DIVISORS if name in params):
        return key, ()
    needed = tuple(_replace_divisions(key, params))
    return replace(key, params=tuple(params.items())), needed


def _replace_divisions(key: RowKey, params: dict[str, Parameter]) -> Iterator[Reciprocal]:
    tensors = {item.role: item for item in key.operands}
    for name, (role, swap) in _DIVISORS.items():
        if name not in params or params[name].value != "divide":
            continue
        if swap in params and params[swap].value:
            raise NotRaised(f"{key.op} that divides {role} by the data")
        params[name] = Parameter("multiply", repr("multiply"))
        if role in tensors:
            shape = tuple(count for _, count in tensors[role].dims)
            yield Reciprocal(role, TileClass(shape, "float32", "sbuf", None))
        else:
            inverse = 1.0 / float(str(params[role].value))
            params[role] = Parameter(inverse, repr(inverse))


def write_source(
    program: Program, original: OriginalKernel, nodes: Sequence[Node], families: Sequence[TileFamily]
) -> str:
    """Return the source of a kernel from its loops and tiles.

    Raises:
        NotRaised: something has no source.
    """
    return _SourceWriter(program, original, families).write(nodes)


@dataclass(eq=False)
class _SourceWriter:
    program: Program
    original: OriginalKernel
    families: Sequence[TileFamily]
    _lines: list[str] = field(default_factory=list)
    _calls: int = 0
    _last_line: int = 0

    def __post_init__(self) -> None:
        taken = {"nki", "nisa", "nl", "np", "range", "float", *keyword.kwlist, *self.original.parameters}
        taken |= {self.original.name}
        self._loop_names = [f"{name}_" if name in taken else name for name in _LOOP_NAMES]
        taken |= set(self._loop_names)
        self._fixed = self._name_arguments(taken)
        self._names = [_fresh_name(self._base_name(family), taken) for family in self.families]
        self._taken = taken
        self._places: dict[tuple[LoopPath, int], list[int]] = {}
        self._uses: dict[tuple[int, int], int] = {}
        for number, family in enumerate(self.families):
            self._places.setdefault((family.path, family.position), []).append(number)
            self._uses |= dict.fromkeys(family.indices, number)

    def write(self, nodes: Sequence[Node]) -> str:
        parameters = ", ".join(self.original.signature)
        self._lines = [_HEADER, "", "@nki.jit", f"def {self.original.name}({parameters}):"]
        program = self.program
        for number in program.inputs:
            # The numbers below are those of these shapes.
            self._add(f"assert {self._fixed[number]}.shape == {program.site(number).shape}", 1)
        constants = held_constants(program)
        for number in constants:
            site, data = program.site(number), program.constants[number]
            text = constant_text(data, site.shape, site.dtype, site.name)
            self._add(f"{self._fixed[number]} = nl.shared_constant({text})", 1)
        if constants:
            self._lines[0] = f"{self._lines[0]}import numpy as np\n"
        for output in program.outputs:
            site = program.site(output)
            if output not in program.inputs:
                home = TileClass(site.shape, site.dtype, site.buffer, site.address)
                self._add(f"{self._fixed[output]} = {_declaration(home)}", 1)
        self._write_block(nodes, (), LoopScope())
        self._add(f"return {', '.join(self._fixed[output] for output in program.outputs)}", 1)
        return "\n".join(self._lines) + "\n"

    def _name_arguments(self, taken: set[str]) -> dict[int, str]:
        """The names of arguments and outputs, by tensor."""
        program = self.program
        found = {number: program.site(number).name for number in program.inputs}
        if not set(found.values()) <= set(self.original.parameters):
            raise NotRaised("an argument holds several arrays")
        for number in held_constants(program):
            found[number] = _fresh_name(_plain_name(program.site(number).name, "constant"), taken)
        for number in program.outputs:
            if number not in found:
                found[number] = _fresh_name(_plain_name(program.site(number).name, "out"), taken)
        return found

    def _base_name(self, family: TileFamily) -> str:
        base = "acc" if family.home.buffer == "psum" else "tile"
        return _plain_name(self.original.tile_name(family.first), base)

    def _add(self, text: str, depth: int) -> None:
        self._lines.append("    " * depth + text)

    def _write_block(self, nodes: Sequence[Node], path: LoopPath, scope: LoopScope) -> None:
        depth = len(path) + 1
        for position, node in enumerate(nodes):
            for number in self._places.get((path, position), ()):
                self._add(f"{self._names[number]} = {_family_text(self.families[number])}", depth)
            if isinstance(node, Repeat):
                name = self._loop_names[len(path)] if len(path) < len(self._loop_names) else f"i_{len(path)}"
                self._add(f"for {name} in nl.affine_range({node.trips}):", depth)
                self._write_block(node.body, (*path, position), scope.enter(name, node.trips))
            else:
                self._write_call(node, depth, scope)

    def _write_call(self, call: Call, depth: int, scope: LoopScope) -> None:
        number, start = self._calls, 0
        self._calls += 1
        operands: dict[str, str] = {}
        accesses: dict[str, _Access] = {}
        for position, item in enumerate(call.key.operands):
            if item.tensor is None:
                name = self._tile_text(number, position, scope)
                start += 1
            else:
                name = self._fixed[item.tensor]
            place = call.numbers[start : start + item.places]
            operands[item.role] = access_text(name, item, place, scope)
            accesses[item.role] = _Access(name, item, tuple(place))
            start += item.places
        for item in call.key.operands:
            if item.column_step:
                index, count = operands[index_role(item.role)], item.dims[1][1]
                operands[item.role] += f".indirect({index}, num_elem={count})"
        for group, roles in OPERATORS[call.key.op].groups.items():
            joined = _join_quadrants([accesses[role] for role in roles if role in accesses])
            if joined is not None:
                operands[group] = access_text(joined.name, joined.item, joined.place, scope)
        moving = dict(zip(call.key.counted, call.numbers[start:], strict=True))
        counted = {name: affine_text(value, scope.names) for name, value in moving.items()}
        self._comment(call.line, depth)
        key, reciprocals = find_divisions(call.key)
        for one in reciprocals:
            name = _fresh_name("inverse", self._taken)
            self._add(f"{name} = {_declaration(one.home)}", depth)
            self._add(f"nisa.reciprocal(dst={name}, data={operands[one.role]})", depth)
            operands[one.role] = name
        self._add(call_text(key, operands, counted), depth)

    def _tile_text(self, call: int, operand: int, scope: LoopScope) -> str:
        number = self._uses[call, operand]
        family = self.families[number]
        if family.copies == 1:
            return self._names[number]
        return f"{self._names[number]}[{affine_text(family.indices[call, operand], scope.names)}]"

    def _comment(self, line: int, depth: int) -> None:
        """The original line, unless the statement before came from it too."""
        text = self.original.line_text(line)
        if line != self._last_line and text:
            self._add(f"# {line}: {text[:MAX_COMMENT]}", depth)
        self._last_line = line


@dataclass(frozen=True, slots=True)
class _Access:
    """An operand, the source of its tensor, and where it begins."""

    name: str
    item: RowOperand
    place: tuple[AffineNumber, ...]


def _join_quadrants(parts: Sequence[_Access]) -> _Access | None:
    """The tile whose quadrants hold the scales of an MX operand; None if the operands are no such parts."""
    first = parts[0]
    (row, count), *columns = first.item.dims
    if not first.item.home.on_chip or count != SCALE_ROWS:
        return None
    for number, part in enumerate(parts):
        (begin, *steps), *others = first.place
        moved = ((begin + number * QUADRANT * (row if first.item.flat else 1), *steps), *others)
        if part != replace(first, item=replace(first.item, role=part.item.role), place=moved):
            return None
    rows = QUADRANT * (len(parts) - 1) + SCALE_ROWS
    return replace(first, item=replace(first.item, dims=((row, rows), *columns)))


def _declaration(home: TileClass) -> str:
    place = "" if home.address is None else f", address={home.address}"
    return f"nl.ndarray({home.shape}, dtype=nl.{home.dtype}, buffer=nl.{home.buffer}{place})"


def _family_text(family: TileFamily) -> str:
    text = _declaration(family.home)
    return text if family.copies == 1 else f"[{text} for _ in range({family.copies})]"


def _plain_name(name: str, base: str) -> str:
    """A name from the original, or another one if that is no name that a person gave."""
    return name if name.isidentifier() and name.isascii() else base


def _fresh_name(base: str, taken: set[str]) -> str:
    name, count = base, 2
    while name in taken:
        name, count = f"{base}_{count}", count + 1
    taken.add(name)
    return name
