"""What an answer holds: its fenced blocks, and those that are JSON of a shape or Python with a function.

A model thinks aloud before it answers, so the last block that parses is the answer. What does not parse is
an `AnswerFault`, which says to the model in words what was wrong.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

_OPEN = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$")
_MOST_FAULTS = 5
MAX_SOURCE = 262_144
"""Characters of a kernel at most: far above any that a NeuronCore could hold."""

M = TypeVar("M", bound=BaseModel)


class AnswerFault(Exception):  # noqa: N818 - it is said to the model, not raised to people
    """An answer cannot be used; `code` is stable, the message tells the model what to mend."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the word behind its fence, in lower case, and what is between the fences."""

    info: str
    text: str


def blocks(answer: str) -> list[Block]:
    """Return an answer's fenced blocks in order; one that is not closed ends with the answer."""
    found: list[Block] = []
    fence, info, body = "", "", list[str]()
    for text in answer.replace("\r\n", "\n").split("\n"):
        opened = _OPEN.match(text)
        if fence and _closes(text, fence):
            found.append(Block(info, "\n".join(body) + "\n"))
            fence = ""
        elif fence:
            body.append(text)
        elif opened:
            fence, info, body = opened[1], opened[2].lower(), []
    if fence:
        found.append(Block(info, "\n".join(body) + "\n"))
    return found


def preface(answer: str) -> str:
    """Return the last line of words in front of an answer's first fence; empty where there is none."""
    before: list[str] = []
    for text in answer.split("\n"):
        if _OPEN.match(text):
            break
        before.append(text.strip())
    return next((text for text in reversed(before) if text), "")


def _closes(text: str, fence: str) -> bool:
    bare = text.strip()
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and len(text) - len(text.lstrip()) <= 3


def last_json(answer: str, shape: type[M], check: Callable[[M], M]) -> M:
    """Return the last fenced block that is JSON of a shape and passes `check`.

    Raises:
        AnswerFault: there is none (`no_block`), or `unreadable_answer` with what is wrong with the last one.
    """
    fault: AnswerFault | None = None
    for block in reversed(blocks(answer)):
        try:
            return check(shape.model_validate_json(block.text, strict=True))
        except ValidationError as error:
            fault = fault or AnswerFault("unreadable_answer", _faults(error))
        except AnswerFault as error:
            fault = fault or error
    raise fault or AnswerFault("no_block", "the answer has no fenced block: begin the block with ```json")


def _faults(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    said = [f"{'.'.join(str(part) for part in item['loc']) or 'the block'}: {item['msg']}" for item in found]
    more = f"; and {len(said) - _MOST_FAULTS} more" if len(said) > _MOST_FAULTS else ""
    return "; ".join(said[:_MOST_FAULTS]) + more


def functions(source: str) -> Sequence[ast.FunctionDef]:
    """Return the functions at the top level of a source, decorated ones only where there are such.

    Raises:
        AnswerFault: it is no Python (`not_python`), or too long (`too_long`).
    """
    found = [node for node in parsed(source).body if isinstance(node, ast.FunctionDef)]
    return [node for node in found if node.decorator_list] or found


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a source.

    Raises:
        AnswerFault: it is no Python (`not_python`), or too long (`too_long`).
    """
    if len(source) > MAX_SOURCE:
        text = f"the kernel has {len(source)} characters, at most {MAX_SOURCE} are taken"
        raise AnswerFault("too_long", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings: they are no fault
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise AnswerFault("not_python", f"{where}{getattr(error, 'msg', None) or error}") from error


def last_kernel(answer: str, wanted: frozenset[str], edited: Callable[[str], str]) -> str:
    """Return the kernel that an answer holds: its last block that is a kernel, or edits that make one.

    A kernel is Python that defines a function named in `wanted`, or any where that is empty. `edited`
    carries out a block of edits.

    Raises:
        AnswerFault: no block is one; it tells what is wrong with the last that was meant to be.
    """
    fault: AnswerFault | None = None
    for block in reversed(blocks(answer)):
        try:
            source = edited(block.text) if block.info == EDITS else block.text
            return _kernel(source, wanted)
        except AnswerFault as error:
            fault = fault or error
    raise fault or AnswerFault("no_block", "the answer has no fenced block with the kernel")


EDITS = "edits"
"""The word behind the fence of a block of edits."""


def _kernel(source: str, wanted: frozenset[str]) -> str:
    there = {node.name for node in functions(source)}
    if not there or (wanted and wanted.isdisjoint(there)):
        names = " or ".join(f"`{name}`" for name in sorted(wanted)) or "a function"
        raise AnswerFault("no_kernel", f"the block does not define {names}")
    return source


def names(source: str) -> frozenset[str]:
    """Return the names of a kernel's functions; none of what is no Python."""
    return frozenset(_named(source))


def _named(source: str) -> Iterator[str]:
    try:
        yield from (node.name for node in functions(source))
    except AnswerFault:
        return
