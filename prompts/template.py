"""Templates: text with `{{name}}` where a value goes, and nothing else that is special.

PromptsInvalid    a set of templates has faults; the message has a line for each
RenderError       a template was not given exactly the values that it may name
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_MARK = re.compile(r"\{\{([a-z][a-z0-9_]*)\}\}", re.ASCII)
_SECRET = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.ASCII,
)
"""How keys of LLM providers, AWS and GitHub begin, and private keys in PEM."""

_BRACES = re.compile(r"\{\{|\}\}")


class PromptsInvalid(Exception):  # noqa: N818 - named for what the set is
    """A set of templates has faults; `faults` has a line for each, naming file, line and what is wrong."""

    code = "prompts_invalid"

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class RenderError(Exception):
    """A prompt cannot be rendered: a role or target that is not there, values missing or unknown."""

    code = "prompt_values"


def names(text: str) -> Iterator[tuple[int, str]]:
    """Yield each value that a template names, with its line, counted from 1."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield from ((number, found[1]) for found in _MARK.finditer(line))


def stray(text: str) -> Iterator[int]:
    """Yield the lines that have double braces around no name."""
    for number, line in enumerate(text.split("\n"), start=1):
        if _BRACES.search(_MARK.sub("", line)):
            yield number


def secret(text: str) -> Iterator[int]:
    """Yield the lines that have what looks like a key: whatever is told is kept for good."""
    for number, line in enumerate(text.split("\n"), start=1):
        if _SECRET.search(line):
            yield number


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values where a template names them; what looks like a name inside a value stays as it is."""
    return _MARK.sub(lambda found: values[found[1]], text)
