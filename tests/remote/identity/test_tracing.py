"""References followed through NumPy: what was recorded gives, on any box, what NumPy gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

import seeds
from remote.judge.identity.domain import Planes
from remote.judge.identity.expression import InvalidExpressionError, load_expression
from remote.judge.identity.expression_evaluation import evaluate_boxes
from remote.judge.identity.floats import FloatDomain
from remote.judge.identity.tracing import recording
from remote.judge.identity.tracing.arrays import UntraceableError
from remote.judge.identity.tracing.recording import record_reference
from remote.judge.tiles import OutputTile
from seeds.inputs import draw_inputs
from tests.seeds.statements import STATEMENTS

N = np.newaxis


class Given(FloatDomain):
    """Floats whose symbols are given."""

    def __init__(self, inputs):
        super().__init__(b"", ())
        self.given = [array.astype(np.float64).reshape(-1) for array in inputs]

    def input_symbols(self, number, index):
        return Planes((self.given[number][index],))


def reference_of(name):
    module = {"__name__": f"reference_of_{name}"}
    exec(seeds.load_problem(name).files["reference.py"], module)
    return module["reference"]


def assert_followed(reference, inputs, boxes=4):
    """What is recorded, written and read again agrees with NumPy on random boxes and on the whole."""
    truth = reference(*inputs)
    truths = truth if isinstance(truth, tuple) else (truth,)
    shapes = [array.shape for array in inputs]
    recorded = record_reference(
        reference, [(array.shape, array.dtype) for array in inputs], [np.shape(t) for t in truths]
    )
    expression = load_expression(recorded.to_bytes(), shapes)
    generator = np.random.default_rng(len(expression.nodes))
    for output, expected in enumerate(truths):
        sizes = np.shape(expected)
        whole = OutputTile(output, tuple((0, size) for size in sizes))
        parts = [OutputTile(output, tuple(_part(size, generator) for size in sizes)) for _ in range(boxes)]
        found_parts = evaluate_boxes(expression, parts, Given(inputs)) + evaluate_boxes(
            expression, [whole], Given(inputs)
        )
        for tile, value in zip([*parts, whole], found_parts, strict=True):
            part, found = np.asarray(expected)[tile.index], value.arrays[0]
            assert found.shape == part.shape
            assert found == pytest.approx(part.astype(np.float64), rel=1e-5, abs=1e-6)


def _part(size, generator):
    first = int(generator.integers(size))
    return first, int(generator.integers(first + 1, min(size, first + 40) + 1))


def small_spec(name):
    """A problem whose only size is quick."""
    spec = seeds.load_problem(name).spec
    dims = spec.dims("reduced")
    cut = {"M": 48, "N": 64, "K": 32} if name != "mamba" else {"M": 40, "C": 16}
    cut = {label: size for label, size in cut.items() if label in dims}
    return spec.model_copy(update={"sizes": {"reduced": {**dims, **cut}}})


def small(name):
    return draw_inputs(small_spec(name), "reduced", 0)


@pytest.mark.parametrize("name", seeds.builtin_problems())
def test_references_of_problems_are_followed(name):
    assert_followed(reference_of(name), small(name))


@pytest.mark.parametrize("name", sorted({*STATEMENTS} - {"rope_single_freq_apply"}))
def test_second_statements_are_followed(name):
    assert_followed(STATEMENTS[name], [array.astype(np.float64) for array in small(name)])


def _in_place(x, y):
    out = np.zeros((6, 8), dtype=np.float32)
    out += x
    out[1:5, ::2] *= 2.0
    out[:, -1] = y[:, 0]
    np.exp(out[2], out=out[3])
    return out


def _views(x, y):
    """Written through views of views, read through others."""
    out = np.empty((2, 3, 8))
    for block, row in zip(out, x.reshape(2, 3, 8), strict=True):
        block.T[...] = row.T
        block[0] -= 1.0
    rows = out.reshape(6, 8)
    rows[4] = y[4]
    return out[:, ::-1]


def _mask_rows(x, y):
    mask = np.arange(8)[N] <= np.arange(6)[:, N]
    scores = np.where(mask, x, -np.inf)
    scores = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    scores[~mask] = 0.0
    return scores / scores.sum(axis=-1, keepdims=True) + np.tril(y)


def _from_list(x, y):
    order = np.array([5, 0, 3, 3])
    picked = x[order] + y[[0, 1, 2, 3]]
    out = np.zeros_like(x)
    out[order[:3]] = picked[:3]
    out[np.array([1, 2]), np.array([0, 7])] = 9.0
    return out + x[:, np.array([7, 6, 5, 4, 3, 2, 1, 0])] + x[order[:1], np.array([2])]


def _real_parts(x, y):
    """What is asked of an array's type is answered as NumPy answers it."""
    return x + (1.0 if np.iscomplexobj(y) else 2.0) + (4.0 if np.isrealobj(x) else 8.0)


def _statistics(x, y):
    return np.stack([
        x.mean(axis=1), np.var(x, axis=1), y.std(axis=1, ddof=1), np.linalg.norm(x, axis=1),
        np.average(x, axis=1, weights=np.abs(y)), x.prod(1), np.amax(x, 1), np.min(y, 1),
    ])  # fmt: skip


def _scan(x, y):
    """Linear in its state, by itself and through another state."""
    decayed, total, out = np.zeros(6), np.zeros((6, 1)), np.zeros((6, 12))
    for t in range(12):
        decayed = np.exp(-x[:, t % 8]) * decayed + y[:, t % 8]
        total = decayed[:, None] + total * 0.5
        out[:, 11 - t] = decayed + total[:, 0]
    return out


def _gate_state(x, y):
    """Not linear: what the state is multiplied with depends on the state."""
    state, states = np.zeros(6), []
    for t in range(12):
        state = np.tanh(state) * state + x[:, t % 8] * y[:, 0]
        states.append(state)
    return np.stack(states)


def _blocks(x, y):
    """Written in blocks: next to each other, over each other, every other one, in two buffers."""
    out, other = np.zeros((6, 24)), np.zeros((20, 6))
    for t in range(10):
        part = x[:, t % 4 : t % 4 + 2] * (t + 1)
        out[:, 2 * t : 2 * t + 3] = 0.5 * y[:, :3] + t
        out[:, 2 * t : 2 * t + 2] = part
        other[2 * t] = part[:, 0]
        other[19 - 2 * t] = part.sum(axis=1)
    return np.concatenate([out.T, other])


def _heads(x, y):
    """Each head writes a plane of its own through a view."""
    out = np.empty((9, 6, 6))
    for head, plane in enumerate(out):
        scores = (x * (head + 1.0)) @ y.T
        plane[...] = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[head] /= plane.sum(axis=1, keepdims=True)
    return out


def _fill_diagonal(x, y):
    out = x @ y.T
    np.fill_diagonal(out, -1.0)
    return out


def _divide_where(x, y):
    """Only where the condition holds is anything written."""
    out = np.divide(x, y, out=np.ones_like(x), where=np.abs(y) > 0.5)
    return np.sqrt(out, out=out, where=out > 0)


OPERATIONS = {
    "differences": lambda x, y: np.diff(x, axis=1)[:, :6] + np.diff(y, n=2) + np.diff(y, axis=0, n=2)[:1, 2:],
    "diagonals": lambda x, y: np.diag(x[0], 1)[:6, :8] + np.trace(x @ y.T) * np.diag(y[:, 0], -2)[:6, :8],
    "filled diagonal": _fill_diagonal,
    "kron": lambda x, y: np.kron(x, np.ones((2, 3))) + np.kron(y[:, :4], x[:2, :6]),
    "cross": lambda x, y: np.cross(x[:, :3], y[:, 3:6]) + np.cross(x[:3, :6], y[:3, :6], axis=0).T,
    "block matrix": lambda x, y: np.block([[x, y], [y[0, :8], np.block([x[1], y[0]])[:8]]]),
    "left out": lambda x, y: np.delete(x, 2, axis=1)[:, :3] + np.delete(y, [0, 3], axis=0)[:1, :3],
    "put in": lambda x, y: np.insert(x, 1, y[0, :8], axis=0)[1:] + np.insert(x, 8, 2.0, axis=1)[:, 1:],
    "pieces": lambda x, y: np.piecewise(x, [x < 0, x > 0.5], [lambda v: -v, np.square, 3.0]),
    "between nodes": lambda x, y: np.interp(x, [-0.5, 0.25, 1.0], [2.0, -1.0, 0.5], left=-3.0),
    "convolve": lambda x, y: np.concatenate(
        [np.convolve(x[0], y[1, :3], mode) for mode in ("full", "same", "valid")]
        + [np.convolve(y[1, :3], x[2], "same"), np.convolve(x[0], [0.5, 1.0, 2.0, 3.0], "same")]
    ),
    "correlate": lambda x, y: np.concatenate(
        [np.correlate(x[0], y[1, :size], mode) for mode in ("full", "same", "valid") for size in (3, 4)]
    ),
    "select": lambda x, y: np.select([x > 0.5, y > 0, x < -1], [x, y * 2, x + y], default=-3.0),
    "append": lambda x, y: np.append(x, y, axis=1)[:, :12] + np.append(x, y)[:12],
    "chain of products": lambda x, y: np.linalg.multi_dot([x, y.T, x]) + np.linalg.multi_dot([x, y.T, y]),
    "covariance": lambda x, y: np.cov(x) + np.cov(y, bias=True) + np.corrcoef(x),
    "columns' covariance": lambda x, y: np.cov(x, rowvar=False) + np.cov(y.T, ddof=0),
    "polynomial": lambda x, y: np.polyval([1.0, -2.0, 0.5], x * y),
    "along an axis": lambda x, y: np.apply_along_axis(lambda row: row / row.sum(), 1, x)
    + np.apply_along_axis(np.cumsum, 0, y),
    "reduced along an axis": lambda x, y: np.apply_along_axis(lambda row: (row * row).sum(), 1, x),
    "any and all": lambda x, y: np.any(x > 1, axis=1) + 2.0 * np.all(y > -1, axis=1) + (x > y).all(1),
    "counted": lambda x, y: np.count_nonzero(x > 0, axis=1) * 1.0 + np.count_nonzero(y, axis=1),
    "norms": lambda x, y: np.linalg.norm(x, ord=1, axis=1)
    + np.linalg.norm(y, ord=np.inf, axis=1) * np.linalg.norm(x, "fro"),
    "running extremes": lambda x, y: np.maximum.accumulate(x, axis=1) + np.minimum.accumulate(y),
    "divided where": _divide_where,
    "sums of some": lambda x, y: np.sum(x, axis=1, where=y > 0) + np.mean(y, axis=1, where=x > -5),
    "extremes of some": lambda x, y: np.max(x, axis=1, where=y > 0, initial=-9.0)
    + np.min(y, axis=1, initial=0.25),
    "a scan": _scan,
    "a gated scan": _gate_state,
    "blocks": _blocks,
    "heads": _heads,
    "in place": _in_place,
    "views": _views,
    "masks": _mask_rows,
    "lists of numbers": _from_list,
    "types of numbers": _real_parts,
    "statistics": _statistics,
    "two outputs": lambda x, y: (x + y, (x * y).sum(axis=0)),
    "no axis": lambda x, y: x.sum() + y[0],
    "known numbers alone": lambda x, y: np.ones((3, 4)) * 2.0,
    "split and joined": lambda x, y: np.concatenate([*np.split(x, 2, axis=1)[::-1], y], axis=1),
    "uneven parts": lambda x, y: np.vstack(np.array_split(x, 4)[::-1]),
    "stacks": lambda x, y: np.stack([x, y], axis=-1) + np.hstack([x, y]).reshape(6, 8, 2),
    "padded": lambda x, y: np.pad(x, ((1, 2), (0, 3)), constant_values=1.5),
    "padded with its edge": lambda x, y: np.pad(x, ((1, 2), (0, 3)), mode="edge"),
    "padded with its mirror image": lambda x, y: np.pad(x, ((0, 1), (2, 2)), mode="reflect"),
    "power of a matrix": lambda x, y: np.linalg.matrix_power(x[:, :3].T @ y[:, :3], 5),
    "rolled": lambda x, y: np.roll(x, 3, axis=1) + np.roll(y, -2, axis=0) + np.roll(x, 5),
    "repeated": lambda x, y: np.repeat(x, 2, axis=0) + np.tile(y, (2, 1)),
    "flipped": lambda x, y: x[::-1, ::-2] + np.flip(y, 0)[:, ::2],
    "running sums": lambda x, y: np.cumsum(x, axis=1) + y.cumsum(0),
    "running products": lambda x, y: np.cumprod(x, axis=1) + y.cumprod(0) + np.multiply.accumulate(x),
    "reshaped after a transpose": lambda x, y: x.T.reshape(4, 12) @ y.reshape(12, 4),
    "diagonal": lambda x, y: np.diagonal(x @ y.T) + np.einsum("ii->i", y @ x.T),
    "clipped": lambda x, y: np.clip(x, -0.5, 0.5) + y.clip(min=0.0),
    "dot and outer": lambda x, y: np.dot(x[0], y[1]) * np.outer(x[0], y[0]) + np.add.outer(x[1], y[1]),
    "inner": lambda x, y: np.inner(x, y) + np.tensordot(x, y, ([1], [1])) + np.tensordot(x, y.T, 1),
    "einsum with an ellipsis": lambda x, y: np.einsum("...k,jk->...j", x.reshape(2, 3, 8), y),
    "einsum of three": lambda x, y: np.einsum("ik,jk,k->ij", x, y, x[0]),
    "einsum of sums": lambda x, y: np.einsum("ij,kl->i", x, y) + np.einsum("ij,ij->i", x, y),
    "vectors": lambda x, y: x @ y[0] + (y[0] @ x.T) + (x[0] @ y[1]),
    "batches": lambda x, y: np.matmul(x.reshape(3, 2, 8), y.T[N]),
    "by cases": lambda x, y: np.where(x > y, x, np.where(y != 0, np.sign(y), 0.0)),
    "windows": lambda x, y: np.lib.stride_tricks.sliding_window_view(x, (2, 3)).max(axis=(2, 3)) + y[1:, 2:],
    "truth values": lambda x, y: np.where(~(x > 0) & (y > 0) | (x > 1) ^ (y < -1), x, y) * ~(np.tril(x) != 0),
    "counts": lambda x, y: (x > 0).sum(1) + (y > 0).sum(1) + ~np.where(x[:, 0] > 0, True, y[:, 0] > 0),
    "asked for attributes": lambda x, y: x.detach() if hasattr(x, "detach") else x.std(1)[:, N] + y,
    "powers": lambda x, y: np.abs(x) ** 1.5 + y**2 + np.float_power(2.0, 3) + np.power(y, -1.0),
    "copies": lambda x, y: np.copy(x) + np.asarray(y, dtype=np.float64) + np.array([x, y]).sum(axis=0),
    "iterated": lambda x, y: np.array([row * 2 + other.max() for row, other in zip(x, y, strict=True)]),
    "causal": lambda x, y: np.exp(x[:, :6] + np.triu(np.full((6, 6), -np.inf), k=1)),
    "full like": lambda x, y: np.full_like(x, 3.0) + np.ones_like(y) * y,
    "logarithms": lambda x, y: np.logaddexp(x, y) + np.logaddexp.reduce(x, axis=1)[:, N] + np.log1p(y * y),
    "integers": lambda x, y: x * (np.arange(8) % 3 == 0) + np.rint(y) + np.floor(x),
    "no infinities": lambda x, y: np.where(np.isfinite(x), x, 0.0) + np.nan_to_num(y),
    "broadcast": lambda x, y: np.broadcast_to(x[:, :1], (6, 8)) + sum(np.broadcast_arrays(x[0], y)),
    "swapped": lambda x, y: np.moveaxis(x.reshape(2, 3, 8), 2, 0) + y.reshape(3, 2, 8).swapaxes(0, 2).mT.mT,
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_followed(name):
    generator = np.random.default_rng(1)
    assert_followed(
        OPERATIONS[name], [generator.standard_normal((6, 8)).astype(np.float32) for _ in range(2)]
    )


GATHERED = {
    "an element of each row": lambda x, at: x[np.arange(6), at],
    "an element of each column": lambda x, at: x.T[at[:, N], np.arange(6)],
    "along an axis": lambda x, at: np.take_along_axis(x, at[:, N], axis=1) * x,
    "several along an axis": lambda x, at: np.take_along_axis(x.T, np.stack([at, -1 - at]), axis=0),
    "whole columns": lambda x, at: x[:, at] + np.take(x, at, axis=1),
    "whole rows": lambda x, at: x.T[at],
    "two dimensions of places": lambda x, at: x.T[at.reshape(2, 3)],
    "axes before and behind": lambda x, at: x.reshape(2, 8, 3)[:, at],
    "axes behind": lambda x, at: x.T.reshape(8, 2, 3)[at, 1],
    "by a number and places": lambda x, at: np.stack([x, 2 * x, x * x])[:2, 3, at][:, ::2],
    "by known places in another order": lambda x, at: x[np.array([5, 0, 0, -1, 2, 3]), at],
    "computed places": lambda x, at: x[np.arange(6), (at + 3) % 8] + x[0, -1 - at.astype(np.int64)],
    "a cross-entropy": lambda x, at: np.log(np.exp(x).sum(1)) - x[np.arange(len(x)), at],
}


@pytest.mark.parametrize(
    "places", [[0, 7, 3, 3, 2, 6], [-1, 7, -8, 0, -3, 5]], ids=["forward", "from the end"]
)
@pytest.mark.parametrize("name", GATHERED)
def test_elements_are_chosen_by_integers_of_an_input(name, places):
    x = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    assert_followed(GATHERED[name], [x, np.array(places, np.int32)])


def test_an_input_without_numbers_below_zero_is_compared_as_it_is():
    inputs = [((6, 8), np.dtype(np.float32)), ((6,), np.dtype(np.int32))]

    def functions_of(reference, nonnegative):
        nodes = record_reference(reference, inputs, [(6,)], nonnegative).nodes
        return {node.params[0] for node in nodes if node.kind == "binary"}

    def of_rows(x, at):
        return x[np.arange(6), at]

    def of_computed(x, at):
        return x[np.arange(6), at - 1]

    assert functions_of(of_rows, [1]) == {"equal", "multiply"}
    assert "less" in functions_of(of_rows, [])
    assert "less" in functions_of(of_computed, [1])  # 0 - 1 is the last element


UNGATHERED = {
    "apart": (lambda x, at: x.reshape(6, 2, 4)[at[:, N], :, np.arange(4)][0], "axes that are apart"),
    "a number apart": (lambda x, at: np.stack([x, -x])[1, :, at], "axes that are apart"),
    "by two": (lambda x, at: x[at % 6, at], "mixes"),
    "new axes": (lambda x, at: x[N, at], "mixes"),
    "floats": (lambda x, at: x[np.arange(6), at * 1.0], "holds no integers"),
    "a mask": (lambda x, at: x[np.arange(6) < 6, at], "by a mask"),
}


@pytest.mark.parametrize("name", UNGATHERED)
def test_what_integers_may_not_choose_says_why(name):
    reference, reason = UNGATHERED[name]
    with pytest.raises(UntraceableError, match=reason):
        record_reference(reference, [((6, 8), np.dtype(np.float32)), ((6,), np.dtype(np.int32))], [(6,)])


def test_loops_become_arrays():
    inputs = [((6, 8), np.dtype(np.float32))] * 2
    assert len(record_reference(_scan, inputs, [(6, 12)]).nodes) < 50
    kinds = [node.kind for node in record_reference(_gate_state, inputs, [(12, 6)]).nodes]
    assert "recurrence" not in kinds


def count_products(reference, shapes, result):
    """How many products of matrices a reference is recorded with, once it is known to be followed."""
    generator = np.random.default_rng(1)
    assert_followed(reference, [generator.standard_normal(shape).astype(np.float32) for shape in shapes])
    inputs = [(shape, np.dtype(np.float32)) for shape in shapes]
    return sum(node.kind == "matmul" for node in record_reference(reference, inputs, [result]).nodes)


def _two_heads(x, w, scale):
    return np.stack([np.tanh(x[h] @ w[h].T) * scale[h] for h in range(2)])


def _two_taps(x, w, scale):
    return sum(x[0, t : t + 4] @ w[0, t : t + 1].T * scale[t] for t in range(2))


def _two_different(x, w, scale):
    return np.stack([x[0] @ w[0].T, w[1] @ x[1].T])


def test_products_of_few_heads_become_one_if_nothing_needs_one_alone():
    shapes = [(2, 6, 8), (2, 6, 8), (2,)]
    assert count_products(_two_heads, shapes, (2, 6, 6)) == 1
    assert count_products(_two_taps, shapes, (4, 1)) == 2
    assert count_products(_two_different, shapes, (2, 6, 6)) == 2


REFUSED = {
    "unwritten elements": (lambda x, y: np.add(x, y, where=x > 0), "without `out`"),
    "variance of some": (lambda x, y: x * np.var(y, axis=1, where=x > 0)[:, N], "np.var or np.std"),
    "difference with an end": (lambda x, y: np.diff(x, prepend=0.0), "`prepend`"),
    "control flow": (lambda x, y: x if x[0, 0] > 0 else y, "depends on the numbers"),
    "a number": (lambda x, y: x * float(y[0, 0]), "depends on the numbers"),
    "indices": (lambda x, y: x[np.argmax(y, axis=0)], "np.argmax"),
    "sorted": (lambda x, y: np.sort(x), "np.sort"),
    "complex": (lambda x, y: (x + 1j * y).real, "complex"),
    "lists": (lambda x, y: np.array(x.tolist()), "tolist"),
    "own loops": (lambda x, y: np.vectorize(lambda a: a)(x), "numbers in an array"),
    "integer results": (lambda x, y: _written_to_integers(x), "numbers"),
    "an error": (lambda x, y: x @ y, "matmul"),
    "other shapes": (lambda x, y: x[:3], "other shapes"),
    "rounded by writing": (lambda x, y: _put((x * 10).astype(np.int32), y * 10), "which would round"),
    "made true by writing": (lambda x, y: _put(x > 0, 3), "which would round"),
}


def _put(out, values):
    out[0] = values if np.ndim(values) == 0 else values[0]
    return out * 1.0


def _written_to_integers(x):
    out = np.zeros(x.shape, dtype=np.int64)
    out[...] = x
    return out


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_says_why(name):
    reference, reason = REFUSED[name]
    inputs = [((6, 8), np.dtype(np.float32))] * 2
    with pytest.raises(UntraceableError, match=reason):
        record_reference(reference, inputs, [(6, 8)])


def test_what_takes_too_much_is_refused():
    inputs = [((1 << 13, 1 << 13), np.dtype(np.float32))]
    expression = record_reference(lambda x: x / x.sum(), inputs, [(1 << 13, 1 << 13)])
    with pytest.raises(InvalidExpressionError, match="too many"):
        evaluate_boxes(expression, [OutputTile(0, ((0, 1), (0, 1)))], Given([]))


def test_numpy_is_left_as_it_was():
    before = np.zeros, np.array
    with pytest.raises(UntraceableError):
        record_reference(lambda x: x.tolist(), [((2,), np.dtype(np.float32))], [(2,)])
    assert (np.zeros, np.array) == before


FOREIGN_ERF = np.vectorize(math.erf, otypes=[np.float64])


def test_the_error_function_is_followed_where_numpy_has_no_name_for_it():
    x = np.random.default_rng(1).standard_normal((4, 5))
    call = np.vectorize.__call__
    assert_followed(lambda x: x * (1 + np.vectorize(math.erf)(x * 0.5)), [x])
    assert_followed(lambda x: FOREIGN_ERF(x) + 1, [x])
    assert np.vectorize.__call__ is call
    with pytest.raises(UntraceableError):
        record_reference(np.vectorize(math.gamma), [(x.shape, x.dtype)], [x.shape])


def test_a_fault_of_putting_loops_together_is_told_as_a_reason(monkeypatch):
    def fails(*_):
        raise KeyError(3)

    monkeypatch.setattr(recording, "stack_operations", fails)
    with pytest.raises(UntraceableError, match="could not be put together: KeyError: 3"):
        record_reference(lambda x: x + 1, [((2,), np.dtype(np.float32))], [(2,)])


# --- results that are read where they were written ---


def _scan_columns(x, y):
    out = np.empty((6, 16), dtype=np.float32)
    for t in range(16):
        before = out[..., t - 1] if t > 0 else 0
        out[..., t] = x[..., t] * before + y[..., t]
    return out


def _scan_rows_backwards(x, y):
    out = np.zeros((16, 6))
    for t in range(15, -1, -1):
        out[t] = x[:, t] * (out[t + 1] if t < 15 else 1.0) + y[:, t]
    return out


def _fibonacci(x, y):
    """Each step needs the last two."""
    out = np.empty((6, 16))
    out[:, :2] = y[:, :2]
    for t in range(2, 16):
        out[:, t] = out[:, t - 1] + x[:, t] * out[:, t - 2]
    return out


def _overwritten(x, y):
    """A part is read after more than it, less than it, or half of it was written again."""
    out = np.zeros((6, 16))
    out[:, 3] = x[:, 3]
    out[2] = y[2]
    column = out[:, 3] * 2
    out[:, 4] = column
    out[3:5, 4] = 7.0
    out[:, 5] = out[:, 4] + y[:, 0]
    out[::2, 5] += out[1::2, 5]
    out[:, 6] = out[::-1, 5]
    return out


def _through_views(x, y):
    """A view that is taken before a write shows what was written."""
    out = np.empty((6, 16))
    out[...] = x
    middle, turned = out[1:4], out.T
    first = middle * 2
    out[1:4] = y[1:4]
    turned[2] = first[0, :6]
    return np.concatenate([middle, first, turned[:, :6].T, out])


def _growth(x, y):
    """The states are factors of their own growth, so this is no linear recurrence."""
    out = np.empty((16, 6))
    out[0] = x[:, 0]
    for t in range(1, 16):
        out[t] = out[t - 1] + x[:, t] * out[t - 1]
    return out


def _logistic(x, y):
    out = np.zeros((16, 6))
    out[0] = x[:, 0] + y[:, 0]
    for t in range(1, 16):
        out[t] = 0.1 * out[t - 1] * out[t - 1] + y[:, t]
    return out


def _mixed_terms(x, y):
    """One of the terms is made in another way than the others."""
    out = np.zeros((16, 6))
    out[0] = x[:, 0] + y[:, 0]
    for t in range(1, 16):
        out[t] = x[:, t] * out[t - 1] + (np.exp(y[:, t]) if t < 15 else np.tanh(y[:, t]))
    return out


def _copied(x, y):
    """What is written to a copy does not change the original."""
    copy, turned, same = np.array(x), np.ascontiguousarray(x.T), np.ascontiguousarray(y)
    copy[0] = 5.0
    turned[0] = 6.0
    same[0] = 7.0
    return x + copy * turned.T + y


def _two_statements(x, y):
    out = np.zeros((16, 6))
    out[0] = y[:, 0]
    for t in range(1, 16):
        out[t] = x[:, t] * out[t - 1]
        out[t] += y[:, t]
    return out


WRITTEN = {
    "two statements for a step": (_two_statements, True),
    "growth": (_growth, False),
    "logistic growth": (_logistic, False),
    "mixed terms": (_mixed_terms, True),
    "a copy": (_copied, False),
    "columns": (_scan_columns, True),
    "rows from the last": (_scan_rows_backwards, True),
    "two steps back": (_fibonacci, False),
    "overwritten": (_overwritten, False),
    "views": (_through_views, False),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_was_written_is_read_again(name):
    reference, is_recurrence = WRITTEN[name]
    x, y = np.random.default_rng(5).standard_normal((2, 6, 16)).astype(np.float32)
    assert_followed(reference, [x, y])
    nodes = record_reference(reference, [(x.shape, x.dtype)] * 2, [reference(x, y).shape]).nodes
    assert any(node.kind == "recurrence" for node in nodes) is is_recurrence
