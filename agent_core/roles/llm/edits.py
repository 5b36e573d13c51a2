"""Edits of a kernel: each replaces a piece of it that must occur exactly once.

A block of edits holds any number of them:

    <<<<<<< find
    the lines to be replaced, as they are
    =======
    the lines to put in their place
    >>>>>>> replace

`search` may stand for `find`. Edits must match the kernel exactly: an edit in the wrong place is worse than
one that is refused.
"""

from __future__ import annotations

import re

from agent_core.roles.llm.blocks import EDIT_MARK, AnswerFault
from agent_core.roles.llm.quoting import single_line

_WITH, _END = re.compile(r"={5,9}"), re.compile(r">{5,9}( replace)?", re.IGNORECASE)
_SHOWN = 120


def apply_edits(text: str, source: str) -> str:
    """Return the source with all edits of a block applied, one after the other.

    Raises:
        AnswerFault: `bad_edits` if the block is malformed, `edit_not_found` or `edit_not_unique` if an edit
            does not match exactly once, `edit_changes_nothing` if the source stays the same.
    """
    rows = source.split("\n")
    for number, (old, new) in enumerate(_parse_edits(text), start=1):
        places = [at for at in range(len(rows)) if rows[at : at + len(old)] == old]
        if not places:
            raise AnswerFault("edit_not_found", f"edit {number}: {_quote_rows(old)} is not in the kernel")
        if len(places) > 1:
            more = f"is in the kernel {len(places)} times; take more lines around it"
            raise AnswerFault("edit_not_unique", f"edit {number}: {_quote_rows(old)} {more}")
        rows[places[0] : places[0] + len(old)] = new
    after = "\n".join(rows)
    if after == source:
        raise AnswerFault("edit_changes_nothing", "the edits leave the kernel as it is")
    return after


def _parse_edits(text: str) -> list[tuple[list[str], list[str]]]:
    found: list[tuple[list[str], list[str]]] = []
    part: re.Pattern[str] | None = None
    old, new = list[str](), list[str]()
    for row in text.split("\n"):
        mark = row.rstrip()
        if part is None and EDIT_MARK.fullmatch(mark):
            part, old, new = _WITH, [], []
        elif part is _WITH and _WITH.fullmatch(mark):
            part = _END
        elif part is _END and _END.fullmatch(mark):
            found.append((old, new))
            part = None
        elif part is not None:
            (old if part is _WITH else new).append(row)
        elif mark:
            raise AnswerFault("bad_edits", f"outside of any edit: {_quote_rows([row])}")
    if part is not None or not found:
        raise AnswerFault("bad_edits", "an edit is <<<<<<< find, lines, =======, lines, >>>>>>> replace")
    if any(not "".join(old).strip() for old, _ in found):
        raise AnswerFault("bad_edits", "an edit has nothing to find")
    return found


def _quote_rows(rows: list[str]) -> str:
    return repr(single_line(" ".join(rows), _SHOWN))
