"""What the reader sees in a kernel, and what it says of what it cannot see."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.nki.rewrites.kernel_ir import ArrayArgument, Guard, Kernel, StatementKind
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.values import Affine, make_affine
from tests.support.kernels import HEADER, TARGET

BODY = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        {body}
    return out
"""


def kernel(body: str, shape: tuple[int, int] = (512, 256)) -> Kernel:
    inner = textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()
    return read_kernel(HEADER + BODY.format(body=inner), [ArrayArgument(shape, "float32")], TARGET)


def walls(found: Kernel) -> list[str]:
    return [item.reason for item in found.statements if item.kind is StatementKind.OPAQUE]


LOAD = """
    t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[{window}])
"""


@pytest.mark.parametrize(
    "window",
    ["i * 128 : (i + 1) * 128, :", "nl.ds(128 * i, 128), 0:n", "i * 128 : i * 128 + nl.tile_size.pmax"],
)
def test_windows_are_the_same_however_they_are_written(window: str):
    (load,) = kernel(LOAD.format(window=window)).operations()
    source = load.find_access("src")
    assert source is not None
    rows, columns = source.view.box
    assert (rows.start.const, rows.start.terms, rows.size) == (0, (("i@0", 128),), 128)
    assert (columns.start, columns.size) == (Affine(0), 256)
    assert load.trips == 4


@pytest.mark.parametrize(
    ("window", "first", "size"), [("-32:", 224, 32), ("-32:-8", 224, 24), ("-1", 255, 1)]
)
def test_columns_are_counted_from_the_end(window: str, first: int, size: int):
    (fill,) = kernel(f"""
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=t[:, {window}], value=0.0)
    """).operations()
    columns = fill.accesses[0].view.box[1]
    assert (columns.start, columns.size) == (Affine(first), size)


def test_a_broadcast_row_touches_that_row_alone():
    found = kernel("""
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i : i + 1, 0:n].broadcast(0, 128))
    """)
    (load,) = found.operations()
    source = load.find_access("src")
    assert source is not None
    assert source.view.shape == (128, 256)
    assert [item.size for item in source.view.box] == [1, 256]
    assert source.view.axes[0].step == 0
    assert not source.view.plain


def test_roots_of_sizes_are_known_numbers():
    found = kernel("""
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=t, value=n**-0.5)
    """)
    (memset,) = found.operations()
    assert memset.arguments["value"] == 256**-0.5


def test_block_ranges_and_remainders_stay_exact():
    found = kernel("""
        all = nl.ndarray((128, 2, 64), dtype=x.dtype, buffer=nl.sbuf)
        for j in nl.affine_range(i * 2, (i + 1) * 2):
            nisa.dma_copy(dst=all[:, j % 2, :], src=x[0:128, j // 2 : j // 2 + 64])
    """)
    (copy,) = found.operations()
    dst, src = copy.find_access("dst"), copy.find_access("src")
    assert dst is not None
    assert src is not None
    assert dst.view.box[1].start == make_affine(0, {"j@1": 1})
    assert src.view.box[1].start == make_affine(0, {"i@0": 1})


def test_lists_of_tiles_are_picked_by_index():
    found = kernel("""
        tiles = [nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
        for j in range(4):
            nisa.memset(dst=tiles[j], value=0.0)
            nisa.memset(dst=tiles[j][:, 0:32], value=1.0)
    """)
    first, second = found.operations()
    assert [access.view.picks for access in (*first.accesses, *second.accesses)] == [
        (make_affine(0, {"j@1": 1}),)
    ] * 2
    assert first.accesses[0].tensor.copies == (4,)
    assert second.accesses[0].view.shape == (128, 32)


def test_a_condition_on_one_iteration_is_a_guard():
    found = kernel("""
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        if i == 2:
            nisa.memset(dst=t, value=0.0)
    """)
    (guard,) = [node for node in found.nodes if isinstance(node, Guard)]
    assert guard.loops == (found.loops[0],)
    (memset,) = found.operations()
    assert memset.trips == 1


@pytest.mark.parametrize(("index", "known"), [("0", True), ("7", True), ("5", False), ("8", False)])
def test_a_condition_on_an_index_of_two_loops_is_a_guard_at_its_ends(index: str, known: bool):
    found = kernel(f"""
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        for j in range(i * 2, (i + 1) * 2):
            if j == {index}:
                nisa.memset(dst=t, value=0.0)
    """)
    guards = [node for node in found.nodes if isinstance(node, Guard)]
    assert [set(guard.loops) for guard in guards] == ([set(found.loops)] if known else [])
    assert [item.trips for item in found.operations()] == ([1] if known else [])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("while True:\n    break", "a while statement"),
        ("if i > 2:\n    t = 1", "a condition that is not on one loop index"),
        ("for q in [1, 2]:\n    pass", "a loop whose trip count is not known"),
        ("for q in range(2):\n    if i > 0:\n        continue", "a loop whose iterations may end early"),
        (
            "for q in range(2):\n    while True:\n        break\n    else:\n        break",
            "a loop whose iterations may end early",
        ),
        ("t = x[nl.ds(size=1, start=0), :]", "`nl.ds(size=1, start=0)`"),
        ("y = helper(x)", "the name `helper`"),
        ("nisa.unheard_of(dst=x)", "the call `nisa.unheard_of`"),
        ("t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf, address=3)", "the declaration"),
        ("a = b = 1", "a chained assignment"),
        ("t = x.ap([[1, 2]], 0)", "the view"),
        ("t = x[0:2, 0 : n + 1]", "an index beyond the"),
        ("t = x[0:2, :].broadcast(0, 128)", "broadcast of dimension 0 of x"),
        ("t = x[0:1, :].broadcast(2, 128)", "broadcast of dimension 2 of x"),
        ("nisa.tensor_copy(dst=out, src=x, unheard=1)", "the argument unheard of tensor_copy"),
        ("nisa.tensor_copy(dst=out)", "tensor_copy without src"),
        ("nisa.tensor_copy(dst=out, src=x, engine=nisa.engine.tensor)", "on the engine tensor"),
        ("nisa.activation(dst=out, op=nl.unheard_of, data=x)", "the argument op of activation"),
        ("nisa.dma_compute(dst=out, srcs=[x, x], reduce_op=nl.add)", "the argument srcs of dma_compute"),
        ("nisa.sendrecv(dst=out, src=x, send_to_rank=1, recv_from_rank=1, pipe_id=0)", "the call"),
        ("nisa.core_barrier(out, (0, 1))", "the call `nisa.core_barrier`"),
        ("register = nisa.register_alloc(0)", "the call `nisa.register_alloc`"),
        ("nl.fori_loop(0, 4, print)", "the call `nl.fori_loop`"),
        ("nisa.rng(dst=out)", "rng with rng_state"),
        ("nisa.set_rng_seed(src_seeds=x)", "writes no tensor"),
        ("nisa.activation(dst=out, op=nl.exp, data=x, reduce_cmd=nisa.reduce_cmd.reset)", "reduce_regs"),
        ("nisa.activation(dst=out, op=nl.exp, data=x, reduce_res=x)", "reduce_regs"),
        (
            "nisa.activation(dst=out, op=nl.exp, data=x, reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=x)",
            "reduce_regs, memory that outlives the instruction",
        ),
    ],
)
def test_what_cannot_be_read_is_a_wall_with_a_reason(body: str, reason: str):
    (found,) = walls(kernel(body))
    assert reason in found


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        ("tensor_copy(dst=out, src=x)", False),
        ("tensor_copy_predicated(dst=out, src=x, predicate=x)", True),
        ("dma_copy(dst=out, src=x, oob_mode=nisa.oob_mode.skip)", False),
        ("nc_matmul(dst=out, stationary=x, moving=x)", True),
        ("nc_matmul(dst=out, stationary=x, moving=x, accumulate=True)", True),
        ("nc_matmul(dst=out, stationary=x, moving=x, accumulate=False)", False),
        ("activation(dst=out, op=nl.exp, data=x)", False),
    ],
)
def test_what_stays_of_a_destination_is_read(call: str, reads: bool):
    (found,) = kernel(f"nisa.{call}").operations()
    dst = found.find_access("dst")
    assert dst is not None
    assert (dst.writes, dst.reads) == (True, reads)


def test_a_sum_that_is_reset_and_stored_is_read_like_any_result():
    (found,) = kernel(
        "nisa.activation(dst=out, op=nl.exp, data=x, reduce_op=nl.add, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=x)"
    ).operations()
    assert found.form is not None
    assert found.form.param("reduce_cmd") == "reset_reduce"
    assert [item.role for item in found.accesses if item.writes] == ["dst", "reduce_res"]


def test_what_left_out_arguments_stand_for_is_in_the_form():
    (found,) = kernel("nisa.tensor_reduce(dst=out, op=nl.sum, data=x, axis=-1)").operations()
    assert found.form is not None
    assert found.form.params == (("op", "add"), ("axis", (1,)), ("negate", False))
    assert found.engine == "vector"


@pytest.mark.parametrize(
    "body",
    [
        "nisa.tensor_copy(dst=t, src=x)\nt = out",
        "t = helper(x)\nnisa.tensor_copy(dst=t, src=x)",
        "if m > 1:\n    t = out\nnisa.tensor_copy(dst=t, src=x)",
        "for q in range(2):\n    t = out\nnisa.tensor_copy(dst=t, src=x)",
        "with helper(x) as t:\n    pass\nnisa.tensor_copy(dst=t, src=x)",
    ],
)
def test_a_name_that_may_mean_another_tensor_is_not_followed(body: str):
    lines = textwrap.indent(body, "    " * 2).strip()
    source = HEADER + BODY.format(body=lines).replace("    for i", "    t = x\n    for i")
    found = read_kernel(source, [ArrayArgument((512, 256), "float32")], TARGET)
    assert "the name `t`" in walls(found)
    assert not list(found.operations())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def kernel(:", "does not parse"),
        ("x = 1\n", "expected one @nki.jit kernel, found 0"),
        ("import nki\n@nki.jit\ndef kernel(x):\n    return x\n", "does not import nki.isa"),
        (
            "import neuronxcc.nki as nki\n@nki.jit\ndef kernel(x):\n    return x\n",
            "legacy namespace neuronxcc.nki are rewritten only after they were ported",
        ),
        (HEADER + "@nki.jit\ndef kernel():\n    return 1\n", "takes 0 arguments, 1 given"),
        (HEADER + "@nki.jit\ndef kernel(x): return x\n", "a single line"),
    ],
)
def test_source_without_a_kernel_is_one_clear_error(source: str, reason: str):
    with pytest.raises(SourceError, match=reason):
        read_kernel(source, [ArrayArgument((128, 128), "float32")], TARGET)


def test_constants_assigned_twice_are_no_constants():
    source = HEADER + "A = 1\nB = 2\nB = 3\n" + BODY.format(body="pass")
    found = read_kernel(source, [ArrayArgument((128, 128), "float32")], TARGET)
    assert set(found.constants) == {"A"}


numbers = st.integers(-50, 50)
forms = st.builds(make_affine, numbers, st.dictionaries(st.sampled_from("ijk"), numbers, max_size=3))
points = st.fixed_dictionaries({name: st.integers(0, 6) for name in "ijk"})


def at(form: Affine, point: dict[str, int]) -> int:
    return form.const + sum(factor * point[name] for name, factor in form.terms)


@given(forms, forms, numbers, points)
def test_affine_arithmetic_is_arithmetic(a: Affine, b: Affine, factor: int, point: dict[str, int]):
    assert at(a + b, point) == at(a, point) + at(b, point)
    assert at(a - b, point) == at(a, point) - at(b, point)
    assert at(a.scale_by(factor), point) == factor * at(a, point)
    low, high = a.value_range(dict.fromkeys("ijk", 7))
    assert low <= at(a, point) <= high


def test_numbers_among_the_arguments_are_known_where_they_are_used():
    source = (
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n"
        "@nki.jit\ndef kernel(rows, x, eps):\n"
        "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    for i in nl.affine_range(x.shape[0] // rows):\n"
        "        tile = nl.ndarray((rows, 128), dtype=x.dtype, buffer=nl.sbuf)\n"
        "        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=eps)\n"
        "    return out\n"
    )
    found = read_kernel(source, [64, ArrayArgument((256, 128), "float32"), 1e-5], TARGET)
    assert [loop.trips for loop in found.loops] == [4]
    assert found.arguments == (64, ArrayArgument((256, 128), "float32"), 1e-5)
    assert StatementKind.OPAQUE not in {statement.kind for statement in found.statements}


def test_an_index_into_a_reshaped_array_is_one_that_its_loop_moves():
    found = kernel(
        """
        t = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x.reshape((16384, 8))[i * 128 : (i + 1) * 128, 0:8])
        """
    )
    (load,) = [statement for statement in found.statements if statement.kind is StatementKind.OPERATE]
    assert [len(access.view.loops) for access in load.accesses] == [0, 1]


@pytest.mark.parametrize(
    "early",
    ["if m > 2:\n    return out", "if i == 3:\n    return out", "for q in range(2):\n    return out"],
)
def test_a_kernel_that_may_return_early_is_not_read(early: str):
    with pytest.raises(SourceError, match="returns before its end"):
        kernel(early)


def test_what_ends_a_loop_inside_ends_no_more():
    found = kernel("for q in range(2):\n    while True:\n        break\n    nisa.memset(dst=x, value=0.0)")
    assert [item.trips for item in found.operations()] == [8]


CONSTANT = """
@nki.jit
def kernel(x):
    {first}
    out = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        {inner}
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=held[:, 0:64])
    return out
"""


def read_constant(array: str, *, inside: bool = False) -> Kernel:
    text = f"held = nl.shared_constant({array})"
    lines = {"first": "pass", "inner": text} if inside else {"first": text, "inner": "pass"}
    return read_kernel(HEADER + CONSTANT.format(**lines), [ArrayArgument((128, 256), "float32")], TARGET)


@pytest.mark.parametrize(
    ("array", "shape", "dtype"),
    [
        ("np.eye(128, 64, dtype=np.float32).T.T", (128, 64), "float32"),
        ("np.tri(64, 128, dtype=np.float16).T", (128, 64), "float16"),
        ("np.zeros((128, 32 * 4), np.int32).astype(np.int8)", (128, 128), "int8"),
        ("(np.arange(128)[:, None] + LAGS).astype(np.float32).reshape((128, 96))", (128, 96), "float32"),
    ],
)
def test_constant_data_is_a_tensor_if_its_last_steps_say_its_shape_and_type(
    array: str, shape: tuple[int, ...], dtype: str
):
    found = read_constant(array)
    assert walls(found) == []
    (load,) = found.operations()
    source = load.find_access("src")
    assert source is not None
    assert (source.tensor.shape, source.tensor.dtype, source.tensor.buffer) == (shape, dtype, "hbm")


def test_constant_data_of_unknown_shape_or_inside_a_loop_cannot_be_read():
    assert "the shape or type of `TABLE`" in walls(read_constant("TABLE"))
    assert "the shape or type of `np.eye(128)`" in walls(read_constant("np.eye(128)"))
    assert walls(read_constant("np.eye(128, dtype=np.float32)", inside=True))
