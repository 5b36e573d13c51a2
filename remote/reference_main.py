"""Runs a problem's reference in a jail of its own: `main` writes its results to the given descriptors.

The request on stdin is JSON: `folder` (the problem's files), `size`, `secret` (decides which tiles are
drawn), `files`: per input set the descriptors of its outputs, in the order of the spec, written as .npy;
`excerpts`: per input set the descriptor of an .npz with the pool's tiles (`0`, `1`, ...), the `honest` error
and, for a seed, the states of its generator; and `expression`: null, or the descriptor for the reference's
formula, or for the reason why there is none (`remote.judge.identity`). As soon as the files of a set are
whole, or that of the formula, a byte goes to the answer, in this order. With `shapes`, a descriptor, the
shapes and types of the outputs are written there as JSON, and the spec's own outputs do not matter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from remote.judge import relations, seed_stream, suite
from remote.judge.identity.expression import pack_refusal
from remote.judge.identity.tracing.arrays import UntraceableError
from remote.judge.identity.tracing.loading import TracedReferenceLoader
from remote.judge.identity.tracing.recording import record_reference
from remote.judge.tiled_reference import as_outputs, make_tiled_reference
from remote.judge.tiles import OutputTile, make_tile_pool
from seeds.faults import FULL, REDUCED
from seeds.inputs import Array, draw_inputs, dtype_of, is_nonnegative
from seeds.problem_files import REFERENCE_FILE, REFERENCE_FUNCTION, SPEC_FILE
from seeds.spec import ProblemSpec, parse_spec


def main() -> int:
    """Answer the request on stdin; any fault of the reference ends in a traceback on stderr.

    The last line there says what went wrong, where, and what to do.
    """
    request = json.loads(sys.stdin.read())
    folder = Path(request["folder"])
    try:
        return _answer_request(request, folder)
    except Exception as error:  # noqa: BLE001  a reference may raise anything
        traceback.print_exc()
        sys.stderr.write(f"{_describe_fault(error, folder)}\n")
        return 1


def _describe_fault(error: Exception, folder: Path) -> str:
    """Return on one line what the reference raised, its line in the problem's own files, and what to do."""
    frames = [
        item for item in traceback.extract_tb(error.__traceback__) if item.filename.startswith(f"{folder}/")
    ]
    where = f"{Path(frames[-1].filename).relative_to(folder)}, line {frames[-1].lineno}: " if frames else ""
    text = f"{where}{type(error).__name__}: {error}".replace("\n", " ")
    if isinstance(error, ModuleNotFoundError):
        install = f".venv/bin/python -m pip install {(error.name or '').partition('.')[0]}"
        text += f"; install it for agentctl ({install}), or write the reference with NumPy"
    return text


def _answer_request(request: Mapping[str, Any], folder: Path) -> int:
    spec, faults = parse_spec((folder / SPEC_FILE).read_bytes())
    if spec is None:
        raise ValueError("; ".join(faults))
    reference = _load_reference(folder, spec)
    if "shapes" in request:
        _write_shapes(reference, spec, request["size"], descriptor=request["shapes"])
        return 0
    for name, descriptors in request["files"].items():
        with np.errstate(all=None if name.isdecimal() else "ignore"):
            outputs = reference(*suite.draw_set(spec, request["size"], name))
            _write_outputs(outputs, spec, spec.dims(request["size"]), descriptors=descriptors)
        _tell_finished()
    if request["excerpts"]:
        _check_relations(reference, spec)
        tiles = make_tile_pool(spec, request["size"], request["secret"])
        _write_excerpts(reference, spec, request, tiles=tiles)
    if request["expression"] is not None:
        with os.fdopen(request["expression"], "wb") as file:
            file.write(_record_expression(folder, spec, request["size"]))
        _tell_finished()
    return 0


def _tell_finished() -> None:
    """Tell the process outside that the next files are whole, so that it keeps them."""
    os.write(int(sys.argv[-1]), b".")


def _write_shapes(reference: Callable[..., Any], spec: ProblemSpec, size: str, *, descriptor: int) -> None:
    with np.errstate(all="ignore"):
        found = reference(*draw_inputs(spec, size, spec.seeds[0]))
    outputs = [np.asarray(item) for item in (found if isinstance(found, tuple) else (found,))]
    shapes = [[item.shape, str(item.dtype)] for item in outputs]
    with os.fdopen(descriptor, "w") as file:
        json.dump(shapes, file)


def _record_expression(folder: Path, spec: ProblemSpec, size: str) -> bytes:
    """Trace the reference; its module is loaded again, so that arrays it creates on import are traced too."""
    dims = spec.dims(size)
    inputs = [(item.resolve_shape(dims), dtype_of(item.dtype)) for item in spec.inputs]
    outputs = [item.resolve_shape(dims) for item in spec.outputs]
    nonnegative = [position for position, item in enumerate(spec.inputs) if is_nonnegative(item)]

    def anew(*arrays: Any) -> Any:
        return _load_reference(folder, spec, TracedReferenceLoader)(*arrays)

    try:
        return record_reference(anew, inputs, outputs, nonnegative).to_bytes()
    except UntraceableError as error:
        return pack_refusal(str(error)) if error.part is None else error.part.pack_as_part(str(error))


def _write_excerpts(
    reference: Callable[..., Any],
    spec: ProblemSpec,
    request: Mapping[str, Any],
    *,
    tiles: Sequence[OutputTile],
) -> None:
    size = request["size"]
    found = make_tiled_reference(reference, spec, size)
    for name, descriptor in request["excerpts"].items():
        inputs, marks = _draw_inputs(spec, size, name)
        with np.errstate(all="ignore"):
            truth = found.evaluate(inputs, tiles)
            error = found.reordering_error(inputs, tiles, truth)
            if not name.isdecimal() and np.isfinite(error):
                allowed = (found.narrow_type_error, found.mx_error)
                is_kept = all(lost(inputs, tiles, truth) <= spec.rel_l2 for lost in allowed)
                error = error if is_kept else inf
        with os.fdopen(descriptor, "wb") as file:
            arrays = {str(number): array for number, array in enumerate(truth)}
            np.savez(
                file, allow_pickle=False, honest=np.float64(error), **arrays, **seed_stream.name_states(marks)
            )
        _tell_finished()


def _check_relations(reference: Callable[..., Any], spec: ProblemSpec) -> None:
    """Check the declared relations: one that the reference itself breaks is a fault of the problem."""
    size = REDUCED if REDUCED in spec.sizes else FULL
    inputs = draw_inputs(spec, size, spec.seeds[0])
    given = as_outputs(reference(*inputs), spec)
    _check_shapes(given, spec, spec.dims(size))
    if not all(np.isfinite(array.astype(np.float32)).all() for array in given):
        return  # nothing to compare with; the comparison with kernels will report that
    found = relations.find_broken_relation(
        spec,
        size,
        inputs,
        lambda arrays, _: as_outputs(reference(*arrays), spec),
        tolerance=spec.rel_l2 / relations.RELATION_FACTOR,
        key=spec.name.encode(),
    )
    if found is not None:
        raise ValueError(f"{found} (in {SPEC_FILE}, of the reference)")


def _draw_inputs(
    spec: ProblemSpec, size: str, name: str
) -> tuple[list[Array], list[seed_stream.GeneratorStates]]:
    """Draw the inputs of a set; for a seed, also the states that allow drawing parts."""
    if name.isdecimal():
        return seed_stream.draw_with_states(spec, size, int(name))
    return suite.draw_set(spec, size, name), []


def _load_reference(
    folder: Path, spec: ProblemSpec, loader: type[SourceFileLoader] = SourceFileLoader
) -> Callable[..., Any]:
    """The reference as a function of the inputs only; the scalars are bound here."""
    sys.path.insert(0, str(folder))
    file = str(folder / REFERENCE_FILE)
    location = importlib.util.spec_from_file_location("reference", file, loader=loader("reference", file))
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, REFERENCE_FUNCTION)
    return lambda *arrays: function(*spec.call_arguments(arrays, lambda value: value))


def _write_outputs(
    found: Any, spec: ProblemSpec, dims: Mapping[str, int], *, descriptors: Sequence[int]
) -> None:
    outputs = as_outputs(found, spec)
    _check_shapes(outputs, spec, dims)
    for array, descriptor in zip(outputs, descriptors, strict=True):
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def _check_shapes(outputs: Sequence[Array], spec: ProblemSpec, dims: Mapping[str, int]) -> None:
    for output, array in zip(spec.outputs, outputs, strict=True):
        if np.shape(array) != output.resolve_shape(dims):
            wanted = output.resolve_shape(dims)
            raise ValueError(f"{output.name} has shape {np.shape(array)}, and {SPEC_FILE} says {wanted}")
