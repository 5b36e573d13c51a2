"""Converts NKIBench's files to a problem; sizes, inputs and constants are read from their text.

The problem consists of the unchanged reference file, a `reference.py` that calls its `forward`, the kernel,
and a spec. Tolerance and seeds are NKIBench's. If the program has a problem with the same name and shapes,
its operations and relations are used; otherwise only the bytes bound the latency.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seeds.errors import SpecError
from seeds.nkibench.layout import BenchmarkEntry
from seeds.nkibench.reference_source import DrawnArgument, ReferenceSource, read_reference_source
from seeds.problem_files import KERNEL_FILE, MAX_FILE_BYTES, REFERENCE_FILE, REFERENCE_FUNCTION, SPEC_FILE
from seeds.spec import ProblemSpec, parse_spec

FORWARD_FILE = "nkibench.py"
SEEDS = (0, 21, 42, 63, 84)
TOLERANCE = 2e-5
TOLERANCES = {"mamba": 3e-5}
"""NKIBench's own exceptions."""

_NARROW_DTYPES = {"float64": "float32", "int64": "int32"}
"""Types that references may return, and the types that kernels return instead."""

_REDUCED_SIZE = 256
"""Sizes are halved down to this, to find out cheaply how the reference can be computed in parts."""


def convert_entry(entry: BenchmarkEntry, known: ProblemSpec | None) -> dict[str, bytes]:
    """Return the files of the problem.

    Raises:
        SpecError: the files are missing or are not in NKIBench's form; the error lists every fault.
    """
    texts = {path: _read_file(path) for path in (entry.reference, entry.kernel)}
    faults = [f"{path}: {text}" for path, text in texts.items() if isinstance(text, OSError)]
    if faults:
        raise SpecError(entry.label, faults)
    reference, kernel = (text for text in texts.values() if isinstance(text, bytes))
    source, faults = read_reference_source(reference, entry.values)
    if source is None or faults:
        raise SpecError(entry.label, [f"{entry.reference.name}: {fault}" for fault in faults])
    return {
        SPEC_FILE: _add_known_work(_format_spec(entry, source), known),
        REFERENCE_FILE: _format_reference(source).encode(),
        FORWARD_FILE: reference,
        KERNEL_FILE: kernel,
    }


def _read_file(path: Path) -> bytes | OSError:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return OSError(f"larger than {MAX_FILE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        return error


def _format_spec(entry: BenchmarkEntry, source: ReferenceSource) -> str:
    """Return the spec, without operations and relations."""
    lines = [
        f"name = {_quote_text(entry.name)}",
        f"formula = {_quote_text(source.formula)}",
        f"rel_l2 = {TOLERANCES.get(entry.name, TOLERANCE)}",
        f"seeds = {list(SEEDS)}",
        "shape_generic = false",
    ]
    lines += ["", "[sizes.full]", *_format_pairs(source.dims)]
    if not source.unbound_sizes:
        lines += [
            "",
            "[sizes.reduced]",
            *_format_pairs({name: _reduce_size(size) for name, size in source.dims.items()}),
        ]
    for position, item in enumerate(source.arguments):
        lines += [
            "",
            *(_format_input(item) if isinstance(item, DrawnArgument) else _format_scalar(*item, position)),
        ]
    for number, output in enumerate(source.outputs):
        name = "out" if len(source.outputs) == 1 else f"out_{number}"
        lines += ["", "[[outputs]]", f"name = {_quote_text(name)}", f"shape = {json.dumps(output.axes)}"]
        lines += [
            f"dtype = {_quote_text(_NARROW_DTYPES.get(output.dtype, output.dtype))}",
            'kernel_shape = "any"',
        ]
    return "\n".join([*lines, ""])


def _format_pairs(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name} = {value}" for name, value in values.items())


def _quote_text(text: str) -> str:
    return json.dumps(text)


def _reduce_size(size: int) -> int:
    while size > _REDUCED_SIZE and size % 2 == 0:
        size //= 2
    return size


def _format_input(item: DrawnArgument) -> list[str]:
    lines = ["[[inputs]]", f"name = {_quote_text(item.name)}", f"shape = {json.dumps(item.shape)}"]
    lines += [f"dtype = {_quote_text(item.dtype)}", f"distribution = {_quote_text(item.distribution)}"]
    lines += [f"scale = {item.scale}"]
    return lines if item.kernel_shape is None else [*lines, f"kernel_shape = {json.dumps(item.kernel_shape)}"]


def _format_scalar(name: str, value: float, position: int) -> list[str]:
    return ["[[scalars]]", f"name = {_quote_text(name)}", f"value = {value!r}", f"position = {position}"]


def _add_known_work(text: str, known: ProblemSpec | None) -> bytes:
    """Add operations and relations of the known problem, if it has the same arrays."""
    bare = f"{text}\n[work]\n".encode()
    spec, _ = parse_spec(bare)
    if spec is None or known is None or _array_signature(spec) != _array_signature(known):
        return bare
    lines = [text]
    for relation in known.relations:
        changes = {
            group: ", ".join(f"{name} = {_quote_text(change)}" for name, change in changed.items())
            for group, changed in (("inputs", relation.inputs), ("outputs", relation.outputs))
        }
        lines += ["[[relations]]", f"name = {_quote_text(relation.name)}"]
        lines += [f"{group} = {{ {text} }}" for group, text in changes.items() if text]
        lines += [f"linear = {json.dumps(relation.linear)}", ""] if relation.linear else [""]
    lines += [
        "[work]",
        *(f"{key} = {json.dumps(value)}" for key, value in known.work.model_dump().items()),
        "",
    ]
    return "\n".join(lines).encode()


def _array_signature(spec: ProblemSpec) -> list[tuple[str, tuple[int, ...], str]]:
    """Return names, shapes and types at full size; two problems of one name with the same are equal."""
    dims = spec.dims("full")
    found = [(item.name, item.resolve_shape(dims), item.dtype) for item in (*spec.inputs, *spec.outputs)]
    return [("dims", tuple(dims[name] for name in sorted(dims)), " ".join(sorted(dims))), *found]


def _format_reference(source: ReferenceSource) -> str:
    """Return a `reference` that sets the file's sizes from its inputs, because it may get parts of arrays."""
    module = FORWARD_FILE.removesuffix(".py")
    names = [item.name if isinstance(item, DrawnArgument) else item[0] for item in source.arguments]
    lines = [f'"""`forward` of {FORWARD_FILE}, with its sizes set to those of the arrays that come."""', ""]
    lines += [f"import {module}", "", "", f"def {REFERENCE_FUNCTION}({', '.join(names)}):"]
    for name, (owner, axis) in source.bound_sizes.items():
        lines.append(f"    {module}.{name} = {owner}.shape[{axis}]")
    return "\n".join([*lines, f"    return {module}.forward({', '.join(names)})", ""])
