"""Other ways to say what a kernel says, by which a rewrite that goes by names might be misled.

Tiles are declared by the sizes of others, under names that something else had before; tiles and indices share
names; parts of tensors have names of their own; sizes of tiles are asserted or stand in operands. An
obfuscation goes by the lines that the generator writes and does not look at what is alive: whether the kernel
still computes the same is for its user to see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

DECLARATION = re.compile(r"( *)(\w+) = nl\.ndarray\((\(.*?\)), dtype=nl\.(\w+), buffer=nl\.(?:sbuf|psum)\)")
LOOP = re.compile(r"( *)for (\w+) in .*:")
OPERAND = re.compile(r"\b(src|data|data1|data2|moving|stationary)=(\w+\[[^\[\]]*\])(?=[,)])")
Obfuscation = Callable[[list[str], Random], Iterator[str]]


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _rename_in_line(line: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, line)


def told_by_others(lines: list[str], random: Random) -> Iterator[str]:
    """Tiles are declared by shapes and types of others, whose names smaller tiles had before."""
    known: list[tuple[int, str, str, str]] = []
    made: list[str] = []
    told: set[str] = set()
    for line in lines:
        said = line
        known = [item for item in known if item[0] <= _depth(line)]
        found = DECLARATION.fullmatch(line)
        if found:
            space, name, shape, dtype = found.groups()
            alike = [item for item in known if item[2:] == (shape, dtype) and item[1] != name]
            if alike and random.random() < 0.7:
                other = random.choice(alike)[1]
                told.add(other)
                sizes = shape.strip("(),").split(", ")
                parts = ", ".join(f"{other}.shape[{i}]" for i in range(len(sizes)))
                said = line.replace(shape, random.choice([f"{other}.shape", f"({parts},)"]), 1)
                said = said.replace(f"nl.{dtype}", random.choice([f"nl.{dtype}", f"{other}.dtype"]), 1)
            known.append((len(space), name, shape, dtype))
        made.append(said)
    yield from _behind(
        made, [f"{name} = nl.ndarray((P, 16), dtype=nl.bfloat16, buffer=nl.sbuf)" for name in sorted(told)]
    )


def in_operands(lines: list[str], random: Random) -> Iterator[str]:
    """An instruction takes as many columns of its destination as another tile has."""
    wide: list[str] = []
    for line in lines:
        found, goal = DECLARATION.fullmatch(line), re.search(r"\bdst=(\w+)(?=[,)])", line)
        if found and found[3] == "(P, n)":
            wide.append(found[2])
        others = [name for name in wide if goal and name != goal[1]]
        if goal and goal[1] in wide and others and random.random() < 0.3:
            part = f"{goal[1]}[:, 0 : {random.choice(others)}.shape[1]]"
            yield line.replace(f"dst={goal[1]}", f"dst={part}", 1)
        else:
            yield line


def assert_shapes(lines: list[str], random: Random) -> Iterator[str]:
    """Something is asserted of what instructions write."""
    for line in lines:
        yield line
        goal = re.search(r"nisa\..*\bdst=(\w+)", line)
        if goal and random.random() < 0.1:
            yield f"{' ' * _depth(line)}assert {goal[1]}.shape[0] > 0"


def one_name_for_two(lines: list[str], random: Random) -> Iterator[str]:
    """A tile gets the name of one that no line mentions from there on."""
    names = list(dict.fromkeys(found[2] for line in lines if (found := DECLARATION.fullmatch(line))))
    for name in random.sample(names, len(names) // 2):
        at = {each: [i for i, line in enumerate(lines) if re.search(rf"\b{each}\b", line)] for each in names}
        free = [each for each in names if each != name and max(at[each]) < min(at[name])]
        if free:
            lines = [_rename_in_line(line, name, random.choice(free[-1:])) for line in lines]
            names.remove(name)
    yield from lines


def one_index_for_all(lines: list[str], random: Random) -> Iterator[str]:
    """Loops count by names that other loops have, too."""
    for number in [i for i, line in enumerate(lines) if LOOP.fullmatch(line)]:
        found = LOOP.fullmatch(lines[number])
        assert found is not None
        old, new = found[2], random.choice("ij")
        ends = (
            i for i in range(number + 1, len(lines)) if lines[i].strip() and _depth(lines[i]) <= len(found[1])
        )
        inside = range(number, next(ends, len(lines)))
        if not any(re.search(rf"\b{new}\b", lines[i]) for i in inside):
            lines = [_rename_in_line(line, old, new) if i in inside else line for i, line in enumerate(lines)]
    yield from lines


def parts_with_names(lines: list[str], random: Random) -> Iterator[str]:
    """Operands are named first, some by a name that others have as well."""
    for number, line in enumerate(lines):
        found = OPERAND.search(line)
        if found and random.random() < 0.2:
            name = random.choice(["part", f"part_{number}"])
            yield f"{' ' * _depth(line)}{name} = {found[2]}"
            yield line.replace(f"{found[1]}={found[2]}", f"{found[1]}={name}", 1)
        else:
            yield line


def an_input_with_two_names(lines: list[str], random: Random) -> Iterator[str]:
    """The first argument is used by another name, or by a view of all of it."""
    made = [_rename_in_line(line, "x", "taken") if _depth(line) > 4 else line for line in lines]
    return _behind(made, [random.choice(["taken = x", "taken = x[0:m, :]"])])


def _behind(lines: list[str], more: list[str]) -> Iterator[str]:
    """The lines with more of them in front of the kernel's first loop."""
    first = next(i for i, line in enumerate(lines) if LOOP.fullmatch(line))
    yield from lines[:first]
    yield from (f"    {line}" for line in more)
    yield from lines[first:]


OBFUSCATIONS: tuple[Obfuscation, ...] = (
    one_name_for_two,
    one_index_for_all,
    parts_with_names,
    an_input_with_two_names,
    in_operands,
    told_by_others,
    assert_shapes,
)


def obfuscate(source: str, obfuscation: Obfuscation, random: Random) -> str:
    """The source as an obfuscation has it."""
    return "\n".join(obfuscation(source.splitlines(), random)) + "\n"
