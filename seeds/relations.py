"""The vocabulary in which a problem states what must hold for every kernel, whatever its inputs are.

A relation changes inputs and says how the outputs change. The vocabulary is closed, with one change for each
array: `permute AXIS` (the same order in all arrays of the relation), `scale FACTOR` (a power of two, by which
floats multiply exactly), `negate`, and, for inputs only, `shift AXIS`: the same numbers are added everywhere
along an axis. A relation may instead name the inputs that all outputs are linear in, taken together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeds.errors import ExpressionError, describe_unknown
from seeds.expressions import evaluate_expression

MAX_FACTOR = 2.0**10
"""Factors lie between this and its reciprocal."""

_KINDS = {"permute": "AXIS", "scale": "FACTOR", "negate": "", "shift": "AXIS"}
_OUTPUT_KINDS = frozenset({"permute", "scale", "negate"})


@dataclass(frozen=True, slots=True)
class ArrayChange:
    """One change of one array: its kind, its axis, and its factor."""

    kind: str
    axis: int = 0
    factor: float = 1.0


def parse_change(text: str) -> ArrayChange:
    """Parse one change.

    Raises:
        ExpressionError: it is not in the vocabulary.
    """
    kind, _, rest = text.partition(" ")
    if kind not in _KINDS or bool(rest) != bool(_KINDS[kind]):
        words = ", ".join(f"{name} {what}".strip() for name, what in _KINDS.items())
        raise ExpressionError(f"{text!r} is not a change (known: {words})")
    if kind == "scale":
        return ArrayChange(kind, factor=_power_of_two(rest))
    if kind == "negate":
        return ArrayChange(kind, factor=-1.0)
    if not rest.isdecimal() or len(rest) > 1:
        raise ExpressionError(f"{text!r}: an axis is a number from 0")
    return ArrayChange(kind, axis=int(rest))


def _power_of_two(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR or math.frexp(factor)[0] != 0.5:
        raise ExpressionError(
            f"'scale {text}': a factor is a power of two from {1 / MAX_FACTOR} to {MAX_FACTOR:g}"
        )
    return factor


def find_relation_faults(raw: Mapping[str, Any], sizes: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield the faults of the relations in a raw spec, except those that the schema reports."""
    arrays = {group: _arrays_by_name(raw, group) for group in ("inputs", "outputs")}
    relations = raw.get("relations")
    for index, item in enumerate(relations if isinstance(relations, list) else []):
        if isinstance(item, dict):
            for fault in _check_relation(item, arrays, sizes):
                yield f"problem.toml: relations.{index}{fault}"


def _arrays_by_name(raw: Mapping[str, Any], group: str) -> dict[str, Mapping[str, Any]]:
    items = raw.get(group)
    found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return {item["name"]: item for item in found if isinstance(item.get("name"), str)}


def _check_relation(
    item: Mapping[str, Any],
    arrays: Mapping[str, Mapping[str, Mapping[str, Any]]],
    sizes: Mapping[str, Mapping[str, int]],
) -> Iterator[str]:
    linear = item.get("linear")
    names = [name for name in linear if isinstance(name, str)] if isinstance(linear, list) else []
    if bool(item.get("inputs")) == bool(linear):
        yield ": either `inputs` with what changes, or `linear` with names of inputs"
    elif linear and item.get("outputs"):
        yield ".outputs: `linear` is about all outputs as they are"
    for name in names:
        yield from _check_float(name, arrays["inputs"], ".linear")
    permuted: list[tuple[str, str | int]] = []
    for group in ("inputs", "outputs"):
        changed = item.get(group)
        for name, text in (changed if isinstance(changed, dict) else {}).items():
            if isinstance(text, str):
                yield from _check_change(group, name, text, arrays=arrays[group], permuted=permuted)
    yield from _check_lengths(permuted, sizes)


def _check_change(
    group: str,
    name: str,
    text: str,
    *,
    arrays: Mapping[str, Mapping[str, Any]],
    permuted: list[tuple[str, str | int]],
) -> Iterator[str]:
    """Check one change, and record the length of an axis that it permutes."""
    try:
        found = parse_change(text)
    except ExpressionError as error:
        yield f".{group}.{name}: {error}"
        return
    if name not in arrays:
        yield f".{group}: {describe_unknown(group[:-1], name, arrays)}"
        return
    if group == "outputs" and found.kind not in _OUTPUT_KINDS:
        yield f".{group}.{name}: outputs are changed by {', '.join(sorted(_OUTPUT_KINDS))} only, not {text!r}"
    if found.kind != "permute":
        yield from _check_float(name, arrays, f".{group}")
    shape = arrays[name].get("shape")
    if found.kind in {"permute", "shift"} and isinstance(shape, list):
        if found.axis >= len(shape):
            yield f".{group}.{name}: {text!r}: the array has {len(shape)} axes, counted from 0"
        elif found.kind == "permute" and isinstance(shape[found.axis], int | str):
            permuted.append((name, shape[found.axis]))


def _check_float(name: str, arrays: Mapping[str, Mapping[str, Any]], place: str) -> Iterator[str]:
    if name not in arrays:
        yield f"{place}: {describe_unknown('input', name, arrays)}"
    elif arrays[name].get("dtype") == "int32":
        yield f"{place}.{name}: only floats are scaled, shifted or added"


def _check_lengths(
    permuted: Sequence[tuple[str, str | int]], sizes: Mapping[str, Mapping[str, int]]
) -> Iterator[str]:
    """Check that all axes that one relation permutes have the same length, since they share one order."""
    for size, dims in sizes.items():
        try:
            lengths = {name: evaluate_expression(length, dims) for name, length in permuted}
        except ExpressionError:
            continue  # reported at the shape
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name} {length}" for name, length in lengths.items())
            yield f": permutes axes of different lengths at size {size}: {text}"
