"""The front end: indexing and views against NumPy, the entry rule, errors at the kernel's own line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.errors import KernelError, LimitError, TargetError
from nki_sim.frontend import language
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.tensor import Tensor

X = ArraySpec((128, 512), "float32")


def tensor(shape: tuple[int, ...], buffer: str) -> Tensor:
    recorder = Recorder(targets.load("trn2"), "kernel.py", max_instructions=10)
    return recorder.declare(shape, "float32", buffer, "t")


def elements(view: Tensor, size: int) -> Any:
    """The storage elements a view walks, in order."""
    strides = tuple(step * 8 for step, _ in view._dims)
    return np.ndarray(view.shape, np.int64, np.arange(size), view.offset * 8, strides)


@st.composite
def indexed(draw: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=4)))
    keys: list[Any] = []
    for size in shape[: draw(st.integers(1, len(shape)))]:
        if draw(st.booleans()):
            keys.append(draw(st.integers(-size, size - 1)))
        else:
            start = draw(st.integers(0, size - 1))
            keys.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3))))
    return shape, tuple(keys)


@given(case=indexed())
def test_indexing_hbm_is_numpys(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, keys = case
    wanted = np.arange(np.prod(shape)).reshape(shape)[keys]
    view = tensor(shape, "shared_hbm")[keys]
    assert elements(view, int(np.prod(shape))).reshape(-1).tolist() == wanted.reshape(-1).tolist()
    assert view.shape == (wanted.shape or (1,))


@given(case=indexed())
def test_indexing_a_tile_keeps_the_partition_dimension(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, keys = case
    first = keys[0]
    kept = slice(first % shape[0], first % shape[0] + 1) if isinstance(first, int) else first
    wanted = np.arange(np.prod(shape)).reshape(shape)[(kept, *keys[1:])]
    view = tensor(shape, "sbuf")[keys]
    assert elements(view, int(np.prod(shape))).reshape(wanted.shape).tolist() == wanted.tolist()


@given(case=indexed(), more=st.data())
def test_views_of_views_compose(case: tuple[tuple[int, ...], tuple[Any, ...]], more: Any) -> None:
    shape, keys = case
    wanted, view = np.arange(np.prod(shape)).reshape(shape)[keys], tensor(shape, "hbm")[keys]
    if wanted.ndim:
        index = tuple(more.draw(st.integers(0, size - 1)) for size in wanted.shape)
        assert int(wanted[index]) == elements(view[index], int(np.prod(shape))).reshape(-1)[0]


def test_views_are_numpys_views() -> None:
    base = np.arange(4 * 6 * 10).reshape(4, 6, 10)
    tile = tensor((4, 6, 10), "sbuf")
    pairs = [
        (tile.permute((0, 2, 1)), base.transpose(0, 2, 1)),
        (tile.reshape(4, 60), base.reshape(4, 60)),
        (tile.reshape((4, -1, 5)), base.reshape(4, 12, 5)),
        (tile.flatten_dims(1, 2), base.reshape(4, 60)),
        (tile.reshape_dim(2, (2, 5)), base.reshape(4, 6, 2, 5)),
        (tile.select(1, 3), base[:, 3]),
        (tile.slice(2, 1, 9, 2), base[:, :, 1:9:2]),
        (tile.expand_dim(1), base[:, None]),
        (tile[:, 0:1].broadcast(1, 5), np.broadcast_to(base[:, 0:1], (4, 5, 10))),
        (tile[:, 0:1].broadcast_to((4, 3, 10)), np.broadcast_to(base[:, 0:1], (4, 3, 10))),
        (tile.expand_dim(1).squeeze_dim(1), base),
        (tile[..., 4], base[..., 4]),
        (tile.select(-2, 3), base[:, 3]),
        (tile.slice(-1, 1, 9, 2), base[:, :, 1:9:2]),
        (tile.permute((0, -1, -2)), base.transpose(0, 2, 1)),
        (tile[:, 0:1].broadcast(-2, 5), np.broadcast_to(base[:, 0:1], (4, 5, 10))),
        (tile.expand_dim(-1), base[..., None]),
        (tile.expand_dim(3), base[..., None]),
        (language.expand_dims(tile, -2), base[:, :, None]),
        (tile[:, 2:3].squeeze_dim(-2), base[:, 2]),
        (tile.reshape_dim(-1, (2, 5)), base.reshape(4, 6, 2, 5)),
        (tile.flatten_dims(-2, -1), base.reshape(4, 60)),
        (tile.ap([[60, 2], [0, 3], [7, 4]], offset=5), np.stack([[base.reshape(4, 60)[:2, 5:27:7]] * 3], 0)[0]
         .transpose(1, 0, 2)),
    ]  # fmt: skip
    for view, wanted in pairs:
        assert view.shape == wanted.shape
        assert elements(view, 240).tolist() == wanted.tolist()


def outcome(make: Callable[[], Any]) -> Any:
    """What it makes, None when it is refused."""
    try:
        return make()
    except (KernelError, ValueError):
        return None


@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple), dim=st.integers(-6, 6))
def test_dimensions_are_numpys_and_refused_where_numpy_refuses(shape: tuple[int, ...], dim: int) -> None:
    base, view = np.arange(np.prod(shape)).reshape(shape), tensor(shape, "hbm")
    pairs: list[tuple[Callable[[], Tensor], Callable[[], Any]]] = [
        (lambda: view.select(dim, 0), lambda: base.take(0, axis=dim)),
        (lambda: view.slice(dim, 0, 1), lambda: base.take([0], axis=dim)),
        (lambda: view.expand_dim(dim), lambda: np.expand_dims(base, dim)),
        (lambda: view.squeeze_dim(dim), lambda: np.squeeze(base, dim)),
        (lambda: view.reshape_dim(dim, (-1,)), lambda: np.moveaxis(base, dim, dim)),
        (lambda: view.flatten_dims(dim, dim), lambda: np.moveaxis(base, dim, dim)),
        (lambda: view.slice(dim, 0, 1).broadcast(dim, 2), lambda: base.take([0, 0], axis=dim)),
    ]
    for ours, numpys in pairs:
        found, wanted = outcome(ours), outcome(numpys)
        assert (found is None) == (wanted is None)
        if found is not None:
            assert found.shape == wanted.shape
            assert elements(found, base.size).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("x[0:129]", "tensor_access_out_of_bound"),
        ("x[128]", "tensor_access_out_of_bound"),
        ("x[5:5]", "tensor_access_out_of_bound"),
        ("x[0:4:0]", "access_pattern"),
        ("x[0, 0, 0]", "too_many_indices"),
        ("x['a']", "index_type"),
        ("x[0.5:1]", "index_type"),
        ("x.ap([[512, 129], [1, 512]])", "tensor_access_out_of_bound"),
        ("x.ap([[-1, 2]])", "access_pattern"),
        ("x.ap([[1, 2]], scalar_offset=x)", "indirect_index_shape"),
        ("x.reshape(3, 5)", "reshape"),
        ("x[:, 0:2].reshape(256)", "reshape"),
        ("x.permute((1, 1))", "permute"),
        ("x.broadcast(0, 4)", "broadcast"),
        ("x.flatten_dims(0, 1) if False else x[:, 0:3].flatten_dims(0, 1)", "reshape"),
        ("x.select(2, 0)", "axis"),
        ("x.select(-3, 0)", "axis"),
        ("x.slice('a', 0, 1)", "axis"),
        ("x.expand_dim(4)", "axis"),
        ("x.squeeze_dim(-3)", "axis"),
        ("t.expand_dim(-3)", "expand_dim"),
        ("t.flatten_dims(0, -1)", "reshape"),
        ("x.flatten_dims(1, 0)", "reshape"),
        ("x.permute((0, 2))", "axis"),
        ("x[:, 0:1].broadcast(1, 0)", "broadcast"),
        ("x[0, 0:1].squeeze_dim(0)", "squeeze_dim"),
        ("nl.ndarray((4, 4), nl.float32, nl.sbuf, name='n' * 501)", "name"),
        ("nl.ndarray((4, 4), nl.float32, nl.sbuf, name=7)", "name"),
        ("nisa.nc_matmul(nl.ndarray((4, 4097), nl.float32, nl.psum), t, t)", "psum_capacity"),
        ("nisa.nc_matmul(t, t, t, perf_mode='double_row')", "argument_type"),
        ("x + x", "operator_on_tensor"),
        ("list(x)", "iterate_tensor"),
        ("x.__setitem__(0, 1)", "cannot_assign_to_index"),
        ("nl.ndarray((128,), nl.float32, nl.sbuf)", "tile_rank"),
        ("nl.ndarray((0, 4), nl.float32, nl.sbuf)", "shape"),
        ("nl.ndarray((4, 4), 'float99', nl.sbuf)", "dtype"),
        ("nl.ndarray((4, 4), nl.float32, 'sbuf')", "unsupported_memory"),
        ("nl.ndarray((4, 4), nl.float32, nl.sbuf, address=(0, -1))", "address"),
        ("nl.ndarray((4, 4), nl.float32, nl.sbuf, address=7)", "address"),
        ("nl.ndarray((4, 4), nl.float32, nl.hbm, address=(0, 0))", "address"),
        ("nl.dynamic_range(x)", "unsupported"),
        ("nisa.frobnicate(x)", "unknown_name"),
        ("nl.prelu(x)", "unsupported"),
        ("nisa.memset(t)", "missing_argument"),
        ("nisa.memset(t, True)", "argument_type"),
        ("nisa.memset(t, t)", "argument_type"),
        ("nisa.memset({}, 1.0)", "argument_type"),
        ("nisa.memset(t, 0.0, dst=t)", "argument_twice"),
        ("nisa.memset(t, 0.0, None, 4)", "too_many_arguments"),
        ("nisa.memset(t, 0.0, speed=4)", "unsupported_argument"),
        ("nisa.activation(t, nl.add, t)", "op"),
        ("nisa.activation(t, 'exp', t)", "op"),
        ("nisa.activation(t, nl.exp, t, reduce_cmd=2)", "argument_type"),
        ("nisa.tensor_copy(t, t, engine='vector')", "argument_type"),
        ("nisa.dma_copy(t, x, dge_mode=4)", "argument_type"),
        ("nisa.dma_copy(t, x, name=4)", "argument_type"),
        ("nisa.nc_matmul(t, t, t, accumulate=3)", "unsupported_memory"),
        ("nisa.tensor_copy(t, t, engine=nisa.engine.sync)", "engine"),
        ("1 / 0", "kernel_exception"),
        ("missing", "kernel_exception"),
        ("exit(0)", "kernel_exit"),
        ("__import__('sys').exit(0)", "kernel_exit"),
    ],
)
def test_errors_carry_the_line_of_the_kernel(expression: str, code: str, tracing: Any) -> None:
    text = f"""
    def helper(x, t):
        return {expression}

    @nki.jit
    def kernel(x):
        t = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        helper(x, t)
        return t
    """
    with pytest.raises(KernelError) as caught:
        tracing(text, X)
    assert (caught.value.code, caught.value.line) == (code, 8)


PLAIN = """
@nki.jit
def {name}(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return {result}
"""


def test_the_only_kernel_is_the_entry(tracing: Any) -> None:
    assert tracing(PLAIN.format(name="anything", result="out"), X).kernel == "anything"


def test_kernel_is_the_entry_among_several_unless_named(tracing: Any) -> None:
    text = PLAIN.format(name="kernel", result="out") + PLAIN.format(name="other", result="out")
    assert tracing(text, X).kernel == "kernel"
    assert tracing(text, X, entry="other").kernel == "other"
    with pytest.raises(KernelError, match="third"):
        tracing(text, X, entry="third")


@pytest.mark.parametrize(
    "text", ["x = 1", PLAIN.format(name="a", result="out") + PLAIN.format(name="b", result="out")]
)
def test_no_clear_entry_is_an_error(text: str, tracing: Any) -> None:
    with pytest.raises(KernelError) as caught:
        tracing(text, X)
    assert caught.value.code == "entry"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("N = 1\n\n\ndef kernel(x):\n    return x\n", 9, "`kernel` is not decorated with @nki.jit"),
        ("def helper():\n    pass\n\n\ndef silu(x):\n    return x\n", 10, "`silu` is not decorated"),
        ("N = 1\n", 0, "the file has no kernel"),
        (
            PLAIN.format(name="a", result="out") + PLAIN.format(name="b", result="out"),
            0,
            "jit functions: a, b",
        ),
    ],
)
def test_an_entry_that_is_missing_is_named_with_its_line(
    text: str, line: int, words: str, tracing: Any
) -> None:
    with pytest.raises(KernelError) as caught:
        tracing(text, X)
    assert words in caught.value.message
    assert caught.value.line == line
    assert caught.value.hint


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ("x", "output_buffer"),
        ("None", "output_type"),
        ("()", "no_output"),
        ("out[0:64]", "output_buffer"),
        ("out, out", "output_twice"),
        ("nl.ndarray((8, 8), nl.float32, nl.shared_hbm).permute([1, 0])", "output_buffer"),
        ("nl.ndarray((8, 8), nl.float32, nl.shared_hbm).ap([[0, 8], [1, 8]])", "output_buffer"),
    ],
)
def test_outputs_are_whole_tensors_in_shared_hbm(result: str, code: str, tracing: Any) -> None:
    with pytest.raises(KernelError) as caught:
        tracing(PLAIN.format(name="kernel", result=result), X)
    assert caught.value.code == code
    assert caught.value.line > 0


def test_a_kernels_own_name_has_a_limit_too(tracing: Any) -> None:
    with pytest.raises(KernelError) as caught:
        tracing(PLAIN.format(name="k" * 501, result="out"), X)
    assert caught.value.code == "name"


@pytest.mark.parametrize(
    ("target", "version", "older"), [("trn1", "gen2", False), ("trn2", "gen3", True), ("trn3", "gen4", True)]
)
def test_generations_compare(target: str, version: str, older: bool, tracing: Any) -> None:
    text = f"""
    @nki.jit
    def kernel(x):
        found = nisa.get_nc_version()
        assert found == nisa.nc_version.{version} and found is nisa.nc_version.{version}
        assert (found >= nisa.nc_version.gen3) is {older} and found <= nisa.nc_version.gen4
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out
    """
    assert len(tracing(text, X, target=target)) == 1


def test_a_performance_mode_that_changes_nothing_is_taken(simulate: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        t = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.sbuf)
        p = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum)
        out = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(t, x)
        nisa.nc_matmul(p, t, t, perf_mode=nisa.matmul_perf_mode.none)
        nisa.tensor_copy(t, p)
        nisa.dma_copy(out, t)
        return out
    """
    x = np.eye(8, dtype=np.float32) * 3
    assert np.array_equal(simulate(text, x)[0], x @ x)


def test_scalars_and_tuples_of_outputs(simulate: Any) -> None:
    text = """
    @nki.jit
    def kernel(x, scale, twice=False):
        outs = []
        for factor in (scale, scale * (2 if twice else 1)):
            t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            out = nl.empty_like(x, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=t, src=x)
            nisa.tensor_scalar(t, t, nl.multiply, factor)
            nisa.dma_copy(dst=out, src=t)
            outs.append(out)
        return tuple(outs)
    """
    x = np.ones((4, 4), np.float32)
    once, twice = simulate(text, x, 1.5, True)
    assert (once[0, 0], twice[0, 0]) == (1.5, 3.0)


def test_arguments_must_fit_the_signature(tracing: Any) -> None:
    with pytest.raises(KernelError, match="takes 1 arguments, 2 given"):
        tracing(PLAIN.format(name="kernel", result="out"), X, X)


def test_syntax_errors_have_their_line() -> None:
    with pytest.raises(KernelError) as caught:
        nki_sim.trace("import nki\nx = = 1\n", args=[])
    assert (caught.value.code, caught.value.line) == ("syntax_error", 2)


@pytest.mark.parametrize(
    ("loop", "code"),
    [
        ("nisa.dma_copy(dst=out, src=x)", "limit_instructions"),
        ("nl.ndarray((4, 4), nl.float32, nl.sbuf)", "limit_tensors"),
    ],
)
def test_endless_kernels_meet_a_typed_limit(loop: str, code: str, tracing: Any) -> None:
    text = f"""
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        while True:
            {loop}
    """
    with pytest.raises(LimitError) as caught:
        tracing(text, X, max_instructions=1000)
    assert (caught.value.code, caught.value.line) == (code, 11)


def test_unknown_targets_name_the_known_ones() -> None:
    with pytest.raises(TargetError, match="known targets: trn1, trn2, trn3"):
        nki_sim.trace("", args=[], target="trn9")


def test_tracing_leaves_no_module_behind_and_keeps_a_real_one(tracing: Any, monkeypatch: Any) -> None:
    real = type(sys)("nki")
    monkeypatch.setitem(sys.modules, "nki", real)
    tracing(PLAIN.format(name="kernel", result="out"), X)
    assert sys.modules["nki"] is real
    assert "nki.isa" not in sys.modules


def test_calls_outside_a_kernel_say_so() -> None:
    with pytest.raises(KernelError, match="nki_api_outside_of_nki_kernel"):
        language.ndarray((4, 4), "float32", language.sbuf)


def test_tile_sizes_come_from_the_target(tracing: Any) -> None:
    text = (
        PLAIN.format(name="kernel", result="out")
        + """
    assert (nl.tile_size.pmax, nl.tile_size.psum_fmax, nl.tile_size.gemm_moving_fmax) == (128, 512, 512)
    assert nl.tile_size.gemm_stationary_fmax == 128 and nl.tile_size.psum_num_banks == 8
    assert nisa.get_nc_version() == nisa.nc_version.gen3 and nl.program_id(0) == 0 and nl.num_programs() == 1
    """
    )
    head, _, checks = text.rpartition("    return out\n")
    body = "\n".join(line for line in checks.splitlines())
    assert len(tracing(f"{head}{body}\n    return out\n", X)) == 1


def test_a_tensor_that_is_given_is_true(tracing: Any) -> None:
    text = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, scale=None, bias=None):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=scale if scale and not bias else x)
    return out
"""
    program = tracing(text, X, X)
    assert [program.site(number).name for number in program.tensors.tolist()] == ["out", "scale"]


@pytest.mark.parametrize("space", ["sbuf", "psum"])
def test_a_tile_that_is_assigned_is_copied(tracing: Any, space: str) -> None:
    """As the instructions that a user would write: by DMA to and from HBM, by an engine within the chip."""
    text = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    t = nl.ndarray((128, 512), nl.float32, nl.SPACE)
    u = nl.ndarray((128, 512), nl.float32, nl.sbuf)
    v = nl.ndarray((128, 512), nl.float32, nl.sbuf)
    nisa.memset(t, 0.0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    WRITES
    return out
""".replace("SPACE", space)
    assigned = ["u[...] = x", "v[:, 0:512] = u", "v[0:64, :] = t[64:128, :]", "out[0:128, 0:512] = v"]
    written = [
        "nisa.dma_copy(u, x)",
        "nisa.tensor_copy(v, u)",
        "nisa.tensor_copy(v[0:64, :], t[64:128, :])",
        "nisa.dma_copy(out, v)",
    ]
    one, other = (tracing(text.replace("WRITES", "\n    ".join(lines)), X) for lines in (assigned, written))
    assert [form.op for form in one.forms] == [form.op for form in other.forms]
    assert len(one.forms) >= 4
    assert one.form_ids.tolist() == other.form_ids.tolist()


@pytest.mark.parametrize("line", ["out[...] = 1.0", "out[...] = None", "out[0:64] = x"])
def test_only_a_tile_of_the_same_shape_can_be_assigned(tracing: Any, line: str) -> None:
    text = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    LINE
    return out
"""
    with pytest.raises(KernelError) as caught:
        tracing(text.replace("LINE", line), X)
    assert caught.value.code in {"cannot_assign_to_index", "shape_mismatch", "dma_shape", "element_count"}
