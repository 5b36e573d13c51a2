"""Makes a problem from a file with a NumPy reference alone: `reference` and `INPUT_SPECS`.

The file may also say `VALUES` (by input, a distribution) and `TOLERANCE` (relative L2). These are read from
the file's text, as literals, so nothing of it runs here. What only running it shows (the outputs' shapes) is
given by the caller, who runs it in a jail.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeds.errors import ScaffoldError
from seeds.problem import Problem, build_problem
from seeds.problem_files import KERNEL_FILE, REFERENCE_FILE, REFERENCE_FUNCTION, SPEC_FILE
from seeds.spec import ITEMSIZE_BYTES

_TOLERANCE = 2e-5
_SEEDS = [0, 21, 42, 63, 84]


_IN_FLOAT64 = """


def _in_float64(compute):
    def reference(*arrays):
        # bfloat16 and float8 are no types of NumPy itself: their kind is "V"
        found = compute(*(a.astype("float64") if a.dtype.kind in "fV" else a for a in arrays))
        items = found if isinstance(found, tuple) else (found,)
        items = tuple(item.reshape(1) if getattr(item, "shape", None) == () else item for item in items)
        return items if isinstance(found, tuple) else items[0]

    return reference


reference = _in_float64(reference)  # what a kernel is compared with has no rounding of its own
"""
"""What a reference's text ends with in a problem: engineers' arrays are narrow floats, numbers no arrays."""


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """A reference's text, and what it declares; inputs by name have a shape and a type.

    `output_dtype` is the type of outputs that NumPy computes in a wide one, and of products.
    """

    name: str
    text: str
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    distributions: Mapping[str, str]
    tolerance: float
    formula: str
    output_dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class OutputShape:
    """An output of a reference: its shape, and its type."""

    shape: tuple[int, ...]
    dtype: str


def read_reference(path: Path, name: str | None = None) -> ReferenceFile:
    """Read what a file declares; `name` is the problem's, by default the file's.

    Raises:
        ScaffoldError: it cannot be read, or a declaration is missing or wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScaffoldError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return parse_reference(text, path, name)


def parse_reference(text: str, path: Path, name: str | None = None) -> ReferenceFile:
    """Read what a file's text declares; `path` is what errors name.

    Raises:
        ScaffoldError: a declaration is missing or wrong.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ScaffoldError(f"{path}, line {error.lineno}: not Python: {error.msg}") from None
    found = _literals(path, tree)
    if not any(isinstance(item, ast.FunctionDef) and item.name == REFERENCE_FUNCTION for item in tree.body):
        raise ScaffoldError(f"{path}: has no function `{REFERENCE_FUNCTION}`")
    if "INPUT_SPECS" not in found:
        raise ScaffoldError(f'{path}: needs INPUT_SPECS = {{"x": ((1024, 512), "float32"), ...}}')
    return ReferenceFile(
        name=name or path.stem,
        text=text,
        inputs=_read_inputs(path, found["INPUT_SPECS"]),
        distributions=_read_distributions(path, found.get("VALUES", {})),
        tolerance=_read_tolerance(path, found.get("TOLERANCE", _TOLERANCE)),
        formula=((ast.get_docstring(tree) or "").strip().splitlines() or [path.stem])[0][:200],
    )


def _literals(path: Path, tree: ast.Module) -> dict[str, Any]:
    """The declarations among a module's assignments.

    Raises:
        ScaffoldError: one is not a literal.
    """
    found = {}
    for item in tree.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            name = item.targets[0].id
            if name in {"INPUT_SPECS", "VALUES", "TOLERANCE"}:
                try:
                    found[name] = ast.literal_eval(item.value)
                except ValueError:
                    raise ScaffoldError(
                        f"{path}, line {item.lineno}: {name} has to be written out, without names or calls"
                    ) from None
    return found


def _read_inputs(path: Path, found: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    inputs = {}
    for name, spec in found.items() if isinstance(found, dict) else ():
        shape, dtype = spec if isinstance(spec, tuple) and len(spec) == 2 else (None, None)
        is_shape = isinstance(shape, tuple) and all(isinstance(size, int) and size > 0 for size in shape)
        if not isinstance(name, str) or not is_shape or dtype not in ITEMSIZE_BYTES:
            types = ", ".join(ITEMSIZE_BYTES)
            raise ScaffoldError(f"{path}: INPUT_SPECS of {name!r} is no (shape, type); types: {types}")
        inputs[name] = (tuple(shape or (1,)), str(dtype))
    if not inputs:
        example = 'INPUT_SPECS = {"x": ((1024, 512), "float32")}'
        raise ScaffoldError(f"{path}: INPUT_SPECS names no input; write, for example, {example}")
    return inputs


def _read_distributions(path: Path, found: Any) -> dict[str, str]:
    names: dict[str, str] = found if isinstance(found, dict) else {"": found}
    if not all(isinstance(text, str) for pair in names.items() for text in pair) or "" in names:
        raise ScaffoldError(f'{path}: VALUES is no table such as {{"x": "positive"}}')
    return names


def _read_tolerance(path: Path, found: Any) -> float:
    if not isinstance(found, float) or not 0 < found < 1:
        raise ScaffoldError(f"{path}: TOLERANCE is {found!r}, not a number between 0 and 1")
    return found


def make_problem(
    file: ReferenceFile,
    outputs: Sequence[OutputShape],
    *,
    work: Mapping[str, int] | None = None,
    kernel: str | None = None,
) -> Problem:
    """Return the problem of a reference; without a kernel it has one that computes nothing.

    Raises:
        SpecError: the files are wrong; the error lists every fault.
    """
    arguments = ", ".join(file.inputs)
    stub = f"import nki\n\n\n@nki.jit\ndef {file.name}({arguments}):\n    raise NotImplementedError\n"
    texts = {
        SPEC_FILE: _spec_text(file, outputs, work or {}),
        REFERENCE_FILE: file.text.rstrip() + _IN_FLOAT64,
        KERNEL_FILE: kernel or stub,
    }
    return build_problem({name: text.encode() for name, text in texts.items()})


def _spec_text(file: ReferenceFile, outputs: Sequence[OutputShape], work: Mapping[str, int]) -> str:
    lines = [
        f'name = "{file.name}"',
        f"formula = {_quoted(file.formula)}",
        f"rel_l2 = {file.tolerance!r}",
        f"seeds = {_SEEDS}",
        "shape_generic = false",
        "",
        "[sizes.full]",
        "UNIT = 1  # shapes are written as numbers",
    ]
    for name, (shape, dtype) in file.inputs.items():
        lines += ["", "[[inputs]]", f'name = "{name}"', f"shape = {list(shape)}", f'dtype = "{dtype}"']
        if name in file.distributions:
            lines.append(f'distribution = "{file.distributions[name]}"')
    for at, output in enumerate(outputs):
        name = "out" if len(outputs) == 1 else f"out_{at}"
        sizes = list(output.shape) or [1]
        lines += ["", "[[outputs]]", f'name = "{name}"', f"shape = {sizes}", f'dtype = "{output.dtype}"']
    lines += ["", "[work]  # counted from the reference's formula; correct it where a kernel needs less"]
    lines += [f"{key} = {count}" for key, count in work.items()]
    if file.output_dtype != "float32":
        lines.append(f'matmul_dtype = "{file.output_dtype}"')
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
