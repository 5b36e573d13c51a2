"""Verdicts on two programs, the second in the place of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from remote.judge import tiles
from remote.judge.identity.dependence import find_missing_dependence
from remote.judge.identity.verdict import compare_formulas
from remote.judge.tiles import OutputTile
from targets.nki.judge.identity import demand_analysis
from targets.nki.judge.identity.box_selection import MAX_WORK, select_boxes
from tests.adversarial.attacks import formulas, numbers
from tests.adversarial.honest import products, rows, silu
from tests.adversarial.model import edit
from tests.remote.identity.programs import lines, of_problem, shapes_of, sides, trace_kernel

SHAPES = ((16, 24), (16, 24))


def tile(*names: str, cols: int = 24) -> tuple[str, ...]:
    return tuple(f"{name} = tile((16, {cols}), nl.float32)" for name in names)


def formula(*body: str) -> str:
    """A kernel of x and y, in tiles of that name, that returns what these lines leave in z."""
    made = (*tile("a", "b", "z"), *tile("s", "t", cols=1))
    moved = ("nisa.dma_copy(dst=a, src=x)", "nisa.dma_copy(dst=b, src=y)")
    out = ("out = nl.ndarray((16, 24), dtype=x.dtype, buffer=nl.shared_hbm)", "nisa.dma_copy(dst=out, src=z)")
    return lines("x, y", *made, *moved, *body, *out, "return out")


def scale_by(number: object, data: str = "a") -> str:
    return f"nisa.tensor_scalar(dst=z, data={data}, op0=nl.multiply, operand0={number})"


def function(name: str, data: str = "a", dst: str = "z", **more: object) -> str:
    given = "".join(f", {key}={value}" for key, value in more.items())
    return f"nisa.activation(dst={dst}, op=nl.{name}, data={data}{given})"


def both(op: str, left: str = "a", right: str = "b", dst: str = "z") -> str:
    return f"nisa.tensor_tensor(dst={dst}, data1={left}, data2={right}, op=nl.{op})"


def reduce_with(op: str, data: str = "a", dst: str = "s", **more: object) -> str:
    given = "".join(f", {key}={value}" for key, value in more.items())
    return f"nisa.tensor_reduce(dst={dst}, op=nl.{op}, data={data}, axis=1{given})"


def over(op: str, column: str, data: str = "z") -> str:
    return f"nisa.tensor_scalar(dst=z, data={data}, op0=nl.{op}, operand0={column})"


def find_verdict(ours: tuple[str, ...], theirs: tuple[str, ...]):
    return compare_formulas(sides(*(trace_kernel(formula(*body), SHAPES) for body in (ours, theirs))))


def cumulative(columns: str, command: str) -> str:
    """Running sums of some columns."""
    where, how = f"dst=z[:, {columns}], src=a[:, {columns}]", f"reduce_cmd=nisa.reduce_cmd.{command}"
    return f"nisa.tensor_scalar_cumulative({where}, op0=nl.multiply, imm0=1.0, op1=nl.add, {how})"


def started(op: str, number: str) -> tuple[str, ...]:
    """A reduction of rows that starts at a number."""
    start = f"nisa.tensor_scalar(dst=s, data=s, op0=nl.{op}, operand0={number})"
    return reduce_with(op), start, over("add", "s", "b")


SOFTMAX = (
    reduce_with("maximum", negate=True),
    function("exp", bias="s"),
    reduce_with("add", "z", "t"),
    "nisa.reciprocal(dst=t, data=t)",
    over("multiply", "t"),
)
SAME = {
    "a constant folded otherwise": ((scale_by("0.01 * 0.001"),), (scale_by("1e-5"),)),
    "a root folded": ((scale_by("128 ** -0.5"),), (scale_by("2.0 ** -3.5"),)),
    "a division for a factor": (
        (scale_by("1.0 / 3.0"),),
        ("nisa.memset(dst=s, value=3.0)", "nisa.reciprocal(dst=s, data=s)", over("multiply", "s", "a")),
    ),
    "another order of additions": (
        (both("add"), both("add", "z", "a")), (both("add", "a", "a"), both("add", "b", "z")),
    ),
    "a sum of exponentials' product": (
        (both("add"), function("exp", "z")),
        (function("exp"), function("exp", "b", "b"), both("multiply", "z", "b")),
    ),
    "the reciprocal of a root": (
        (function("square"), function("rsqrt", "z")),
        (function("square"), function("sqrt", "z"), "nisa.reciprocal(dst=z, data=z)"),
    ),
    "a number by its square root": (
        (function("square"), function("rsqrt", "z", "b"), both("multiply", "z", "b")),
        (function("square"), function("sqrt", "z")),
    ),
    "halves of other types": (
        (both("multiply"),),
        (
            "h, l = tile((16, 24), nl.bfloat16), tile((16, 24), nl.bfloat16)",
            "nisa.tensor_copy(dst=h, src=a)",
            both("subtract", "a", "h", "l"),
            both("multiply", "h", "b"),
            both("multiply", "l", "b", "a"),
            both("add", "z", "a"),
        ),
    ),
    "softmax with another shift": (
        SOFTMAX, (reduce_with("minimum", "b", negate=True), *SOFTMAX[1:]),
    ),
    "softmax without a shift": (SOFTMAX, (function("exp"), *SOFTMAX[2:])),
    "a rectifier by its definition": (
        (function("relu"),), ("nisa.tensor_scalar(dst=z, data=a, op0=nl.maximum, operand0=0.0)",),
    ),
    "a maximum that starts at minus infinity": (
        started("maximum", "-3e38"), (reduce_with("maximum"), over("add", "s", "b")),
    ),
    "a cumulative sum, carried from chunk to chunk": (
        (cumulative("0:24", "reset_reduce"),),
        (cumulative("0:10", "reset_reduce"), cumulative("10:17", "reduce"), cumulative("17:24", "reduce")),
    ),
    "a maximum in two parts": (
        (reduce_with("maximum"), over("subtract", "s", "a")),
        (
            reduce_with("maximum", "a[:, 0:9]"), reduce_with("maximum", "a[:, 9:24]", "t"),
            both("maximum", "s", "t", "s"), over("subtract", "s", "a"),
        ),
    ),
    "statistics by their instructions": (
        (
            "q, m = tile((16, 6), nl.float32), tile((16, 2), nl.float32)",
            "nisa.bn_stats(dst=q, data=a)", "nisa.bn_aggr(dst=m, data=q)", over("subtract", "m[:, 0:1]", "a"),
            over("multiply", "m[:, 1:2]"),
        ),
        (
            reduce_with("add"), "nisa.tensor_scalar(dst=s, data=s, op0=nl.multiply, operand0=1.0 / 24)",
            over("subtract", "s", "a"), function("square", "z", "b"), reduce_with("add", "b", "t"),
            "nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=1.0 / 24)", over("multiply", "t"),
        ),
    ),
}  # fmt: skip


def test_roots_agree_where_their_numbers_have_some() -> None:
    ours = (function("rsqrt", "a", "b"), both("multiply", "a", "b"))
    finding = find_verdict(ours, (function("sqrt"),))
    assert finding.verdict == "proven"
    assert 16 * 24 > finding.elements > 16 * 24 / 2


@pytest.mark.parametrize("name", SAME)
def test_the_same_formula_is_proven(name: str) -> None:
    assert find_verdict(*SAME[name]).verdict == "proven"


OTHER = {
    "a constant that is a little off": ((scale_by("1.00001"),), ("nisa.tensor_copy(dst=z, src=a)",)),
    "a slight term left out": (
        (over("add", "1e-7", "a"),), ("nisa.tensor_copy(dst=z, src=a)",),
    ),
    "another function": ((function("tanh"),), (function("sigmoid"),)),
    "a sum of all but one": ((reduce_with("add", "a[:, 0:23]"), over("add", "s", "b")),
                             (reduce_with("add"), over("add", "s", "b"))),
    "a minimum for a maximum": ((both("maximum"),), (both("minimum"),)),
    "a factor without a name": ((scale_by("1.0000154"),), ("nisa.tensor_copy(dst=z, src=a)",)),
    "a factor beside a minimum without effect": (
        (scale_by("1.00001"), over("minimum", "9e5")), ("nisa.tensor_copy(dst=z, src=a)",),
    ),
    "a factor beside a function that cancels": (
        (function("erf", "b", "b"), scale_by("1.00001"), both("add", "z", "b"), both("subtract", "z", "b")),
        ("nisa.tensor_copy(dst=z, src=a)",),
    ),
    "a factor within an exponential of one": (
        (function("exp"), over("multiply", "1.00001"), function("exp", "z")),
        (function("exp"), function("exp", "z")),
    ),
    "a factor beside roots that say nothing": (
        (
            *(line for shift in range(1, 9) for line in (
                over("add", f"{shift}.0", "b"), function("square", "z"), over("add", "1.0"),
                function("sqrt", "z", "z"), both("add", "a", "z", "a"), both("subtract", "a", "z", "a"),
            )),
            scale_by("1.00001"),
        ),
        ("nisa.tensor_copy(dst=z, src=a)",),
    ),
    "a threshold for a term": (
        (function("square"), over("maximum", "1e-5"), function("rsqrt", "z")),
        (function("square"), over("add", "1e-5"), function("rsqrt", "z")),
    ),
    "a maximum that starts at minus one": (
        started("maximum", "-1.0"), (reduce_with("maximum"), over("add", "s", "b")),
    ),
    "a minimum that starts at one": (
        started("minimum", "1.0"), (reduce_with("minimum"), over("add", "s", "b")),
    ),
    "a maximum that starts at zero": (
        started("maximum", "0.0"), (reduce_with("maximum"), over("add", "s", "b")),
    ),
    "a softmax over part of the row": (
        (*SOFTMAX[:2], reduce_with("add", "z[:, 1:24]", "t"), *SOFTMAX[3:]), SOFTMAX,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_another_formula_is_rejected(name: str) -> None:
    finding = find_verdict(*OTHER[name])
    assert finding.verdict == "rejected", finding
    assert "in float64" in finding.reason


TESTED = {
    "functions without rules": (
        ("q = tile((16, 8), nl.float32)", "nisa.max8(dst=q, src=a)", over("multiply", "q[:, 0:1]", "a")),
        (reduce_with("maximum"), over("multiply", "s", "a")),
    ),
    "constants that stand for no simple number": (
        (scale_by("0.7234567"),),
        (scale_by("0.7234577"),),
    ),
    "maxima or comparisons": (
        (
            both("subtract"),
            function("abs", "z"),
            both("add", "a", "z"),
            both("add", "z", "b"),
            over("multiply", "0.5"),
        ),
        (both("maximum"),),
    ),
    "exponentials of exponentials": (
        (both("add"), function("exp", "z"), function("exp", "z")),
        (function("exp"), function("exp", "b", "b"), both("multiply", "z", "b"), function("exp", "z")),
    ),
    "no more than constants rounded": (
        (both("multiply"), over("multiply", "1e-6"), both("add", "z", "a")),
        ("nisa.tensor_copy(dst=z, src=a)",),
    ),
}


@pytest.mark.parametrize("reason", TESTED)
def test_what_is_not_covered_is_tested_in_numbers_only(reason: str) -> None:
    finding = find_verdict(*TESTED[reason])
    assert finding.verdict == "tested", finding
    assert reason in finding.reason


def test_bits_that_float64_cannot_know_are_never_rejected() -> None:
    bits = "nisa.tensor_scalar(dst=z.view(nl.int32), data=z.view(nl.int32), op0=nl.bitwise_or, operand0=0)"
    assert find_verdict((both("add"), bits), (both("add"),)).verdict == "tested"


def test_a_difference_behind_marks_is_named_where_it_is() -> None:
    ours = formula(scale_by("1.0000000123"), "nisa.memset(dst=z[0:1, 5:6], value=0.25)")
    given = sides(trace_kernel(ours, SHAPES), trace_kernel(formula(scale_by("1.0")), SHAPES))
    finding = compare_formulas(given)
    assert finding.verdict == "rejected"
    assert given.locate_element(finding.position) == (0, (0, 5))


def test_a_rejection_names_the_element() -> None:
    ours, theirs = (
        formula(scale_by("0.5"), *more) for more in (("nisa.memset(dst=z[0:1, 5:6], value=0.25)",), ())
    )
    given = sides(trace_kernel(ours, SHAPES), trace_kernel(theirs, SHAPES))
    finding = compare_formulas(given)
    assert finding.verdict == "rejected"
    assert given.locate_element(finding.position) == (0, (0, 5))


def test_a_maximum_over_part_of_the_row_lacks_the_rest() -> None:
    ours = (reduce_with("maximum", "a[:, 0:23]"), over("multiply", "s", "b"))
    given = sides(
        *(trace_kernel(formula(*body), SHAPES) for body in (ours, (reduce_with("maximum"), ours[1])))
    )
    finding = compare_formulas(given)
    assert finding.verdict == "rejected"
    assert finding.lacks is not None
    assert finding.lacks.input == 0
    assert finding.lacks.element % 24 == 23
    assert given.locate_element(finding.position)[1][0] == finding.lacks.element // 24


def test_terms_that_cancel_are_no_dependence() -> None:
    ours = ("nisa.tensor_copy(dst=z, src=a)", "nisa.tensor_copy(dst=z, src=a)")
    theirs = (both("add"), both("subtract", "z", "b"))
    given = sides(*(trace_kernel(formula(*body), SHAPES) for body in (ours, theirs)))
    assert find_missing_dependence(given, np.random.default_rng(1)) is None
    assert compare_formulas(given).verdict == "proven"


def test_a_rejection_needs_the_simulator_s_word() -> None:
    given = sides(*(trace_kernel(formula(*body), SHAPES) for body in OTHER["another function"]))
    truth = sides(*(trace_kernel(formula(*body), SHAPES) for body in OTHER["another function"][::-1]))
    for simulate in (truth.simulate, lambda _: None):
        finding = compare_formulas(replace(given, simulate=simulate))
        assert finding.verdict == "tested"
        assert "simulator" in finding.reason


HONEST = (*silu.KERNELS, *products.KERNELS, *rows.KERNELS)
LIGHT = ("silu", "adamw", "bmm_softmax")
"""Problems whose initial kernels are cheap to evaluate; all are judged in tests/adversarial."""


@pytest.mark.parametrize(
    "kernel", [item for item in HONEST if item.problem in LIGHT], ids=lambda item: item.idea
)
def test_unusual_kernels_are_proven(kernel) -> None:
    assert compare_formulas(of_problem(kernel.problem, kernel.kernel)).verdict == "proven"


CAUGHT = (
    "a denominator from half of the row",
    "a single element left out",
    "epsilon left out",
    "half of a row's statistics, rescaled",
    "state not carried between tiles",
    "weight decay left out, half as large as the problem's tolerance",
)


@pytest.mark.parametrize("technique", CAUGHT)
def test_shortcuts_are_rejected(technique: str) -> None:
    attacks = (*numbers.ATTACKS, *formulas.ATTACKS)
    (attack,) = (item for item in attacks if item.technique == technique)
    assert compare_formulas(of_problem(attack.problem, attack.kernel)).verdict == "rejected"


def test_a_maximum_that_cancels_does_not_hide_what_is_wrong() -> None:
    kernel = edit(
        "bmm_softmax",
        ("op=nl.exp, data=scores, bias=neg_max", "op=nl.exp, data=scores, bias=neg_max, scale=0.999"),
    )
    assert compare_formulas(of_problem("bmm_softmax", kernel)).verdict == "rejected"


def test_boxes_are_inside_the_drawn_tiles_and_end_where_they_end() -> None:
    program = trace_kernel(edit("adamw"), shapes_of("adamw"))
    drawn = [
        OutputTile(0, ((0, 64), (0, 256))),
        OutputTile(0, ((256, 320), (1792, 2048))),
        OutputTile(0, ((64, 128), (64, 320))),
    ]
    boxes, steps = select_boxes(program, drawn, np.random.default_rng(3))
    assert demand_analysis.count_work(steps) <= MAX_WORK
    assert (
        demand_analysis.find_demanded_steps(program, tiles.boxes_by_output(boxes))[0].number
        == steps[0].number
    )
    inside = [
        any(
            all(a <= c and d <= b for (a, b), (c, d) in zip(tile.box, box.box, strict=True)) for tile in drawn
        )
        for box in boxes
    ]
    assert len(boxes) == 4
    assert all(inside)
    assert any(box.box[0][1] == 320 and box.box[1][1] == 2048 for box in boxes)
    assert any(box.box[0][0] == 0 and box.box[1][0] == 0 for box in boxes)
