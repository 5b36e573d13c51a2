"""References of exported graphs: the graphs in `exported/`, and graphs that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seeds.errors import ScaffoldError
from seeds.from_reference import parse_reference
from seeds.from_torch import read_graph, write_reference

HALF = {"shape": [128, 128], "dtype": "float32"}
PAIR = {"shape": [2, 2], "dtype": "float32"}
BLOCK = (Path(__file__).parent / "exported" / "block.json").read_bytes()


def changed(**changes):
    return json.dumps({**json.loads(BLOCK), **changes}).encode()


def test_parameters_are_inputs_under_their_names_in_the_module():
    text = write_reference(read_graph(BLOCK, "block.json"), "block.py")
    file = parse_reference(text, Path("block.py"))
    assert list(file.inputs) == ["norm_weight", "up_weight", "up_bias", "x"]
    assert file.inputs["up_weight"] == ((512, 256), "float32")
    assert file.distributions == {"norm_weight": "positive"}
    assert file.formula == "Block of block.py, exported by torch.export."
    assert text.count("\ndef ") == 4  # reference, normalise, gelu and erf; no other function is copied
    names = {}
    exec(text, names)
    arrays = [np.ones(256), np.zeros((512, 256)), np.full(512, 2.0), np.ones((128, 256))]
    np.testing.assert_allclose(names["reference"](*arrays), np.full((128, 512), 1.9544997), rtol=1e-7)


def test_calls_that_no_output_needs_are_left_out():
    text = write_reference(read_graph(changed(outputs=["linear"]), "block.json"), "block.py")
    assert "gelu" not in text
    assert "import math" not in text


def test_constants_of_other_types_are_written_out_and_names_are_made_free():
    mask = {
        "name": "b_mask", "kind": "buffer", "target": "lambda", "shape": [2, 2], "dtype": "bool",
        "values": [True, False, True, True],
    }  # fmt: skip
    given = {"name": "np", "kind": "user_input", "shape": [2, 2], "dtype": "float32"}
    nodes = [
        {"name": "logical_not", "target": "aten.logical_not.default", "args": [{"node": "b_mask"}],
         "shape": [2, 2], "dtype": "bool"},
        {"name": "erf", "target": "aten.masked_fill.Scalar", **PAIR,
         "args": [{"node": "np"}, {"node": "logical_not"}, {"number": "-inf"}]},
    ]  # fmt: skip
    text = write_reference(
        read_graph(changed(inputs=[mask, given], nodes=nodes, outputs=["erf"]), "m"), "m.py"
    )
    names = {}
    exec(text, names)
    found = names["reference"](np.ones((2, 2)))
    np.testing.assert_array_equal(found, [[1.0, -np.inf], [1.0, 1.0]])


def test_several_results_are_taken_apart():
    nodes = [
        {"name": "chunk", "target": "aten.chunk.default", "args": [{"node": "x"}, 2, -1]},
        {"name": "first", "target": "getitem", "args": [{"node": "chunk"}, 0], **HALF},
        {"name": "other", "target": "getitem", "args": [{"node": "chunk"}, 1], **HALF},
    ]  # fmt: skip
    graph = read_graph(changed(nodes=nodes, outputs=["other", "first"]), "m")
    names = {}
    exec(write_reference(graph, "m.py"), names)
    x = np.arange(128.0 * 256).reshape(128, 256)
    other, first = names["reference"](None, None, None, x)
    np.testing.assert_array_equal(np.concatenate([first, other], axis=1), x)


def test_what_cannot_be_written_is_named_with_its_line():
    node = {
        **json.loads(BLOCK)["nodes"][2],
        "target": "aten.sort.default",
        "line": "block.py, line 9: y.sort()",
    }
    data = changed(nodes=[*json.loads(BLOCK)["nodes"][:2], node])
    with pytest.raises(
        ScaffoldError, match=r"aten.sort.default \(block.py, line 9: y.sort\(\)\): it has no NumPy"
    ):
        write_reference(read_graph(data, "m"), "block.py")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "no exported graph: version: "),
        ({"outputs": ["missing"]}, "has no value 'missing'"),
        (
            {"nodes": [{"name": "gelu", "target": "aten.gelu.default", "args": [{"node": "later"}]}]},
            "no call before",
        ),
        (
            {"inputs": [{"name": "x", "kind": "buffer", "shape": [2], "dtype": "int64"}], "outputs": ["x"]},
            "x has the type int64; kernels take float32",
        ),
    ],
)  # fmt: skip
def test_a_graph_that_is_wrong_is_named(changes, message):
    with pytest.raises(ScaffoldError, match=message):
        write_reference(read_graph(changed(**changes), "graph.json"), "graph.json")


def test_a_stored_attention_computes_attention():
    """The file is what `export_program.py` printed with torch 2.13."""
    path = Path(__file__).parent / "exported" / "attention.json"
    text = write_reference(read_graph(path.read_bytes(), str(path)), path.name)
    file = parse_reference(text, path)
    names = {}
    exec(text, names)
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape) / 8 for name, (shape, _) in file.inputs.items()}
    query, key, value = np.split(given["x"] @ given["qkv_weight"].T + given["qkv_bias"], 3, axis=1)
    parts = []
    for head in range(4):
        own = slice(64 * head, 64 * head + 64)
        powers = np.exp(query[:, own] @ key[:, own].T / 8) * np.tril(np.ones((128, 128)))
        parts.append(powers / powers.sum(1, keepdims=True) @ value[:, own])
    expected = np.concatenate(parts, axis=1) @ given["out_weight"].T + given["out_bias"]
    np.testing.assert_allclose(names["reference"](*given.values()), expected)
    assert "clone" not in text
