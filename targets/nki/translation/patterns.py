"""Operations of a loop nest that are put in the place of others which give the same and cost more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from targets.nki.translation.merge import ValueChange
from targets.nki.translation.stage import Store
from targets.nki.translation.values import (
    Binary,
    Contract,
    Moment,
    Moments,
    Number,
    Reduce,
    Select,
    Unary,
    Value,
)


def use_moments(stores: Sequence[Store]) -> list[Store] | None:
    """Return the stores with means and variances in the place of sums; None if there is no variance."""
    found: dict[Value, Value] = {}
    items = {item for store in stores for item in store.value.walk()}
    for item in items:
        found |= _match_variance(item)
    if not found:
        return None
    of_data = {(one.moments.value, frozenset(one.moments.over)): one.moments for one in _moments_in(found)}
    for item in items:  # a mean that is taken once more, as `x.mean()` beside `x.var()`
        mean = _match_mean(item)
        moments = None if mean is None else of_data.get((mean.value, frozenset(mean.over)))
        if moments is not None:
            found[item] = Moment(item.node, moments, 0)
    change = Substitution(found)
    return [change.store(store) for store in stores]


def _moments_in(found: Mapping[Value, Value]) -> Iterator[Moment]:
    return (item for value in found.values() for item in value.walk() if isinstance(item, Moment))


def _match_mean(item: Value) -> Reduce | None:
    """The sum that an operation divides by the number of its elements."""
    match item:
        case Binary(function="multiply", left=Reduce(function="add") as total, right=Number() as share):
            count = prod(atom.size for atom in total.over)
            return total if abs(share.number * count - 1.0) <= 1e-12 else None
    return None


def _match_variance(item: Value) -> dict[Value, Value]:
    """The mean and the variance, if an operation is the average of squares of what is left of the mean."""
    match item:
        case Binary(
            function="multiply",
            left=Reduce(function="add", value=Binary(function="multiply") as square, over=over),
            right=Number() as factor,
        ) if square.left is square.right:
            pass
        case _:
            return {}
    match square.left:
        case Binary(function="subtract", left=data, right=mean):
            total = _match_mean(mean)
        case _:
            return {}
    is_mean = total is not None and total.value is data and set(total.over) == set(over)
    if not is_mean or set(over) != data.atoms & set(over):
        return {}
    count = prod(atom.size for atom in over)
    moments = Moments(item.node, data, over)
    variance: Value = Moment(item.node, moments, 1)
    if abs(factor.number * count - 1.0) > 1e-12:
        variance = Binary(item.node, "multiply", variance, Number(item.node, factor.number * count))
    return {mean: Moment(mean.node, moments, 0), item: variance}


def scale_behind_maxima(stores: Sequence[Store]) -> list[Store]:
    """Return the stores with c * (x - max x) for c * x - max(c * x), c > 0.

    An exponential multiplies by a number on the way, so the elements themselves need no scaling. Nor do they
    where a mask hides some of them: minus infinity, times c, is minus infinity.
    """
    items = {item for store in stores for item in store.value.walk()}
    found: dict[Value, Value] = {}
    for largest in items:
        if isinstance(largest, Reduce) and largest.function == "maximum":
            found |= dict(_scale_differences(largest, items, {store.value for store in stores}))
    if not found:
        return list(stores)
    change = Substitution(found)
    return [change.store(store) for store in stores]


def _scale_differences(
    largest: Reduce, items: set[Value], results: set[Value]
) -> Iterator[tuple[Value, Value]]:
    scaled = largest.value
    users = [item for item in items if largest in item.operands]
    split = _split_scale(scaled)
    if split is None or largest in results:
        return
    are_differences = all(
        isinstance(user, Binary) and user.function == "subtract" and user.left is scaled for user in users
    )
    if not are_differences:
        return
    elements, factor = split
    plain = Reduce(largest.node, "maximum", elements, largest.over)
    for user in users:
        difference = Binary(user.node, "subtract", elements, plain)
        yield user, Binary(user.node, "multiply", difference, factor)


def _split_scale(value: Value) -> tuple[Value, Number] | None:
    """What a positive number multiplies, and that number; also where a mask puts another number in places."""
    match value:
        case Binary(function="multiply", left=left, right=Number() as factor) if factor.number > 0:
            return left, factor
        case Select(right=Number() as hidden) as chosen if (inner := _split_scale(chosen.left)) is not None:
            elements, factor = inner
            before = hidden.number / factor.number
            if before * factor.number == hidden.number:
                return replace(chosen, left=elements, right=replace(hidden, number=before)), factor
    return None


class Substitution(ValueChange):
    """Puts values in the place of others."""

    def __init__(self, found: Mapping[Value, Value]) -> None:
        super().__init__(frozenset())
        self._done.update(found)
        self._replaced = frozenset(found)

    def is_changed(self, value: Value) -> bool:
        """Whether a value is to be replaced, or uses one that is."""
        return any(item in self._replaced for item in value.walk())


def find_cut(stores: Sequence[Store]) -> int | None:
    """Return the operation to store where a stage's tiles do not fit on the chip together, if there is one.

    It is the reduction of the most elements that other operations follow: loops that are summed over lie
    inside tiles, and two reductions in a row have the loops of both there. Without one, it is the operation
    with half of all operations below it.
    """
    values = [store.value for store in stores]
    items = [item for value in values for item in value.walk() if item not in values]
    inner = [item for item in items if isinstance(item, Reduce)]
    if inner:
        return max(inner, key=lambda item: (prod(atom.size for atom in item.value.atoms), item.node)).node
    written = {value.node for value in values}
    kinds = Unary | Binary | Select | Contract
    chain = {item for item in items if isinstance(item, kinds) and item.node not in written}
    below = {item: len(list(item.walk())) for item in chain}
    half = max((len(list(value.walk())) for value in values), default=0) / 2
    return min(chain, key=lambda item: (abs(below[item] - half), item.node)).node if chain else None
