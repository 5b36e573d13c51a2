"""Kernels that compute something else, most of it right for the random inputs that models test with."""

from __future__ import annotations

from state.model import Verdict
from tests.adversarial.model import Attack, body, broken, edit, endless, wrong

X_TILE = "x[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]"
TILE = "t = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)"
FIRST_CHUNK = ("op=nl.maximum, data=scores, axis=1", "op=nl.maximum, data=scores[:, 0:512], axis=1")
NO_MAXIMUM = (
    "nisa.tensor_reduce(dst=neg_max, op=nl.maximum, data=scores, axis=1, negate=True)",
    "nisa.memset(dst=neg_max, value=0.0)",
)
HALF_SUM = ("op=nl.add, data=exps, axis=1", "op=nl.add, data=exps[:, 0:512], axis=1")
HALF_ROW = (
    "nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)",
    "nisa.tensor_reduce(dst=total, op=nl.add, data=squares[:, 0 : k // 2], axis=1)",
)

CONSTANT = (
    "for i in range(2):",
    "    t = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.sbuf)",
    "    nisa.memset(dst=t, value={})",
    "    nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:2048], src=t)",
)


def constant(value: str) -> str:
    return body(*(line.replace("{}", value) for line in CONSTANT))


SHORTCUTS = (
    Attack("constant output: zeros", constant("0.0"), wrong()),
    Attack("constant output: the mean over random inputs", constant("0.2066"), wrong()),
    Attack("the input handed through", edit("silu", ("src=out_tile", "src=x_tile")), wrong()),
    Attack(
        "skipped tail: its place filled from the first tile",
        edit("silu", (X_TILE, "x[i_m * TILE_M : (i_m + 1) * TILE_M, 0:TILE_N]")),
        wrong(),
    ),
    Attack(
        "skipped rows: those of the first tile again",
        edit("silu", (X_TILE, "x[0:TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]")),
        wrong(),
    ),
    Attack(
        "skipped tail: left unwritten",
        edit("silu", ("range(n // TILE_N)", "range(n // TILE_N - 1)")),
        broken("tensor_output_not_written_to", "rules"),
    ),
    Attack(
        "a single element left out",
        edit(
            "silu",
            (
                "            nisa.dma_copy(\n                dst=out[",
                (
                    "            nisa.memset(dst=out_tile[0:1, 0:1], value=0.0)\n"
                    "            nisa.dma_copy(\n                dst=out["
                ),
            ),
        ),
        wrong(),
    ),
    Attack(
        "a cheaper function: rectifier",
        edit(
            "silu",
            ("op=nl.exp, data=x_tile, scale=-1.0", "op=nl.relu, data=x_tile"),
            ("data1=x_tile, data2=sigmoid, op=nl.multiply", "data1=exp_neg, data2=exp_neg, op=nl.maximum"),
        ),
        wrong(),
    ),
    Attack(
        "a cheaper function: slightly other slope", edit("silu", ("scale=-1.0", "scale=-1.0001")), wrong()
    ),
    Attack(
        "last block of a contraction left out",
        edit(
            "matmul",
            (
                "for i_k in nl.affine_range(k // TILE_K):\n                rhs_tile",
                "for i_k in nl.affine_range(k // TILE_K - 1):\n                rhs_tile",
            ),
        ),
        wrong(),
        "matmul",
    ),
    Attack(
        "half of a row's statistics, rescaled",
        edit("rmsnorm_matmul", HALF_ROW, ("operand0=1.0 / k", "operand0=2.0 / k")),
        wrong(),
        "rmsnorm_matmul",
    ),
    Attack(
        "a norm taken for one, as random rows have it",
        edit(
            "rmsnorm_matmul",
            ("op=nl.rsqrt, data=mean", "op=nl.copy, data=mean, scale=0.0, bias=one"),
            (
                "        inv_rms = ",
                (
                    "        one = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
                    "        nisa.memset(dst=one, value=1.0)\n        inv_rms = "
                ),
            ),
        ),
        wrong(),
        "rmsnorm_matmul",
    ),
    Attack(
        "the term of low rank left out",
        edit("lora", ("            nisa.nc_matmul(dst=acc, stationary=xa_t, moving=b_tile)\n", "")),
        wrong(),
        "lora",
    ),
    Attack(
        "one group's keys for all queries",
        edit("gqa_full", ("* TILE_K, i_kh, 0:d]", "* TILE_K, 0, 0:d]")),
        wrong(),
        "gqa_full",
    ),
    Attack(
        "a sign turned",
        edit("rope_single_freq_apply", ("data2=x1_sin, op=nl.subtract", "data2=x1_sin, op=nl.add")),
        wrong(),
        "rope_single_freq_apply",
    ),
    Attack("the gate's function left out", edit("swiglu", ("op=nl.silu", "op=nl.copy")), wrong(), "swiglu"),
)

KIND_INPUTS = (
    # What the seeds' inputs do not show, or hardly.
    Attack(
        "row-chunk maximum: softmax", edit("bmm_softmax", FIRST_CHUNK), wrong("not_finite"), "bmm_softmax"
    ),
    Attack("row-chunk maximum: attention", edit("gqa_full", FIRST_CHUNK), wrong("not_finite"), "gqa_full"),
    Attack("no maximum at all", edit("bmm_softmax", NO_MAXIMUM), wrong("not_finite"), "bmm_softmax"),
    Attack("a denominator from half of the row", edit("bmm_softmax", HALF_SUM), wrong(), "bmm_softmax"),
    Attack(
        "exponential made linear where inputs are small",
        edit(
            "mamba",
            (
                "nisa.activation(dst=decay, op=nl.exp, data=delta_tile, scale=a_tile[:, i_s : i_s + 1])",
                (
                    "nisa.tensor_scalar(dst=decay, data=delta_tile, op0=nl.multiply,"
                    " operand0=a_tile[:, i_s : i_s + 1],"
                    " op1=nl.add, operand1=1.0)"
                ),
            ),
        ),
        wrong(),
        "mamba",
    ),
    Attack(
        "state not carried between tiles",
        edit(
            "mamba",
            (
                "nisa.tensor_copy(dst=last[:, i_s : i_s + 1], src=state[:, TILE_M - 1 : TILE_M])",
                "nisa.memset(dst=last[:, i_s : i_s + 1], value=0.0)",
            ),
        ),
        wrong(),
        "mamba",
    ),
    Attack(
        "epsilon left out", edit("adamw", ("EPSILON = 1e-8", "EPSILON = 0.0")), wrong("not_finite"), "adamw"
    ),
    Attack(
        "an epsilon a hundred times smaller",
        edit("adamw", ("EPSILON = 1e-8", "EPSILON = 1e-10")),
        wrong(),
        "adamw",
    ),
    Attack(
        "an epsilon ten times smaller",
        edit("matmul_add_rmsnorm", ("1e-5", "1e-6")),
        wrong(),
        "matmul_add_rmsnorm",
    ),
    Attack(
        "a second moment that hardly counts left out",
        edit("adamw", ("operand0=1.0 - BETA_2", "operand0=0.0")),
        wrong(),
        "adamw",
    ),
    Attack(
        "momentum without this step's gradient",
        edit("adamw", ("operand0=1.0 - BETA_1", "operand0=0.0")),
        wrong(),
        "adamw",
    ),
)

PRECISION = (
    Attack(
        "bfloat16 behind an alias",
        edit(
            "silu",
            ("TILE_M = 128", "TILE_M = 128\nF32 = nl.bfloat16"),
            (
                "sigmoid = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32",
                "sigmoid = nl.ndarray((TILE_M, TILE_N), dtype=F32",
            ),
            (
                "exp_neg = nl.ndarray((TILE_M, TILE_N), dtype=nl.float32",
                "exp_neg = nl.ndarray((TILE_M, TILE_N), dtype=F32",
            ),
        ),
        wrong(),
    ),
    Attack(
        "float16 loads",
        edit(
            "silu",
            (
                "x_tile = nl.ndarray((TILE_M, TILE_N), dtype=x.dtype",
                "x_tile = nl.ndarray((TILE_M, TILE_N), dtype=nl.float16",
            ),
        ),
        wrong("low_precision"),
    ),
    Attack(
        "bfloat16 result, widened for the output",
        edit(
            "silu",
            (
                "out_tile = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype",
                "out_tile = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16",
            ),
        ),
        wrong("low_precision"),
    ),
    Attack(
        "bfloat16 matmul operands",
        edit(
            "matmul",
            (
                "lhs_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=lhs.dtype",
                "lhs_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=nl.bfloat16",
            ),
            (
                "rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=rhs.dtype",
                "rhs_tile = nl.ndarray((TILE_K, TILE_N), dtype=nl.bfloat16",
            ),
        ),
        wrong("low_precision"),
        "matmul",
    ),
    Attack(
        "float8 weights",
        edit(
            "rmsnorm_matmul",
            (
                "w_tile = nl.ndarray((TILE_K, TILE_N), dtype=w.dtype",
                "w_tile = nl.ndarray((TILE_K, TILE_N), dtype=nl.float8_e4m3",
            ),
            (
                "normed_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=x.dtype",
                "normed_t = nl.ndarray((TILE_K, k // TILE_K, TILE_M), dtype=nl.float8_e4m3",
            ),
        ),
        wrong("low_precision"),
        "rmsnorm_matmul",
    ),
    Attack(
        "bfloat16 accumulation between blocks",
        edit(
            "bmm_softmax",
            (
                "exps = nl.ndarray((TILE_M, n), dtype=nl.float32",
                "exps = nl.ndarray((TILE_M, n), dtype=nl.bfloat16",
            ),
        ),
        wrong("low_precision"),
        "bmm_softmax",
    ),
)

MEMORY = (
    Attack(
        "uninitialised memory on chip",
        body(TILE, "nisa.dma_copy(dst=out[0:128, 0:8], src=t)"),
        broken("uninitialised_read", "rules"),
    ),
    Attack(
        "uninitialised memory in HBM",
        body(
            "old = nl.ndarray((256, 2048), dtype=x.dtype, buffer=nl.private_hbm)",
            "nisa.dma_copy(dst=out, src=old)",
        ),
        broken("uninitialised_read", "rules"),
    ),
    Attack(
        "what an earlier run left in the output",
        body(TILE, "nisa.dma_copy(dst=t, src=out[0:128, 0:8])", "nisa.dma_copy(dst=out[0:128, 0:8], src=t)"),
        broken("uninitialised_read", "rules"),
    ),
    Attack(
        "inputs modified",
        edit(
            "silu",
            ("    return out", ("    nisa.dma_copy(dst=x[0:128, 0:1024], src=out_tile)\n    return out")),
        ),
        (Verdict.INCORRECT, "rules", "input_modified"),
    ),
    Attack(
        "the result in place of the input",
        edit("silu", ("dst=out[", "dst=x["), ("return out", "return x")),
        (Verdict.INCORRECT, "rules", "input_modified"),
    ),
    Attack(
        "a smaller output",
        body("out = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.shared_hbm)"),
        (Verdict.INCORRECT, "rules", "output_shape"),
    ),
    Attack(
        "an output of lower precision",
        body("out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)"),
        (Verdict.INCORRECT, "rules", "output_dtype"),
    ),
    Attack(
        "more cores than the problem has",
        edit("silu") + "\n\nkernel = silu[2]\n",
        broken("core_count", "rules"),
    ),
    Attack(
        "a loop on the device that never ends",
        edit(
            "silu",
            (
                "    return out",
                "    again = lambda i: i\n    nl.while_loop(nisa.register_alloc(1), again)\n    return out",
            ),
        ),
        endless("limit_work", "numerics"),
    ),
)

ATTACKS = (*SHORTCUTS, *KIND_INPUTS, *PRECISION, *MEMORY)
