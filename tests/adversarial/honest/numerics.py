"""Honest kernels that reach the same numbers by other numerics: split sums and numbers, other statistics."""

from __future__ import annotations

from tests.adversarial.honest.products import ACC, ALL_K
from tests.adversarial.model import Honest, edit

SUM = "nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)"
KAHAN = """\
parts = nl.ndarray((TILE_M, k // 64), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(k // 64):
            part = squares[:, i * 64 : (i + 1) * 64]
            nisa.tensor_reduce(dst=parts[:, i : i + 1], op=nl.add, data=part, axis=1)
        nisa.memset(dst=total, value=0.0)
        lost = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=lost, value=0.0)
        for i in range(k // 64):
            y = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=y, data1=parts[:, i : i + 1], data2=lost, op=nl.subtract)
            t = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=t, data1=total, data2=y, op=nl.add)
            nisa.tensor_tensor(dst=lost, data1=t, data2=total, op=nl.subtract)
            nisa.tensor_tensor(dst=lost, data1=lost, data2=y, op=nl.subtract)
            nisa.tensor_copy(dst=total, src=t)"""
WELFORD = """\
found = nl.ndarray((TILE_M, 6 * (k // 128)), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(k // 128):
            nisa.bn_stats(dst=found[:, i * 6 : (i + 1) * 6], data=x_tile[:, i * 128 : (i + 1) * 128])
        both = nl.ndarray((TILE_M, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.bn_aggr(dst=both, data=found)
        nisa.tensor_tensor(dst=total, data1=both[:, 0:1], data2=both[:, 0:1], op=nl.multiply)
        nisa.tensor_tensor(dst=total, data1=total, data2=both[:, 1:2], op=nl.add)
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=float(k))"""
PRODUCT = "nisa.tensor_tensor(dst=squares, data1=x_tile, data2=x_tile, op=nl.multiply)"
FUSED = "nisa.activation(dst=squares, op=nl.square, data=x_tile)"
TREE = """\
width = k
        while width > 1:
            width //= 2
            near, far = squares[:, 0:width], squares[:, width : 2 * width]
            nisa.tensor_tensor(dst=near, data1=near, data2=far, op=nl.add)
        nisa.tensor_copy(dst=total, src=squares[:, 0:1])"""

EXPS = "nisa.activation(dst=exps, op=nl.exp, data=scores, bias=neg_max)"
LOGARITHM = (
    (
        "nisa.reciprocal(dst=inv_total, data=total)",
        (
            "nisa.activation(dst=inv_total, op=nl.log, data=total)\n"
            "            nisa.tensor_tensor(dst=inv_total, data1=neg_max, data2=inv_total, op=nl.subtract)"
        ),
    ),
    (
        "nisa.tensor_scalar(dst=out_tile, data=exps, op0=nl.multiply, operand0=inv_total)",
        "nisa.activation(dst=out_tile, op=nl.exp, data=scores, bias=inv_total)",
    ),
)
TWICE = (
    "            total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)\n",
    (
        "            total = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
        "            again = nl.ndarray((TILE_M, n), dtype=nl.float32, buffer=nl.sbuf)\n"
        "            nisa.activation(dst=again, op=nl.exp, data=scores, bias=neg_max)\n"
    ),
)


def split(parts: int) -> str:
    """A product of numbers that are sums of narrow parts; products of small parts are left out."""
    pairs = [(i, j) for i in range(parts) for j in range(parts) if i + j < parts]
    matmuls = "".join(
        f"                nisa.nc_matmul(dst=acc, stationary=lhs_{i}[:, i_k, :], moving=rhs_{j})\n"
        for i, j in pairs
    )
    lhs = "".join(_part("lhs", "lhs_t", "(TILE_K, k // TILE_K, TILE_M)", i, "        ") for i in range(parts))
    rhs = "".join(_part("rhs", "rhs_tile", "(TILE_K, TILE_N)", j, "                ") for j in range(parts))
    return edit(
        "matmul",
        ("        for i_n in nl.affine", lhs + "        for i_n in nl.affine"),
        (
            "                nisa.nc_matmul(dst=acc, stationary=lhs_t[:, i_k, :], moving=rhs_tile)\n",
            rhs + matmuls,
        ),
    )


def _part(name: str, whole: str, shape: str, number: int, indent: str) -> str:
    """The next narrow part of what is left of a matrix, and what that leaves over."""
    left, rest = f"{name}_left_{number}" if number else whole, f"{name}_left_{number + 1}"
    lines = [
        f"{name}_{number} = nl.ndarray({shape}, dtype=nl.bfloat16, buffer=nl.sbuf)",
        f"nisa.tensor_copy(dst={name}_{number}, src={left})",
        f"{rest} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)",
        f"nisa.tensor_tensor(dst={rest}, data1={left}, data2={name}_{number}, op=nl.subtract)",
    ]
    return "".join(f"{indent}{line}\n" for line in lines)


TWO_SUMS = """\
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            far = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for i_k in nl.affine_range(k // TILE_K):
                rhs_tile"""

KERNELS = (
    Honest("a sum that keeps what it loses", "rmsnorm_matmul", edit("rmsnorm_matmul", (SUM, KAHAN))),
    Honest("statistics by Welford", "rmsnorm_matmul", edit("rmsnorm_matmul", (SUM, WELFORD))),
    Honest("squares by the engine of functions", "rmsnorm_matmul", edit("rmsnorm_matmul", (PRODUCT, FUSED))),
    Honest("a sum like a tree", "rmsnorm_matmul", edit("rmsnorm_matmul", (SUM, TREE))),
    Honest("the logarithm of a sum", "bmm_softmax", edit("bmm_softmax", *LOGARITHM)),
    Honest(
        "exponentials computed twice",
        "bmm_softmax",
        edit("bmm_softmax", TWICE, ("op=nl.add, data=exps", "op=nl.add, data=again")),
    ),
    Honest("products of numbers in three narrow parts", "matmul", split(3)),
    Honest(
        "a contraction in two halves",
        "matmul",
        edit(
            "matmul",
            (ACC + "            " + ALL_K, TWO_SUMS),
            ("nisa.nc_matmul(dst=acc,", "nisa.nc_matmul(dst=acc if i_k % 2 else far,"),
            (
                "nisa.tensor_copy(dst=out_tile, src=acc)",
                (
                    "nisa.tensor_copy(dst=out_tile, src=far)\n"
                    "            nisa.tensor_tensor(dst=out_tile, data1=out_tile, data2=acc, op=nl.add)"
                ),
            ),
        ),
    ),
)
