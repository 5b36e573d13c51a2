"""Loads a workload's file as data: runs its module in a process of its own, and validates the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from pydantic import Field, TypeAdapter, ValidationError

from seeds import Problem, SeedsError, build_problem
from seeds.from_reference import ReferenceFile
from seeds.problem_files import MAX_FILE_BYTES
from state.model import FrozenModel
from targets.nki.knobs.errors import KnobError, WorkloadError
from targets.nki.knobs.formula_graph import graph_of_formula
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.tracing import TYPES
from targets.nki.knobs.tuning import problem
from targets.nki.knobs.tuning.workload_module import GRAPH, TRUTH
from targets.nki.knobs.workload_file import WORKLOAD_FILE, dump_graphs, load_graph

DEADLINE_SECONDS = 120.0
MOST_ANSWER_BYTES = 4 * MAX_FILE_BYTES
MOST_STDERR_BYTES = 2000


class WorkloadFileError(Exception):
    """A workload's file that cannot be tuned; `faults` lists everything that is wrong with it."""

    code = "invalid_workload"

    def __init__(self, path: Path, faults: tuple[str, ...]) -> None:
        self.faults = faults
        count = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}"
        super().__init__("\n  - ".join([f"workload {path} has {count}:", *faults]))


class Workload(FrozenModel):
    """The contents of a workload's file, for one target. `target_mfu` is a share of the peak.

    `graphs` is None for a file with `f_numpy` alone.
    """

    name: str = Field(min_length=1, max_length=64)
    inputs: dict[str, tuple[tuple[int, ...], str]]
    graphs: str | None
    reference: str
    cache_root: str = Field(min_length=1)
    hosts: tuple[str, ...]
    target_mfu: float = Field(gt=0, le=1)


class _Faults(FrozenModel):
    faults: tuple[str, ...] = Field(min_length=1)


class _Sound(FrozenModel):
    ok: Workload


_ANSWER: TypeAdapter[_Sound | _Faults] = TypeAdapter(_Sound | _Faults)


def load_workload(path: Path, target: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> Workload:
    """Run a workload's file and return its contents; a relative `CACHE_ROOT` is relative to the file.

    Raises:
        WorkloadFileError: it cannot be read, ends in an error, or takes too long; a name is missing or
            malformed; the function cannot be traced, or disagrees with `f_numpy`.
    """
    if not path.is_file():
        raise WorkloadFileError(path, ("there is no such file",))
    try:
        answer = _ANSWER.validate_json(_read_in_process(path, target, deadline_seconds))
    except ValidationError as error:
        raise WorkloadFileError(path, ("its process ended before it had answered",)) from error
    if isinstance(answer, _Faults):
        raise WorkloadFileError(path, answer.faults)
    root = path.parent.resolve() / Path(answer.ok.cache_root).expanduser()
    return answer.ok.model_copy(update={"cache_root": str(root)})


def workload_problem(path: Path, workload: Workload, size: str, target: str) -> Problem:
    """Return the problem of a workload, at its own shapes or, at the size `reduced`, at small ones.

    Raises:
        WorkloadFileError: it has no such size, no configuration fits, or its reference is invalid.
    """
    try:
        graph = load_graph((workload.graphs or "").encode(), size, target)
        return build_problem(problem.problem_files(graph, workload.reference, size))
    except (WorkloadError, KnobError) as error:
        raise WorkloadFileError(path, (f"{WORKLOAD_FILE}: {error}",)) from error
    except SeedsError as error:
        raise WorkloadFileError(path, (str(error),)) from error


def add_graph(made: Problem, formula: bytes, size: str, target: str) -> tuple[Problem, str | None]:
    """Return a problem with the graph of its reference's formula, whose knobs a run can then search.

    Where the operators cannot express the formula, or no configuration fits, it is unchanged; the second
    value says why.
    """
    try:
        graph = _formula_graph(made, formula, size, target=target)
    except (WorkloadError, KnobError) as error:
        return made, str(error)
    return build_problem({**made.files, WORKLOAD_FILE: dump_graphs({size: graph})}), None


def _formula_graph(made: Problem, formula: bytes, size: str, *, target: str) -> Graph:
    spec = made.spec
    dims = spec.dims(size)
    specs = {item.name: (item.resolve_shape(dims), item.dtype) for item in spec.inputs}
    graph = graph_of_formula(formula, specs, name=spec.name, target=target)
    (output,) = spec.outputs
    result = graph.value[graph.output]
    if (graph.shape(graph.output), result.dtype) != (output.resolve_shape(dims), output.dtype):
        raise WorkloadError(f"operators give the result in {result.dtype}, the problem has {output.dtype}")
    default_ir(graph)
    return graph


def workload_reference(path: Path, workload: Workload, size: str) -> ReferenceFile:
    """Return the reference of a workload with `f_numpy` alone, to be translated at its own shapes.

    Outputs have the widest type of the inputs, and the products the rate of that type.

    Raises:
        WorkloadFileError: another size was asked for.
    """
    if size != problem.FULL:
        fault = (
            f"has no size {size!r}: {TRUTH} alone is translated at its own shapes; write {GRAPH} beside it"
        )
        raise WorkloadFileError(path, (fault,))
    types = {dtype for _, dtype in workload.inputs.values()}
    widest = next((dtype for dtype in TYPES if dtype in types), TYPES[0])
    return ReferenceFile(
        name=workload.name,
        text=workload.reference,
        inputs=workload.inputs,
        distributions={},
        tolerance=problem.ROUNDED.get(widest, problem.FLOAT32),
        formula=f"{TRUTH} of {path.name}",
        output_dtype=widest,
    )


def _read_in_process(path: Path, target: str, deadline_seconds: float) -> bytes:
    """Return the reading process's stdout; kill its group when it is late."""
    command = [sys.executable, "-m", "targets.nki.knobs.tuning.workload_reader", str(path.resolve()), target]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=complained, start_new_session=True
        )
        try:
            status = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired as error:
            raise WorkloadFileError(path, (f"it did not end within {deadline_seconds:g} s",)) from error
        finally:
            _kill_group(process)
        if status != 0:
            raise WorkloadFileError(
                path, (f"its process ended with status {status}: {_stderr_tail(complained)}",)
            )
        if said.seek(0, os.SEEK_END) > MOST_ANSWER_BYTES:
            raise WorkloadFileError(path, (f"what it says has more than {MOST_ANSWER_BYTES} bytes",))
        said.seek(0)
        return said.read()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the process group, including what a finished process left behind in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    process.wait()


def _stderr_tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_STDERR_BYTES))
    return file.read().decode(errors="replace").strip() or "nothing on stderr"
