"""Each transformation on a kernel that it is for, and on those that it must leave alone."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import numpy as np
import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error

ARGUMENTS = [ArrayArgument((256, 512), "float32"), ArrayArgument((512, 1024), "float32")]

PRODUCT = """
    P = 128
    TILE = 512

    @nki.jit
    def kernel(a, b):
        m, k = a.shape
        n = b.shape[1]
        out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(m // P):
            left = nl.ndarray((P, k // P, P), dtype=a.dtype, buffer=nl.sbuf)
            for q in nl.affine_range(k // P):
                rows = nl.ndarray((P, P), dtype=a.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=rows, src=a[i * P : (i + 1) * P, q * P : (q + 1) * P])
                turned = nl.ndarray((P, P), dtype=a.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=rows)
                nisa.tensor_copy(dst=left[:, q, :], src=turned)
            for j in nl.affine_range(n // TILE):
                acc = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.psum)
                for q in nl.affine_range(k // P):
                    # One tile of b.
                    right_tile = nl.ndarray((P, TILE), dtype=b.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=right_tile, src=b[q * P : (q + 1) * P, j * TILE : (j + 1) * TILE])
                    nisa.nc_matmul(dst=acc, stationary=left[:, q, :], moving=right_tile)
                done = nl.ndarray((P, TILE), dtype=out.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=done, src=acc)
                nisa.dma_copy(dst=out[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE], src=done)
        return out
"""

ROWS = """
    @nki.jit
    def kernel(a, b):
        m, n = a.shape
        out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
        {outside}
        for i in nl.affine_range(m // 128):
            x = nl.ndarray((128, n), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a[i * 128 : (i + 1) * 128, :])
            {body}
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=y)
        return out
"""


def rows(body: str, outside: str = "") -> str:
    """A kernel over tiles of rows with a body that makes `y` from `x`."""
    inner = textwrap.indent(textwrap.dedent(body).strip(), " " * 12).strip()
    return ROWS.format(body=inner, outside=outside)


def tile(name: str, shape: str = "(128, n)") -> str:
    return f"{name} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)"


def sites(source: str, technique: str) -> dict[str, list[str]]:
    """Sources by site that a transformation leads to."""
    kernel = read_kernel(HEADER + textwrap.dedent(source), ARGUMENTS, TARGET)
    found: dict[str, list[str]] = {}
    children, _ = explore_rewrites(kernel, ARGUMENTS, TARGET, transforms=[TRANSFORMS[technique]])
    for child in children:
        found.setdefault(child.site, []).append(join_wrapped_calls(child.source))
    return found


def reasons(source: str, technique: str, site: str) -> list[str]:
    """Why a transformation does not apply at a site, for each choice there."""
    kernel = read_kernel(HEADER + textwrap.dedent(source), ARGUMENTS, TARGET)
    _, refusals = explore_rewrites(kernel, ARGUMENTS, TARGET, transforms=[TRANSFORMS[technique]])
    found = [item for item in refusals if item.startswith(f"{technique} {site}: ")]
    assert found, refusals
    return [item.partition(": ")[2] for item in found]


def refusal(source: str, technique: str, site: str) -> str:
    """The first of these reasons."""
    return reasons(source, technique, site)[0]


def test_hoist_keeps_a_tile_per_iteration_of_the_loops_it_depends_on():
    first, plain, *merged = sites(PRODUCT, "hoist")["right_tile out of i"]
    assert "right_tiles = nl.ndarray((P, n // TILE, k // P, TILE), dtype=b.dtype, buffer=nl.sbuf)" in plain
    assert plain.index("dma_copy(dst=right_tiles[:, j, q, :]") < plain.index("for i in")
    assert "moving=right_tiles[:, j, q, :]" in plain
    assert "if i == 0:" in first
    assert first.index("for i in") < first.index("dma_copy(dst=right_tiles[:, j, q, :]")
    assert any("b.reshape_dim(1, (n // TILE, TILE)).reshape_dim(0, (k // P, P))" in item for item in merged)


def test_hoist_takes_comments_along():
    assert "# One tile of b." in sites(PRODUCT, "hoist")["right_tile out of i"][1]


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ("left out of i", "left depends on i"),
        ("turned out of i", "turned lives in psum"),
        ("rows out of q", "rows depends on q"),
    ],
)
def test_hoist_says_why_not(site: str, reason: str):
    assert refusal(PRODUCT, "hoist", site) == reason


def test_hoist_refuses_a_tile_whose_parts_are_used_elsewhere():
    source = rows(f"""
        {tile("y")}
        nisa.dma_copy(dst=y, src=b[0:128, 0:n])
        {tile("z")}
        nisa.tensor_scalar(dst=z, data=y, op0=nl.add, operand0=1.0)
        nisa.tensor_tensor(dst=y, data1=x, data2=z, op=nl.add)
    """)
    assert "depends on i" in refusal(source, "hoist", "y out of i")
    assert "z out of i" not in sites(source, "hoist")


IN_PARTS = Sample(
    HEADER
    + textwrap.dedent("""
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((256, 512), dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            wide = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
            y = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
            for j in nl.affine_range(4):
                part = nl.ndarray((128, 128), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=part, src=b[0:128, nl.ds(j * 128, 128)])
                nisa.activation(dst=wide[:, nl.ds(WHERE, 128)], op=nl.square, data=part)
                nisa.tensor_scalar(
                    dst=y[:, nl.ds(WHERE, 128)], data=wide[:, nl.ds(WHERE, 128)], op0=nl.add, operand0=1.0
                )
            x = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x, src=a[nl.ds(i * 128, 128), 0:512])
            nisa.tensor_tensor(dst=y, data1=y, data2=x, op=nl.add)
            nisa.tensor_tensor(dst=y, data1=y, data2=wide, op=nl.multiply)
            nisa.dma_copy(dst=out[nl.ds(i * 128, 128), 0:512], src=y)
        return out
    """),
    ((256, 512), (128, 512)),
    lambda a, b: (a + np.tile(b * b, (2, 1)) + 1.0) * np.tile(b * b, (2, 1)),
)


def test_hoist_moves_a_tile_of_which_each_part_is_finished_when_it_is_used():
    made = replace(IN_PARTS, source=IN_PARTS.source.replace("WHERE", "j * 128"))
    kernel = read_kernel(made.source, made.arguments, TARGET)
    found, _ = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["hoist"]])
    moved = [item.source for item in found if item.site == "wide out of i"]
    assert [source.count("if i == 0:") for source in moved] == [1, 0]
    assert moved[1].index("nl.square") < moved[1].index("for i in")
    assert all(relative_error(made, source) < 1e-6 for source in moved)


SHADOWED = Sample(
    HEADER
    + textwrap.dedent("""
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((256, 256), dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            for j in nl.affine_range(2):
                column = nl.ndarray((128, 1), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=column, src=b[0:128, j : j + 1])
                x = nl.ndarray((128, 128), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=x, src=a[nl.ds(i * 128, 128), nl.ds(j * 128, 128)])
                y = nl.ndarray((128, 128), dtype=b.dtype, buffer=nl.sbuf)
                for INNER in nl.affine_range(2):
                    nisa.tensor_scalar(
                        dst=y[:, nl.ds(INNER * 64, 64)], data=x[:, nl.ds(INNER * 64, 64)],
                        op0=nl.add, operand0=column
                    )
                nisa.dma_copy(dst=out[nl.ds(i * 128, 128), nl.ds(OUTER * 128, 128)], src=y)
        return out
    """),
    ((256, 256), (128, 2)),
    lambda a, b: a + np.tile(np.repeat(b, 128, axis=1), (2, 1)),
)


def test_hoist_leaves_a_tile_where_its_loop_has_the_name_of_another():
    for inner, applies in (("q", True), ("j", False)):
        source = SHADOWED.source.replace("INNER", inner).replace("OUTER", "j" if applies else "0")
        made = replace(SHADOWED, source=source)
        kernel = read_kernel(made.source, made.arguments, TARGET)
        found, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["hoist"]])
        moved = [item.source for item in found if item.site == "column out of i"]
        assert bool(moved) is applies
        if applies:
            assert all(relative_error(made, source) < 1e-6 for source in moved)
        else:
            why = "j is bound again around tensor_scalar, which uses column"
            assert f"hoist column out of i: {why}" in refusals


def test_hoist_leaves_a_tile_whose_parts_are_written_twice():
    source = IN_PARTS.source.replace("WHERE", "j * 64")
    kernel = read_kernel(source, IN_PARTS.arguments, TARGET)
    _, refusals = explore_rewrites(kernel, kernel.arguments, TARGET, transforms=[TRANSFORMS["hoist"]])
    assert "hoist wide out of i: wide is used by tensor_scalar before it is finished" in refusals


def test_hoist_refuses_what_the_loop_changes():
    source = rows(
        f"""
        {tile("y")}
        nisa.tensor_copy(dst=y, src=count)
        nisa.tensor_scalar(dst=count, data=count, op0=nl.add, operand0=1.0)
        """,
        outside=f"{tile('count')}; nisa.memset(dst=count, value=0.0)".replace("; ", "\n        "),
    )
    assert refusal(source, "hoist", "y out of i") == "count changes inside the loop over i"


def test_a_tile_used_while_a_loop_fills_it_stays():
    declare = "right_tile = nl.ndarray((P, TILE), dtype=b.dtype, buffer=nl.sbuf)\n"
    lines = PRODUCT.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.strip() == declare.strip())
    del lines[at]
    lines.insert(at - 2, " " * 16 + declare)
    source = "".join(lines)
    assert "before it is finished" in refusal(source, "hoist", "right_tile out of i")
    assert "before it is finished" in refusal(source, "widen_transfer", "right_tile over j")


def test_widen_makes_one_transfer_of_a_loop():
    (source,) = sites(PRODUCT, "widen_transfer")["right_tile over q#2"]
    assert "src=b[:, j * TILE : (j + 1) * TILE].reshape_dim(0, (k // P, P)).permute((1, 0, 2))" in source
    assert source.count("nisa.dma_copy") == PRODUCT.count("nisa.dma_copy")
    assert "moving=right_tiles[:, q, :]" in source


def test_widen_leaves_hoisting_to_hoist():
    assert "hoist it instead" in refusal(PRODUCT, "widen_transfer", "right_tile over i")


def test_block_shares_loads_and_copies_accumulators():
    wide = [ArrayArgument((1024, 512), "float32"), ARGUMENTS[1]]
    kernel = read_kernel(HEADER + textwrap.dedent(PRODUCT), wide, TARGET)
    children, _ = explore_rewrites(kernel, wide, TARGET, transforms=[TRANSFORMS["block"]])
    (two,) = [join_wrapped_calls(child.source) for child in children if child.choice == {"iterations": 2}]
    assert "BLOCK_I = 2" in two
    assert "acc = [nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.psum) for _ in range(BLOCK_I)]" in two
    assert "left = nl.ndarray((P, BLOCK_I, k // P, P), dtype=a.dtype, buffer=nl.sbuf)" in two
    assert two.index("src=b[q * P") < two.index("nisa.nc_matmul(dst=acc[i % BLOCK_I]")
    assert read_kernel(two, wide, TARGET).loops[0].trips == 4


def test_block_refuses_iterations_that_share_a_sum():
    assert refusal(PRODUCT, "block", "q#2") == "iterations over q share nc_matmul's acc"


def test_block_refuses_when_nothing_is_shared():
    assert "depends on j" in refusal(PRODUCT, "block", "j")


def test_tile_size_changes_a_constant_everywhere_it_tiles():
    found = sites(PRODUCT, "tile_size")
    assert any("TILE = 256" in source for source in found["TILE"])
    assert all("TILE = 1024" not in source for source in found["TILE"])


def test_tile_size_refuses_a_reduction_over_the_tile():
    source = "    T = 128\n" + rows(f"""
        {tile("y")}
        for j in nl.affine_range(n // T):
            {tile("peak", "(128, 1)")}
            nisa.tensor_reduce(dst=peak, op=nl.maximum, data=x[:, j * T : (j + 1) * T], axis=1)
            nisa.tensor_scalar(
                dst=y[:, j * T : (j + 1) * T], data=x[:, j * T : (j + 1) * T], op0=nl.subtract, operand0=peak
            )
    """)
    assert "tensor_reduce combines elements along the tiles" in reasons(source, "tile_size", "T")
    assert not sites(source, "tile_size")


def test_tile_size_refuses_a_number_that_depends_on_it():
    source = "    T = 128\n" + rows(f"""
        {tile("y")}
        for j in nl.affine_range(n // T):
            nisa.tensor_scalar(
                dst=y[:, nl.ds(j * T, T)], data=x[:, nl.ds(j * T, T)], op0=nl.multiply, operand0=1.0 / T
            )
    """)
    assert "an argument of tensor_scalar depends on the size" in reasons(source, "tile_size", "T")
    assert not sites(source, "tile_size")


def test_interchange_swaps_perfect_nests_only():
    source = """
    @nki.jit
    def kernel(a, b):
        m, n = a.shape
        out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(m // 128):
            for j in range(n // 256):
                x = nl.ndarray((128, 256), dtype=a.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=x, src=a[nl.ds(i * 128, 128), nl.ds(j * 256, 256)])
                nisa.dma_copy(dst=out[nl.ds(i * 128, 128), nl.ds(j * 256, 256)], src=x)
        return out
    """
    (swapped,) = sites(source, "interchange")["i and j"]
    assert swapped.index("for j in range(n // 256):") < swapped.index("for i in nl.affine_range(m // 128):")
    assert refusal(PRODUCT, "interchange", "i and j") == "the loop over i holds more than the loop over j"


def test_engine_names_the_other_engine():
    found = sites(PRODUCT, "engine")["tensor_copy to done"]
    assert ["engine=nisa.engine.scalar" in source for source in found] == [True]
    assert "GpSimd cannot access" in refusal(PRODUCT, "engine", "tensor_copy to done")


def test_engine_leaves_integers_where_they_are_exact():
    source = """
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((128, 64), dtype=nl.int32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=nl.int32, buffer=nl.sbuf)
        nisa.iota(dst=t, pattern=[[1, 64]])
        nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.multiply)
        nisa.dma_copy(dst=out, src=t)
        return out
    """
    assert not sites(source, "engine")
    assert "t holds integers" in refusal(source, "engine", "tensor_tensor to t")


def test_fuse_moves_a_scale_into_the_activation():
    source = rows(f"""
        {tile("half")}
        nisa.tensor_scalar(dst=half, data=x, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=1.0)
        {tile("y")}
        nisa.activation(dst=y, op=nl.tanh, data=half)
    """)
    (fused,) = sites(source, "fuse")["tensor_scalar to half with activation"]
    assert "nisa.activation(dst=y, op=nl.tanh, data=x, scale=0.5, bias=1.0)" in fused
    assert "half" not in fused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("op0=nl.multiply", "op0=nl.subtract"), "an activation takes data * scale + bias, nothing else"),
        (("data=half)", "data=half, scale=2.0)"), "the activation has a scale or bias already"),
        (("src=y)", "src=half)"), "half has other uses"),
    ],
)
def test_fuse_says_why_not(change: tuple[str, str], reason: str):
    source = rows(f"""
        {tile("half")}
        nisa.tensor_scalar(dst=half, data=x, op0=nl.multiply, operand0=0.5)
        {tile("y")}
        nisa.activation(dst=y, op=nl.tanh, data=half)
    """).replace(*change)
    assert refusal(source, "fuse", "tensor_scalar to half with activation") == reason


def test_fuse_lets_an_activation_scale_and_shift_what_a_copy_did():
    source = rows(f"""
        {tile("moved")}
        nisa.activation(dst=moved, op=nl.copy, data=x, scale=0.5, bias=1.0)
        {tile("y")}
        nisa.activation(dst=y, op=nl.tanh, data=moved)
    """)
    (fused,) = sites(source, "fuse")["activation to moved with activation"]
    assert "nisa.activation(dst=y, op=nl.tanh, data=x, scale=0.5, bias=1.0)" in fused
    assert "moved" not in fused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("nl.copy", "nl.exp"), "the first activation does more than scale and shift"),
        (("data=moved)", "data=moved, bias=2.0)"), "the activation has a scale or bias already"),
    ],
)
def test_fuse_leaves_two_activations_where_one_cannot_do_both(change: tuple[str, str], reason: str):
    source = rows(f"""
        {tile("moved")}
        nisa.activation(dst=moved, op=nl.copy, data=x, scale=0.5)
        {tile("y")}
        nisa.activation(dst=y, op=nl.tanh, data=moved)
    """).replace(*change)
    assert refusal(source, "fuse", "activation to moved with activation") == reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "nisa.activation(dst=moved, op=nl.copy, data=x, scale=half)",
            "nisa.activation(dst=y, op=nl.tanh, data=moved)",
        ),
        (
            "nisa.tensor_scalar(dst=moved, data=x, op0=nl.multiply, operand0=half)",
            "nisa.tensor_scalar(dst=y, data=moved, op0=nl.add, operand0=1.0)",
        ),
    ],
)
def test_fuse_leaves_a_number_that_has_changed_since(first: str, second: str):
    source = rows(f"""
        half = 0.5
        {tile("moved")}
        {first}
        half = 3.0
        {tile("y")}
        {second}
    """)
    found = reasons(
        source, "fuse", f"{first[5:].partition('(')[0]} to moved with {second[5:].partition('(')[0]}"
    )
    assert found == [f"half means something else after {first[5:].partition('(')[0]}"]


@pytest.mark.parametrize(
    ("inputs", "op", "fused"),
    [
        ("data1=part, data2=x", "maximum", "op1=nl.maximum, operand1=x"),
        ("data1=x, data2=part", "maximum", "op1=nl.maximum, operand1=x"),
        ("data1=part, data2=x", "subtract", "op1=nl.subtract, operand1=x"),
        ("data1=x, data2=part", "subtract", "op1=nl.subtract, operand1=x, reverse1=True"),
    ],
)
def test_fuse_joins_an_operator_with_a_number_and_one_with_a_tile(inputs: str, op: str, fused: str):
    source = rows(f"""
        {tile("part")}
        nisa.tensor_scalar(dst=part, data=x, op0=nl.subtract, operand0=0.5, reverse0=True)
        {tile("y")}
        nisa.tensor_tensor(dst=y, {inputs}, op=nl.{op})
    """)
    (found,) = sites(source, "fuse")["tensor_scalar to part with tensor_tensor"]
    words = "dst=y, data=x, op0=nl.subtract, operand0=0.5, "
    assert f"nisa.scalar_tensor_tensor({words}{fused}" in found.replace("reverse0=True, ", "")
    assert "part" not in found
    assert "reverse0=True" in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("operand0=0.5", "operand0=0.5, op1=nl.add, operand1=1.0"), "a scalar_tensor_tensor has an op"),
        (("data2=x", "data2=part"), "part has other uses"),
        (("buffer=nl.sbuf)  # x", "buffer=nl.psum)"), "VectorE reads one of two tensors from PSUM at most"),
    ],
)
def test_fuse_says_why_a_number_and_a_tile_stay_apart(change: tuple[str, str], reason: str):
    source = (
        rows(f"""
        {tile("moved")}  # x
        nisa.activation(dst=moved, op=nl.copy, data=x)
        {tile("part")}
        nisa.tensor_scalar(dst=part, data=moved, op0=nl.multiply, operand0=0.5)
        {tile("y")}
        nisa.tensor_tensor(dst=y, data1=part, data2=x, op=nl.add)
    """)
        .replace("data2=x", "data2=moved" if "psum" in change[1] else "data2=x")
        .replace(*change)
    )
    assert refusal(source, "fuse", "tensor_scalar to part with tensor_tensor").startswith(reason)


LOGISTIC = [
    "activation(dst={0}, op=nl.exp, data=x, scale=-1.0)",
    "tensor_scalar(dst={1}, data={0}, op0=nl.add, operand0=1.0)",
    "reciprocal(dst={2}, data={1})",
]
GATED = [
    "activation(dst={0}, op=nl.sigmoid, data=x)",
    "tensor_tensor(dst={1}, data1={0}, data2=x, op=nl.multiply)",
]
ROOT = ["activation(dst={0}, op=nl.sqrt, data=x)", "reciprocal(dst={1}, data={0})"]


GELU = [
    "activation(dst={0}, op=nl.erf, data=x, scale=0.70710678)",
    "tensor_scalar(dst={1}, data={0}, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=0.5)",
    "tensor_tensor(dst={2}, data1=x, data2={1}, op=nl.multiply)",
]
GELU_TANH = [
    "activation(dst={0}, op=nl.square, data=x)",
    "tensor_scalar(dst={1}, data={0}, op0=nl.multiply, operand0=0.044715, op1=nl.add, operand1=1.0)",
    "tensor_tensor(dst={2}, data1={1}, data2=x, op=nl.multiply)",
    "activation(dst={3}, op=nl.tanh, data={2}, scale=0.7978845608)",
    "tensor_scalar(dst={4}, data={3}, op0=nl.add, operand0=1.0)",
    "scalar_tensor_tensor(dst={5}, data={4}, op0=nl.multiply, operand0=0.5, op1=nl.multiply, operand1=x)",
]
GELU_SIGMOID = [
    "activation(dst={0}, op=nl.sigmoid, data=x, scale=1.702)",
    "tensor_tensor(dst={1}, data1={0}, data2=x, op=nl.multiply)",
]
FUNCTIONS = [
    (LOGISTIC, "sigmoid"), (GATED, "silu"), (ROOT, "rsqrt"), (GELU, "gelu"),
    (GELU_TANH, "gelu_apprx_tanh"), (GELU_SIGMOID, "gelu_apprx_sigmoid"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "function"), FUNCTIONS)
def test_intrinsic_knows_its_functions(lines: list[str], function: str):
    names = [*(f"t{number}" for number in range(len(lines) - 1)), "y"]
    steps = [(tile(name), f"nisa.{line.format(*names)}") for name, line in zip(names, lines, strict=True)]
    (source,) = sites(rows("\n".join(line for step in steps for line in step)), "intrinsic")["y"]
    assert f"nisa.activation(dst=y, op=nl.{function}, data=x)" in source
    assert source.count("nisa.") == 3


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        (GELU, ("0.70710678", "0.7071")),
        (GELU, ("operand1=0.5", "operand1=0.6")),
        (GELU_TANH, ("nl.square", "nl.abs")),
        (GELU_TANH, ("0.044715", "0.0447")),
        (GELU_SIGMOID, ("1.702", "1.7")),
    ],
)
def test_intrinsic_is_not_fooled_by_other_numbers(lines: list[str], change: tuple[str, str]):
    names = [*(f"t{number}" for number in range(len(lines) - 1)), "y"]
    steps = [(tile(name), f"nisa.{line.format(*names)}") for name, line in zip(names, lines, strict=True)]
    source = rows("\n".join(line for step in steps for line in step).replace(*change))
    assert "no function that ScalarE has" in refusal(source, "intrinsic", "y")


def test_intrinsic_leaves_what_is_rounded_on_the_way():
    source = rows(f"""
        {tile("gate").replace("float32", "bfloat16")}
        nisa.activation(dst=gate, op=nl.sigmoid, data=x)
        {tile("y")}
        nisa.tensor_tensor(dst=y, data1=gate, data2=x, op=nl.multiply)
    """)
    assert "no function that ScalarE has" in refusal(source, "intrinsic", "y")


def test_intrinsic_is_not_fooled_by_another_factor():
    source = rows(f"""
        {tile("z")}
        nisa.tensor_scalar(dst=z, data=x, op0=nl.add, operand0=1.0)
        {tile("gate")}
        nisa.activation(dst=gate, op=nl.sigmoid, data=z)
        {tile("y")}
        nisa.tensor_tensor(dst=y, data1=gate, data2=x, op=nl.multiply)
    """)
    assert "no function that ScalarE has" in refusal(source, "intrinsic", "y")


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_every_transformation_says_why_it_keeps_the_meaning(name: str):
    transform = TRANSFORMS[name]
    assert len(transform.keeps) > 30
    assert transform.counter in {"hbm_read_bytes", "total_time"} or transform.counter.endswith("_percent")


def test_a_choice_that_the_site_does_not_have_is_refused():
    kernel = read_kernel(HEADER + textwrap.dedent(PRODUCT), ARGUMENTS, TARGET)
    transform = TRANSFORMS["hoist"]
    place = transform.find_sites(kernel, TARGET)["right_tile out of i"]
    with pytest.raises(RewriteRefused, match="no transfer can serve"):
        transform.apply(kernel, TARGET, place, {"one transfer for": "i"})
