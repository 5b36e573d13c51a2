"""Runs a problem's reference in a jail of its own: `main` writes what it gives to given descriptors.

The request on stdin is JSON: `folder` (the problem's files), `size`, `secret` (which tiles are drawn with),
`files`: per input set the descriptors of its outputs, in the order of the spec, written as .npy; and
`excerpts`: per input set the descriptor of an .npz with the pool's tiles (`0`, `1`, ...), the `honest` error
and, of a seed, the marks of its generator. Into `expression` goes what the reference computes, or why that
cannot be said (`remote.judge.identity`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from remote.judge import relations, stream, suite
from remote.judge.excerpts import excerpts, outputs_of
from remote.judge.identity.expression import refusal
from remote.judge.identity.tracing.arrays import UntraceableError
from remote.judge.identity.tracing.recording import record
from remote.judge.tiles import Tile, pool
from seeds.faults import FULL, REDUCED
from seeds.folder import REFERENCE, REFERENCE_FUNCTION, SPEC
from seeds.inputs import Array, draw, dtype_of
from seeds.spec import ProblemSpec, parse


def main() -> int:
    """Answer the request on stdin; any fault of the reference ends in a traceback on stderr."""
    request = json.loads(sys.stdin.read())
    folder = Path(request["folder"])
    spec, faults = parse((folder / SPEC).read_bytes())
    if spec is None:
        raise ValueError("; ".join(faults))
    reference = _load(folder, spec)
    for name, descriptors in request["files"].items():
        with np.errstate(all=None if name.isdecimal() else "ignore"):
            outputs = reference(*suite.inputs(spec, request["size"], name))
            _write(outputs, spec, spec.dims(request["size"]), descriptors)
    if request["excerpts"]:
        _keeps_relations(reference, spec)
        tiles = pool(spec, request["size"], request["secret"])
        _excerpts(reference, spec, request["size"], tiles, request["excerpts"])
    if request["expression"] is not None:
        with os.fdopen(request["expression"], "wb") as file:
            file.write(_expression(folder, spec, request["size"]))
    return 0


def _expression(folder: Path, spec: ProblemSpec, size: str) -> bytes:
    """What the reference computes; its module is read anew, so that arrays made there are followed too."""
    dims = spec.dims(size)
    inputs = [(item.resolve(dims), dtype_of(item.dtype)) for item in spec.inputs]
    outputs = [item.resolve(dims) for item in spec.outputs]

    def anew(*arrays: Any) -> Any:
        return _load(folder, spec)(*arrays)

    try:
        return record(anew, inputs, outputs).dumps()
    except UntraceableError as error:
        return refusal(str(error))


def _excerpts(
    reference: Callable[..., Any],
    spec: ProblemSpec,
    size: str,
    tiles: Sequence[Tile],
    files: Mapping[str, int],
) -> None:
    found = excerpts(reference, spec, size)
    for name, descriptor in files.items():
        inputs, marks = _drawn(spec, size, name)
        with np.errstate(all="ignore"):
            truth = found.evaluate(inputs, tiles)
            error = found.honest_error(inputs, tiles, truth)
            if not name.isdecimal() and np.isfinite(error):
                kept = found.narrow_error(inputs, tiles, truth) <= spec.rel_l2
                error = error if kept else inf
        with os.fdopen(descriptor, "wb") as file:
            arrays = {str(number): array for number, array in enumerate(truth)}
            np.savez(file, allow_pickle=False, honest=np.float64(error), **arrays, **stream.named(marks))


def _keeps_relations(reference: Callable[..., Any], spec: ProblemSpec) -> None:
    """A relation that the reference itself breaks is a fault of the problem, not of any kernel."""
    size = REDUCED if REDUCED in spec.sizes else FULL
    inputs = draw(spec, size, spec.seeds[0])
    given = outputs_of(reference(*inputs), spec)
    _check_shapes(given, spec, spec.dims(size))
    if not all(np.isfinite(array.astype(np.float32)).all() for array in given):
        return  # nothing to compare with, as whoever compares kernels with it will find
    found = relations.broken(
        spec,
        size,
        inputs,
        lambda arrays, _: outputs_of(reference(*arrays), spec),
        tolerance=spec.rel_l2 / relations.FACTOR,
        key=spec.name.encode(),
    )
    if found is not None:
        raise ValueError(f"{found} (in {SPEC}, of the reference)")


def _drawn(spec: ProblemSpec, size: str, name: str) -> tuple[list[Array], list[stream.Marks]]:
    """The inputs of a set; of a seed's, what makes them drawable in parts."""
    if name.isdecimal():
        return stream.draw_marked(spec, size, int(name))
    return suite.inputs(spec, size, name), []


def _load(folder: Path, spec: ProblemSpec) -> Callable[..., Any]:
    """The reference as a function of the inputs; it gets the scalars here."""
    sys.path.insert(0, str(folder))
    location = importlib.util.spec_from_file_location("reference", folder / REFERENCE)
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, REFERENCE_FUNCTION)
    return lambda *arrays: function(*spec.arguments(arrays, lambda value: value))


def _write(found: Any, spec: ProblemSpec, dims: Mapping[str, int], descriptors: Sequence[int]) -> None:
    outputs: tuple[Array, ...] = found if isinstance(found, tuple) else (found,)
    _check_shapes(outputs, spec, dims)
    for output, array, descriptor in zip(spec.outputs, outputs, descriptors, strict=True):
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, np.ascontiguousarray(array, dtype=dtype_of(output.dtype)), allow_pickle=False)


def _check_shapes(outputs: Sequence[Array], spec: ProblemSpec, dims: Mapping[str, int]) -> None:
    for output, array in zip(spec.outputs, outputs, strict=True):
        if np.shape(array) != output.resolve(dims):
            raise ValueError(f"{output.name} has shape {np.shape(array)}, not {output.resolve(dims)}")
