"""For every rule one kernel that breaks it and one that just does not; the error names code, value, line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from nki_sim import ArraySpec, checks, targets
from nki_sim.errors import KernelError

X = ArraySpec((128, 512), "float32")


@dataclass(frozen=True)
class Case:
    """`good` and `bad` are bodies of a kernel over x [128, 512]; the last line of `bad` is at fault."""

    code: str
    good: str
    bad: str
    target: str = "trn2"
    id: str = ""


def tile(name: str, shape: str, *, dtype: str = "nl.float32", buffer: str = "nl.sbuf") -> str:
    return f"{name} = nl.ndarray({shape}, dtype={dtype}, buffer={buffer})\n"


def matmul(k: int = 128, m: int = 128, n: int = 512, *, a: str = "nl.float32", b: str = "nl.float32") -> str:
    made = tile("sa", f"({k}, {m})", dtype=a) + tile("sb", f"({k}, {n})", dtype=b)
    return made + tile("acc", f"({m}, {n})", buffer="nl.psum") + "nisa.nc_matmul(acc, sa, sb)"


PSUM_PAIR = tile("pa", "(128, 64)", buffer="nl.psum") + tile("pb", "(128, 64)", buffer="nl.psum")
PAIR = tile("a", "(128, 64)") + tile("b", "(128, 64)")
COLUMN = tile("c", "(128, 1)")

CASES = [
    Case("num_partition_exceed_arch_limit", tile("a", "(128, 4)"), tile("a", "(129, 4)").strip()),
    Case(
        "start_partition",
        tile("a", "(128, 64)") + "nisa.memset(a[32:64, :], 0.0)",
        tile("a", "(128, 64)") + "nisa.memset(a[16:48, :], 0.0)",
    ),
    Case(
        "start_partition",
        tile("a", "(128, 64)") + "nisa.memset(a[64:128, :], 0.0)",
        tile("a", "(128, 64)") + "nisa.memset(a[32:96, :], 0.0)",
        id="33 to 64 partitions",
    ),
    Case(
        "start_partition",
        tile("a", "(128, 64)") + "nisa.memset(a[0:65, :], 0.0)",
        tile("a", "(128, 64)") + "nisa.memset(a[32:97, :], 0.0)",
        id="more than 64 partitions",
    ),
    Case(
        "access_rank",
        tile("a", "(128, 2, 2, 2, 2)") + "nisa.memset(a, 0.0)",
        tile("a", "(128, 2, 2, 2, 2, 2)") + "nisa.memset(a, 0.0)",
    ),
    Case(
        "access_size",
        tile("a", "(128, 65536)", dtype="nl.uint8") + "nisa.memset(a, 0.0)",
        tile("a", "(128, 65537)", dtype="nl.uint8") + "nisa.memset(a, 0.0)",
    ),
    Case("matmul_size", matmul(128, 128, 512), matmul(128, 129 - 1, 513), id="moving"),
    Case("matmul_size", matmul(128, 128, 8), "sa = nl.ndarray((128, 129), nl.float32, nl.sbuf)\n"
         + tile("sb", "(128, 8)") + tile("acc", "(128, 8)", buffer="nl.psum")
         + "nisa.nc_matmul(acc, sa, sb)", id="stationary"),
    Case("matmul_shape", matmul(64, 32, 8), tile("sa", "(64, 32)") + tile("sb", "(32, 8)")
         + tile("acc", "(32, 8)", buffer="nl.psum") + "nisa.nc_matmul(acc, sa, sb)"),
    Case("matmul_dtype", matmul(a="nl.bfloat16", b="nl.float16"), matmul(b="nl.bfloat16"), id="mixed"),
    Case("matmul_dtype", matmul(a="nl.float8_e4m3", b="nl.bfloat16"), matmul(a="nl.int32", b="nl.int32"),
         id="integers"),
    Case("matmul_dtype", matmul(), matmul().replace("acc = nl.ndarray((128, 512), dtype=nl.float32",
         "acc = nl.ndarray((128, 512), dtype=nl.bfloat16"), id="PSUM type"),
    Case(
        "psum_bank",
        tile("sa", "(128, 128)") + tile("sb", "(128, 256)")
        + tile("acc", "(128, 1024)", buffer="nl.psum") + "nisa.nc_matmul(acc[:, 0:512:2], sa, sb)",
        tile("sa", "(128, 128)") + tile("sb", "(128, 256)")
        + tile("acc", "(128, 1024)", buffer="nl.psum") + "nisa.nc_matmul(acc[:, 0:1024:4], sa, sb)",
    ),
    Case(
        "unsupported_memory", matmul(), matmul().replace("buffer=nl.psum", "buffer=nl.sbuf"), id="dst in SBUF"
    ),
    Case(
        "unsupported_memory",
        tile("a", "(128, 512)") + "nisa.dma_copy(a, x)",
        tile("a", "(128, 512)", buffer="nl.psum") + "nisa.dma_copy(a, x)",
        id="DMA into PSUM",
    ),
    Case(
        "unsupported_memory",
        PAIR + "nisa.tensor_copy(a, b)",
        PAIR + "nisa.tensor_copy(a, x[:, 0:64])",
        id="engine reads HBM",
    ),
    Case(
        "gpsimd_psum",
        PAIR + PSUM_PAIR + "nisa.tensor_copy(a, b, engine=nisa.engine.gpsimd)",
        PAIR + PSUM_PAIR + "nisa.tensor_copy(a, pa, engine=nisa.engine.gpsimd)",
    ),
    Case(
        "both_inputs_psum",
        PAIR + PSUM_PAIR + "nisa.tensor_tensor(a, pa, b, nl.add)",
        PAIR + PSUM_PAIR + "nisa.tensor_tensor(a, pa, pb, nl.add)",
    ),
    Case(
        "shape_mismatch",
        PAIR + COLUMN + "nisa.tensor_scalar(a, b, nl.add, c)",
        PAIR + COLUMN + "nisa.tensor_copy(a, c)",
        id="copy of another size",
    ),
    Case(
        "shape_mismatch",
        tile("a", "(128, 512)") + "nisa.dma_copy(a, x)",
        tile("a", "(128, 511)") + "nisa.dma_copy(a, x)",
        id="DMA of another size",
    ),
    Case(
        "transpose_size",
        tile("a", "(32, 32)") + tile("b", "(32, 32)") + "nisa.nc_transpose(a, b, engine=nisa.engine.vector)",
        tile("a", "(33, 32)") + tile("b", "(32, 33)") + "nisa.nc_transpose(a, b, engine=nisa.engine.vector)",
    ),
    Case(
        "dtype_mismatch",
        tile("a", "(64, 128)", buffer="nl.psum") + tile("b", "(128, 64)") + "nisa.nc_transpose(a, b)",
        tile("a", "(64, 128)", buffer="nl.psum", dtype="nl.bfloat16") + tile("b", "(128, 64)")
        + "nisa.nc_transpose(a, b)",
    ),
    Case("reduce_axis", PAIR + COLUMN + "nisa.tensor_reduce(c, nl.add, a, axis=1)",
         PAIR + COLUMN + "nisa.tensor_reduce(c, nl.add, a, axis=0)"),
    Case("engine", PAIR + "nisa.tensor_copy(a, b, engine=nisa.engine.scalar)",
         PAIR + "nisa.tensor_copy(a, b, engine=nisa.engine.tensor)", id="no such engine"),
    Case("engine", PAIR + "nisa.tensor_copy(a, b, engine=nisa.engine.vector)",
         PAIR + "nisa.tensor_copy(a, b, engine=nisa.engine.scalar)", "trn1", id="no scalar copy on trn1"),
    Case(
        "engine",
        PAIR + "nisa.tensor_scalar(a, b, nl.multiply, 2.0, False, nl.add, 1.0, engine=nisa.engine.scalar)",
        PAIR + "nisa.tensor_scalar(a, b, nl.add, 2.0, False, nl.multiply, 1.0, engine=nisa.engine.scalar)",
        id="scalar engine operations",
    ),
    Case("activation_bias_invalid_type", PAIR + COLUMN + "nisa.activation(a, nl.exp, b, bias=c)",
         PAIR + COLUMN + "nisa.activation(a, nl.exp, b, bias=1.0)", "trn1"),
    Case("activation_scale_invalid_type", PAIR + COLUMN + "nisa.activation(a, nl.exp, b, scale=c)",
         PAIR + tile("c", "(128, 1)", dtype="nl.bfloat16") + "nisa.activation(a, nl.exp, b, scale=c)"),
    Case("tensor_access_out_of_bound", PAIR + "nisa.tensor_copy(a[:, 32:64], b[:, 0:32])",
         PAIR + "nisa.tensor_copy(a[:, 33:65], b[:, 0:32])"),
    Case("partition_step", PAIR + "nisa.tensor_copy(a, b.ap([[64, 128], [1, 64]]))",
         PAIR + "nisa.tensor_copy(a, b.ap([[32, 128], [1, 64]]))"),
]  # fmt: skip


def kernel(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"""
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
{lines}
    return out
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.id}".strip())
def test_a_rule_refuses_what_breaks_it_and_nothing_less(case: Case, tracing: Any, texts: Any) -> None:
    tracing(kernel(case.good), X, target=case.target)
    with pytest.raises(KernelError) as caught:
        tracing(kernel(case.bad), X, target=case.target)
    error = caught.value
    text = texts.source_of(kernel(case.bad)).splitlines()
    assert error.code == case.code
    assert text[error.line - 1].strip() == case.bad.strip().splitlines()[-1].strip()
    assert error.hint


def test_rules_are_applied_again_to_programs_from_elsewhere(tracing: Any) -> None:
    """A program traced for trn2 breaks trn1's rules, and `check` says so without the front end."""
    body = PAIR + "nisa.memset(b, 1.0)\nnisa.tensor_copy(a, b, engine=nisa.engine.scalar)"
    program = tracing(kernel(body), X)
    assert checks.check(program, targets.load("trn2")) == []
    (violation,) = checks.check(program, targets.load("trn1"))
    assert violation.code == "engine"
    assert violation.tensor == "a"
    assert violation.line == 14
