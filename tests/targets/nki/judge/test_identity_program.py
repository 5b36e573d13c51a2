"""Evaluating parts of programs in ordinary numbers gives what running the programs gives."""

from __future__ import annotations

import numpy as np
import pytest

import seeds
from nki_sim.flow import slices
from remote.judge.identity.dependence_domain import DependenceDomain
from remote.judge.identity.residues import DoubtFlags, ResidueDomain
from remote.judge.tiles import OutputTile, boxes_by_output
from targets.nki.judge.identity import demand_analysis
from targets.nki.judge.identity.demand_analysis import NotEvaluableError, find_demanded_steps
from targets.nki.judge.identity.simulator_witness import TrackingFloatDomain, simulate_boxes
from tests.adversarial.honest import products, rows, silu
from tests.remote.identity.programs import inputs_of, lines, shapes_of, side, trace_kernel, whole
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep

SECRET = b"inputs of tests"
SHAPES = ((32, 48), (32, 48))
TILES = ("a, b = tile((32, 48), x.dtype), tile((32, 48), x.dtype)",)
LOADS = (*TILES, "nisa.dma_copy(dst=a, src=x)", "nisa.dma_copy(dst=b, src=y)")


def stored(name: str, rows: int = 32, cols: int = 48, dtype: str = "x.dtype") -> tuple[str, ...]:
    return (
        f"out = nl.ndarray(({rows}, {cols}), dtype={dtype}, buffer=nl.shared_hbm)",
        f"nisa.dma_copy(dst=out, src={name})",
        "return out",
    )


def computed(*body: str, **shape: object) -> str:
    """A kernel that loads x and y to a and b, runs these lines, and returns `c`."""
    size = {"rows": 32, "cols": 48, **shape}
    made = f"c = tile(({size['rows']}, {size['cols']}), nl.float32)"
    return lines("x, y", *LOADS, made, *body, *stored("c", **size))


def agrees(program, tiles, inputs=None) -> None:
    """Boxes in float64 are those of the simulator's float32."""
    part = slices.slice_backward(program, boxes_by_output(tiles))
    asking = TrackingFloatDomain(SECRET, inputs or inputs_of(program))
    with np.errstate(all="ignore"):
        found = side(part)(asking, tiles)
    expected = simulate_boxes(part, tiles, asking)
    for tile, value in zip(tiles, found, strict=True):
        assert value.shape == tuple(end - first for first, end in tile.box)
        truth, expected = expected[: value.arrays[0].size], expected[value.arrays[0].size :]
        assert np.abs(value.arrays[0].reshape(-1) - truth).max() <= 2e-5 * max(np.abs(truth).max(), 1e-6)


def corners(program) -> list[OutputTile]:
    """A few elements at the beginning, in the middle and at the end of each output."""
    found = []
    for at, tensor in enumerate(program.outputs):
        shape = program.site(tensor).shape
        for share in (0.0, 0.4, 1.0):
            starts = [int(share * (size - min(3, size))) for size in shape]
            box = tuple((start, start + min(3, size)) for start, size in zip(starts, shape, strict=True))
            found.append(OutputTile(at, box))
    return found


@parametrize_sweep("problem", seeds.builtin_problems(), quick=QUICK_PROBLEMS)
def test_initial_kernels(problem: str) -> None:
    found = seeds.load_problem(problem)
    program = trace_kernel(found.kernel, shapes_of(problem))
    agrees(program, corners(program), found.spec.inputs)


LIGHT = ("silu", "adamw", "bmm_softmax", "mamba", "matmul", "rmsnorm_matmul", "rope_single_freq_apply")
HONEST = {f"{item.problem}: {item.idea}": item for item in (*silu.KERNELS, *products.KERNELS, *rows.KERNELS)}


@pytest.mark.parametrize("name", [name for name in HONEST if name.split(":")[0] in LIGHT])
def test_unusual_kernels(name: str) -> None:
    item = HONEST[name]
    program = trace_kernel(item.kernel, shapes_of(item.problem))
    agrees(program, corners(program)[-1:], seeds.load_problem(item.problem).spec.inputs)


INSTRUCTIONS = {
    "operators in turn": computed(
        "nisa.tensor_scalar(dst=c, data=a, op0=nl.subtract, operand0=1.5, reverse0=True, op1=nl.multiply,"
        " operand1=b[:, 3:4])",
    ),
    "reversed squares": computed(
        "nisa.scalar_tensor_tensor(dst=c, data=a, op0=nl.multiply, operand0=a[:, 0:1], op1=nl.subtract,"
        " operand1=b, reverse1=True)",
    ),
    "maxima of rows": computed(
        "m = tile((32, 1), nl.float32)",
        "nisa.tensor_reduce(dst=m, op=nl.maximum, data=a, axis=1, negate=True)",
        "nisa.activation(dst=c, op=nl.exp, data=a, bias=m, scale=0.5)",
    ),
    "sums of groups": computed(
        "nisa.tensor_reduce(dst=c, op=nl.add, data=a.reshape((32, 6, 8)), axis=2)", cols=6
    ),
    "sums of partitions": computed(
        "nisa.tensor_partition_reduce(dst=c, op=nl.add, data=a)", rows=1
    ),
    "a sum beside the function": computed(
        "s = tile((32, 1), nl.float32)",
        "nisa.activation_reduce(dst=c, op=nl.square, data=a, reduce_op=nl.add, reduce_res=s)",
        "nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=s)",
    ),
    "sums over several instructions": computed(
        "s = tile((32, 1), nl.float32)",
        "nisa.activation(dst=c, op=nl.copy, data=a, reduce_op=nl.add,"
        " reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        "nisa.activation(dst=c, op=nl.square, data=b, reduce_op=nl.add, reduce_res=s,"
        " reduce_cmd=nisa.reduce_cmd.reduce)",
        "nisa.tensor_scalar(dst=c, data=c, op0=nl.add, operand0=s)",
    ),
    "a linear recurrence": computed(
        "nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=0.3)",
        "nisa.tensor_tensor_scan(dst=c, data0=a, data1=b, initial=b[:, 5:6], op0=nl.multiply, op1=nl.add)",
    ),
    "another scan": computed(
        "nisa.tensor_tensor_scan(dst=c, data0=a, data1=b, initial=0.5, op0=nl.maximum, op1=nl.subtract)",
    ),
    "running sums": computed(
        "nisa.tensor_scalar_cumulative(dst=c, src=a, op0=nl.multiply, op1=nl.add, imm0=2.0)"
    ),
    "statistics": computed(
        "s = tile((32, 6), nl.float32)",
        "nisa.bn_stats(dst=s, data=a)",
        "m = tile((32, 2), nl.float32)",
        "nisa.bn_aggr(dst=m, data=s)",
        "nisa.tensor_scalar(dst=c, data=a, op0=nl.subtract, operand0=m[:, 0:1], op1=nl.multiply,"
        " operand1=m[:, 1:2])",
    ),
    "a row for all partitions": computed(
        "nisa.nc_stream_shuffle(dst=c, src=a[0:1, :], shuffle_mask=(0,) * 32)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=b, op=nl.multiply)",
    ),
    "shuffled partitions": computed(
        "nisa.nc_stream_shuffle(dst=c[0:32, :], src=a, shuffle_mask=tuple(31 - at for at in range(32)))",
        "nisa.nc_stream_shuffle(dst=c[32:64, :], src=b, shuffle_mask=tuple(at // 2 for at in range(32)))",
        rows=64,
    ),
    "some partitions shuffled": computed(
        "nisa.tensor_copy(dst=c, src=b)",
        "nisa.nc_stream_shuffle(dst=c, src=a, shuffle_mask=(3, 255) * 16)",
    ),
    "a causal mask": computed(
        "nisa.affine_select(dst=c, pattern=[[-1, 48]], channel_multiplier=1, on_true_tile=a,"
        " on_false_value=-7.0, cmp_op=nl.greater_equal)",
    ),
    "counted numbers": computed(
        "n = tile((32, 48), nl.int32)",
        "nisa.iota(dst=n, pattern=[[3, 48]], offset=5, channel_multiplier=2)",
        "nisa.tensor_copy(dst=c, src=n)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.multiply)",
    ),
    "bits of counted numbers": computed(
        "n = tile((32, 48), nl.int32)",
        "nisa.iota(dst=n, pattern=[[1, 48]], channel_multiplier=1)",
        "nisa.tensor_scalar(dst=n, data=n, op0=nl.bitwise_and, operand0=3)",
        "nisa.tensor_copy(dst=c, src=n)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.multiply)",
    ),
    "a copy where a mask says so": computed(
        "n = tile((32, 48), nl.uint8)",
        "nisa.tensor_scalar(dst=n, data=a, op0=nl.greater, operand0=0.25)",
        "nisa.tensor_copy(dst=c, src=b)",
        "nisa.tensor_copy_predicated(dst=c, src=a, predicate=n)",
    ),
    "the eight largest": computed("nisa.max8(dst=c, src=a)", cols=8),
    "a transpose on the way": lines(
        "x, y",
        "a = tile((48, 32), x.dtype)",
        "nisa.dma_transpose(dst=a, src=x)",
        *stored("a", 48, 32),
    ),
    "rows as columns": lines(
        "x, y",
        "a = tile((16, 96), x.dtype)",
        "nisa.dma_copy(dst=a, src=x.reshape((16, 96)))",
        *stored("a", 16, 96),
    ),
    "sums on the way": lines(
        "x, y", "a = tile((32, 48), x.dtype)", "nisa.dma_compute(dst=a, srcs=[x, y, x], reduce_op=nl.add)",
        *stored("a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instructions(name: str) -> None:
    program = trace_kernel(INSTRUCTIONS[name], SHAPES)
    agrees(program, whole(program))
    agrees(program, corners(program))


def ops(program, found) -> list[tuple[str, tuple[int, ...]]]:
    return [(program.forms[program.form_ids[step.number]].op, step.part.shape) for step in found]


def test_only_what_is_asked_for_is_computed() -> None:
    program = trace_kernel(INSTRUCTIONS["maxima of rows"], SHAPES)
    assert ops(program, find_demanded_steps(program, {0: [((3, 5), (7, 8))]})) == [
        ("dma_copy", (2, 48)),
        ("tensor_reduce", (2, 1)),
        ("activation", (2, 1)),
        ("dma_copy", (2, 1)),
    ]


def test_elements_apart_are_computed_alone() -> None:
    program = trace_kernel(INSTRUCTIONS["a linear recurrence"], SHAPES)
    found = find_demanded_steps(program, {0: [((0, 1), (4, 5)), ((30, 31), (2, 3))]})
    assert ops(program, found)[-2:] == [("tensor_tensor_scan", (2, 5)), ("dma_copy", (2, 2))]


def test_memory_goes_with_its_last_reader() -> None:
    program = trace_kernel(INSTRUCTIONS["a sum beside the function"], SHAPES)
    found = find_demanded_steps(program, boxes_by_output(whole(program)))
    dead = {program.site(tensor).name: step.number for step in found for tensor in step.dead}
    assert sum(len(step.dead) for step in found) == len(dead) == 4
    assert dead["s"] == found[-2].number
    assert dead["c"] == found[-1].number


UNFOLLOWED = {
    "data decide how often its loops run": lines(
        "x", "a = tile((32, 48), x.dtype)", "nisa.dma_copy(dst=a, src=x)", "r = nisa.register_alloc(2)",
        "def turn(i):", "    nisa.tensor_tensor(dst=a, data1=a, data2=a, op=nl.add)", "    return i",
        "nl.while_loop(r, turn)", *stored("a"),
    ),
    "it reads the bits of one type as another": lines(
        "x", "a = tile((32, 48), x.dtype)", "nisa.dma_copy(dst=a, src=x)",
        "b = tile((32, 48), nl.float32)", "nisa.tensor_copy(dst=b, src=a.view(nl.int16)[:, 0:48])",
        *stored("b"),
    ),
}  # fmt: skip


def test_long_programs_are_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(demand_analysis, "MAX_STEPS", 3)
    program = trace_kernel(INSTRUCTIONS["maxima of rows"], SHAPES)
    with pytest.raises(NotEvaluableError, match="need 5 instructions, at most 3"):
        find_demanded_steps(program, boxes_by_output(whole(program)))


@pytest.mark.parametrize("reason", UNFOLLOWED)
def test_what_cannot_be_followed_is_said(reason: str) -> None:
    program = trace_kernel(UNFOLLOWED[reason], SHAPES[:1])
    with pytest.raises(NotEvaluableError, match=reason):
        find_demanded_steps(program, boxes_by_output(whole(program)))


def test_what_nobody_wrote_is_unknown_and_may_depend_on_anything() -> None:
    program = trace_kernel(
        lines(
            "x", "a = tile((32, 48), x.dtype)", "nisa.dma_copy(dst=a[0:16, :], src=x[0:16, :])", *stored("a")
        ),
        SHAPES[:1],
    )
    residues = ResidueDomain(b"seed")
    (value,) = side(program)(residues, whole(program))
    assert (residues.doubt_flags(value)[:16] == 0).all()
    assert (residues.doubt_flags(value)[16:] == DoubtFlags.UNKNOWN).all()
    (value,) = side(program)(DependenceDomain([(0, 5)], "may"), whole(program))
    assert value.arrays[0][0].tolist() == [0] * 5 + [1] + [0] * 42
    assert (value.arrays[0][16:] == 2**64 - 1).all()


def test_instructions_without_rules_depend_on_all_that_they_read() -> None:
    program = trace_kernel(INSTRUCTIONS["the eight largest"], SHAPES)
    residues = ResidueDomain(b"seed")
    (value,) = side(program)(residues, whole(program))
    assert (residues.doubt_flags(value) & DoubtFlags.FUNCTION).all()
    assert np.unique(value.arrays[0]).size == value.arrays[0].size
    (value,) = side(program)(DependenceDomain([(0, 3 * 48 + 7), (1, 0)], "may"), whole(program))
    assert (value.arrays[0] == 1).all()
