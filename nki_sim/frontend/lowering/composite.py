"""Functions made of others: softmax, RMS normalisation, selection by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki_sim.frontend.lowering.elementwise import binary, scaled, unary
from nki_sim.frontend.lowering.emit import Where, broadcast, issue, on_chip, spread, tile
from nki_sim.frontend.lowering.promotion import number, promote
from nki_sim.frontend.lowering.reductions import reduction
from nki_sim.frontend.tensor import Tensor


def softmax(
    x: Any, axis: Any = -1, dtype: Any = None, compute_dtype: Any = None, *, where: Where = None
) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over the axes; `compute_dtype` is `dtype` by another name."""
    data = on_chip("nl.softmax: x", x)
    largest = reduction("maximum", data, axis, "float32", True, where=where)
    powers = unary("exp", binary("subtract", data, largest, "float32", where=where), "float32", where=where)
    total = unary(
        "reciprocal", reduction("add", powers, axis, "float32", True, where=where), "float32", where=where
    )
    return binary("multiply", powers, total, dtype or compute_dtype or data.dtype, where=where)


def rms_norm(  # noqa: PLR0917  the documented signature
    x: Any, w: Any, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None,
    *, where: Where = None,
) -> Tensor:  # fmt: skip
    """x / sqrt(sum(x * x) / n + epsilon) * w."""
    data = on_chip("nl.rms_norm: x", x)
    squares = reduction(
        "add", unary("square", data, "float32", where=where), axis, "float32", True, where=where
    )
    roots = tile(squares.shape, "float32")
    scaled("multiply", 1.0 / n, "add", float(epsilon))(roots, squares, where)
    normal = binary("multiply", data, unary("rsqrt", roots, "float32", where=where), "float32", where=where)
    return binary("multiply", normal, w, dtype or compute_dtype or data.dtype, where=where)


_PREDICATES = frozenset({"uint8", "uint16", "uint32"})


def choose(condition: Any, x: Any, y: Any, dtype: Any = None, *, where: Where = None) -> Tensor:
    """x where the condition is not 0, else y; both may be numbers. A predicated copy of x over y."""
    test = on_chip("nl.where: condition", condition)
    if str(test.dtype) not in _PREDICATES:
        test = binary("not_equal", test, 0, "uint8", where=where)
    tiles = [on_chip("nl.where", value) for value in (x, y) if number(value) is None]
    shape, (test, *_) = broadcast(test, *tiles)
    wanted = dtype or promote(x, y)
    result = tile(shape, wanted)
    _fill(result, y, where)
    chosen = tile(shape, wanted)
    _fill(chosen, x, where)
    issue("tensor_copy_predicated", where, dst=result, src=chosen, predicate=spread(test, shape))
    return result


def _fill(result: Tensor, value: Any, where: Where) -> None:
    constant = number(value)
    if constant is not None:
        issue("memset", where, dst=result, value=constant)
        return
    shape, (_, source) = broadcast(result, value)
    issue("tensor_copy", where, dst=result, src=spread(source, shape))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"softmax": softmax, "rms_norm": rms_norm, "where": choose}
