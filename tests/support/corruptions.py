"""What may happen to the files of a log at rest: each function yields ways to harm a copy of a home.

They are given a file of the scene, for its name and size; every copy of the scene is as large.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

PAGE = 4096

Corruption = Callable[[Path], None]
"""Harms the home at a path."""


def _edit(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def flip_bits(file: Path, step: int) -> Iterator[Corruption]:
    """Flip one bit in every stretch of `step` bytes."""
    size = file.stat().st_size

    def flip(home: Path, start: int) -> None:
        def change(content: bytearray) -> None:
            at = start + random.Random(start).randrange(min(step, size - start))
            content[at] ^= 1 << at % 8

        _edit(home / file.name, change)

    return (partial(flip, start=start) for start in range(0, size, step))


def overwrite_pages(file: Path, make: Callable[[int], bytes]) -> Iterator[Corruption]:
    """Overwrite each page with what `make` says for its number."""

    def harm(home: Path, number: int) -> None:
        def change(content: bytearray) -> None:
            content[number * PAGE : (number + 1) * PAGE] = make(number)

        _edit(home / file.name, change)

    return (partial(harm, number=number) for number in range(file.stat().st_size // PAGE))


def swap_pages(file: Path) -> Iterator[Corruption]:
    """Exchange each page with the next."""

    def harm(home: Path, number: int) -> None:
        def change(content: bytearray) -> None:
            first, second = (slice((number + n) * PAGE, (number + n + 1) * PAGE) for n in (0, 1))
            content[first], content[second] = content[second], content[first]

        _edit(home / file.name, change)

    return (partial(harm, number=number) for number in range(file.stat().st_size // PAGE - 1))


def truncate_file(file: Path, step: int) -> Iterator[Corruption]:
    """Cut the file at every multiple of `step`."""
    return (
        lambda home, size=size: os.truncate(home / file.name, size)
        for size in range(0, file.stat().st_size, step)
    )


def overwrite_file(file: Path) -> Iterator[Corruption]:
    """Overwrite the whole file."""
    content = random.Random(1).randbytes(file.stat().st_size)

    def harm(home: Path) -> None:
        (home / file.name).write_bytes(content)

    yield harm


def delete_files(*names: str) -> Iterator[Corruption]:
    """Delete files."""

    def harm(home: Path) -> None:
        for name in names:
            (home / name).unlink(missing_ok=True)

    yield harm


def keep_only(name: str) -> Iterator[Corruption]:
    """Leave one file only, as a copy of it elsewhere would be."""

    def harm(home: Path) -> None:
        for path in home.iterdir():
            if path.name != name:
                path.unlink()

    yield harm


def leave_intact() -> Iterator[Corruption]:
    """It is the scene that is wrong."""
    yield lambda _: None
