"""Creates a new problem to edit: a small working one, under the author's name."""

from __future__ import annotations

import keyword
import re
import tempfile
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
    _check_name(name)
    folder = parent / name
    if folder.exists() or folder.is_symlink():
        raise ScaffoldError(f"{folder} is there already; give another name or folder")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as staging:
            _write_files(name, Path(staging) / name)
            (Path(staging) / name).rename(folder)
    except OSError as error:
        raise ScaffoldError(f"{folder}: {error.strerror or error}") from error
    return load_problem(folder)


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
