"""Resolves calls of instructions: what they compute, read and write; cached by their text and names.

Most calls of a rewritten kernel have the same text as before and mean the same, because their names stand for
the same tiles and indices. The meaning of a call depends on nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from nki_sim.forms import Form
from targets.nki.rewrites.evaluate import ExpressionEvaluator
from targets.nki.rewrites.instructions import find_operator, list_accesses, make_form
from targets.nki.rewrites.kernel_ir import Access, Loop
from targets.nki.rewrites.source_tree import SourceTree
from targets.nki.rewrites.values import Affine, LibrarySymbol, Tensor, TensorView, UnreadableSyntax, Value

MAX_CACHED_CALLS = 4000
"""Number of cached calls: those of all rewrites of a long kernel."""
_call_cache: dict[Hashable, InstructionCall] = {}


@dataclass(frozen=True, slots=True)
class InstructionCall:
    """One instruction in a kernel; `texts` are the sources of its arguments."""

    form: Form
    arguments: Mapping[str, Value]
    texts: Mapping[str, str]
    accesses: tuple[Access, ...]


def resolve_call(
    call: ast.Call,
    uses: AbstractSet[str],
    path: Sequence[Loop],
    tree: SourceTree,
    evaluator: ExpressionEvaluator,
) -> InstructionCall:
    """Return the meaning of a call that uses these names inside these loops.

    Raises:
        UnreadableSyntax: it is not an instruction, or its operands do not determine it.
    """
    values = [evaluator.names.get(name) for name in sorted(uses)]
    if not all(
        isinstance(value, Affine | LibrarySymbol | Tensor | TensorView | float | None) for value in values
    ):
        return _resolve_uncached(call, tree, evaluator)
    # Zeros of both signs are equal, and so are flags and numbers; therefore these are not cached.
    meaning = tuple(value.hex() if isinstance(value, float) else value for value in values)
    loops = tuple((loop.id, loop.trips) for loop in path)
    key = (tree.text_of(call), meaning, loops, evaluator.setting)
    found = _call_cache.get(key)
    if found is None:
        found = _resolve_uncached(call, tree, evaluator)
        if len(_call_cache) >= MAX_CACHED_CALLS:
            _call_cache.clear()
        _call_cache[key] = found
    return found


def _resolve_uncached(call: ast.Call, tree: SourceTree, evaluator: ExpressionEvaluator) -> InstructionCall:
    operator = find_operator(evaluator.evaluate(call.func))
    if operator is None:
        raise UnreadableSyntax(f"the call `{ast.unparse(call.func)}`")
    words = _arguments_by_name(call, [argument.name for argument in operator.signature])
    seen = {name: evaluator.evaluate_view(node) for name, node in words.items()}
    views = {name: view for name, view in seen.items() if view is not None}
    arguments = {name: evaluator.evaluate(words[name]) for name in words if name not in views}
    form = make_form(operator, views, arguments)
    arguments.pop("engine", None)
    texts = dict(zip(words, tree.argument_texts(call), strict=True))
    return InstructionCall(form, arguments, texts, tuple(list_accesses(operator, form, views, arguments)))


def _arguments_by_name(call: ast.Call, names: Sequence[str]) -> dict[str, ast.expr]:
    """Arguments by name, in the order written."""
    if len(call.args) > len(names) or any(word.arg is None for word in call.keywords):
        raise UnreadableSyntax(f"the arguments of `{ast.unparse(call.func)}`")
    words = dict(zip(names, call.args, strict=False))
    twice = words.keys() & {word.arg for word in call.keywords}
    if twice:
        raise UnreadableSyntax(f"{min(twice)} of `{ast.unparse(call.func)}` given twice")
    return words | {word.arg: word.value for word in call.keywords if word.arg}
