"""Reads a PyTorch module as a reference: exports it in a process of its own, and writes its NumPy text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from seeds.errors import ScaffoldError
from seeds.from_reference import ReferenceFile, parse_reference, read_reference
from seeds.from_torch import export_program, read_graph, write_reference

DEADLINE_SECONDS = 300.0

Command = Callable[..., Any]


def from_torch_option() -> Callable[[Command], Command]:
    """The option that names a module in place of a reference."""
    text = "A PyTorch module to translate, or the JSON of one that was exported elsewhere."
    return click.option("--from-torch", "module", metavar="FILE.py:MODULE", help=text)


def read_source(reference: Path | None, module: str | None, name: str | None = None) -> ReferenceFile | None:
    """Return the reference that a file or a module gives; None if neither is named.

    Raises:
        ScaffoldError: it cannot be read.
        click.UsageError: both are named.
    """
    if reference is not None and module is not None:
        raise click.UsageError("name a reference, or a module with --from-torch, not both")
    if module is not None:
        return read_module(module, name)
    return None if reference is None else read_reference(reference, name)


def read_module(module: str, name: str | None = None) -> ReferenceFile:
    """Return the reference of FILE.py:MODULE, or of a stored graph; `name` is the problem's.

    Raises:
        ScaffoldError: torch is missing, the module cannot be exported, or an operator has no NumPy text.
    """
    path, graph = _read_graph(module)
    text = write_reference(read_graph(graph, module), path.name)
    fallback = re.sub(r"\W", "_", path.stem if path.suffix == ".json" else module.rpartition(":")[2])
    return parse_reference(text, path, name or fallback.lower())


def _read_graph(module: str) -> tuple[Path, bytes]:
    if module.endswith(".json"):
        try:
            return Path(module), Path(module).read_bytes()
        except OSError as error:
            raise ScaffoldError(f"{module}: {error.strerror or error}") from None
    file, colon, name = module.rpartition(":")
    if not colon or not name.isidentifier():
        raise ScaffoldError(f"{module}: name a module as FILE.py:MODULE, or a stored graph as FILE.json")
    if not Path(file).is_file():
        raise ScaffoldError(f"{file}: No such file")
    return Path(file), _export(Path(file), name)


def _export(path: Path, name: str) -> bytes:
    command = [sys.executable, str(export_program.__file__), str(path.resolve()), name]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ScaffoldError(f"{path}: exporting {name} took longer than {DEADLINE_SECONDS:g} s") from None
    if done.returncode == export_program.NO_TORCH:
        raise ScaffoldError(
            "--from-torch needs torch, which is not installed here: pip install 'torch>=2.6,<3' (the extra "
            f"`torch`), or export the module where torch is with {export_program.__file__}"
        )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise ScaffoldError(f"{path}:{name}: {said[-1][:1000]}")
    return done.stdout
