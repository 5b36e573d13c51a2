"""Parses an LLM's answer: its fenced blocks, and those that are a kernel or JSON of a given shape.

A model thinks aloud before it answers, so the last block that parses is the answer. If none parses, an
`AnswerFault` tells the model what was wrong. A second question costs a whole prompt, so form is forgiven
where the meaning is certain: JSON without a fence, commas in front of a closing bracket, numbers in quotes,
texts that are too long, and edits in several blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from targets.base import Language, SourceError

_OPEN = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$")
_MOST_FAULTS = 5
_OBJECT = re.compile(r"^[ \t]*\{", re.MULTILINE)
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,20})(\.\d{1,20})?", re.ASCII)

M = TypeVar("M", bound=BaseModel)


class AnswerFault(Exception):  # noqa: N818 - it is said to the model, not raised to people
    """An answer is unusable; `code` is stable, the message tells the model what to fix."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """A fenced block: the word behind its opening fence, in lower case, and the text between the fences."""

    info: str
    text: str


def parse_blocks(answer: str) -> list[FencedBlock]:
    """Return an answer's fenced blocks in order; an unclosed one ends with the answer."""
    found: list[FencedBlock] = []
    fence, info, body = "", "", list[str]()
    for text in answer.replace("\r\n", "\n").split("\n"):
        opened = _OPEN.match(text)
        if fence and _closes_fence(text, fence):
            found.append(FencedBlock(info, "\n".join(body) + "\n"))
            fence = ""
        elif fence:
            body.append(text)
        elif opened:
            fence, info, body = opened[1], opened[2].lower(), []
    if fence:
        found.append(FencedBlock(info, "\n".join(body) + "\n"))
    return found


def preface_line(answer: str) -> str:
    """Return the last line of prose before an answer's first fence; empty if there is none."""
    before: list[str] = []
    for text in answer.split("\n"):
        if _OPEN.match(text):
            break
        before.append(text.strip())
    return next((text for text in reversed(before) if text), "")


def _closes_fence(text: str, fence: str) -> bool:
    bare = text.strip()
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and len(text) - len(text.lstrip()) <= 3


def last_json(answer: str, shape: type[M], check: Callable[[M], M]) -> M:
    """Return the last fenced block that is JSON of a shape and passes `check`.

    Raises:
        AnswerFault: there is no block (`no_block`), or none is valid (`unreadable_answer`, about the last
            one).
    """
    fault: AnswerFault | None = None
    for block in reversed(parse_blocks(answer) or _find_bare_json(answer)):
        try:
            return check(_read_json(block.text, shape))
        except ValidationError as error:
            fault = fault or AnswerFault("unreadable_answer", _describe_errors(error))
        except AnswerFault as error:
            fault = fault or error
    raise fault or AnswerFault("no_block", "the answer has no fenced block: begin the block with ```json")


def _find_bare_json(answer: str) -> list[FencedBlock]:
    """Return what an answer without a fence ends with, if it looks like a JSON object."""
    begun = _OBJECT.search(answer)
    return [FencedBlock("json", answer[begun.start() :])] if begun and answer.rstrip().endswith("}") else []


def _read_json(text: str, shape: type[M]) -> M:
    """Return JSON of a shape, strictly but for commas too many, numbers in quotes, and texts too long.

    Raises:
        ValidationError: it is not of this shape.
    """
    try:
        return shape.model_validate_json(text, strict=True)
    except ValidationError as error:
        mended = _mend_json(text, error)
        if mended == text:
            raise
    return _read_json(mended, shape)


def _mend_json(text: str, error: ValidationError) -> str:
    """Return a text with one kind of fault mended, or the text itself."""
    faults = error.errors(include_url=False)
    if faults[0]["type"] == "json_invalid":
        return _STRING_OR_COMMA.sub(lambda found: found[0] if found[0] != "," else "", text)
    mended = [(one["loc"], value) for one in faults if (value := _mend_value(one)) is not None]
    found: Any = json.loads(text) if mended else None
    for (*path, last), value in mended:
        inside = found
        for part in path:
            inside = inside[part]
        inside[last] = value
    return json.dumps(found) if mended else text


def _mend_value(fault: ErrorDetails) -> str | float | None:
    """Return what a value must mean: a number in quotes, a text that is too long; else None."""
    said = fault["input"]
    if fault["type"] in ("float_type", "int_type") and isinstance(said, str) and _NUMBER.fullmatch(said):
        return float(said) if "." in said else int(said)
    if fault["type"] == "string_too_long":
        return str(said)[: fault["ctx"]["max_length"]]
    return None


def _describe_errors(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    said = [f"{'.'.join(str(part) for part in item['loc']) or 'the block'}: {item['msg']}" for item in found]
    more = f"; and {len(said) - _MOST_FAULTS} more" if len(said) > _MOST_FAULTS else ""
    return "; ".join(said[:_MOST_FAULTS]) + more


def last_kernel(answer: str, wanted: frozenset[str], edited: Callable[[str], str], language: Language) -> str:
    """Return the kernel in an answer: its last block that is a kernel, or edits that produce one.

    A kernel is a text of `language` that defines a function named in `wanted`, or any function if that is
    empty. `edited` applies a block of edits. Several blocks of edits are one change; if they do not apply one
    after the other, those before the last were drafts of it.

    Raises:
        AnswerFault: no block is a kernel; the message is about the last block that was meant to be one.
    """
    fault: AnswerFault | None = None
    blocks = parse_blocks(answer)
    edits = [block.text for block in blocks if _holds_edits(block)]
    together = ["".join(edits)] if len(edits) > 1 else []
    for block in reversed(blocks):
        tries = [*together, block.text] if _holds_edits(block) else [block.text]
        for text in tries:
            try:
                source = edited(text) if _holds_edits(block) else text
                return _require_kernel(source, wanted, language)
            except AnswerFault as error:
                fault = fault or error
    raise fault or AnswerFault("no_block", "the answer has no fenced block with the kernel")


def _holds_edits(block: FencedBlock) -> bool:
    """Return whether a block holds edits: it says so, or begins with the mark of one."""
    return block.info == EDITS or EDIT_MARK.match(block.text) is not None


EDITS = "edits"
"""The word behind the opening fence of a block of edits."""

EDIT_MARK = re.compile(r"<{5,9}( find| search)?[ \t]*$", re.IGNORECASE | re.MULTILINE)
"""The line that begins an edit."""


def _require_kernel(source: str, wanted: frozenset[str], language: Language) -> str:
    try:
        there = language.kernel_names(source)
    except SourceError as error:
        raise AnswerFault(error.code, str(error)) from error
    if not there or (wanted and wanted.isdisjoint(there)):
        names = " or ".join(f"`{name}`" for name in sorted(wanted)) or "a function"
        raise AnswerFault("no_kernel", f"the block does not define {names}")
    return source


def kernel_names(source: str, language: Language) -> frozenset[str]:
    """Return the names of a kernel's functions; none if the source is not in this language."""
    try:
        return language.kernel_names(source)
    except SourceError:
        return frozenset()
