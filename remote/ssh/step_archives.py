"""Builds the archives of this code that hosts need besides the worker; the same files give the same bytes.

`judge.zip` has the modules that draw inputs, sketch outputs and build jails; a device's own packages come in
one archive each, `PACKAGE.zip`. Hosts keep archives under their digest, so each is sent once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import remote
import seeds

_REMOTE = Path(remote.__file__).parent
_SEEDS = Path(seeds.__file__).parent

_JUDGE = (
    *(_REMOTE / name for name in ("errors.py", "jail_init.py", "processes.py", "sandbox.py")),
    *(_REMOTE / name for name in ("jail_backends.py", "judge/sketch.py", "judge/spans.py", "judge/suite.py")),
    *(_SEEDS / name for name in ("distributions.py", "errors.py", "inputs.py")),
)
_STANDING_IN = {
    "remote/__init__.py": "",
    "remote/judge/__init__.py": "",
    "seeds/__init__.py": "",
    # The modules above use its types only in annotations; it needs a library that hosts do not have.
    "seeds/spec.py": '"""Stands in for the specification."""\n\nInputSpec = ProblemSpec = object\n',
}
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date in an archive: the digest depends on no clock
_SUFFIXES = frozenset({".py", ".json", ".toml"})


@dataclass(frozen=True, slots=True)
class StepArchive:
    """An archive under the name by which steps know it."""

    name: str
    data: bytes
    digest: str


@cache
def judge_archive() -> StepArchive:
    """Return the archive that every host needs."""
    files = {path.relative_to(_REMOTE.parent).as_posix(): path.read_bytes() for path in _JUDGE}
    return _pack_archive(
        "judge.zip", {**files, **{name: text.encode() for name, text in _STANDING_IN.items()}}
    )


@cache
def package_archive(package: str) -> StepArchive:
    """Return the archive of an import package, with empty ones around it."""
    files = dict.fromkeys(parent_packages(package), b"") | dict(package_files(package))
    return _pack_archive(f"{package}.zip", files)


def package_files(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an import package by their paths in an archive."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    folder, root = Path(spec.origin).parent, Path(package.replace(".", "/"))
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SUFFIXES and "__pycache__" not in path.parts:
            yield (root / path.relative_to(folder)).as_posix(), path.read_bytes()


def parent_packages(package: str) -> list[str]:
    """Return the files that make the packages around a package, outermost first."""
    names = package.split(".")[:-1]
    return ["/".join((*names[: end + 1], "__init__.py")) for end in range(len(names))]


def _pack_archive(name: str, files: Mapping[str, bytes]) -> StepArchive:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _DATE), data, zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return StepArchive(name, data, hashlib.sha256(data).hexdigest())
