"""Common subexpressions and dead code: what goes, and what stays although it looks alike or unused."""

from __future__ import annotations

import numpy as np
import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import ROWS, TARGET, TILE, Sample, join_wrapped_calls, relative_error

EXP = "nisa.activation(dst={}, op=nl.exp, data=a)"
LOAD = "nisa.dma_copy(dst={}, src=x[nl.ds(i * 128, 128), 0:n])"
MADE = (TILE.format("b"), EXP.format("b"))
ADD = "nisa.tensor_tensor(dst=a, data1=b, data2=c, op=nl.add)"


def sample(*body: str, meaning=lambda x: 2 * np.exp(x)) -> Sample:
    return Sample(ROWS.format(body="\n        ".join(body)), ((256, 128),), meaning)


def rewritten(made: Sample, technique: str) -> tuple[list[str], list[str]]:
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS[technique]])
    return [join_wrapped_calls(child.source) for child in children], refusals


def test_the_same_instruction_is_done_once():
    made = sample(TILE.format("b"), EXP.format("b"), TILE.format("c"), EXP.format("c"), ADD)
    ((source,), _) = rewritten(made, "reuse")
    assert source.count("nisa.activation") == 1
    assert "nisa.tensor_tensor(dst=a, data1=b, data2=b, op=nl.add)" in source
    assert "c = nl.ndarray" not in source
    assert relative_error(made, source) < 1e-6


def test_the_same_rows_are_loaded_once_however_they_are_spelt():
    made = sample(
        TILE.format("b"), LOAD.format("b"), "for q in range(1):", f"    {TILE.format('c')}",
        f"    {LOAD.format('c')}", f"    {ADD}", meaning=lambda x: 2 * x,
    )  # fmt: skip
    assert relative_error(made, made.source) < 1e-6
    sources, _ = rewritten(made, "reuse")
    assert sources
    assert all(relative_error(made, source) < 1e-6 for source in sources)
    assert min(source.count("nisa.dma_copy") for source in sources) == made.source.count("nisa.dma_copy") - 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            (*MADE, "nisa.memset(dst=a, value=0.0)", TILE.format("c"), EXP.format("c"), ADD),
            "a changes in between",
        ),
        (
            (
                *MADE, "for q in range(2):", f"    {TILE.format('c')}",
                f"    {EXP.format('c')}", f"    {ADD}",
            ),
            "a changes in between",
        ),
        (
            (*MADE, TILE.format("c"), EXP.format("c"), "old = b", TILE.format("b"),
             "nisa.tensor_tensor(dst=b, data1=old, data2=c, op=nl.add)", "nisa.tensor_copy(dst=a, src=b)"),
            None,
        ),
    ],
)  # fmt: skip
def test_what_is_not_the_same_any_more_is_done_again(body: tuple[str, ...], reason: str | None):
    sources, refusals = rewritten(sample(*body), "reuse")
    assert not sources
    assert refusals == ([f"reuse b for c: {reason}"] if reason else [])


def test_a_tile_that_is_written_again_is_no_result_to_share():
    in_place = "nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=3.0)"
    made = sample(TILE.format("b"), EXP.format("b"), TILE.format("c"), EXP.format("c"), in_place, ADD)
    assert rewritten(made, "reuse") == ([], [])


UNUSED = (
    *MADE, TILE.format("c"), "nisa.memset(dst=c, value=0.0)",
    "nisa.tensor_tensor(dst=c, data1=c, data2=b, op=nl.add)",
)  # fmt: skip


def test_a_chain_that_nothing_reads_goes_with_its_tiles():
    made = sample(*UNUSED, meaning=lambda x: x)
    ((source,), _) = rewritten(made, "dead_code")
    assert "b" not in [line.strip().partition(" = ")[0] for line in source.splitlines()]
    assert "activation" not in source
    assert "memset" not in source
    assert relative_error(made, source) < 1e-6


@pytest.mark.parametrize(
    "body",
    [
        (*UNUSED, "nisa.tensor_copy(dst=a, src=c)"),
        (*UNUSED, "if m > 1:", "    nisa.tensor_copy(dst=a, src=c)"),
    ],
)
def test_what_something_reads_stays(body: tuple[str, ...]):
    assert rewritten(sample(*body), "dead_code") == ([], [])


def test_a_second_name_keeps_a_tile():
    sources, _ = rewritten(sample(*UNUSED, "kept = c"), "dead_code")
    assert not sources


WIDE = "{} = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)"


def fill(name: str, var: str, tile: str, *, factor: float = 2.0, start: str = "") -> tuple[str, ...]:
    """A loop that loads parts of x and fills a tile with their exponentials times a factor."""
    return (
        WIDE.format(name),
        f"for {var} in nl.affine_range({start}4):",
        f"    {tile} = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)",
        f"    nisa.dma_copy(dst={tile}, src=x[nl.ds(i * 128, 128), nl.ds({var} * 64, 64)])",
        f"    nisa.activation(dst={name}[:, nl.ds({var} * 64, 64)], op=nl.exp, data={tile}, scale={factor})",
    )


SUM = "nisa.tensor_tensor(dst=a, data1=b, data2=c, op=nl.add)"


def wide_sample(*body: str, meaning=lambda x: 2 * np.exp(2.0 * x)) -> Sample:
    return Sample(ROWS.format(body="\n        ".join(body)), ((256, 256),), meaning)


def test_a_loop_that_does_the_same_into_another_tile_is_done_once():
    made = wide_sample(*fill("b", "j", "part"), *fill("c", "q", "piece"), SUM)
    assert relative_error(made, made.source) < 1e-6
    ((source,), refusals) = rewritten(made, "reuse")
    assert not refusals
    assert source.count("nisa.activation") == 1
    assert "data1=b, data2=b" in source
    assert "c = nl.ndarray" not in source
    assert "piece" not in source
    assert relative_error(made, source) < 1e-6


def test_a_loop_that_binds_the_same_names_again_is_done_once():
    made = wide_sample(*fill("b", "j", "part"), "first = 0", *fill("c", "j", "part"), SUM)
    ((source,), _) = rewritten(made, "reuse")
    assert relative_error(made, source) < 1e-6
    assert source.count("nisa.activation") == 1


@pytest.mark.parametrize(
    "other",
    [
        fill("c", "q", "piece", factor=3.0),
        fill("c", "q", "piece", start="1, "),
        tuple(line.replace("nl.ds(i * 128", "nl.ds((1 - i) * 128") for line in fill("c", "q", "piece")),
        tuple(line.replace("c[:, nl.ds(q", "c[:, nl.ds((3 - q)") for line in fill("c", "q", "piece")),
        tuple(line.replace("nl.exp", "nl.copy") for line in fill("c", "q", "piece")),
        (*fill("c", "q", "piece"), "nisa.memset(dst=c[:, 0:1], value=0.0)"),
        (WIDE.format("c"), "nisa.tensor_copy(dst=a, src=c)", *fill("c", "q", "piece")[1:]),
        (*fill("c", "q", "piece"), "nisa.memset(dst=b[:, 0:1], value=0.0)"),
    ],
    ids=["argument", "range", "input", "place", "operation", "written again", "read before", "first written"],
)  # fmt: skip
def test_loops_that_do_not_make_the_same_are_no_duplicates(other: tuple[str, ...]):
    made = wide_sample(*fill("b", "j", "part"), *other, SUM)
    assert rewritten(made, "reuse") == ([], [])


@pytest.mark.parametrize(
    ("between", "after", "reason"),
    [
        (("nisa.dma_copy(dst=x[nl.ds(i * 128, 128), 0:64], src=b[:, 0:64])",), (), "x changes in between"),
        ((), ("nisa.tensor_copy(dst=a[:, 0:64], src=piece)",), "the loop over q binds a name"),
    ],
)
def test_a_loop_whose_operands_or_names_change_is_done_again(
    between: tuple[str, ...], after: tuple[str, ...], reason: str
):
    made = wide_sample(*fill("b", "j", "part"), *between, *fill("c", "q", "piece"), *after, SUM)
    sources, refusals = rewritten(made, "reuse")
    assert not sources
    assert [reason in refusal for refusal in refusals] == [True]


def test_a_loop_that_reads_the_running_tile_of_the_first_is_done_again():
    """Each iteration of the second one reads what the last iteration of the first one left."""
    part = "{} = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)"
    running = tuple(part.format(name) for name in ("p", "r"))
    loop = (
        "for j in nl.affine_range(4):",
        "    nisa.dma_copy(dst={0}, src=x[nl.ds(i * 128, 128), nl.ds(j * 64, 64)])",
        "    nisa.activation(dst={1}[:, nl.ds(j * 64, 64)], op=nl.exp, data=p)",
    )
    first, second = (
        tuple(line.format(tile, result) for line in loop) for tile, result in (("p", "b"), ("r", "c"))
    )
    made = wide_sample(WIDE.format("b"), WIDE.format("c"), *running, *first, *second, SUM)
    assert rewritten(made, "reuse") == ([], ["reuse p for r: p changes in between"])


def test_results_may_have_the_names_of_one_another():
    tiles = WIDE.format("b"), WIDE.format("c")
    loop = (
        "for j in nl.affine_range(4):",
        "    nisa.activation(dst={0}[:, nl.ds(j * 64, 64)], op=nl.exp, data=a[:, nl.ds(j * 64, 64)])",
        "    nisa.activation(dst={1}[:, nl.ds(j * 64, 64)], op=nl.tanh, data=a[:, nl.ds(j * 64, 64)])",
    )
    first, second = (tuple(line.format(*names) for line in loop) for names in ("bc", "cb"))
    difference = "nisa.tensor_tensor(dst=a, data1=c, data2=b, op=nl.subtract)"
    made = wide_sample(
        *tiles, *first, *tiles[::-1], *second, difference, meaning=lambda x: np.exp(x) - np.tanh(x)
    )
    assert relative_error(made, made.source) < 1e-6
    ((source,), _) = rewritten(made, "reuse")
    assert "data1=b, data2=c" in source
    assert relative_error(made, source) < 1e-6


def test_a_zero_and_its_negative_are_not_the_same():
    line = "    nisa.tensor_scalar(dst={}[:, nl.ds(j * 64, 64)], data=a[:, nl.ds(j * 64, 64)], {})"
    factor = "op0=nl.multiply, operand0={}"
    loops = [
        (WIDE.format(name), "for j in nl.affine_range(4):", line.format(name, factor.format(zero)))
        for name, zero in (("b", "0.0"), ("c", "-0.0"))
    ]
    made = wide_sample(*loops[0], *loops[1], SUM)
    assert rewritten(made, "reuse") == ([], [])


def test_tiles_that_collect_over_different_loops_are_not_the_same():
    """The one begins anew in each iteration of the loop around, the other goes on."""
    column = "{} = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)"
    ones = ("w = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)", "nisa.memset(dst=w, value=1.0)")
    add = ("    for j in nl.affine_range(2):", "        nisa.nc_matmul(dst={}, stationary=w, moving=a)")
    made = wide_sample(
        *ones, column.format("c"), "for h in nl.affine_range(2):", f"    {column.format('b')}",
        *(line.format("b") for line in add), *(line.format("c") for line in add),
        f"    {WIDE.format('d')}", "    nisa.tensor_copy(dst=d, src=b)",
        "    nisa.tensor_tensor(dst=d, data1=d, data2=c, op=nl.add)",
        "    nisa.dma_copy(dst=out[nl.ds(i * 128, 128), 0:256], src=d)",
    )  # fmt: skip
    assert rewritten(made, "reuse") == ([], [])


def test_a_later_tile_may_have_the_name_of_one_that_the_loop_declares():
    after = (TILE.format("piece"), "nisa.tensor_copy(dst=piece, src=a)", "nisa.tensor_copy(dst=a, src=piece)")
    made = wide_sample(*fill("b", "j", "part"), *fill("c", "q", "piece"), SUM, *after)
    ((source,), _) = rewritten(made, "reuse")
    assert relative_error(made, source) < 1e-6


def test_a_result_whose_name_is_bound_again_gets_another():
    again = (WIDE.format("b"), "nisa.memset(dst=b, value=1.0)")
    made = wide_sample(
        *fill("b", "j", "part"), *fill("c", "q", "piece"), *again, SUM, meaning=lambda x: 1 + np.exp(2.0 * x)
    )
    ((source,), _) = rewritten(made, "reuse")
    assert "data1=b, data2=b_kept" in source
    assert relative_error(made, source) < 1e-6


def test_one_name_for_all_tiles_does_not_hide_that_they_hold_the_same():
    made = sample(
        TILE.format("t"), EXP.format("t"), TILE.format("b"), "nisa.tensor_copy(dst=b, src=t)",
        TILE.format("t"), EXP.format("t"), TILE.format("c"), "nisa.tensor_copy(dst=c, src=t)", ADD,
    )  # fmt: skip
    sources, _ = rewritten(made, "reuse")
    assert min(source.count("nisa.activation") for source in sources) == 1
    assert all(relative_error(made, source) < 1e-6 for source in sources)


def test_a_name_that_an_iteration_binds_again_is_another_one_in_the_next():
    made = sample(
        *MADE, "for q in nl.affine_range(2):", f"    {TILE.format('c')}", f"    {EXP.format('c')}",
        "    nisa.dma_copy(dst=out[nl.ds(i * 128, 128), 0:n], src=c)", f"    {TILE.format('b')}",
        "    nisa.memset(dst=b, value=7.0)",
        meaning=lambda x: x,
    )  # fmt: skip
    ((source,), _) = rewritten(made, "reuse")
    assert "src=b_kept" in source
    assert "nisa.memset(dst=b, value=7.0)" in source
    assert relative_error(made, source) < 1e-6


def test_a_name_that_is_bound_again_may_be_used_after_the_loop():
    more = ("for q in nl.affine_range(1):", "    nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=0.0)")
    made = wide_sample(*fill("b", "j", "part"), *fill("c", "q", "piece"), SUM, *more)
    ((source,), _) = rewritten(made, "reuse")
    assert relative_error(made, source) < 1e-6
