"""Problems, as the rest of the program uses them: a spec and the bytes of every file, under one digest.

`load_problem` reads a problem by name or from any folder. `build_problem` builds one from bytes alone, as
evaluators do: a run holds its problem as blobs and never reads the folder again.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from seeds.errors import NoStartingKernelError, SpecError, UnknownProblemError, suggest_nearest
from seeds.problem_files import (
    KERNEL_FILE,
    MAX_FILE_BYTES,
    MAX_FILES,
    REFERENCE_FILE,
    REFERENCE_FUNCTION,
    SPEC_FILE,
    WORKLOAD_FILE,
)
from seeds.spec import ProblemSpec, parse_spec
from state.model import ProblemRef, canonical_json, digest_of

_FOLDER = Path(__file__).parent / "problems"


@dataclass(frozen=True, slots=True)
class Problem:
    """A valid problem. `digest` covers the path and bytes of every file."""

    spec: ProblemSpec
    files: Mapping[str, bytes]
    digest: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kernel(self) -> str:
        """The source of the Python starting kernel; raises NoStartingKernelError if there is none."""
        return self.starting_kernel(KERNEL_FILE)

    def starting_kernel(self, file: str) -> str:
        """Return the source of the starting kernel in `file`, which a language chooses.

        Raises:
            NoStartingKernelError: the problem has no such file.
        """
        if file not in self.files:
            raise NoStartingKernelError(self.name, file, list_kernel_files(self.files))
        return self.files[file].decode()

    def make_ref(self) -> ProblemRef:
        """Return what a run and its evaluations hold: names and digests; the bytes are blobs."""
        digests = {path: digest_of(data) for path, data in self.files.items()}
        return ProblemRef(name=self.name, digest=self.digest, files=digests)


def builtin_problems() -> tuple[str, ...]:
    """Return the names of the built-in problems, sorted."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob(f"*/{SPEC_FILE}")))


def load_problem(name_or_path: str | Path) -> Problem:
    """Load a problem: one of `builtin_problems()`, a folder that holds one, or one of NKIBench's.

    Raises:
        UnknownProblemError: neither a known name nor a folder, nor one of NKIBench's.
        SpecError: its files are wrong; the error lists every fault.
    """
    if str(name_or_path) in builtin_problems():
        return _read_folder(_FOLDER / str(name_or_path))
    folder = Path(name_or_path).expanduser()
    converted = None if (folder / SPEC_FILE).exists() else _convert_path(folder)
    if converted is not None:
        return build_problem(converted)
    if folder.is_dir():
        return _read_folder(folder)
    raise UnknownProblemError(str(name_or_path), builtin_problems())


def _convert_path(folder: Path) -> dict[str, bytes] | None:
    from seeds.nkibench import convert_path  # not at the top: it loads NumPy

    return convert_path(folder, _builtin_spec)


def _builtin_spec(name: str) -> ProblemSpec | None:
    return _read_folder(_FOLDER / name).spec if name in builtin_problems() else None


def build_problem(files: Mapping[str, bytes]) -> Problem:
    """Build a problem from the bytes of its files, by relative path.

    Raises:
        SpecError: the files are wrong; the error lists every fault.
    """
    spec, faults = parse_spec(files[SPEC_FILE]) if SPEC_FILE in files else (None, [f"{SPEC_FILE}: missing"])
    faults += _file_faults(files)
    faults += _reference_faults(files, len(spec.inputs) + len(spec.scalars) if spec else None)
    if KERNEL_FILE in files:
        faults += _parse_python(files, KERNEL_FILE)[1]
    faults += _workload_faults(files, spec.sizes if spec else ())
    if spec is None or faults:
        raise SpecError(spec.name if spec else "?", faults)
    ordered = dict(sorted(files.items()))
    digests = {path: digest_of(data) for path, data in ordered.items()}
    return Problem(spec=spec, files=ordered, digest=digest_of(canonical_json(digests)))


def list_kernel_files(files: Iterable[str]) -> list[str]:
    """Return the starting kernels among a problem's files, one for each language."""
    return sorted(path for path in files if "/" not in path and path.startswith("kernel."))


def _read_folder(folder: Path) -> Problem:
    files: dict[str, bytes] = {}
    for path in _iterate_members(folder):
        if len(files) == MAX_FILES:
            raise SpecError(folder.name, [f"{folder}: holds more than {MAX_FILES} files"])
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SpecError(folder.name, [f"{path}: larger than {MAX_FILE_BYTES} bytes"])
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    try:
        return build_problem(files)
    except SpecError as error:
        raise SpecError(folder.name, error.faults) from None


def _iterate_members(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a problem's folder, without hidden files, links and byte code."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not path.is_symlink() and not hidden:
            yield path


def _file_faults(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield faults of the file names: submitted problems are written to disk when a reference runs."""
    if len(files) > MAX_FILES:
        yield f"holds more than {MAX_FILES} files"
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    for path, data in files.items():
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            yield f"{path!r}: not a path inside the problem"
        if path in folders:
            yield f"{path!r}: a file and a folder at once"
        if len(data) > MAX_FILE_BYTES:
            yield f"{path!r}: larger than {MAX_FILE_BYTES} bytes"


def _reference_faults(files: Mapping[str, bytes], arguments: int | None) -> list[str]:
    """Return the faults of the reference as a function of `arguments` arguments, from its text."""
    tree, faults = _parse_python(files, REFERENCE_FILE)
    if tree is None:
        return faults
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    functions = {node.name: node.args for node in found}
    if REFERENCE_FUNCTION not in functions:
        close = suggest_nearest(REFERENCE_FUNCTION, functions)
        return [f"{REFERENCE_FILE}: defines no function {REFERENCE_FUNCTION!r}{close}"]
    return [] if arguments is None else list(_signature_faults(functions[REFERENCE_FUNCTION], arguments))


def _signature_faults(taken: ast.arguments, count: int) -> Iterator[str]:
    names = [*taken.posonlyargs, *taken.args]
    least = len(names) - len(taken.defaults)
    if not least <= count <= (count if taken.vararg else len(names)):
        text = f"takes {len(names)} arguments, the problem has {count} inputs and scalars"
        yield f"{REFERENCE_FILE}: {REFERENCE_FUNCTION!r} {text}"
    for item, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True):
        if default is None:
            text = f"needs {item.arg!r} by name; all are given in order"
            yield f"{REFERENCE_FILE}: {REFERENCE_FUNCTION!r} {text}"


def _workload_faults(files: Mapping[str, bytes], sizes: Collection[str]) -> Iterator[str]:
    """Yield faults of the workload graphs of the sizes, if there are any; calls are not checked."""
    if WORKLOAD_FILE not in files:
        return
    try:
        told = json.loads(files[WORKLOAD_FILE])
    except (ValueError, RecursionError) as error:
        yield f"{WORKLOAD_FILE}: not JSON: {error}"
        return
    graphs = told.get("graphs") if isinstance(told, dict) else None
    if not isinstance(graphs, dict):
        yield f"{WORKLOAD_FILE}: has no table 'graphs'"
        return
    for name in graphs:
        if sizes and name not in sizes:
            yield f"{WORKLOAD_FILE}: has a graph for {name!r}, which is no size{suggest_nearest(name, sizes)}"


def _parse_python(files: Mapping[str, bytes], path: str) -> tuple[ast.Module | None, list[str]]:
    if path not in files:
        return None, [f"{path}: missing"]
    try:
        return ast.parse(files[path]), []
    except SyntaxError as error:
        return None, [f"{path}: not Python: line {error.lineno or 1}: {error.msg}"]
    except (ValueError, RecursionError, MemoryError) as error:
        return None, [f"{path}: not Python: {error}"]
