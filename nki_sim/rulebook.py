"""Lists the rules and errors that the simulator knows, read from its own source: code, text, fix.

A code is the first argument of a call that raises or reports an error, or a key of a table of (text, advice).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_REPORTERS = frozenset(
    {"Breach", "KernelError", "LimitError", "RuleError", "Violation", "fail", "note_look", "note_refusal"}
)
_CODE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One code; `says` and `fix` are templates with the filled-in parts in braces."""

    code: str
    says: str
    fix: str


def collect_rules() -> list[RuleEntry]:
    """Return one rule per code, sorted by code; a code used several times keeps its first text."""
    found: dict[str, RuleEntry] = {}
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for rule in _rules_in_node(node):
                found.setdefault(rule.code, rule)
    return [found[code] for code in sorted(found)]


def format_rules(found: list[RuleEntry]) -> Iterator[str]:
    """Format a Markdown table of the rules."""
    yield "| code | says | what usually fixes it |\n|---|---|---|"
    for rule in found:
        says, fix = (text.replace("|", "\\|") for text in (rule.says, rule.fix))
        yield f"| `{rule.code}` | {says} | {fix} |"


def _rules_in_node(node: ast.AST) -> Iterator[RuleEntry]:
    if isinstance(node, ast.Call) and len(node.args) > 1 and _function_name(node.func) in _REPORTERS:
        texts = [text for text in map(message_template, node.args[1:]) if text]
        fix = next((message_template(item.value) for item in node.keywords if item.arg == "hint"), "")
        for code in extract_codes(node.args[0]):
            yield RuleEntry(
                code, texts[0] if texts else "what Python says", fix or (texts[-1] if len(texts) > 1 else "")
            )
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and "_" in str(key.value):
                texts = [message_template(item) for item in value.elts]
                if len(texts) == 2 and all(" " in text for text in texts):
                    yield RuleEntry(str(key.value), *texts)


def _function_name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else str(getattr(function, "attr", ""))


def extract_codes(node: ast.expr) -> list[str]:
    """Return an expression's codes: a literal, both branches of a conditional, or an f-string's template."""
    if isinstance(node, ast.IfExp):
        return [*extract_codes(node.body), *extract_codes(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        return [message_template(node)]
    found = node.value if isinstance(node, ast.Constant) else None
    return [found] if isinstance(found, str) and _CODE.fullmatch(found) else []


def message_template(node: ast.expr) -> str:
    """Return the text of a string literal, with f-string fields shortened to a name in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(message_template, node.values))
    if isinstance(node, ast.FormattedValue):
        names: list[str] = re.findall(r"[A-Za-z_]\w*", ast.unparse(node.value))
        return f"{{{names[-1] if names else '...'}}}"
    value: object = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""
