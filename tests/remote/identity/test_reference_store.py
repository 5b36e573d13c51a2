"""What a reference computes is found out in its jail, once, and kept; or why it cannot be said."""

from __future__ import annotations

import pytest

import seeds
from remote.jail_backends import jail_strength
from remote.judge.identity.expression import InvalidExpressionError, load_expression
from remote.references import ReferenceStore


def problem(source):
    return seeds.build_problem({**seeds.load_problem("silu").files, "reference.py": source.encode()})


async def test_what_a_reference_computes_is_kept(tmp_path, monkeypatch):
    store = ReferenceStore(tmp_path, strength=jail_strength())
    silu = seeds.load_problem("silu")
    path = (await store.load_files(silu, "full", expression=True)).expression
    (shape,) = [item.resolve_shape(silu.spec.dims("full")) for item in silu.spec.inputs]
    expression = load_expression(path.read_bytes(), [shape])
    assert expression.nodes[expression.outputs[0]].shape == shape

    async def never(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(store, "_compute_files", never)
    assert (await store.load_files(silu, "full", expression=True)).expression == path


async def test_arrays_that_a_module_makes_are_followed(tmp_path):
    made = "import numpy as np\nSUMS = np.zeros((1, 4))\n"
    source = made + "def reference(x):\n    SUMS[0, 0] += x[0, 0]\n    return x + SUMS[0, 0]\n"
    store = ReferenceStore(tmp_path, strength=jail_strength())
    path = (await store.load_files(problem(source), "reduced", expression=True)).expression
    assert load_expression(path.read_bytes(), [(256, 2048)]).outputs


async def test_arrays_that_are_made_by_their_class_are_followed(tmp_path):
    lines = (
        "import numpy as np",
        "def reference(x):",
        "    out = np.ndarray(x.shape, dtype=np.float32)",
        "    for t in range(len(x)):",
        "        out[t] = x[t] + (0.5 * out[t - 1] if t else 0)",
        "    places = np.ndarray(1, np.int64, np.arange(1).data)",
        "    assert isinstance(places, np.ndarray) and type(places) is np.ndarray",
        "    return out",
    )
    store = ReferenceStore(tmp_path, strength=jail_strength())
    path = (await store.load_files(problem("\n".join(lines)), "reduced", expression=True)).expression
    kinds = {node.kind for node in load_expression(path.read_bytes(), [(256, 2048)]).nodes}
    assert "recurrence" in kinds


async def test_a_reference_that_cannot_be_followed_is_no_error(tmp_path):
    source = "def reference(x):\n    return x if x[0, 0] > 0 else -x\n"
    store = ReferenceStore(tmp_path, strength=jail_strength())
    path = (await store.load_files(problem(source), "reduced", expression=True)).expression
    with pytest.raises(
        InvalidExpressionError, match="cannot be followed: what it does depends on the numbers"
    ):
        load_expression(path.read_bytes(), [(256, 2048)])
