"""What a reference computes is found out in its jail, once, and kept; or why it cannot be said."""

from __future__ import annotations

import pytest

import seeds
from remote.judge.identity.expression import ExpressionError, loads
from remote.references import ReferenceStore
from remote.walls import jail_strength


def problem(source):
    return seeds.from_files({**seeds.load("silu").files, "reference.py": source.encode()})


async def test_what_a_reference_computes_is_kept(tmp_path, monkeypatch):
    store = ReferenceStore(tmp_path, strength=jail_strength())
    silu = seeds.load("silu")
    path = (await store.get(silu, "full", expression=True)).expression
    (shape,) = [item.resolve(silu.spec.dims("full")) for item in silu.spec.inputs]
    expression = loads(path.read_bytes(), [shape])
    assert expression.nodes[expression.outputs[0]].shape == shape

    async def never(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(store, "_compute", never)
    assert (await store.get(silu, "full", expression=True)).expression == path


async def test_arrays_that_a_module_makes_are_followed(tmp_path):
    made = "import numpy as np\nSUMS = np.zeros((1, 4))\n"
    source = made + "def reference(x):\n    SUMS[0, 0] += x[0, 0]\n    return x + SUMS[0, 0]\n"
    store = ReferenceStore(tmp_path, strength=jail_strength())
    path = (await store.get(problem(source), "reduced", expression=True)).expression
    assert loads(path.read_bytes(), [(256, 2048)]).outputs


async def test_a_reference_that_cannot_be_followed_is_no_error(tmp_path):
    source = "def reference(x):\n    return x if x[0, 0] > 0 else -x\n"
    store = ReferenceStore(tmp_path, strength=jail_strength())
    path = (await store.get(problem(source), "reduced", expression=True)).expression
    with pytest.raises(ExpressionError, match="cannot be followed: what it does depends on the numbers"):
        loads(path.read_bytes(), [(256, 2048)])
