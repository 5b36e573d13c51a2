"""The NumPy text of ATen operators, compared with numbers computed in another way."""

from __future__ import annotations

import numpy as np
import pytest

from seeds.from_torch.exported_graph import ExportedGraph
from seeds.from_torch.operators import Operand, UnwritableError, write_operator
from seeds.from_torch.reference_text import write_reference

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((4, 6)), RNG.standard_normal((4, 6))
W, B, ROW = RNG.standard_normal((3, 6)), RNG.standard_normal(3), RNG.standard_normal(6)
IMAGE, TAPS = RNG.standard_normal((2, 4, 8, 6)), RNG.standard_normal((6, 4, 3, 3))
LINES, FILTER = RNG.standard_normal((2, 4, 9)), RNG.standard_normal((4, 1, 3))
Q, K = RNG.standard_normal((1, 2, 5, 4)), RNG.standard_normal((1, 2, 5, 4))


def compute(target, *args, shape=None, **kwargs):
    """Run the reference of one call; arrays are its inputs."""
    arrays = [item for item in args if isinstance(item, np.ndarray)]
    names = iter([f"x{number}" for number in range(len(arrays))])
    shown = [{"node": next(names)} if isinstance(item, np.ndarray) else item for item in args]
    graph = ExportedGraph.model_validate({
        "version": 1, "module": "M", "outputs": ["found"],
        "inputs": [
            {"name": f"x{at}", "kind": "user_input", "shape": item.shape, "dtype": "float32"}
            for at, item in enumerate(arrays)
        ],
        "nodes": [{
            "name": "found", "target": target, "args": shown, "kwargs": kwargs,
            "shape": shape, "dtype": "float32",
        }],
    })  # fmt: skip
    names = {}
    exec(write_reference(graph, "m.py"), names)
    return names["reference"](*arrays)


def correlate(image, taps, stride, padding):
    """A convolution, element by element."""
    image = np.pad(image, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows = (image.shape[2] - taps.shape[2]) // stride + 1
    columns = (image.shape[3] - taps.shape[3]) // stride + 1
    found = np.zeros((image.shape[0], taps.shape[0], rows, columns))
    for n, o, i, j in np.ndindex(found.shape):
        part = image[n, :, i * stride : i * stride + taps.shape[2], j * stride : j * stride + taps.shape[3]]
        found[n, o, i, j] = (part * taps[o]).sum()
    return found


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        ("add.Tensor", (X, Y), {"alpha": 2}, X + 2 * Y),
        ("sub.Tensor", (X, 1.5), {}, X - 1.5),
        ("rsub.Scalar", (X, 1), {}, 1 - X),
        ("div.Tensor_mode", (X, Y), {"rounding_mode": "floor"}, np.floor(X / Y)),
        ("pow.Tensor_Scalar", (X, 2), {}, X**2),
        ("clamp.default", (X, -0.5), {}, np.maximum(X, -0.5)),
        ("clamp.default", (X, None, 0.5), {}, np.minimum(X, 0.5)),
        ("mean.dim", (X, [-1], True), {}, X.mean(1, keepdims=True)),
        ("sum.dim_IntList", (X, [0, 1]), {}, X.sum()),
        ("var.correction", (X, [1]), {"correction": 0}, X.var(1)),
        ("std.dim", (X, [1]), {}, X.std(1, ddof=1)),
        ("amax.default", (X, [1]), {}, X.max(1)),
        ("logsumexp.default", (X, [1]), {}, np.log(np.exp(X).sum(1))),
        ("softmax.int", (X, -1), {}, np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        ("log_softmax.int", (X, 1), {}, X - np.log(np.exp(X).sum(1, keepdims=True))),
        ("linear.default", (X, W, B), {}, X @ W.T + B),
        ("addmm.default", (B, X, W.T.copy()), {"beta": 2, "alpha": 3}, 2 * B + 3 * (X @ W.T)),
        ("transpose.int", (X, 0, -1), {}, X.T),
        ("permute.default", (IMAGE, [0, 2, 3, -3]), {}, IMAGE.transpose(0, 2, 3, 1)),
        ("slice.Tensor", (X, 1, 2, 9223372036854775807), {}, X[:, 2:]),
        ("slice.Tensor", (X, -1, -4, -1, 2), {}, X[:, -4:-1:2]),
        ("select.int", (X, 1, -1), {}, X[:, -1]),
        ("constant_pad_nd.default", (X, [1, 0, 0, 2]), {}, np.pad(X, ((0, 2), (1, 0)))),
        ("pad.default", (ROW, [1, 2], "constant", 7.0), {}, np.concatenate([[7], ROW, [7, 7]])),
        (
            "gelu.default", (X,), {"approximate": "tanh"},
            0.5 * X * (1 + np.tanh(0.7978845608 * (X + 0.044715 * X**3))),
        ),
        ("silu.default", (X,), {}, X / (1 + np.exp(-X))),
        ("softplus.default", (X,), {}, np.log(1 + np.exp(X))),
        ("elu.default", (X,), {}, np.where(X > 0, X, np.exp(X) - 1)),
        ("leaky_relu.default", (X, 0.1), {}, np.where(X > 0, X, 0.1 * X)),
        ("masked_fill.Scalar", (X, Y > 0, -3.0), {}, np.where(Y > 0, -3.0, X)),
        (
            "rms_norm.default", (X, [6], ROW, 1e-6), {},
            X / np.sqrt((X**2).mean(1, keepdims=True) + 1e-6) * ROW,
        ),
        (
            "layer_norm.default", (X, [6], ROW), {},
            (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5) * ROW,
        ),
        ("conv2d.default", (IMAGE, TAPS, None, [2, 2], [1, 1]), {}, correlate(IMAGE, TAPS, 2, 1)),
        (
            "conv1d.default", (LINES, FILTER, None, [1], [1], [1], 4), {},
            sum(FILTER[None, :, 0, tap, None] * np.pad(LINES, ((0, 0), (0, 0), (1, 1)))[..., tap : tap + 9]
                for tap in range(3)),
        ),
        ("max_pool2d.default", (IMAGE, [2, 2]), {}, IMAGE.reshape(2, 4, 4, 2, 3, 2).max((3, 5))),
        ("avg_pool2d.default", (IMAGE, [2, 2]), {}, IMAGE.reshape(2, 4, 4, 2, 3, 2).mean((3, 5))),
        ("adaptive_avg_pool2d.default", (IMAGE, [1, 1]), {}, IMAGE.mean((2, 3), keepdims=True)),
        (
            "group_norm.default", (IMAGE, 4), {},
            (IMAGE - IMAGE.mean((2, 3), keepdims=True)) / np.sqrt(IMAGE.var((2, 3), keepdims=True) + 1e-5),
        ),
    ],
)  # fmt: skip
def test_the_text_computes_the_operator(target, args, kwargs, expected):
    found = compute(f"aten.{target}", *args, **kwargs)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_attention_hides_what_comes_later():
    found = compute("aten.scaled_dot_product_attention.default", Q, K, K, None, 0.0, True)
    scores = Q @ K.swapaxes(-1, -2) / 2
    weights = np.exp(scores) * np.tril(np.ones((5, 5)))
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True) @ K)


def test_batches_are_normalised_by_the_statistics_that_are_kept():
    mean, var = RNG.standard_normal(4), RNG.random(4) + 1
    found = compute("aten.batch_norm.default", IMAGE, None, None, mean, var, False, 0.1, 1e-5, True)
    turned = (IMAGE.transpose(0, 2, 3, 1) - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(found, turned.transpose(0, 3, 1, 2))
    with pytest.raises(UnwritableError, match="statistics of the batch"):
        write_operator(
            "aten.batch_norm.default", Operand("out"), [Operand("x"), *"wbmv", True, 0.1, 1e-5], {}
        )


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("aten.frobnicate.default", [Operand("x")], "it has no NumPy text"),
        ("math.mul", [Operand("x"), 2], "it has no NumPy text"),
        ("aten.mul.Tensor", [Operand("x")], "with these arguments"),
        ("aten.pad.default", [Operand("x", (4,)), [1, 1], "reflect"], "it pads by 'reflect'"),
    ],
)
def test_what_has_no_text_is_refused(target, args, message):
    with pytest.raises(UnwritableError, match=message):
        write_operator(target, Operand("out"), args, {})
