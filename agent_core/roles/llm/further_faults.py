"""Says what else is wrong with a refused kernel.

A trace stops at the first error, and each further question or turn costs a prompt.
"""

from __future__ import annotations

from agent_core.roles.llm.quoting import single_line
from state.model import ErrorInfo
from targets.base import import_part
from targets.registry import load_target

MOST_SHOWN = 6
_MOST_TEXT = 240


def describe_further_faults(target: str, source: str, error: ErrorInfo | None) -> list[str]:
    """Return what the text of a kernel shows to be wrong besides the error that refused it, a line each."""
    find = load_target(target).parts.tools.source_faults
    if find is None:
        return []
    known = {(error.line, error.code)} if error is not None else set()
    found = [one for one in import_part(find)(source) if (one.line, one.code) not in known]
    rows = [
        single_line(
            f"line {one.line}: [{one.code}] {one.message}{f'; {one.hint}' if one.hint else ''}", _MOST_TEXT
        )
        for one in found[:MOST_SHOWN]
    ]
    more = [f"{len(found) - len(rows)} more like these"] if len(found) > len(rows) else []
    return [*rows, *more]
