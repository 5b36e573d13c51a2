"""Finds all faults of a `problem.toml` at once, with one line for each.

There are two kinds: the schema finds faults of structure; faults of meaning (an unknown dimension, a
dimension that one size lacks) are found on the raw table. That way neither kind hides the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from seeds import relations
from seeds.errors import ExpressionError, suggest_nearest
from seeds.expressions import evaluate_expression
from state.model import validation_reason

FULL, REDUCED = "full", "reduced"

RawSpec = Mapping[str, Any]
Sizes = Mapping[str, Mapping[str, int]]

_KINDS = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a text"}
"""Words for the types of a value that may have several, by the schema's names."""

_MESSAGES = {"extra_forbidden": "unknown key", "missing": "required"}
"""Messages by the library's fault type, where its own wording addresses the schema's author."""


def find_schema_faults(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield the schema's faults; `too_short` is left out if an entry of that list has a fault already."""
    found = list(_merge_alternatives(error.errors()))
    for item in found:
        place = item["loc"]
        inside = any(other["loc"][: len(place)] == place and other is not item for other in found)
        if item["type"] == "too_short" and inside:
            continue
        shown = "" if item["type"] in _MESSAGES else f" (found {item['input']!r:.60})"
        message = _MESSAGES.get(item["type"]) or _lower_first(validation_reason(item))
        if item["type"] == "extra_forbidden":
            message += suggest_nearest(str(place[-1]), _schema_keys(model, place[:-1]))
        yield f"problem.toml: {'.'.join(map(str, place))}: {message}{shown}"


def _merge_alternatives(found: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Make one fault of those of a value that may have several types: the schema has one for each type."""
    groups: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    for item in found:
        place = item["loc"]
        has_alternatives = bool(place) and place[-1] in _KINDS
        groups.setdefault(place[:-1] if has_alternatives else (*place, ""), []).append(item)
    for place, items in groups.items():
        if place[-1:] == ("",):
            yield from items
            continue
        limits = [item for item in items if not item["type"].endswith("_type")]
        wanted = " or ".join(_KINDS[str(item["loc"][-1])] for item in items)
        yield {
            **(limits or items)[0],
            "loc": place,
            **({} if limits else {"msg": f"input should be {wanted}"}),
        }


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def _schema_keys(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """Return the keys that the schema allows at a place, such as those of an input at ("inputs", 0)."""
    for part in place:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = next(item for item in (annotation, *get_args(annotation)) if _is_model(item))
    return list(model.model_fields)


def _is_model(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, BaseModel)


def find_semantic_faults(raw: RawSpec) -> Iterator[str]:
    """Yield faults that the schema cannot see, from a table of any shape."""
    sizes = {name: dims for name, dims in _table_at(raw, "sizes").items() if isinstance(dims, dict)}
    yield from _missing_size_faults(raw, sizes)
    yield from _duplicate_name_faults(raw)
    # Any positive value will do: this only checks that expressions parse and use known names.
    trial = dict.fromkeys((dim for dims in sizes.values() for dim in dims), 1)
    for place, expression in _iterate_expressions(raw):
        try:
            evaluate_expression(expression, trial)
        except ExpressionError as error:
            yield f"problem.toml: {place}: {error}"
    whole = {name: _valid_dims(dims) for name, dims in sizes.items()}
    yield from _empty_array_faults(raw, whole)
    yield from _kernel_shape_faults(raw, whole)
    yield from _position_faults(raw)
    yield from relations.find_relation_faults(raw, whole)


def _valid_dims(dims: Mapping[str, Any]) -> dict[str, int]:
    return {key: value for key, value in dims.items() if type(value) is int and value > 0}


def _missing_size_faults(raw: RawSpec, sizes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if FULL not in sizes and not (raw.get("shape_generic") is False and set(sizes) == {REDUCED}):
        yield f"problem.toml: sizes.{FULL}: there must be a size of this name"
    if REDUCED not in sizes and raw.get("shape_generic") is not False:
        text = "there must be a size of this name, unless shape_generic = false"
        yield f"problem.toml: sizes.{REDUCED}: {text}"
    known = {dim for dims in sizes.values() for dim in dims}
    for name, dims in sizes.items():
        for dim in sorted(known - dims.keys()):
            yield f"problem.toml: sizes.{name}: has no {dim}, which another size has"


def _empty_array_faults(raw: RawSpec, sizes: Sizes) -> Iterator[str]:
    for place, expression in _iterate_expressions(raw):
        for name, dims in sizes.items():
            try:
                value = evaluate_expression(expression, dims)
            except ExpressionError:
                continue  # reported by the trial evaluation
            if value < 0 or (value == 0 and "shape" in place):
                yield f"problem.toml: {place}: {expression!r} is {value} at size {name}"


def _kernel_shape_faults(raw: RawSpec, sizes: Sizes) -> Iterator[str]:
    """Check that a kernel gets all elements of an input, at each size at which it is judged."""
    judged = [FULL if FULL in sizes else REDUCED] if raw.get("shape_generic") is False else list(sizes)
    for index, item in enumerate(_tables_at(raw, "inputs")):
        for size in judged:
            try:
                shapes = [_resolve_shape(item[key], sizes[size]) for key in ("shape", "kernel_shape")]
            except (KeyError, TypeError, ExpressionError):
                continue  # not given, or reported elsewhere
            if prod(shapes[0]) != prod(shapes[1]):
                text = (
                    f"{shapes[1]} has not the {prod(shapes[0])} elements of shape {shapes[0]} at size {size}"
                )
                yield f"problem.toml: inputs.{index}.kernel_shape: {text}"


def _resolve_shape(shape: Any, dims: Mapping[str, int]) -> list[int]:
    if not isinstance(shape, list) or not all(isinstance(size, int | str) for size in shape):
        raise TypeError
    return [evaluate_expression(size, dims) for size in shape]


def _position_faults(raw: RawSpec) -> Iterator[str]:
    """Check that scalars are in order of position and leave no gap."""
    given = [
        (index, item["position"])
        for index, item in enumerate(_tables_at(raw, "scalars"))
        if type(item.get("position")) is int
    ]
    count = len(_list_at(raw, "inputs"))
    for before, (index, position) in enumerate(sorted(given, key=lambda pair: pair[1])):
        if any(position == other and index > at for at, other in given):
            yield f"problem.toml: scalars.{index}.position: {position} is taken by another scalar"
        elif position > count + before:
            yield f"problem.toml: scalars.{index}.position: {position}, there are {count + before} before it"


def _iterate_expressions(raw: RawSpec) -> Iterator[tuple[str, str]]:
    for group in ("inputs", "outputs"):
        for index, item in enumerate(_list_at(raw, group)):
            for key in ("shape", "kernel_shape"):
                shape = item.get(key) if isinstance(item, dict) else None
                for axis, size in enumerate(shape if isinstance(shape, list) else []):
                    if isinstance(size, str):
                        yield f"{group}.{index}.{key}.{axis}", size
    for key, value in _table_at(raw, "work").items():
        if isinstance(value, str) and key != "matmul_dtype":
            yield f"work.{key}", value


def _duplicate_name_faults(raw: RawSpec) -> Iterator[str]:
    seen: set[str] = set()
    for group in ("inputs", "scalars", "outputs"):
        for index, item in enumerate(_list_at(raw, group)):
            name = item.get("name") if isinstance(item, dict) else None
            if isinstance(name, str) and name in seen:
                yield f"problem.toml: {group}.{index}.name: {name!r} names two arguments"
            if isinstance(name, str):
                seen.add(name)


def _tables_at(raw: RawSpec, key: str) -> list[Mapping[str, Any]]:
    """Return the entries of a list in place; an entry that is not a table counts as an empty one."""
    return [item if isinstance(item, dict) else {} for item in _list_at(raw, key)]


def _table_at(raw: RawSpec, key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _list_at(raw: RawSpec, key: str) -> list[Any]:
    value = raw.get(key)
    return value if isinstance(value, list) else []
