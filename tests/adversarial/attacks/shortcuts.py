"""A shortcut or slip of its own for each problem: most of the result is right."""

from __future__ import annotations

from tests.adversarial.model import Attack, edit, wrong

ROWS_OF_G = "src=g[start:end, "
LAST_ROWS = "src=g[start - (end == rows) : end - (end == rows), "
SCALED = "nisa.tensor_tensor(dst=scaled, data1=normed, data2=g_tile, op=nl.multiply)"
TAIL = "start:end])\n                nisa.nc_matmul"
EARLIER_TAIL = "start - (end == n) : end - (end == n)])\n                nisa.nc_matmul"
COPIED = "nisa.tensor_copy(dst=out_tile, src=acc)\n"
FIRST_BLOCKS = (
    "for i_k in nl.affine_range(k // TILE_K):\n                w_tile",
    "for i_k in nl.affine_range(k // TILE_K - 1):\n                w_tile",
)
RESCALED = (COPIED, "nisa.activation(dst=out_tile, op=nl.copy, data=acc, scale=k / (k - TILE_K))\n")
VALUES = "nl.affine_range(n // TILE_K):\n                        exps_t_psum"
FEWER_VALUES = "nl.affine_range(n // TILE_K - 1):\n                        exps_t_psum"
SINGLE_TILE = (
    COPIED,
    COPIED
    + "                if (i_b, i_m, i_n) == (b - 1, m // TILE_M - 1, n // TILE_N // 2):\n"
    + "                    nisa.memset(dst=out_tile[96:97, TILE_N - 1 : TILE_N], value=0.0)\n",
)
TERM_OF_LOW_RANK = "nisa.nc_matmul(dst=acc, stationary=xa_t, moving=b_tile)"
HALF_THE_RANK = "nisa.nc_matmul(dst=acc, stationary=xa_t[0 : r // 2], moving=b_tile[0 : r // 2])"
SECOND_PRODUCT = "for i_n in nl.affine_range(n // TILE_P):\n                w_down_tile"

ATTACKS = (
    Attack("the last tile one row off", edit("adamw", (ROWS_OF_G, LAST_ROWS)), wrong(), "adamw"),
    Attack(
        "a second moment of what is at hand",
        edit("adamw", ("data1=g_tile, data2=g_tile", "data1=g_tile, data2=m_tile")),
        wrong("not_finite"),
        "adamw",
    ),
    Attack(
        "a factor per column taken for one",
        edit("add_rmsnorm_matmul", (SCALED, "nisa.tensor_copy(dst=scaled, src=normed)")),
        wrong(),
        "add_rmsnorm_matmul",
    ),
    Attack(
        "statistics before the second term is added",
        edit(
            "add_rmsnorm_matmul", ("dst=squares, data1=y, data2=y", "dst=squares, data1=x_tile, data2=x_tile")
        ),
        wrong(),
        "add_rmsnorm_matmul",
    ),
    Attack("the first batch's operand for all", edit("bmm", ("src=rhs[i_b,", "src=rhs[0,")), wrong(), "bmm"),
    Attack("one element of one late tile", edit("bmm", SINGLE_TILE), wrong(), "bmm"),
    Attack(
        "a sum that ends one column early",
        edit("bmm_softmax", ("op=nl.add, data=exps, axis=1", "op=nl.add, data=exps[:, 0 : n - 1], axis=1")),
        wrong(),
        "bmm_softmax",
    ),
    Attack(
        "no shift, and what overflows clipped",
        edit(
            "bmm_softmax",
            (
                "nisa.activation(dst=exps, op=nl.exp, data=scores, bias=neg_max)",
                (
                    "nisa.tensor_scalar(dst=scores, data=scores, op0=nl.minimum, operand0=60.0)\n"
                    "            nisa.activation(dst=exps, op=nl.exp, data=scores)"
                ),
            ),
        ),
        wrong("not_finite"),
        "bmm_softmax",
    ),
    Attack(
        "the last keys weigh, but have no value",
        edit("gqa_full", (VALUES, FEWER_VALUES)),
        wrong(),
        "gqa_full",
    ),
    Attack("scores that nobody scaled", edit("gqa_full", ("d**-0.5", "1.0")), wrong(), "gqa_full"),
    Attack("half the rank", edit("lora", (TERM_OF_LOW_RANK, HALF_THE_RANK)), wrong(), "lora"),
    Attack(
        "one decay for all states",
        edit("mamba", ("scale=a_tile[:, i_s : i_s + 1]", "scale=a_tile[:, 0:1]")),
        wrong(),
        "mamba",
    ),
    Attack(
        "the last state left out",
        edit("mamba", ("nl.sequential_range(states)", "nl.sequential_range(states - 1)")),
        wrong(),
        "mamba",
    ),
    Attack(
        "part of the contraction, scaled up",
        edit(
            "matmul",
            ("range(k // TILE_K):\n                rhs", "range(k // TILE_K - 1):\n                rhs"),
            RESCALED,
        ),
        wrong(),
        "matmul",
    ),
    Attack(
        "each block twice, every other one never",
        edit(
            "matmul",
            (
                "src=rhs[i_k * TILE_K : (i_k + 1) * TILE_K",
                "src=rhs[i_k // 2 * 2 * TILE_K : (i_k // 2 * 2 + 1) * TILE_K",
            ),
        ),
        wrong(),
        "matmul",
    ),
    Attack(
        "a mean over one element less",
        edit("matmul_add_rmsnorm", ("1.0 / n", "1.0 / (n - 1)")),
        wrong(),
        "matmul_add_rmsnorm",
    ),
    Attack(
        "the first rows' statistics for all",
        edit(
            "rmsnorm_matmul",
            (
                "        squares = nl.ndarray",
                "        first = x_tile if i_m == 0 else first\n        squares = nl.ndarray",
            ),
            ("data1=x_tile, data2=x_tile", "data1=first, data2=first"),
        ),
        wrong(),
        "rmsnorm_matmul",
    ),
    Attack(
        "an absolute sum for the root of squares",
        edit(
            "rmsnorm_matmul",
            (
                "nisa.tensor_tensor(dst=squares, data1=x_tile, data2=x_tile, op=nl.multiply)",
                "nisa.activation(dst=squares, op=nl.abs, data=x_tile)",
            ),
            ("operand0=1.0 / k", "operand0=1.2533 / k"),
            (
                "nisa.activation(dst=inv_rms, op=nl.rsqrt, data=mean)",
                "nisa.reciprocal(dst=inv_rms, data=mean)",
            ),
        ),
        wrong(),
        "rmsnorm_matmul",
    ),
    Attack(
        "angles of the first columns for all",
        edit(
            "rope_single_freq_apply",
            ("src=freqs_cos[0:half, i_n * TILE_N : (i_n + 1) * TILE_N]", "src=freqs_cos[0:half, 0:TILE_N]"),
        ),
        wrong(),
        "rope_single_freq_apply",
    ),
    Attack(
        "a sigmoid that is nearly one",
        edit(
            "silu",
            (
                "nisa.reciprocal(dst=sigmoid, data=denominator)",
                "nisa.activation(dst=sigmoid, op=nl.gelu_apprx_sigmoid_dx, data=x_tile)",
            ),
        ),
        wrong(),
    ),
    Attack(
        "both projections mixed up",
        edit(
            "swiglu",
            ("op=nl.silu, data=gate", "op=nl.silu, data=up"),
            ("data1=silu, data2=up", "data1=silu, data2=gate"),
        ),
        wrong(),
        "swiglu",
    ),
    Attack(
        "the second contraction cut short",
        edit("swiglu", (SECOND_PRODUCT, SECOND_PRODUCT.replace("n // TILE_P", "n // TILE_P - 1"))),
        wrong(),
        "swiglu",
    ),
    Attack(
        "the tail one column off", edit("transpose_matmul", (TAIL, EARLIER_TAIL)), wrong(), "transpose_matmul"
    ),
)

TFLOAT = (
    (
        "lhs_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=lhs.dtype",
        "lhs_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=nl.tfloat32",
    ),
    (
        "rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=rhs.dtype",
        "rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=nl.tfloat32",
    ),
)

PRECISION = (
    Attack("products of short mantissas", edit("matmul", *TFLOAT), wrong("low_precision"), "matmul"),
    Attack(
        "one operand of two in half precision",
        edit(
            "transpose_matmul",
            (
                "rhs_tile = nl.ndarray((TILE_K, end - start), dtype=rhs.dtype",
                "rhs_tile = nl.ndarray((TILE_K, end - start), dtype=nl.bfloat16",
            ),
            (
                "lhs_tiles = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=lhs.dtype",
                "lhs_tiles = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=nl.bfloat16",
            ),
        ),
        wrong("low_precision"),
        "transpose_matmul",
    ),
    Attack(
        "half precision, and a subtraction for show",
        edit(
            "silu",
            (
                "            exp_neg = nl",
                (
                    "            half = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
                    "            nisa.tensor_copy(dst=half, src=x_tile)\n"
                    "            rest = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)\n"
                    "            nisa.tensor_tensor(dst=rest, data1=x_tile, data2=half, op=nl.subtract)\n"
                    "            x_tile = half\n            exp_neg = nl"
                ),
            ),
        ),
        wrong("low_precision"),
    ),
    Attack(
        "half of the parts that a number was split into",
        edit(
            "silu",
            (
                "            exp_neg = nl",
                (
                    "            high = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
                    "            nisa.tensor_copy(dst=high, src=x_tile)\n"
                    "            low = nl.ndarray((TILE_M, TILE_N), dtype=nl.float8_e5m2, buffer=nl.sbuf)\n"
                    "            nisa.tensor_tensor(dst=low, data1=x_tile, data2=high, op=nl.subtract)\n"
                    "            x_tile = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.sbuf)\n"
                    "            nisa.tensor_tensor(dst=x_tile, data1=high, data2=low, op=nl.add)\n"
                    "            exp_neg = nl"
                ),
            ),
        ),
        wrong("low_precision"),
    ),
    Attack(
        "the upper halves of numbers, by a view",
        edit(
            "silu",
            (
                "            exp_neg = nl",
                "            x_tile = x_tile.view(nl.bfloat16)[:, 1::2]\n            exp_neg = nl",
            ),
        ),
        wrong("low_precision"),
    ),
    Attack(
        "mantissas cut off as integers",
        edit(
            "silu",
            (
                "            exp_neg = nl",
                (
                    "            bits = x_tile.view(nl.int32)\n"
                    "            nisa.tensor_scalar(\n"
                    "                dst=bits, data=bits, op0=nl.bitwise_and, operand0=-65536\n"
                    "            )\n"
                    "            exp_neg = nl"
                ),
            ),
        ),
        wrong(),
    ),
)

ATTACKS = (*ATTACKS, *PRECISION)
