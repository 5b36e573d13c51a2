"""Masks: comparisons of affine expressions, joined with `&`, that shrink an instruction before it is issued.

A condition over one axis keeps a range of that axis. A condition over several axes is a staircase: the
instruction is issued once for every step. An empty mask skips the instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.tensor import fail

if TYPE_CHECKING:
    from nki_sim.frontend.legacy.index import LinearForm

Range = tuple[int, int]
Box = tuple[Range, ...]
"""For each axis the first position kept and one past the last."""
Term = tuple[tuple[int, ...], int]
"""Coefficients over the axes and a constant."""

_SWAPPED = {"less": "greater", "less_equal": "greater_equal"}
_OPPOSITE = {
    "less": "greater_equal", "less_equal": "greater", "greater": "less_equal", "greater_equal": "less",
    "equal": "not_equal", "not_equal": "equal",
}  # fmt: skip


class Mask(KernelValue):
    """A conjunction of conditions."""

    __slots__ = ("_conditions",)

    def __init__(self, conditions: tuple[Condition, ...]) -> None:
        self._conditions = conditions

    def __and__(self, other: Any) -> Mask:
        if isinstance(other, Mask):
            return Mask(self._conditions + other._conditions)
        if isinstance(other, bool):
            return self if other else NEVER
        return _refuse_expression(f"& with {type(other).__name__}")

    __rand__ = __and__

    def __or__(self, other: object) -> NoReturn:
        _refuse_expression("|")

    __ror__ = __or__

    def __invert__(self) -> Mask:
        if len(self._conditions) != 1:
            _refuse_expression("~ of several conditions")
        return self._conditions[0]._negate()

    def __bool__(self) -> NoReturn:  # noqa: PLE0304  it always refuses
        from nki_sim.frontend.legacy.index import refuse_condition

        refuse_condition()

    def __setitem__(self, key: object, value: object) -> NoReturn:
        fail("cannot_assign_to_index", "a mask does not support item assignment")

    def _boxes(self, shape: Sequence[int]) -> Iterator[Box]:
        """Yield the disjoint boxes of a tile of that shape that pass the mask."""
        whole = tuple((0, count) for count in shape)
        terms = [term for condition in self._conditions for term in condition._terms(whole)]
        yield from _clip_box(whole, terms)


class Condition(Mask):
    """`linear + constant` compared with 0; also the predicate of `nisa.affine_select`."""

    __slots__ = ("_constant", "_linear", "_op")

    def __init__(self, linear: LinearForm, constant: int, op: str) -> None:
        super().__init__((self,))
        self._linear = linear
        self._constant = constant
        self._op = op

    def _negate(self) -> Condition:
        return Condition(self._linear, self._constant, _OPPOSITE[self._op])

    def _terms(self, box: Box) -> list[Term]:
        """(coefficients, constant) of expressions that are at least 0 where the condition holds."""
        if self._op == "not_equal":
            _refuse_expression("!=")
        steps, constant = self._coefficients_over(box), self._constant
        negated = tuple(-k for k in steps)
        if self._op == "equal":
            return [(steps, constant), (negated, -constant)]
        strict = 1 if self._op in {"less", "greater"} else 0
        if self._op in _SWAPPED:
            return [(negated, -constant - strict)]
        return [(steps, constant - strict)]

    def _coefficients_over(self, box: Box) -> tuple[int, ...]:
        """Coefficients over the axes of a tile whose sizes match the expression where it moves."""
        linear = self._linear
        if len(linear.shape) > len(box) and all(k == 0 for k in linear.coefficients[len(box) :]):
            steps = linear.coefficients[: len(box)]
        else:
            steps = (0,) * (len(box) - len(linear.shape)) + linear.coefficients
        sizes = (1,) * (len(box) - len(linear.shape)) + linear.shape
        for axis, step in enumerate(steps):
            if step and (axis >= len(box) or sizes[axis] != box[axis][1]):
                fail(
                    "unsupported_expression_in_mask",
                    f"the mask has {sizes[axis]} positions along axis {axis} of a tile of shape "
                    f"{tuple(end for _, end in box)}", "build masks from the index expressions of the tile",
                )  # fmt: skip
        return steps


class _EmptyMask(Mask):
    """A mask that no element passes."""

    __slots__ = ()

    def __and__(self, other: Any) -> Mask:
        return self

    __rand__ = __and__

    def _boxes(self, shape: Sequence[int]) -> Iterator[Box]:
        del shape
        return iter(())


NEVER = _EmptyMask(())


def join_lazily(first: Any, second: Callable[[], Any]) -> Any:
    """Return `first and second()`, or both joined with `&` if the first is a mask."""
    if isinstance(first, Mask):
        return first & second()
    return first and second()


def _refuse_expression(what: str) -> NoReturn:
    fail(
        "unsupported_expression_in_mask", f"{what} in a mask is not supported",
        "join comparisons of affine expressions with &",
    )  # fmt: skip


def _clip_box(given: Box, terms: list[Term]) -> Iterator[Box]:
    """Yield the parts of a box where every term is at least 0."""
    box, open_terms = given, []
    for steps, constant in terms:
        moving = [axis for axis, step in enumerate(steps) if step and box[axis][1] - box[axis][0] > 1]
        fixed = constant + sum(step * box[axis][0] for axis, step in enumerate(steps) if axis not in moving)
        if not moving:
            if fixed < 0:
                return
        elif len(moving) == 1:
            narrowed = _narrow_axis(box, moving[0], steps[moving[0]], constant=fixed)
            if narrowed is None:
                return
            box = narrowed
        elif not _always_holds(box, steps, fixed, moving=moving):
            open_terms.append((steps, constant))
    if not open_terms:
        yield box
    elif box != given:
        yield from _clip_box(box, open_terms)
    else:
        yield from _split_axis(box, open_terms)


def _narrow_axis(box: Box, axis: int, step: int, *, constant: int) -> Box | None:
    """The part of the box where step * position + constant >= 0 along one axis."""
    low, high = box[axis]
    if step > 0:
        low = max(low, -(constant // step))
    else:
        high = min(high, constant // -step + 1)
    return None if low >= high else (*box[:axis], (low, high), *box[axis + 1 :])


def _always_holds(box: Box, steps: tuple[int, ...], fixed: int, *, moving: list[int]) -> bool:
    return fixed + sum(min(steps[a] * box[a][0], steps[a] * (box[a][1] - 1)) for a in moving) >= 0


def _split_axis(box: Box, terms: list[Term]) -> Iterator[Box]:
    """Split the staircase along the axis with the fewest positions, one position at a time."""
    steps = terms[0][0]
    moving = [axis for axis, step in enumerate(steps) if step and box[axis][1] - box[axis][0] > 1]
    axis = min(moving, key=lambda item: box[item][1] - box[item][0])
    for position in range(*box[axis]):
        yield from _clip_box((*box[:axis], (position, position + 1), *box[axis + 1 :]), terms)
