"""Problems in NKIBench's file layout: found by any path that means them, read without running anything."""

from __future__ import annotations

import ast
import json
import random
import re

import numpy as np
import pytest

import seeds
from seeds import SpecError, UnknownProblemError
from seeds.expressions import evaluate_expression
from seeds.nkibench.reference_source import read_reference_source
from seeds.nkibench.shape_functions import SymbolicArray, SymbolicNumber
from seeds.nkibench.shape_inference import UnsupportedSyntaxError, infer_returned_arrays
from tests.seeds.nkibench_files import KERNEL, LABEL, REFERENCE, write


def faults_of(tmp_path, reference: str) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        seeds.load_problem(write(tmp_path, summary=False, reference=reference))
    return caught.value.faults


@pytest.mark.parametrize(
    "path", [f"kernels/{LABEL}_0.py", f"reference/{LABEL}_numpy_1.py", LABEL, "scaled_rows"]
)
@pytest.mark.parametrize("summary", [True, False])
def test_a_problem_is_found_by_any_path_that_means_it(tmp_path, monkeypatch, path, summary):
    write(tmp_path / "NKIBench", summary=summary)
    problem = seeds.load_problem(tmp_path / "NKIBench" / path)
    assert problem.name == "scaled_rows"
    monkeypatch.chdir(tmp_path)
    assert seeds.load_problem(f"NKIBench/{path}") == problem
    assert seeds.build_problem(problem.files) == problem


def test_the_conversion_says_what_the_files_say(tmp_path):
    problem = seeds.load_problem(write(tmp_path))
    spec = problem.spec
    assert spec.sizes["full"] == {"M": 256, "K": 64}
    assert (spec.rel_l2, spec.seeds, spec.shape_generic) == (2e-5, (0, 21, 42, 63, 84), False)
    x, g = spec.inputs
    assert (x.name, x.shape, x.kernel_shape, x.distribution, x.scale) == (
        "x",
        ("M", "K"),
        (2, 128, 64),
        "normal",
        1.0,
    )
    assert (g.name, g.shape, g.kernel_shape, g.distribution, g.scale) == (
        "g",
        ("K",),
        (1, 64),
        "abs_normal",
        0.5,
    )
    assert [(item.name, item.value, item.position) for item in spec.scalars] == [("eps", 1e-5, 1)]
    assert spec.call_arguments(["x", "g"], str) == ["x", "1e-05", "g"]
    (out,) = spec.outputs
    assert (out.resolve_shape(spec.dims("full")), out.kernel_shape, out.dtype) == (
        (256, 64),
        "any",
        "float32",
    )
    assert problem.files["nkibench.py"] == REFERENCE.encode()
    assert problem.kernel == KERNEL


def test_the_reference_follows_the_sizes_of_what_it_is_given(tmp_path, monkeypatch):
    problem = seeds.load_problem(write(tmp_path))
    for name, data in problem.files.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict = {}
    exec(problem.files["reference.py"], names)
    generator = np.random.default_rng(0)
    for shape in ((256, 64), (3, 10)):
        x, g = generator.standard_normal(shape), generator.standard_normal(shape[1])
        expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * g
        assert np.allclose(names["reference"](x, 1e-5, g), expected)


def test_large_sizes_get_a_reduced_one_unless_forward_needs_sizes_that_no_axis_says(tmp_path):
    text = REFERENCE.replace("M = 256", "M = 6144").replace("(2, 128, 64)", "(48, 128, 64)")
    spec = seeds.load_problem(write(tmp_path / "a", summary=False, reference=text)).spec
    assert spec.dims("reduced") == {"M": 192, "K": 64}
    hidden = text.replace("K = 64\n", "K = 64\nQ = 2\n").replace("return x /", "return Q * x /")
    spec = seeds.load_problem(write(tmp_path / "b", summary=False, reference=hidden)).spec
    assert set(spec.sizes) == {"full"}


def test_a_known_problem_of_the_same_arrays_lends_operations_and_relations(tmp_path):
    silu = seeds.load_problem("silu").spec
    text = """
import numpy as np
M = 4096
N = {n}
def get_inputs():
    x = np.random.randn(M, N).astype(np.float32)
    return [x]
def forward(x):
    return x / (1 + np.exp(-x))
"""
    for n, same in ((7168, True), (512, False)):
        folder = tmp_path / str(n)
        for part, name, data in (("reference", "numpy_0", text.format(n=n)), ("kernels", "0", KERNEL)):
            (folder / part).mkdir(parents=True)
            (folder / part / f"silu_M4096_N{n}_{name}.py").write_text(data)
        spec = seeds.load_problem(folder / "silu").spec
        assert (spec.work == silu.work) == same
        assert (spec.relations == silu.relations) == same


def test_nkibenchs_own_tolerance_for_mamba(tmp_path):
    write(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({"mamba": summary["scaled_rows"]}))
    assert seeds.load_problem(tmp_path / "mamba").spec.rel_l2 == 3e-5


def test_a_name_that_is_not_there_or_means_several_lists_what_there_is(tmp_path):
    write(tmp_path)
    for path in (tmp_path, tmp_path / "scaled_row"):
        with pytest.raises(UnknownProblemError, match=f"{tmp_path}/{LABEL}"):
            seeds.load_problem(path)
    (tmp_path / "kernels" / f"{LABEL}_1.py").write_text(KERNEL)
    with pytest.raises(UnknownProblemError):
        seeds.load_problem(tmp_path / LABEL)
    assert seeds.load_problem(tmp_path / "kernels" / f"{LABEL}_1.py").name == "scaled_rows"


def test_a_folder_of_ones_own_is_not_taken_for_nkibenchs(tmp_path):
    silu = seeds.load_problem("silu")
    write(tmp_path)
    for name, data in silu.files.items():
        (tmp_path / name).write_bytes(data)
    assert seeds.load_problem(tmp_path).name == "silu"


@pytest.mark.parametrize("text", ["[]", "{", '{"a": {"cases": {"0": {"values": {}}}}}', '{"a": 1}'])
def test_a_summary_that_is_none(tmp_path, text):
    path = write(tmp_path)
    (tmp_path / "summary.json").write_text(text)
    if text == "[]":
        with pytest.raises(SpecError, match="not a summary"):
            seeds.load_problem(path)
        return
    with pytest.raises(SpecError) as caught:
        seeds.load_problem(path)
    assert "not a summary of NKIBench" in caught.value.faults[0]


def test_all_that_cannot_be_read_is_said_at_once_with_lines(tmp_path):
    found = faults_of(
        tmp_path,
        REFERENCE.replace("np.random.normal(loc=0, scale=1.0, size=(M, K))", "np.random.uniform(size=(M, K))")
        .replace("scale=0.5, size=(K,)", "scale=0.5, size=(Q,)")
        .replace("np.reshape(inputs[2], (1, 64))", "np.reshape(inputs[2].T, (1, 64))")
        .replace("np.reshape(v, r.shape)", "np.transpose(v)"),
    )
    text = "\n".join(found)
    for words in ("line 8: np.random.uniform", "line 10: the size of g", "np.transpose(v)"):
        assert words in text
    assert len(found) >= 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def forward", "def backward", "no function 'forward'"),
        ("return [x, eps, g]", "return [x, eps, h]", "`h`, which it has not assigned"),
        ("return [x, eps, g]", "pass", "only `name = ...` and a returned list"),
        ("def forward(x, eps, g)", "def forward(x, g)", "forward takes 2 arguments, get_inputs has 3"),
        ("np.divide(np.square(x), K)", "np.linalg.svd(x)", "cannot follow"),
        ("axis=1", "axis=5", "2 axes have none of number [5]"),
        ("size=(K,)", "size=(M,)", "axes of lengths K and M"),
        ("loc=0, scale=1.0", "loc=3, scale=1.0", "needs loc=0"),
        ("(2, 128, 64)", "(2, 100, 64)", "has not the 16384 elements"),
        ("import numpy as np", "import numpy as (", "not Python"),
    ],
)
def test_single_faults(tmp_path, old, new, words):
    assert words in "\n".join(faults_of(tmp_path, REFERENCE.replace(old, new, 1)))


def test_a_summary_that_contradicts_its_file(tmp_path):
    path = write(tmp_path, reference=REFERENCE.replace("K = 64", "K = 32"))
    with pytest.raises(SpecError) as caught:
        seeds.load_problem(path)
    assert any("the summary has K = 64, the file 32" in fault for fault in caught.value.faults)


def test_nothing_of_the_files_runs(tmp_path):
    marker = tmp_path / "ran"
    seeds.load_problem(write(tmp_path, reference=f"open({str(marker)!r}, 'w')\n{REFERENCE}"))
    assert not marker.exists()


def test_constants_that_are_no_sizes_are_left_where_they_are(tmp_path):
    text = REFERENCE.replace("K = 64\n", "K = 64\nSEED = 0\nEPSILON = 1e-3\nTWO = 2\n")
    text = text.replace("mean + eps", "mean + eps + EPSILON * SEED").replace("return x /", "return TWO * x /")
    problem = seeds.load_problem(write(tmp_path, summary=False, reference=text))
    assert problem.spec.dims("full") == {"M": 256, "K": 64, "TWO": 2}
    assert problem.spec.outputs[0].resolve_shape(problem.spec.dims("full")) == (256, 64)


def test_damaged_files_are_problems_or_faults():
    words = re.findall(r"\w+|[^\w\s]|\s+", REFERENCE)
    others = [*words, "-1", "None", "...", "[", "]", "(", ")", ":", "*", "@", "1e9", ""]
    draw = random.Random(0)
    for _ in range(400):
        text = list(words)
        for _ in range(draw.randint(1, 3)):
            text[draw.randrange(len(text))] = draw.choice(others)
        source, faults = read_reference_source("".join(text).encode(), {})
        assert (source is None) == bool(faults)


# --- shapes ----------------------------------------------------------------------------------------

BODIES = {
    "arithmetic": "return -x * 2 + y / np.sqrt(N)",
    "product": "return x @ np.transpose(y, axes=(1, 0))",
    "batched product": "return np.matmul(x[None], y.T)",
    "reductions": "return x / np.sum(x, axis=-1, keepdims=True) + y.mean(axis=0)",
    "all of it": "return x * np.max(y)",
    "halves": "half = M // 2\n    return np.concatenate([x[:half] + y[half:], x[half:, :]], axis=0)",
    "tails": "return x[:-1, 1:]",
    "new axes": "return x[:, None, :] * y[None, ..., np.newaxis, :]",
    "repeated": "return np.repeat(x, 3, axis=1)",
    "reshaped": "return np.reshape(x, (M * N,))",
    "swapped": "return np.swapaxes(x, 0, 1)",
    "filled in": "out = np.zeros((M, N), dtype=np.float32)\n    for i in range(M):\n"
    "        out[i] = x[i] + y[i]\n    return out",
    "a step of a scan": "h = np.ndarray((M, 4, N), dtype=np.float32)\n    for i in range(4):\n"
    "        p = h[:, i - 1, :] if i > 0 else 0\n        h[:, i, :] = x + p\n    return np.sum(h, axis=-2)",
    "two": "a, b = x + y, x[0]\n    a += b\n    return a, b",
    "shape": "m, n = x.shape\n    return np.ones((n, m), dtype=x.dtype)",
    "as long as it is": "return np.ones((len(x), 2), dtype=np.float32)",
    "chosen": "return np.where(x > 0, x, y).astype(np.float16)",
    "expanded": "return np.expand_dims(x, -1)",
    "transposed": "return x.reshape(M, 1, N).transpose(2, 0, 1)",
    "masked": "return np.maximum(x, 0) * (y > 0).astype(np.float32)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("dims", [{"M": 4, "N": 6}, {"M": 8, "N": 2}])
def test_shapes_are_those_that_numpy_gives(body, dims):
    text = f"def forward(x, y):\n    {body}\n"
    names = {"np": np, **dims}
    exec(text, names)
    array = np.ones((dims["M"], dims["N"]), dtype=np.float32)
    results = names["forward"](array, array)
    truth = results if isinstance(results, tuple) else (results,)
    given = [SymbolicArray(("M", "N"), "float32")] * 2
    found = infer_returned_arrays(ast.parse(text).body[0], given, [dims])
    assert [tuple(evaluate_expression(axis, dims) for axis in item.axes) for item in found] == [
        item.shape for item in truth
    ]
    # Kernels have nothing wider than float32.
    narrow = {"float64": "float32"}
    assert [narrow.get(item.dtype, item.dtype) for item in found] == [
        narrow.get(str(item.dtype), str(item.dtype)) for item in truth
    ]


@pytest.mark.parametrize(
    "body",
    [
        "return np.fft.fft(x)",
        "return helper(x)",
        "while True:\n        pass",
        "return x[::2]",
        "return x @ x",
        "return x + y.T",
        "return np.sum(x, axis=n)",
        "return np.zeros((np.max(x), 2))",
        "return 3",
        "x.sort()",
        "return x[y]",
        "return x[0, 0, 0]",
        "with open('f') as f:\n        return x",
        "return np.reshape()",
        "return np.concatenate(x)",
        "for i in range(2):\n        return x",
    ],
)
def test_what_is_not_followed_is_said_with_its_line(body):
    function = ast.parse(f"def forward(x, y, n):\n    {body}\n").body[0]
    given = [SymbolicArray(("M", "N"), "float32"), SymbolicArray(("M", "N"), "float32"), SymbolicNumber()]
    with pytest.raises(UnsupportedSyntaxError, match=r"line \d+: cannot follow"):
        infer_returned_arrays(function, given, [{"M": 4, "N": 6}])
