"""Templates: text in which `{{name}}` stands for a value and `{{@name}}` for words of the target's pack.

Nothing else is special.

PromptsInvalid    a set of templates has faults; the message has a line for each
RenderError       a template was not given exactly the values that it may use
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_VALUE_PATTERN = re.compile(r"\{\{([a-z][a-z0-9_]*)\}\}", re.ASCII)
_WORDS_PATTERN = re.compile(r"\{\{@([a-z][a-z0-9_]*)\}\}", re.ASCII)
_SECRET_PATTERN = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.ASCII,
)
"""How keys of LLM providers, AWS and GitHub begin, and private keys in PEM."""

_BRACES_PATTERN = re.compile(r"\{\{|\}\}")


class PromptsInvalid(Exception):  # noqa: N818 - named for what the set is
    """A set of templates has faults; `faults` has a line for each, with file, line and problem."""

    code = "prompts_invalid"

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class RenderError(Exception):
    """A prompt cannot be rendered: unknown role or target, or missing or unknown values."""

    code = "prompt_values"


def find_value_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield each value that a template uses, with its line, counted from 1."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield from ((number, found[1]) for found in _VALUE_PATTERN.finditer(line))


def find_word_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a pack that a template uses, with their lines, counted from 1."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield from ((number, found[1]) for found in _WORDS_PATTERN.finditer(line))


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """Replace the names of a pack's words in a template."""
    return _WORDS_PATTERN.sub(lambda found: words[found[1]], text)


def find_stray_braces(text: str) -> Iterator[int]:
    """Yield the lines with double braces that enclose no name."""
    for number, line in enumerate(text.split("\n"), start=1):
        if _BRACES_PATTERN.search(_WORDS_PATTERN.sub("", _VALUE_PATTERN.sub("", line))):
            yield number


def find_secrets(text: str) -> Iterator[int]:
    """Yield the lines that seem to contain a key; the log keeps prompts for good."""
    for number, line in enumerate(text.split("\n"), start=1):
        if _SECRET_PATTERN.search(line):
            yield number


def fill_template(text: str, values: Mapping[str, str]) -> str:
    """Replace the names in a template by values; a name inside a value stays as it is."""
    return _VALUE_PATTERN.sub(lambda found: values[found[1]], text)
