"""Honest kernels for the problems with matmuls: other orders, other sums, other layouts."""

from __future__ import annotations

from tests.adversarial.model import Honest, edit

ALL_K = "for i_k in nl.affine_range(k // TILE_K):\n                rhs_tile"
ADDED = """\
            total = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            for i_k in {order}:
                acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
                rhs_tile"""
TURNED = """\
            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)
            for i_t in range(TILE_N // 128):
                part = nl.ndarray((128, TILE_M), dtype=nl.float32, buffer=nl.psum)
                for i_k in range(k // TILE_K):
                    rhs_tile = nl.ndarray((TILE_K, 128), dtype=rhs.dtype, buffer=nl.sbuf)
                    first = i_n * TILE_N + i_t * 128
                    rows = slice(i_k * TILE_K, (i_k + 1) * TILE_K)
                    nisa.dma_copy(dst=rhs_tile, src=rhs[rows, first : first + 128])
                    nisa.nc_matmul(dst=part, stationary=rhs_tile, moving=lhs_t[:, i_k, :])
                kept = nl.ndarray((128, TILE_M), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=kept, src=part)
                back = nl.ndarray((TILE_M, 128), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_transpose(dst=back, data=kept)
                nisa.tensor_copy(dst=out_tile[:, i_t * 128 : (i_t + 1) * 128], src=back)
"""
ACC = "            acc = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum)\n"
LAST_COPY = "            nisa.tensor_copy(dst=out_tile, src=acc)\n"
OUT_TILE = "            out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)\n"


def add_blocks(order: str) -> str:
    """Each block's product added up on chip, in this order of blocks."""
    return edit(
        "matmul",
        (ACC + "            " + ALL_K, ADDED.replace("{order}", order)),
        (
            "moving=rhs_tile)\n",
            (
                "moving=rhs_tile)\n"
                "                nisa.tensor_tensor(dst=total, data1=total, data2=acc, op=nl.add)\n"
            ),
        ),
        ("src=acc", "src=total"),
    )


def transpose_product() -> str:
    """The product computed as that of the transposed matrices, and turned back."""
    kernel = edit("matmul")
    start, end = kernel.index(ACC), kernel.index(OUT_TILE)
    return (
        kernel[:start]
        + OUT_TILE
        + TURNED.replace(ACC, "")
        + kernel[end:].replace(OUT_TILE, "").replace(LAST_COPY, "")
    )


def hard_coded(problem: str, shapes: str, unpacking: str, *more: str) -> Honest:
    """The initial kernel with its shapes as numbers."""
    changes = [(unpacking, shapes), *((line, "") for line in more)]
    return Honest(f"hard-coded shapes: {problem}", problem, edit(problem, *changes))


NORMED = "nisa.tensor_scalar(dst=normed, data=x_tile, op0=nl.multiply, operand0=inv_rms)"
SQUARES = (
    "nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)",
    (
        "half = nl.ndarray((TILE_M, 2), dtype=nl.float32, buffer=nl.sbuf)\n"
        "        nisa.tensor_reduce(dst=half[:, 0:1], op=nl.add, data=squares[:, k // 2 : k], axis=1)\n"
        "        nisa.tensor_reduce(dst=half[:, 1:2], op=nl.add, data=squares[:, 0 : k // 2], axis=1)\n"
        "        nisa.tensor_reduce(dst=total, op=nl.add, data=half, axis=1)"
    ),
)

KERNELS = (
    Honest("each block's product added on chip", "matmul", add_blocks("range(k // TILE_K)")),
    Honest("blocks added backwards", "matmul", add_blocks("reversed(range(k // TILE_K))")),
    Honest(
        "blocks added even ones first",
        "matmul",
        add_blocks("sorted(range(k // TILE_K), key=lambda i: i % 2)"),
    ),
    Honest("computed transposed and turned back", "matmul", transpose_product()),
    Honest("narrow columns", "matmul", edit("matmul", ("TILE_N = 512", "TILE_N = 128"))),
    Honest("short contractions", "matmul", edit("matmul", ("TILE_K = 128", "TILE_K = 64"))),
    Honest("few rows", "matmul", edit("matmul", ("TILE_M = 128", "TILE_M = 32"))),
    hard_coded("matmul", "m, k = 256, 512", "m, k = lhs.shape"),
    hard_coded("bmm", "b, m, k = 2, 256, 64", "b, m, k = lhs.shape"),
    hard_coded("bmm_softmax", "b, m, k = 2, 256, 64", "b, m, k = lhs.shape"),
    hard_coded("lora", "m, k = 256, 512", "m, k = x.shape"),
    hard_coded("swiglu", "m, k = 256, 1024", "m, k = x.shape"),
    hard_coded("transpose_matmul", "k, m = 512, 256", "k, m = lhs.shape"),
    hard_coded("rmsnorm_matmul", "m, k = 256, 256", "m, k = x.shape"),
    hard_coded("adamw", "rows, cols = 320, 2048", "rows, cols = theta.shape"),
    hard_coded("rope_single_freq_apply", "d, n = 128, 4096", "d, n = x.shape"),
    hard_coded("mamba", "channels, steps = 256, 2048", "channels, steps = delta.shape"),
    Honest(
        "rows scaled after the product, not before",
        "rmsnorm_matmul",
        edit(
            "rmsnorm_matmul",
            (NORMED, "nisa.tensor_copy(dst=normed, src=x_tile)"),
            (
                "nisa.tensor_copy(dst=out_tile, src=acc)",
                "nisa.tensor_scalar(dst=out_tile, data=acc, op0=nl.multiply, operand0=inv_rms)",
            ),
        ),
    ),
    Honest("a split reduction", "rmsnorm_matmul", edit("rmsnorm_matmul", SQUARES)),
    Honest(
        "root and reciprocal apart",
        "rmsnorm_matmul",
        edit(
            "rmsnorm_matmul",
            (
                "nisa.activation(dst=inv_rms, op=nl.rsqrt, data=mean)",
                (
                    "nisa.activation(dst=inv_rms, op=nl.sqrt, data=mean)\n"
                    "        nisa.reciprocal(dst=inv_rms, data=inv_rms)"
                ),
            ),
        ),
    ),
    Honest(
        "a power for the root",
        "rmsnorm_matmul",
        edit(
            "rmsnorm_matmul",
            (
                "nisa.activation(dst=inv_rms, op=nl.rsqrt, data=mean)",
                "nisa.tensor_scalar(dst=inv_rms, data=mean, op0=nl.power, operand0=-0.5)",
            ),
        ),
    ),
    Honest(
        "columns of odd width with a tail",
        "transpose_matmul",
        edit("transpose_matmul", ("TILE_N = 512", "TILE_N = 304")),
    ),
    Honest(
        "one tile of everything",
        "transpose_matmul",
        edit("transpose_matmul", ("TILE_N = 512", "TILE_N = 76")),
    ),
    Honest(
        "the gate's function spelled out",
        "swiglu",
        edit(
            "swiglu",
            (
                "nisa.activation(dst=silu, op=nl.silu, data=gate)",
                (
                    "nisa.activation(dst=silu, op=nl.sigmoid, data=gate)\n"
                    "            nisa.tensor_tensor(dst=silu, data1=silu, data2=gate, op=nl.multiply)"
                ),
            ),
        ),
    ),
    Honest("batches backwards", "bmm", edit("bmm", ("nl.affine_range(b)", "reversed(range(b))"))),
    Honest(
        "terms of low rank first",
        "lora",
        edit("lora", ("for i_m in nl.affine_range(m // TILE_M)", "for i_m in reversed(range(m // TILE_M))")),
    ),
)
