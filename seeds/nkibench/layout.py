"""Finds the files of one of NKIBench's problems from a path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeds.errors import SpecError, UnknownProblemError

SUMMARY_FILE = "summary.json"
_KERNELS, _REFERENCES = "kernels", "reference"


@dataclass(frozen=True, slots=True)
class BenchmarkEntry:
    """A problem at one configuration: `label` includes its sizes, `values` are the summary's, if any."""

    name: str
    label: str
    kernel: Path
    reference: Path
    values: Mapping[str, int] = field(default_factory=dict)

    def matches_path(self, path: Path) -> bool:
        return path in (self.kernel, self.reference) or path.name in (self.name, self.label)


def find_entry(path: Path) -> BenchmarkEntry | None:
    """Return the problem that `path` names, or None if it is not part of NKIBench.

    Raises:
        UnknownProblemError: the path is in a folder of NKIBench, but names none of its problems, or several.
        SpecError: the folder's summary is invalid.
    """
    path = path.expanduser().absolute()
    folder = _find_root(path)
    if folder is None:
        return None
    entries = list(_list_entries(folder))
    meant = [entry for entry in entries if entry.matches_path(path)]
    if len(meant) == 1:
        return meant[0]
    labels = [str(folder / entry.label) for entry in meant or entries]
    raise UnknownProblemError(str(path), labels)


def _find_root(path: Path) -> Path | None:
    """Return NKIBench's folder, if `path` is it, is directly in it, or is one of its files."""
    around = [path.parent.parent] if path.is_file() and path.parent.name in (_KERNELS, _REFERENCES) else []
    inside = [] if path.exists() else [path.parent]
    return next((item for item in (path, *around, *inside) if _is_root(item)), None)


def _is_root(folder: Path) -> bool:
    return (folder / _KERNELS).is_dir() and (folder / _REFERENCES).is_dir()


def _list_entries(folder: Path) -> Iterator[BenchmarkEntry]:
    """Yield the entries of the summary, then other pairs of files."""
    listed = list(_summary_entries(folder)) if (folder / SUMMARY_FILE).is_file() else []
    yield from listed
    for kernel in sorted((folder / _KERNELS).glob("*.py")):
        label = _kernel_label(kernel)
        references = sorted((folder / _REFERENCES).glob(f"{label}_numpy*.py"))
        if references and kernel not in {entry.kernel for entry in listed}:
            yield BenchmarkEntry(re.sub(r"(_[A-Z]+\d+)+$", "", label), label, kernel, references[0])


def _summary_entries(folder: Path) -> Iterator[BenchmarkEntry]:
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_bytes())
        for name, problem in summary.items():
            for case in problem["cases"].values():
                for files in case["impls"]:
                    yield _make_entry(folder, name, case["values"], files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            folder.name, [f"{folder / SUMMARY_FILE}: not a summary of NKIBench: {error!r}"]
        ) from error


def _make_entry(
    folder: Path, name: str, values: Mapping[str, Any], *, files: Mapping[str, str]
) -> BenchmarkEntry:
    kernel, reference = (folder / files[key] for key in ("kernel", "task"))
    return BenchmarkEntry(name, _kernel_label(kernel), kernel, reference, dict(values))


def _kernel_label(kernel: Path) -> str:
    return re.sub(r"_\d+$", "", kernel.stem)
