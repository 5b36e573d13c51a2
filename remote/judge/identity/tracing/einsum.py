"""Records Einstein summation as matrix products, two operands at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from remote.judge.identity.domain import Array
from remote.judge.identity.tracing.arrays import ArrayRecorder, RecordedArray, UntraceableError
from remote.judge.identity.tracing.ufuncs import (
    record_constant,
    record_elementwise,
    record_matmul,
    record_reduction,
)

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(recorder: ArrayRecorder, subscripts: Any, *operands: Any, **kwargs: Any) -> Any:
    """Record np.einsum with its operands named by letters."""
    if not isinstance(subscripts, str):
        raise UntraceableError("it uses np.einsum with lists of axes")
    arrays = [
        item if isinstance(item, RecordedArray) else record_constant(recorder, item) for item in operands
    ]
    names, result = _parse_labels(subscripts, [array.ndim for array in arrays])
    terms = [
        _reduce_unshared(array, own, result, others=names[:at] + names[at + 1 :])
        for at, (array, own) in enumerate(zip(arrays, names, strict=True))
    ]
    while len(terms) > 1:
        first, second, *rest = terms
        terms = [
            _multiply_terms(first, second, {*result, *(label for _, own in rest for label in own)}),
            *rest,
        ]
    ((array, own),) = terms
    found = array.move_shadow(lambda shadow: shadow.transpose([own.index(label) for label in result]))
    out = kwargs.get("out")
    if out is None:
        return found
    out[...] = found
    return out


def tensordot(recorder: ArrayRecorder, a: Any, b: Any, axes: Any = 2) -> Any:
    """Record np.tensordot."""
    left, right = (
        item if isinstance(item, RecordedArray) else record_constant(recorder, item) for item in (a, b)
    )
    if isinstance(axes, int):
        axes = range(left.ndim - axes, left.ndim), range(axes)
    own = list(_LETTERS[: left.ndim])
    other = list(_LETTERS[left.ndim : left.ndim + right.ndim])
    for one, two in zip(
        *(np.atleast_1d(list(item) if isinstance(item, range) else item) for item in axes), strict=True
    ):
        other[two] = own[one]
    result = [label for label in (*own, *other) if (label in own) != (label in other)]
    return einsum(recorder, f"{''.join(own)},{''.join(other)}->{''.join(result)}", left, right)


def _parse_labels(subscripts: str, dimensions: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with the ellipsis expanded."""
    text = subscripts.replace(" ", "")
    left, arrow, result = text.partition("->")
    named = left.split(",")
    free = [letter for letter in _LETTERS if letter not in text]
    most = max(
        (count - len(own.replace("...", "")) for own, count in zip(named, dimensions, strict=True)), default=0
    )
    spelled = "".join(free[:most])
    names = []
    for own, count in zip(named, dimensions, strict=True):
        missing = count - len(own.replace("...", ""))
        names.append(own.replace("...", spelled[most - missing :] if missing else ""))
    every = "".join(names)
    if not arrow:
        once = sorted(label for label in {*every} - {*spelled} if every.count(label) == 1)
        return names, spelled + "".join(once)
    return names, result.replace("...", spelled)


def _reduce_unshared(
    array: RecordedArray, own: str, result: str, *, others: Sequence[str]
) -> tuple[RecordedArray, str]:
    """Reduce one operand alone: diagonals of repeated letters, sums over letters that only it has."""
    unique = "".join(dict.fromkeys(own))
    if unique != own:
        array = array.move_shadow(lambda shadow: np.einsum(f"{own}->{unique}", shadow))
    alone = [
        at
        for at, label in enumerate(unique)
        if label not in result and not any(label in other for other in others)
    ]
    if not alone:
        return array, unique
    return record_reduction(array, "add", alone), "".join(
        label for at, label in enumerate(unique) if at not in alone
    )


def _multiply_terms(
    first: tuple[RecordedArray, str], second: tuple[RecordedArray, str], needed: Iterable[str]
) -> tuple[RecordedArray, str]:
    (left, own), (right, other) = first, second
    batch = [label for label in own if label in other and label in needed]
    inner = [label for label in own if label in other and label not in needed]
    rows = [label for label in own if label not in other]
    columns = [label for label in other if label not in own]
    sizes = dict(zip(own, left.shape, strict=True)) | {
        label: max(size, dict(zip(own, left.shape, strict=True)).get(label, 1))
        for label, size in zip(other, right.shape, strict=True)
    }
    if not inner:
        return _multiply_elementwise(left, own, right, other=other, labels=[*batch, *rows, *columns])
    one = _as_matrices(left, own, batch, rows=rows, columns=inner)
    two = _as_matrices(right, other, batch, rows=inner, columns=columns)
    found = record_matmul(left.recorder, one, two)
    shape = tuple(sizes[label] for label in (*batch, *rows, *columns))
    return found.move_shadow(lambda shadow: shadow.reshape(shape)), "".join((*batch, *rows, *columns))


def _as_matrices(
    array: RecordedArray, own: str, batch: Sequence[str], *, rows: Sequence[str], columns: Sequence[str]
) -> RecordedArray:
    """Return the array as matrices, with the letters of rows and of columns each merged into one axis."""
    order = [own.index(label) for label in (*batch, *rows, *columns)]
    turned = array.move_shadow(lambda shadow: shadow.transpose(order))
    lead, split = len(batch), len(batch) + len(rows)
    shape = (*turned.shape[:lead], prod(turned.shape[lead:split]), prod(turned.shape[split:]))
    return turned.move_shadow(lambda shadow: shadow.reshape(shape))


def _multiply_elementwise(
    left: RecordedArray, own: str, right: RecordedArray, *, other: str, labels: Sequence[str]
) -> tuple[RecordedArray, str]:
    found = []
    for array, names in ((left, own), (right, other)):
        turned = array.move_shadow(_transpose_by([names.index(label) for label in labels if label in names]))
        found.append(turned[tuple(slice(None) if label in names else None for label in labels)])
    return record_elementwise(left.recorder, "multiply", *found), "".join(labels)


def _transpose_by(axes: Sequence[int]) -> Callable[[Array], Array]:
    return lambda shadow: shadow.transpose(axes)
