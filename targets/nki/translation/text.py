"""Text of a kernel: lines in loops, indices, and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

INDENT = "    "


@dataclass
class NameTable:
    """Hands out names, each once."""

    taken: Counter[str] = field(default_factory=Counter)

    def new(self, stem: str) -> str:
        """Return a name that nothing has yet: the stem, or the stem with a number."""
        while True:
            self.taken[stem] += 1
            name = stem if self.taken[stem] == 1 else f"{stem}_{self.taken[stem]}"
            if name == stem or name not in self.taken:
                self.taken[name] += name != stem
                return name


@dataclass
class Lines:
    """Lines of a block, indented as they are added."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, text: str) -> None:
        """Add a line."""
        self.lines.append(INDENT * self.depth + text)

    @contextmanager
    def loop(self, variable: str, count: int | str) -> Iterator[None]:
        """Put the lines that are added meanwhile into a loop."""
        self.add(f"for {variable} in nl.affine_range({count}):")
        self.depth += 1
        yield
        self.depth -= 1


def sum_text(*terms: str | int) -> str:
    """Return the sum of texts and numbers, without the terms that are 0."""
    number = sum(term for term in terms if isinstance(term, int))
    texts = [term for term in terms if isinstance(term, str) and term != "0"]
    if number or not texts:
        texts.append(str(number))
    return " + ".join(texts).replace("+ -", "- ")


def product_text(text: str, factor: int) -> str:
    """Return a text times a number."""
    if text == "0" or factor == 0:
        return "0"
    if factor == 1:
        return text
    return f"{text} * {factor}" if text.replace("_", "").isalnum() else f"({text}) * {factor}"


def slice_text(start: str, count: str | int, size: int, step: int = 1) -> str:
    """Return a slice of an axis of this size."""
    if start == "0" and str(count) == str(size) and step == 1:
        return ":" if size > 1 else "0:1"
    if step != 1:
        last = f"({count} - 1) * {step} + 1" if isinstance(count, str) else (count - 1) * step + 1
        return f"{start} : {sum_text(start, last)} : {step}"
    return f"{start} : {sum_text(start, count)}" if start != "0" else f"0:{count}"


def float_text(number: float) -> str:
    """Return a number as a literal."""
    if isfinite(number):
        return repr(float(number))
    return f'float("{number}")'


def write_sequence(numbers: Sequence[int]) -> str:
    """A number for each tile of rows, as text in terms of the tile."""
    if len({*numbers}) == 1:
        return str(numbers[0])
    step = max(abs(two - one) for one, two in pairwise(numbers))
    for offset in (numbers[0], numbers[-1] - step * (len(numbers) - 1)):
        line = [offset + step * at for at in range(len(numbers))]
        text = sum_text(f"i_row * {step}" if step != 1 else "i_row", offset)
        if line == [*numbers]:
            return text
        for name, bound, clip in (("min", max(numbers), min), ("max", min(numbers), max)):
            if [clip(bound, one) for one in line] == [*numbers]:
                return f"{name}({bound}, {text})"
    return f"{tuple(numbers)}[i_row]"
