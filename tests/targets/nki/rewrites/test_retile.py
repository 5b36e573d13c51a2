"""Tiles of other sizes where sizes are numbers, and a tile for each value of an overwritten tile."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

import nki_sim
from nki_sim import ArraySpec
from nki_sim.running import numerics
from targets.nki.raising.raiser import raise_program
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET
from tests.support.sweeps import parametrize_sweep
from tests.targets.nki.rewrites.generator import draw

Shapes = tuple[tuple[int, ...], ...]

NARROW_PRODUCT = """
    BLOCKS = [(c, min(c + 96, 512)) for c in range(0, 512, 96)]

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        left = nl.ndarray((32, 8, 128), dtype=nl.float32, buffer=nl.sbuf)
        right = [nl.ndarray((32, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]
        for k in range(8):
            nisa.dma_copy(dst=left[:, k, :], src=a[32 * k : 32 * k + 32, :])
            nisa.dma_copy(dst=right[k], src=b[32 * k : 32 * k + 32, :])
        for m in range(2):
            for first, last in BLOCKS:
                acc = nl.ndarray((64, last - first), dtype=nl.float32, buffer=nl.psum)
                for k in range(8):
                    nisa.nc_matmul(acc, left[:, k, 64 * m : 64 * m + 64], right[k][:, first:last])
                done = nl.ndarray((64, last - first), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=done, src=acc)
                nisa.dma_copy(dst=out[64 * m : 64 * m + 64, first:last], src=done)
        return out
"""

LOW_ROWS = """
    @nki.jit
    def kernel(x, gamma):
        m, n = x.shape
        out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
        weights = nl.ndarray((48, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=weights, src=gamma.broadcast(0, 48))
        for start in range(0, m, 48):
            rows = min(48, m - start)
            t = nl.ndarray((rows, n), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[start : start + rows, :])
            s = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=s, op=nl.add, data=t.reshape((rows, 2, n // 2)), axis=(1, 2))
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=s)
            nisa.tensor_tensor(dst=t, data1=t, data2=weights[0:rows, :], op=nl.multiply)
            nisa.dma_copy(dst=out[start : start + rows, :], src=t)
        return out
"""

BACKWARDS = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((60, 400), dtype=nl.float32, buffer=nl.shared_hbm)
        for c in (300, 200, 100, 0):
            t = nl.ndarray((60, 100), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[:, c : c + 100])
            nisa.activation(dst=t, op=nl.exp, data=t)
            nisa.dma_copy(dst=out[:, c : c + 100], src=t)
        return out
"""

CARRIED = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        last = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=last, value=0.0)
        for c in range(4):
            t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[:, c * 128 : (c + 1) * 128])
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=last)
            nisa.tensor_copy(dst=last, src=t[:, 127:128])
            nisa.dma_copy(dst=out[:, c * 128 : (c + 1) * 128], src=t)
        return out
"""

PEAKS = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        peaks = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        for c in range(4):
            t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[:, c * 128 : (c + 1) * 128])
            nisa.tensor_reduce(dst=peaks[:, c : c + 1], op=nl.maximum, data=t, axis=1)
        nisa.dma_copy(dst=out, src=peaks)
        return out
"""


def compute(source: str, shapes: Shapes) -> np.ndarray:
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in shapes])
    random = np.random.default_rng(3)
    (found,) = numerics.run(program, [random.standard_normal(shape).astype(np.float32) for shape in shapes])
    return np.asarray(found, dtype=np.float64)


def raise_source(source: str, shapes: Shapes) -> str:
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in shapes])
    return raise_program(program, source)


def explore(source: str, shapes: Shapes, technique: str) -> tuple[list[tuple[str, str]], list[str]]:
    """(site and choice, source) of each rewrite, and the reasons for refusals."""
    arguments = [ArrayArgument(shape, "float32") for shape in shapes]
    kernel = read_kernel(source, arguments, TARGET)
    made, reasons = explore_rewrites(kernel, arguments, TARGET, transforms=[TRANSFORMS[technique]])
    return [(one.transform.render_title(one.site, one.choice), one.source) for one in made], reasons


def widest(source: str, shapes: Shapes) -> Iterator[str]:
    """The kernels on the way to the widest tiles, one dimension after the other."""
    while True:
        made, _ = explore(source, shapes, "retile")
        if not made:
            return
        source = made[0][1]
        yield source


def test_a_product_in_narrow_blocks_gets_whole_tiles_in_every_dimension() -> None:
    shapes = (256, 128), (256, 512)
    source = HEADER + textwrap.dedent(NARROW_PRODUCT)
    *_, last = widest(raise_source(source, shapes), shapes)
    for size in ("(128, 2, 128)", "(128, 512), dtype=nl.float32, buffer=nl.psum", "for _ in range(2)]"):
        assert size in last
    program = nki_sim.trace(last, args=[ArraySpec(shape, "float32") for shape in shapes])
    assert sum(form.op == "nc_matmul" for form in map(program.forms.__getitem__, program.form_ids)) == 2
    assert np.allclose(compute(last, shapes), compute(source, shapes), rtol=1e-5, atol=1e-5)


def test_a_last_tile_with_fewer_rows_joins_the_others() -> None:
    shapes = (120, 64), (1, 64)
    source = HEADER + textwrap.dedent(LOW_ROWS)
    made, reasons = explore(raise_source(source, shapes), shapes, "retile")
    assert made, reasons
    for title, wider in made:
        assert "width" in title
        assert np.array_equal(compute(wider, shapes), compute(source, shapes))
    assert "gamma.broadcast(0, 120)" in made[0][1]
    assert "reshape((120, 2, 32))" in made[0][1]


def test_a_loop_that_runs_backwards_is_turned() -> None:
    shapes = ((60, 400),)
    source = HEADER + textwrap.dedent(BACKWARDS)
    made, _ = explore(raise_source(source, shapes), shapes, "retile")
    assert [title.partition("(")[2] for title, _ in made] == ["width 400)", "width 200)"]
    for _, wider in made:
        assert np.array_equal(compute(wider, shapes), compute(source, shapes))


BACKWARD_SUM = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((60, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((60, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for c in (300, 200, 100, 0):
            t = nl.ndarray((60, 100), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[:, c : c + 100])
            part = nl.ndarray((60, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=part, op=nl.add, data=t, axis=1)
            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        nisa.dma_copy(dst=out, src=total)
        return out
"""
BACKWARD_PRODUCT = """
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((64, 100), dtype=nl.float32, buffer=nl.shared_hbm)
        acc = nl.ndarray((64, 100), dtype=nl.float32, buffer=nl.psum)
        for k in (192, 128, 64, 0):
            left = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
            right = nl.ndarray((64, 100), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[k : k + 64, :])
            nisa.dma_copy(dst=right, src=b[k : k + 64, :])
            nisa.nc_matmul(dst=acc, stationary=left, moving=right)
        done = nl.ndarray((64, 100), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=done, src=acc)
        nisa.dma_copy(dst=out, src=done)
        return out
"""


@pytest.mark.parametrize(
    ("text", "shapes", "width"),
    [(BACKWARD_SUM, ((60, 400),), 400), (BACKWARD_PRODUCT, ((256, 64), (256, 100)), 128)],
)
def test_a_loop_that_sums_backwards_is_turned(text: str, shapes: Shapes, width: int) -> None:
    source = HEADER + textwrap.dedent(text)
    made, reasons = explore(raise_source(source, shapes), shapes, "retile")
    assert made, reasons
    assert made[0][0].endswith(f"(width {width})")
    for _, wider in made:
        assert np.allclose(compute(wider, shapes), compute(source, shapes), rtol=1e-4, atol=1e-4)


def test_a_loop_that_overwrites_backwards_stays() -> None:
    shapes = ((60, 400),)
    text = BACKWARD_SUM.replace("data1=total, data2=part, op=nl.add", "data1=part, data2=part, op=nl.add")
    made, reasons = explore(raise_source(HEADER + textwrap.dedent(text), shapes), shapes, "retile")
    assert not made, reasons


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (CARRIED, "takes part of a tile of t"),
        (PEAKS, "takes several tiles of peaks"),
        (BACKWARDS.replace("x[:, c : c + 100]", "x[:, 300 - c : 400 - c]"), "some windows forwards"),
    ],
)
def test_tiles_that_others_depend_on_stay(source: str, reason: str) -> None:
    shapes = ((60, 400),) if "400" in source else ((128, 512),)
    made, reasons = explore(raise_source(HEADER + textwrap.dedent(source), shapes), shapes, "retile")
    assert not made
    assert any(reason in item for item in reasons), reasons


def test_sizes_with_names_are_left_to_tile_size() -> None:
    shapes = ((60, 400),)
    source = HEADER + textwrap.dedent("""
        W = 100

        @nki.jit
        def kernel(x):
            out = nl.ndarray((60, 400), dtype=nl.float32, buffer=nl.shared_hbm)
            for c in range(4):
                t = nl.ndarray((60, W), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=x[:, c * W : (c + 1) * W])
                nisa.dma_copy(dst=out[:, c * W : (c + 1) * W], src=t)
            return out
    """)
    made, reasons = explore(source, shapes, "retile")
    assert not made
    assert any("a size of t has a name" in item for item in reasons), reasons


@parametrize_sweep("seed", range(24), quick=4)
def test_random_raised_kernels_keep_their_meaning(seed: int) -> None:
    drawn = draw(seed)
    source = raise_source(drawn.source, drawn.shapes)
    before = compute(drawn.source, drawn.shapes)
    scale = float(np.max(np.abs(before))) or 1.0
    for technique in ("retile", "separate"):
        for title, made in explore(source, drawn.shapes, technique)[0]:
            error = np.max(np.abs(compute(made, drawn.shapes) - before))
            assert error <= (2e-2 if drawn.narrow else 2e-5) * scale, title


OVERWRITTEN = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        for c in range(2):
            part = nl.ds(c * 32, 32)
            nisa.tensor_scalar(dst=t[:, part], data=t[:, part], op0=nl.add, operand0=1.0)
        nisa.activation(dst=t, op=nl.exp, data=t)
        nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.multiply)
        nisa.dma_copy(dst=out, src=t)
        return out
"""


def test_each_value_of_a_tile_gets_a_tile() -> None:
    shapes, source = ((128, 64),), HEADER + textwrap.dedent(OVERWRITTEN)
    ((_, made),), _ = explore(source, shapes, "separate")
    assert "nisa.activation(dst=t_2, op=nl.exp, data=t)" in made
    assert "nisa.tensor_tensor(dst=t_3, data1=t_2, data2=t_2, op=nl.multiply)" in made
    assert "src=t_3" in made
    assert "dst=t[:, nl.ds(c * 32, 32)], data=t[:, nl.ds(c * 32, 32)]" in made  # a part of the first value
    assert np.array_equal(compute(made, shapes), compute(source, shapes))
    assert not explore(made, shapes, "separate")[0]


def test_a_tile_that_lives_across_iterations_stays_one_tile() -> None:
    shapes = ((128, 512),)
    made, _ = explore(raise_source(HEADER + textwrap.dedent(CARRIED), shapes), shapes, "separate")
    for _, source in made:
        assert "dst=last" in source
        assert "last_2" not in source


LOG_SUM_EXP = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        parts = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=parts, op=nl.maximum, data=t.reshape((128, 16, 16)), axis=2)
        top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=parts, axis=1)
        low = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=low, data=t, op0=nl.subtract, operand0=top)
        e = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=e, op=nl.exp, data=low, reduce_op=nl.add, reduce_res=s)
        root = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=root, op=nl.log, data=s)
        scaled = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=low, op0=nl.subtract, operand0=root)
        y = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=y, op=nl.exp, data=scaled)
        nisa.dma_copy(dst=out, src=y)
        return out
"""


def apply_named(source: str, shapes: Shapes, technique: str, title: str) -> str:
    made, reasons = explore(source, shapes, technique)
    found = [text for name, text in made if name.startswith(f"{technique} {title}")]
    assert found, (made, reasons)
    return found[0]


def test_a_softmax_through_logarithms_becomes_three_passes() -> None:
    shapes, source = ((128, 256),), HEADER + textwrap.dedent(LOG_SUM_EXP)
    before = compute(source, shapes)
    for technique, title in (
        ("fuse", "tensor_reduce to parts with tensor_reduce"),
        ("rephrase", "activation to y (as quotient)"),
        ("dead_code", ""),
        ("fuse", "tensor_scalar to low with activation_reduce"),
        ("fuse", "tensor_reduce to top with tensor_scalar"),
    ):
        source = apply_named(source, shapes, technique, title)
        assert np.allclose(compute(source, shapes), before, rtol=1e-5, atol=1e-7), (technique, title)
    program = nki_sim.trace(source, args=[ArraySpec(shapes[0], "float32")])
    used = [program.forms[number].op for number in program.form_ids]
    assert used == [
        "dma_copy",
        "tensor_reduce",
        "activation_reduce",
        "reciprocal",
        "tensor_scalar",
        "dma_copy",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data=low, op0=nl.subtract, operand0=root", "data=t, op0=nl.subtract, operand0=root"),
        ("op=nl.log, data=s", "op=nl.log, data=top"),
        ("nisa.activation(dst=root", "nisa.memset(dst=e, value=1.0)\n        nisa.activation(dst=root"),
    ],
)
def test_an_exponential_that_is_not_there_is_not_used(old: str, new: str) -> None:
    shapes, source = ((128, 256),), HEADER + textwrap.dedent(LOG_SUM_EXP.replace(old, new))
    made, _ = explore(source, shapes, "rephrase")
    assert not [title for title, _ in made if "quotient" in title]


ZERO_FIRST = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        base = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=base, value=VALUE)
        y = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=y, data1=base, data2=t, op=nl.OP)
        nisa.dma_copy(dst=out, src=y)
        return out
"""


@pytest.mark.parametrize(
    ("op", "value", "made"),
    [
        ("add", "0.0", "nisa.tensor_copy(dst=y, src=t)"),
        ("multiply", "1.0", "nisa.tensor_copy(dst=y, src=t)"),
        ("subtract", "0.0", "op0=nl.subtract, operand0=0.0, reverse0=True"),
        ("maximum", "0.5", "op0=nl.maximum, operand0=0.5"),
    ],
)
def test_a_tile_that_holds_one_number_is_that_number(op: str, value: str, made: str) -> None:
    shapes = ((128, 64),)
    source = HEADER + textwrap.dedent(ZERO_FIRST).replace("OP", op).replace("VALUE", value)
    found = apply_named(source, shapes, "rephrase", "tensor_tensor to y")
    assert made in found
    assert np.array_equal(compute(found, shapes), compute(source, shapes))


TILES_OF_A_NEST = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        for r in range(2):
            tiles = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]
            total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            for k in range(4):
                for l in range(2):
                    nisa.dma_copy(
                        dst=tiles[k * 2 + l], src=x[r, :, k * 128 + l * 64 : k * 128 + (l + 1) * 64]
                    )
                    part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_reduce(dst=part, op=nl.add, data=tiles[k * 2 + l], axis=1)
                    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
            for k in range(4):
                for l in range(2):
                    nisa.tensor_scalar(
                        dst=tiles[k * 2 + l], data=tiles[k * 2 + l], op0=nl.multiply, operand0=total
                    )
                    nisa.dma_copy(
                        dst=out[r, :, k * 128 + l * 64 : k * 128 + (l + 1) * 64], src=tiles[k * 2 + l]
                    )
        return out
"""
NEST_SHAPES = ((2, 128, 512),)


def test_a_list_that_a_nest_of_loops_counts_becomes_one_wide_tile() -> None:
    source = HEADER + textwrap.dedent(TILES_OF_A_NEST)
    *_, last = widest(source, NEST_SHAPES)
    assert "tiles = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)" in last
    assert "for k" not in last
    assert "for l" not in last
    assert "for r in range(2)" in last  # each iteration keeps tiles of its own
    assert np.allclose(compute(last, NEST_SHAPES), compute(source, NEST_SHAPES), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("data=tiles[k * 2 + l], axis=1", "data=tiles[k * 2 + l][:, 16:48], axis=1"),
        ("data=tiles[k * 2 + l], axis=1", "data=tiles[k * 2 + l][:, 8 * k : 8 * k + 8], axis=1"),
        ("dst=tiles[k * 2 + l], data=tiles[k * 2 + l]", "dst=tiles[k * 2 + l], data=tiles[6 - k * 2 + l]"),
        ("dst=tiles[k * 2 + l], data=tiles[k * 2 + l]", "dst=tiles[k * 2 + l], data=tiles[l * 4 + k]"),
    ],
)
def test_every_width_of_a_joined_list_computes_the_same(old: str, new: str) -> None:
    source = HEADER + textwrap.dedent(TILES_OF_A_NEST).replace(old, new, 1)
    made, reasons = explore(source, NEST_SHAPES, "retile")
    assert made or any("tiles" in reason for reason in reasons), reasons
    for _, wider in made:
        assert np.allclose(compute(wider, NEST_SHAPES), compute(source, NEST_SHAPES), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "(128, 64), dtype=nl.float32, buffer=nl.sbuf",
            "(128, 64), dtype=nl.float32, buffer=nl.psum",
            "banks",
        ),
        (
            "(128, 64), dtype=nl.float32, buffer=nl.sbuf",
            "(128, 8, 8), dtype=nl.float32, buffer=nl.sbuf",
            "rows and columns",
        ),
        (
            "data=tiles[k * 2 + l], axis=1",
            "data=tiles[k * 2 + l].reshape((128, 2, 32)), axis=(1, 2)",
            "rearranged",
        ),
    ],
)
def test_lists_that_cannot_be_joined_say_why(old: str, new: str, reason: str) -> None:
    source = HEADER + textwrap.dedent(TILES_OF_A_NEST).replace(old, new, 1)
    made, reasons = explore(source, NEST_SHAPES, "retile")
    assert not made
    assert any(reason in one for one in reasons), reasons
