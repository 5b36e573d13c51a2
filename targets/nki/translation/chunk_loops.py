"""Joins loops over the same chunks of partitions, so that what follows a product begins with its first chunk.

Each operation is written with a loop of its own over the chunks of a tile. An engine takes its instructions
in the order of the program, so the second operation would begin when the first one has done all chunks. In a
common loop, a product's chunk that one instruction reads need not be copied out of PSUM before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy

from targets.nki.translation.interleave import change_statements, loop_count, replace_body
from targets.nki.translation.statements import (
    Renamer,
    arguments_of,
    base_name,
    declared_name,
    find_instruction,
    instruction_name,
)

READ = frozenset(
    {
        "src", "data", "data0", "data1", "data2", "stationary", "moving", "bias", "scale", "operand0",
        "operand1", "predicate", "on_true_tile", "initial",
    }
)  # fmt: skip
"""Arguments that instructions only read."""
_DATA = READ - {"bias", "scale"}
"""Those of them that may be in PSUM."""
_CHUNK_LOOPS = ("i_chunk", "i_part")
"""Variables of loops over chunks of partitions, and over parts of what they hold."""
_MODULES = ("nisa.", "nl.")
PSUM_READERS = frozenset(
    {"activation", "activation_reduce", "scalar_tensor_tensor", "tensor_scalar", "tensor_tensor"}
)
"""Instructions that read a product where the tensor engine left it, unless GpSimd executes them."""
TWO_TENSORS = {"scalar_tensor_tensor": ("data", "operand1"), "tensor_tensor": ("data1", "data2")}
"""By instruction the two operands of which only one may be in PSUM."""


def join_chunk_loops(source: str) -> str | None:
    """Return a kernel with neighbouring loops over the same chunks joined; None if there are none."""
    joined = change_statements(source, lambda kernel: _join_block(kernel.body))
    return None if joined is None else change_statements(joined, _read_banks) or joined


def _join_block(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements in which a loop takes in the next one, if nothing but declarations is between them."""
    found: list[ast.stmt] = []
    for item in statements:
        statement = replace_body(item, _join_block)
        at = _find_loop(found) if isinstance(item, ast.For) else None
        if at is not None and _can_join(found[at], statement):
            found.append(_join(found.pop(at), statement))
        else:
            found.append(statement)
    return found if _is_changed(found, statements) else list(statements)


def _is_changed(new: Sequence[ast.stmt], old: Sequence[ast.stmt]) -> bool:
    return len(new) != len(old) or any(one is not other for one, other in zip(new, old, strict=True))


def _find_loop(before: Sequence[ast.stmt]) -> int | None:
    """The place of the last loop, if only tiles are declared after it."""
    for at in range(len(before) - 1, -1, -1):
        if isinstance(before[at], ast.For):
            return at
        if not declared_name(before[at]):
            return None
    return None


def _can_join(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether each iteration of a loop needs only the same iteration of the other one."""
    assert isinstance(first, ast.For)
    assert isinstance(second, ast.For)
    sides = [(loop, _variable(loop)) for loop in (first, second)]
    if any(not name.startswith(_CHUNK_LOOPS) for _, name in sides):
        return False
    if not all(isinstance(_count_node(loop), ast.Constant) for loop, _ in sides):
        return False
    if loop_count(first) != loop_count(second):
        return False
    uses = [_uses(loop) for loop, _ in sides]
    for tile in uses[0].keys() & uses[1].keys():
        if not any(is_written for own in uses for is_written, _ in own[tile]):
            continue
        places = {
            _chunk_place(index, name)
            for own, (_, name) in zip(uses, sides, strict=True)
            for _, index in own[tile]
        }
        if len(places) != 1 or None in places:
            return False
    return True


def _variable(loop: ast.For) -> str:
    assert isinstance(loop.target, ast.Name)
    return loop.target.id


def _count_node(loop: ast.For) -> ast.expr | None:
    return loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else None


def _uses(loop: ast.For) -> dict[str, list[tuple[bool, ast.expr | None]]]:
    """By name what instructions take of it: whether they write it, and the index, None for all of it."""
    found: dict[str, list[tuple[bool, ast.expr | None]]] = {}
    for item in ast.walk(loop):
        call = find_instruction(item) if isinstance(item, ast.stmt) else None
        for word, value in arguments_of(call).items() if call is not None else ():
            for name, index in _indexed_names(value):
                found.setdefault(name, []).append((word not in READ, index))
    return found


def _indexed_names(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names in an argument, each with its index."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        yield node.value.id, node.slice
        yield from _indexed_names(node.slice)
    elif isinstance(node, ast.Attribute):  # of a module, or a method of a tile
        yield from () if ast.unparse(node).startswith(_MODULES) else _indexed_names(node.value)
    elif isinstance(node, ast.Name):
        yield node.id, None
    else:
        for child in ast.iter_child_nodes(node):
            yield from _indexed_names(child)


def _chunk_place(index: ast.expr | None, variable: str) -> int | None:
    """The dimension of which a use takes the present chunk alone; None if it takes others."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    return next(
        (at for at, part in enumerate(parts) if isinstance(part, ast.Name) and part.id == variable), None
    )


def _join(first: ast.stmt, second: ast.stmt) -> ast.For:
    assert isinstance(first, ast.For)
    assert isinstance(second, ast.For)
    joined = deepcopy(first)
    rest = Renamer(_variable(second), _variable(first))
    joined.body += [rest.visit(deepcopy(item)) for item in second.body]
    return joined


def _read_banks(kernel: ast.FunctionDef) -> list[ast.stmt]:
    """The kernel's statements without copies of products that the same iteration reads once."""
    counts: dict[str, int] = {}
    for item in ast.walk(kernel):
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load):
            counts[item.id] = counts.get(item.id, 0) + 1
    copied = {name for name, count in counts.items() if count == len(("written", "read"))}
    dropped: set[str] = set()
    in_psum = {declared_name(item, "psum") for item in ast.walk(kernel) if isinstance(item, ast.stmt)}
    body = _read_banks_in(kernel.body, copied, dropped, in_psum=in_psum)
    return [item for item in body if declared_name(item) not in dropped]


def _read_banks_in(
    body: Sequence[ast.stmt], copied: set[str], dropped: set[str], *, in_psum: set[str]
) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    banks = {name for item in body if (name := declared_name(item, "psum"))}
    waiting: dict[str, tuple[ast.stmt, str, ast.expr]] = {}
    for item in body:
        statement = replace_body(item, lambda inner: _read_banks_in(inner, copied, dropped, in_psum=in_psum))
        call = find_instruction(item)
        copy = _copy_of_bank(call, banks) if call is not None else None
        if copy is not None and copy[0] in copied:
            waiting[copy[0]] = (item, ast.unparse(copy[1]), copy[2])
        elif call is not None and instruction_name(call) in PSUM_READERS and not is_by_gpsimd(call):
            taken = _operands_beside_banks(call, in_psum)
            for word, value in arguments_of(call).items():
                name = _tile_name(value)
                own = waiting.get(name)
                if own is not None and word not in taken and word in _DATA and ast.unparse(value) == own[1]:
                    statement = _with_argument(item, word, own[2])
                    found.remove(own[0])
                    del waiting[name]
                    dropped.add(name)
                    break
        found.append(statement)
    return found if _is_changed(found, body) else list(body)


def _operands_beside_banks(call: ast.Call, in_psum: set[str]) -> Sequence[str]:
    """Operands that may not be in PSUM, because the other one of the two is."""
    words = arguments_of(call)
    both = [word for word in TWO_TENSORS.get(instruction_name(call), ()) if word in words]
    return both if any(base_name(words[word]) in in_psum for word in both) else ()


def _copy_of_bank(call: ast.Call, banks: set[str]) -> tuple[str, ast.expr, ast.expr] | None:
    """Of a copy out of PSUM the tile's name, the part of it that is written, and the part of the bank."""
    words = arguments_of(call)
    if instruction_name(call) != "tensor_copy" or _tile_name(words["src"]) not in banks:
        return None
    name = _tile_name(words["dst"])
    return (name, words["dst"], words["src"]) if name else None


def _tile_name(node: ast.expr) -> str:
    """The name of the tile that an operand is, or is a part of; nothing for other views."""
    is_plain = isinstance(node, ast.Name) or (
        isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    )
    return base_name(node) if is_plain else ""


def is_by_gpsimd(call: ast.Call) -> bool:
    """Whether GpSimd executes an instruction; it does not reach PSUM."""
    return any(word.arg == "engine" and "gpsimd" in ast.unparse(word.value) for word in call.keywords)


def _with_argument(statement: ast.stmt, name: str, value: ast.expr) -> ast.stmt:
    found = deepcopy(statement)
    assert isinstance(found, ast.Expr)
    assert isinstance(found.value, ast.Call)
    for word in found.value.keywords:
        if word.arg == name:
            word.value = value
    return found
