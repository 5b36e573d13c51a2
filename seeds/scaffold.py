"""Creates a new problem to edit: a small working one, under the author's name."""

from __future__ import annotations

import keyword
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seeds.errors import ScaffoldError
from seeds.problem import Problem, builtin_problems, load_problem
from seeds.problem_files import KERNEL_FILE, REFERENCE_FILE, SPEC_FILE

MAX_NAME_CHARS = 64

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "example"


def create_problem(name: str, parent: Path) -> Problem:
    """Write the folder `parent / name`, all at once, and return the problem in it.

    Raises:
        ScaffoldError: the name is not allowed, the place is taken, or the disk has no room.
    """
    check_new_problem(name, parent / name)
    with _staged_folder(parent / name) as staging:
        _write_files(name, staging)
    return load_problem(parent / name)


def check_new_problem(name: str, folder: Path) -> None:
    """Check that a problem may have this name, and that its folder is free.

    Raises:
        ScaffoldError: it may not, or the place is taken.
    """
    _check_name(name)
    _check_free(folder)


def _check_free(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise ScaffoldError(f"{folder} is there already; give another name or folder")


def write_problem(problem: Problem, folder: Path) -> None:
    """Write a problem's files to a new folder, all at once.

    Raises:
        ScaffoldError: the place is taken, or the disk has no room.
    """
    with _staged_folder(folder) as staging:
        staging.mkdir()
        for name, data in problem.files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@contextmanager
def _staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a place for a folder's files; at the end the folder is there with all of them."""
    _check_free(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
            yield Path(staging) / folder.name
            (Path(staging) / folder.name).rename(folder)
    except OSError as error:
        raise ScaffoldError(f"{folder}: {error.strerror or error}") from error


def _check_name(name: str) -> None:
    taken = set(re.findall(r"\w+", (_TEMPLATE / KERNEL_FILE).read_text())) - {_NAME}
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or len(name) > MAX_NAME_CHARS:
        raise ScaffoldError(
            f"{name!r} cannot be a name: letters, digits and _, a letter first, at most {MAX_NAME_CHARS}"
        )
    if keyword.iskeyword(name) or name in taken:
        raise ScaffoldError(f"{name!r} means something else in a kernel; give another name")
    if name in builtin_problems():
        raise ScaffoldError(f"{name!r} comes with the program, and its name would win; give another name")


def _write_files(name: str, folder: Path) -> None:
    folder.mkdir()
    for file in (SPEC_FILE, REFERENCE_FILE, KERNEL_FILE):
        text = (_TEMPLATE / file).read_text(encoding="utf-8")
        (folder / file).write_text(re.sub(rf"\b{_NAME}\b", name, text), encoding="utf-8")
