"""NKI as a language: Python with a decorator; its text is checked, compared and tagged without running it."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from targets.base import SourceError

if TYPE_CHECKING:
    from state.model import Digest, ErrorInfo

MAX_SOURCE_CHARS = 262_144
"""Most characters of a kernel: far more than any kernel that a NeuronCore could hold."""


@dataclass(frozen=True, slots=True)
class NkiLanguage:
    """Kernels of either namespace, `nki` and `neuronxcc.nki`."""

    name: str = "NKI"
    fence: str = "python"
    kernel_file: str = "kernel.py"

    def lint(self, source: bytes) -> ErrorInfo | None:
        """Return the first static rule that a text breaks; None for one that may run in the jail."""
        from targets.nki.judge.rules import find_first_offence

        return find_first_offence(source)

    def code_digest(self, source: bytes) -> Digest:
        """Return the digest of the syntax tree, ignoring everything that does not change its meaning."""
        from targets.nki.judge.normalise import code_digest

        return code_digest(source)

    def kernel_names(self, source: str) -> frozenset[str]:
        """Return the functions at the top level; if any are decorated, only those.

        Raises:
            SourceError: it is not Python (`not_python`), or too long (`too_long`).
        """
        found = [node for node in _parse(source).body if isinstance(node, ast.FunctionDef)]
        decorated = [node for node in found if node.decorator_list]
        return frozenset(node.name for node in decorated or found)

    def operators(self, source: str) -> frozenset[str]:
        """Return the instructions that a kernel's source calls, and the functions that they apply."""
        from nki_sim.operators import OPERATORS
        from targets.nki.judge.normalise import parse_source

        try:
            tree = parse_source(source.encode())
        except (SyntaxError, ValueError):
            return frozenset()
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and _leaf_name(node.func) in OPERATORS
        ]
        words = [word for call in calls for word in call.keywords if (word.arg or "").startswith("op")]
        applied = {_leaf_name(word.value) for word in words if isinstance(word.value, ast.Attribute)}
        return frozenset({_leaf_name(call.func) for call in calls} | applied)


def _parse(source: str) -> ast.Module:
    from targets.nki.judge.normalise import parse_source

    if len(source) > MAX_SOURCE_CHARS:
        text = f"the kernel has {len(source)} characters, at most {MAX_SOURCE_CHARS} are taken"
        raise SourceError("too_long", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings, which are harmless
            return parse_source(source.encode())
    except (SyntaxError, ValueError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise SourceError("not_python", f"{where}{getattr(error, 'msg', None) or error}") from error


def _leaf_name(node: ast.expr) -> str:
    """The last part of a dotted name; the parts before it depend on how modules are imported."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


NKI = NkiLanguage()
