"""Calls of instructions: what they compute, read and write, worked out once for what they say and name.

Most calls of a rewritten kernel say what they said before, and mean it: the names in them stand for the same
tiles and indices. What a call means depends on nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from nki_sim.forms import Form
from targets.nki.rewrites.evaluate import Evaluator
from targets.nki.rewrites.instructions import accesses_of, form_of, operator_of
from targets.nki.rewrites.model import Access, Loop
from targets.nki.rewrites.tree import Tree
from targets.nki.rewrites.values import Affine, Symbol, Tensor, Unreadable, Value, View

KEPT = 4000
"""Calls that are remembered: those of all rewrites of a long kernel."""
_known: dict[Hashable, Called] = {}


@dataclass(frozen=True, slots=True)
class Called:
    """One instruction as it stands in a kernel; `texts` are the sources of its arguments."""

    form: Form
    arguments: Mapping[str, Value]
    texts: Mapping[str, str]
    accesses: tuple[Access, ...]


def called(
    call: ast.Call, uses: AbstractSet[str], path: Sequence[Loop], tree: Tree, evaluator: Evaluator
) -> Called:
    """What a call that uses these names means inside these loops.

    Raises:
        Unreadable: it is no instruction, or one that cannot be told from its operands.
    """
    values = [evaluator.names.get(name) for name in sorted(uses)]
    if not all(isinstance(value, Affine | Symbol | Tensor | View | float | None) for value in values):
        return _read(call, tree, evaluator)
    # Zeros of both signs are equal, and so are flags and numbers, which is why those are not remembered.
    meaning = tuple(value.hex() if isinstance(value, float) else value for value in values)
    loops = tuple((loop.id, loop.trips) for loop in path)
    key = (tree.text_of(call), meaning, loops, evaluator.setting)
    found = _known.get(key)
    if found is None:
        found = _read(call, tree, evaluator)
        if len(_known) >= KEPT:
            _known.clear()
        _known[key] = found
    return found


def _read(call: ast.Call, tree: Tree, evaluator: Evaluator) -> Called:
    operator = operator_of(evaluator.value(call.func))
    if operator is None:
        raise Unreadable(f"the call `{ast.unparse(call.func)}`")
    words = _words(call, [argument.name for argument in operator.signature])
    seen = {name: evaluator.view(node) for name, node in words.items()}
    views = {name: view for name, view in seen.items() if view is not None}
    arguments = {name: evaluator.value(words[name]) for name in words if name not in views}
    form = form_of(operator, views, arguments)
    arguments.pop("engine", None)
    texts = dict(zip(words, tree.arguments_of(call), strict=True))
    return Called(form, arguments, texts, tuple(accesses_of(operator, form, views, arguments)))


def _words(call: ast.Call, names: Sequence[str]) -> dict[str, ast.expr]:
    """Arguments by name, in the order written."""
    if len(call.args) > len(names) or any(word.arg is None for word in call.keywords):
        raise Unreadable(f"the arguments of `{ast.unparse(call.func)}`")
    words = dict(zip(names, call.args, strict=False))
    twice = words.keys() & {word.arg for word in call.keywords}
    if twice:
        raise Unreadable(f"{min(twice)} of `{ast.unparse(call.func)}` given twice")
    return words | {word.arg: word.value for word in call.keywords if word.arg}
