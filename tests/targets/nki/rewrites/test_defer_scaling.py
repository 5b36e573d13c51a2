"""Deferred scaling: which results get the factors of an operand's rows, and what keeps the factors there."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.kernels import HEADER, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

Array = NDArray[np.float64]
SITE = "tensor_scalar to scaled"
KERNEL = """
@nki.jit
def kernel(x, w, g):
    out = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    {before}
    for i in nl.affine_range(2):
        a = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
        gain = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=gain, src=g[0:1, 0:256].broadcast(0, 128))
        square = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=square, op=nl.square, data=a)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=square, axis=1)
        factor = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=factor, data=total)
        {declared}
        # The rows add up to one.
        {scaling}
        {between}
        turned = nl.ndarray({turned}, dtype=nl.float32, buffer=nl.sbuf)
        for q in nl.affine_range(2):
            bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            {turning}
            {copying}
        for j in nl.affine_range(2):
            acc = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)
            for q in nl.affine_range(2):
                right = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=right, src=w[q * 128 : (q + 1) * 128, j * 256 : (j + 1) * 256])
                {product}
            done = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
            {reading}
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 256 : (j + 1) * 256], src=done)
    return out
"""
PARTS = {
    "before": "pass",
    "declared": "scaled = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)",
    "scaling": "nisa.tensor_scalar(dst=scaled, data=a, op0=nl.multiply, operand0=factor)",
    "between": "pass",
    "turned": "(128, 2, 128)",
    "turning": "nisa.nc_transpose(dst=bank, data=scaled[:, q * 128 : (q + 1) * 128])",
    "copying": "nisa.tensor_copy(dst=turned[:, q, :], src=bank)",
    "product": "nisa.nc_matmul(dst=acc, stationary=turned[:, q, :], moving=right)",
    "reading": "nisa.tensor_copy(dst=done, src=acc)",
}


def product(x: Array, w: Array, g: Array) -> Array:
    del g
    return x @ w / np.sum(x * x, axis=1, keepdims=True)


def sample(meaning=product, **changes: str) -> Sample:
    source = HEADER + KERNEL.format(**PARTS | changes)
    return Sample(source, ((256, 256), (256, 512), (1, 512)), meaning)


def deferred(made: Sample, site: str = SITE) -> str:
    """The source after the rewrite, which computes the same."""
    assert relative_error(made, made.source) < 1e-6
    source = find_rewrite(made, "defer_scaling", site, {})
    assert relative_error(made, source) < 1e-6
    return join_wrapped_calls(source)


def test_results_are_scaled_instead_of_the_operand():
    source = deferred(sample())
    assert "nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=factor)" in source
    assert "nisa.nc_transpose(dst=bank, data=a[:, q * 128 : (q + 1) * 128])" in source
    assert "scaled" not in source
    assert "# The rows add up to one." in source


@pytest.mark.parametrize(
    ("reading", "meaning", "made"),
    [
        (
            "nisa.activation(dst=done, op=nl.tanh, data=acc, bias=total)",
            lambda x, w, g: np.tanh(product(x, w, g) + np.sum(x * x, axis=1, keepdims=True)),
            "nisa.activation(dst=done, op=nl.tanh, data=acc, bias=total, scale=factor)",
        ),
        (
            "nisa.tensor_copy(dst=done, src=acc, engine=nisa.engine.scalar)",
            product,
            "nisa.activation(dst=done, data=acc, op=nl.copy, scale=factor)",
        ),
        (
            "nisa.tensor_scalar(dst=done, data=acc, op0=nl.subtract, operand0=3.0, reverse0=True)",
            lambda x, w, g: 3 - product(x, w, g),
            "op0=nl.multiply, operand0=factor, op1=nl.subtract, operand1=3.0, reverse1=True",
        ),
        (
            "nisa.tensor_tensor(dst=done, data1=gain, data2=acc, op=nl.subtract)",
            lambda x, w, g: np.tile(g[:, 0:256], 2) - product(x, w, g),
            "op0=nl.multiply, operand0=factor, op1=nl.subtract, operand1=gain, reverse1=True",
        ),
        (
            "nisa.tensor_tensor(dst=done, data1=acc, data2=gain, op=nl.subtract)",
            lambda x, w, g: product(x, w, g) - np.tile(g[:, 0:256], 2),
            "op0=nl.multiply, operand0=factor, op1=nl.subtract, operand1=gain)",
        ),
    ],
)
def test_what_reads_a_result_scales_it_first(reading: str, meaning, made: str):
    assert made in deferred(sample(meaning, reading=reading))


def test_scalar_engine_scales_rows_too():
    scaling = "nisa.activation(dst=scaled, op=nl.copy, data=a, scale=factor)"
    source = deferred(sample(scaling=scaling), "activation to scaled")
    assert "data=acc, op0=nl.multiply, operand0=factor)" in source


def test_rows_may_be_multiplied_by_more_on_the_way():
    between = "nisa.tensor_tensor(dst=scaled, data1=scaled, data2=gain, op=nl.multiply)"
    other = "weighed = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)\n        "
    made = sample(
        lambda x, w, g: (
            product(x * g[:, 0:256], w, g)
            * (np.sum((x * g[:, 0:256]) ** 2, axis=1, keepdims=True) / np.sum(x * x, axis=1, keepdims=True))
        ),
        between=other + between.replace("dst=scaled", "dst=weighed"),
        turning=PARTS["turning"].replace("scaled", "weighed"),
    )
    source = deferred(made)
    assert "nisa.tensor_tensor(dst=weighed, data1=a, data2=gain, op=nl.multiply)" in source
    in_place = deferred(sample(made.meaning, between=between))
    assert "nisa.tensor_copy(dst=scaled, src=a)" in in_place  # because others may still want `a`


IDENTITY = (
    "ones = nl.shared_constant(np.eye(128, dtype=np.float32))\n"
    "    eye = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)\n"
    "    nisa.dma_copy(dst=eye, src=ones)"
)
TURNED = (
    "nisa.nc_matmul(dst=bank, stationary=scaled[:, q * 128 : (q + 1) * 128], moving=eye, is_transpose=True)"
)


def with_numpy(made: Sample) -> Sample:
    return Sample(f"import numpy as np\n{made.source}", made.shapes, made.meaning)


def test_products_with_the_identity_transpose():
    source = deferred(with_numpy(sample(before=IDENTITY, turning=TURNED)))
    assert "stationary=a[:, q * 128 : (q + 1) * 128], moving=eye" in source


def test_products_with_other_matrices_need_the_factors():
    other = IDENTITY.replace("np.eye(128, dtype", "np.eye(128, 128, 1, dtype")
    made = with_numpy(sample(before=other, turning=TURNED))
    assert "scaled is also read by nc_matmul, which needs the factors" in find_refusal(
        made, "defer_scaling", SITE
    )


def test_rows_in_two_parts_are_left_together():
    half = "nisa.tensor_scalar(dst=scaled[:, {0}], data=a[:, {0}], op0=nl.multiply, operand0=factor)"
    scaling = "\n        ".join(half.format(part) for part in ("0:128", "128:256"))
    source = deferred(sample(scaling=scaling))
    assert "nisa.tensor_copy(dst=scaled[:, 0:128], src=a[:, 0:128])" in source
    assert "nisa.tensor_copy(dst=scaled[:, 128:256], src=a[:, 128:256])" in source


PARTED = "\n        ".join(
    f"{name} = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)" for name in ("high", "low")
)


@pytest.mark.parametrize(("left", "right"), [("bank", "high[:, q, :]"), ("high[:, q, :]", "bank")])
def test_sums_of_what_has_the_factor_have_it(left: str, right: str):
    """So do the parts of a split product: one is rounded, the other is the rest."""
    rest = f"nisa.tensor_tensor(dst=low[:, q, :], data1={left}, data2={right}, op=nl.subtract)"
    products = (f"nisa.nc_matmul(dst=acc, stationary={n}[:, q, :], moving=right)" for n in ("high", "low"))
    source = deferred(
        sample(
            between=PARTED,
            copying=f"nisa.tensor_copy(dst=high[:, q, :], src=bank)\n            {rest}",
            product="\n                ".join(products),
        )
    )
    assert "scaled" not in source


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (
            "data1=bank, data2=gain[:, 0:128], op=nl.add",
            "bank is also read by tensor_tensor, which needs the factors",
        ),
        ("data1=bank, data2=high[:, q, :], op=nl.multiply", "which needs the factors"),
    ],
)
def test_sums_with_something_else_and_squares_need_the_factors(rest: str, reason: str):
    lines = "nisa.tensor_copy(dst=high[:, q, :], src=bank)", f"nisa.tensor_tensor(dst=low[:, q, :], {rest})"
    copying = "\n            ".join(lines)
    made = sample(between=PARTED, copying=copying, product=PARTS["product"].replace("turned", "low"))
    assert reason in find_refusal(made, "defer_scaling", SITE)


def test_turned_tiles_may_lie_side_by_side():
    columns = "turned[:, q * 128 : (q + 1) * 128]"
    deferred(
        sample(
            turned="(128, 256)",
            copying=f"nisa.tensor_copy(dst={columns}, src=bank)",
            product=f"nisa.nc_matmul(dst=acc, stationary={columns}, moving=right)",
        )
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"between": "nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:256], src=scaled)"},
            "scaled is also read by dma_copy, which needs the factors",
        ),
        (
            {"between": "nisa.activation(dst=scaled, op=nl.tanh, data=scaled)"},
            "scaled is also read by activation, which needs the factors",
        ),
        (
            {"between": "nisa.memset(dst=scaled[:, 0:8], value=1.0)"},
            "scaled is also written by memset",
        ),
        (
            {"between": "nisa.tensor_copy(dst=factor, src=total)"},
            "factor may change before the products are done",
        ),
        (
            {"product": "nisa.nc_matmul(dst=acc, stationary=right[:, 0:128], moving=turned[:, q, :])"},
            "turned is also read by nc_matmul, which needs the factors",
        ),
        (
            {"reading": "nisa.tensor_tensor(dst=done, data1=acc, data2=acc, op=nl.multiply)"},
            "tensor_tensor reads what has the factor twice",
        ),
        (
            {"reading": "nisa.activation(dst=done, op=nl.exp, data=acc, scale=0.5)"},
            "activation reads acc and has no place for a factor",
        ),
        (
            {
                "reading": "nisa.activation(dst=done, op=nl.exp, data=acc, "
                "reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce)"
            },
            "activation reads acc with arguments that leave no factor a place",
        ),
        (
            {"declared": PARTS["declared"].replace("float32", "float16")},
            "scaled holds float16, which may not hold rows without factors",
        ),
        (
            {"product": "nisa.nc_matmul(dst=acc[0:64, :], stationary=turned[:, q, 0:64], moving=right)"},
            "turned is not used in whole blocks of 128 columns",
        ),
        (
            {
                "before": "acc_all = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)\n"
                "    nisa.memset(dst=acc_all, value=0.0)",
                "product": "nisa.nc_matmul(dst=acc_all, stationary=turned[:, q, :], moving=right)",
                "reading": "nisa.tensor_copy(dst=done, src=acc_all)",
            },
            "factor may change before the products are done",
        ),
    ],
)
def test_factors_stay_where_something_needs_them(changes: dict[str, str], reason: str):
    made = sample(**changes)
    assert SITE not in list_rewrites_by_site(made, "defer_scaling")
    assert reason in find_refusal(made, "defer_scaling", SITE)


def with_replaced(made: Sample, *pairs: tuple[str, str]) -> Sample:
    source = made.source
    for old, new in pairs:
        assert old in source, old
        source = source.replace(old, new)
    return Sample(source, made.shapes, made.meaning)


TURN = (
    "        turned = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)\n"
    "        for q in nl.affine_range(2):\n"
    "            bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)\n"
    f"            {PARTS['turning']}\n            {PARTS['copying']}\n"
)
INSIDE = "".join(f"    {line}\n" for line in TURN.splitlines())


@pytest.mark.parametrize(
    "made",
    [
        sample(copying=PARTS["copying"] + "\n            nisa.memset(dst=a[:, 0:128], value=0.0)"),
        with_replaced(  # the result goes where the input was
            sample(),
            (TURN, ""),
            ("            acc = nl", f"{INSIDE}            acc = nl"),
            ("            done = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)\n", ""),
            ("dst=done", "dst=a"),
            ("src=done", "src=a"),
        ),
    ],
)
def test_rows_whose_input_changes_are_copied_first(made: Sample):
    """What comes after the last reader comes before the next iteration's."""
    assert "nisa.tensor_copy(dst=scaled, src=a)" in deferred(made)


def wide_input(window: str, turning: str = PARTS["turning"]) -> Sample:
    """The rows are columns of a wider tile."""
    return with_replaced(
        sample(turning=turning),
        ("a = nl.ndarray((128, 256)", "a = nl.ndarray((128, 768)"),
        ("nisa.dma_copy(dst=a,", f"nisa.memset(dst=a, value=9.0)\n        nisa.dma_copy(dst=a[:, {window}],"),
        ("data=a)", f"data=a[:, {window}])"),
        ("data=a,", f"data=a[:, {window}],"),
    )


def test_windows_of_scaled_rows_are_windows_of_the_input():
    source = deferred(wide_input("256:512"))
    assert "nisa.nc_transpose(dst=bank, data=a[:, 256 + q * 128 : 256 + (q + 1) * 128])" in source
    assert "scaled" not in source


@pytest.mark.parametrize(
    "made",
    [
        wide_input("0:512:2"),
        wide_input("256:512", "nisa.nc_transpose(dst=bank, data=scaled[:, nl.ds(q * 128, 128)])"),
        wide_input(
            "256:512", "nisa.nc_transpose(dst=bank, data=scaled[:, q * 128 - 256 + 256 : (q + 1) * 128])"
        ),
    ],
)
def test_other_windows_of_scaled_rows_are_copied_first(made: Sample):
    assert "nisa.tensor_copy(dst=scaled, src=a[:, " in deferred(made)


def test_rows_that_nothing_reads_are_no_hindrance():
    dead = "dead = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)"
    scaling = "nisa.tensor_scalar(dst=dead, data=gain, op0=nl.multiply, operand0=factor)"
    source = deferred(sample(between=f"{dead}\n        {scaling}"))
    assert "nisa.tensor_copy(dst=dead, src=gain)" in source


def test_a_single_column_needs_its_factor():
    column = "first = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.sbuf)"
    copy = "nisa.tensor_copy(dst=first[:, 0], src=turned[:, q, 0])"
    made = sample(copying=f"{PARTS['copying']}\n            {column}\n            {copy}")
    refusal = find_refusal(made, "defer_scaling", SITE)
    assert refusal == "turned is not used in whole blocks of 128 columns"


def test_an_identity_that_something_unread_may_change_is_none():
    spoilt = f"{IDENTITY}\n    for z in [0]:\n        nisa.memset(dst=eye, value=2.0)"
    made = with_numpy(sample(before=spoilt, turning=TURNED.replace(", is_transpose=True", "")))
    assert "needs the factors" in find_refusal(made, "defer_scaling", SITE)


def test_an_index_that_is_counted_anew_where_results_are_read_is_another_one():
    inner = (
        "for i in nl.affine_range(2):\n"
        "                nisa.tensor_copy("
        "dst=done[:, i * 128 : (i + 1) * 128], src=acc[:, i * 128 : (i + 1) * 128])"
    )
    made = with_replaced(
        sample(reading=inner),
        ("factor = nl.ndarray((128, 1)", "factors = nl.ndarray((128, 2)"),
        ("nisa.reciprocal(dst=factor,", "nisa.reciprocal(dst=factors[:, i : i + 1],"),
        ("operand0=factor)", "operand0=factors[:, i : i + 1])"),
        ("        a = nl", "        row = i\n        a = nl"),
        ("out[i * 128 : (i + 1) * 128, j", "out[row * 128 : (row + 1) * 128, j"),
    )
    assert relative_error(made, made.source) < 1e-6
    assert "means something else where" in find_refusal(made, "defer_scaling", SITE)


LOOP_Q, LOOP_I = "for q in nl.affine_range(2):", "for i in nl.affine_range(2):"
BANK = "bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)"


def test_an_index_that_is_counted_anew_where_rows_are_turned_is_another_one():
    made = with_replaced(
        sample(),
        ("a = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)",
         "row = i\n        a = [nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]"),
        ("dst=a,", "dst=a[i],"),
        ("data=a)", "data=a[i])"),
        ("data=a,", "data=a[i],"),
        (f"        {LOOP_Q}\n            {BANK}\n", f"        {BANK}\n        {LOOP_I}\n"),
        ("scaled[:, q * 128 : (q + 1) * 128]", "scaled[:, i * 128 : (i + 1) * 128]"),
        ("turned[:, q, :], src", "turned[:, i, :], src"),
        ("out[i * 128 : (i + 1) * 128, j", "out[row * 128 : (row + 1) * 128, j"),
    )  # fmt: skip
    assert "nisa.tensor_copy(dst=scaled, src=a[i])" in deferred(made)
