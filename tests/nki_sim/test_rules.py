"""For every rule one kernel that breaks it and one that just does not; the error names code, value, line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import IRError, KernelError
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program

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
HALF_COLUMN = tile("c", "(128, 1)", dtype="nl.bfloat16")
BIG = tile("big", "(128, 64, 8)") + tile("b", "(128, 32)")
BANKS = tile("sa", "(128, 128)") + tile("sb", "(128, 512)") + tile("acc", "(128, 1024)", buffer="nl.psum")

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
        tile("a", "(128, 65536)", dtype="nl.uint8") + "nisa.memset(a, 0)",
        tile("a", "(128, 65537)", dtype="nl.uint8") + "nisa.memset(a, 0)",
    ),
    Case(
        "access_size",
        tile("a", "(128, 8192)") + tile("p", "(128, 512)", buffer="nl.psum") + "nisa.memset(p, 0.0)\n"
        + "nisa.tensor_copy(a, p.ap([[512, 128], [1, 512], [0, 16]]))",
        tile("a", "(128, 8192)") + tile("p", "(128, 8192)", dtype="nl.bfloat16", buffer="nl.psum")
        + "nisa.memset(p, 0.0)",
        id="of PSUM, without what is read again",
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
    *(
        Case("shape_mismatch", PAIR + COLUMN + call.format("c"), PAIR + COLUMN + call.format("b"), id=call)
        for call in (
            "nisa.tensor_scalar(a, b, nl.add, {})",
            "nisa.tensor_scalar(a, b, nl.add, 1.0, op1=nl.add, operand1={})",
            "nisa.tensor_scalar_reduce(a, b, nl.add, {}, nl.add, c)",
            "nisa.tensor_scalar_reduce(a, b, nl.add, 1.0, nl.add, {})",
            "nisa.scalar_tensor_tensor(a, b, nl.add, {}, nl.add, b)",
            "nisa.tensor_tensor_scan(a, b, b, {}, nl.add, nl.add)",
            "nisa.activation(a, nl.exp, b, bias={})",
            "nisa.activation(a, nl.exp, b, reduce_res={}, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
            "nisa.activation_reduce(a, nl.exp, b, nl.add, c, bias={})",
            "nisa.activation_reduce(a, nl.exp, b, nl.add, {})",
        )
    ),
    *(
        Case("activation_scale_scalar_or_vector", PAIR + COLUMN + call.format("c"),
             PAIR + COLUMN + call.format("b"), id=call)
        for call in (
            "nisa.activation(a, nl.exp, b, scale={})",
            "nisa.activation_reduce(a, nl.exp, b, nl.add, c, scale={})",
        )
    ),
    Case("shape_mismatch", PAIR + COLUMN + "nisa.scalar_tensor_tensor(a, b, nl.add, c, nl.add, b)",
         PAIR + COLUMN + "nisa.scalar_tensor_tensor(a, b, nl.add, c, nl.add, c)", id="second tensor"),
    Case("argument_pair", PAIR + "nisa.tensor_scalar(a, b, nl.add, 1.0, op1=nl.add, operand1=0.0)",
         PAIR + "nisa.tensor_scalar(a, b, nl.add, 1.0, op1=nl.add)", id="op1 alone"),
    Case("argument_pair", PAIR + "nisa.tensor_scalar(a, b, nl.add, 1.0)",
         PAIR + "nisa.tensor_scalar(a, b, nl.add, 1.0, operand1=0.0)", id="operand1 alone"),
    Case("argument_pair", PAIR + "nisa.tensor_scalar(a, b, nl.add, 1.0, reverse1=False)",
         PAIR + "nisa.tensor_scalar(a, b, nl.add, 1.0, reverse1=True)", id="reverse1 alone"),
    Case("argument_pair",
         PAIR + COLUMN + "nisa.activation_reduce(a, nl.exp, b, nl.add, c)\nnisa.activation(a, nl.exp, b)",
         PAIR + COLUMN + "nisa.activation(a, nl.exp, b, reduce_op=nl.add)", id="reduce_op alone"),
    Case("reduce_cmd",
         PAIR + COLUMN
         + "nisa.activation(a, nl.exp, b, reduce_res=c, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
         PAIR + COLUMN + "nisa.activation(a, nl.exp, b, reduce_res=c)", id="reduce_res alone"),
    *(
        Case(code, PAIR + COLUMN + call, PAIR + HALF_COLUMN + call, id=call)
        for code, call in (
            ("operand_invalid_type", "nisa.tensor_scalar(a, b, nl.add, c)"),
            ("operand_invalid_type", "nisa.tensor_scalar(a, b, nl.add, 1.0, op1=nl.add, operand1=c)"),
            ("operand_invalid_type", "nisa.tensor_scalar_reduce(a, b, nl.add, c, nl.add, c)"),
        )
    ),
    *(
        Case("memset_value", tile("a", "(128, 4)", dtype=dtype) + f"nisa.memset(a, {good})",
             tile("a", "(128, 4)", dtype=dtype) + f"nisa.memset(a, {bad})", id=f"{bad} in {dtype}")
        for dtype, good, bad in (
            ("nl.int32", "-3", "1.5"), ("nl.int8", "-128", "-129"), ("nl.int8", "127", "128"),
            ("nl.uint16", "65535", "65536"), ("nl.uint8", "0", "-1"),
            ("nl.int8", "127", "127.0"), ("nl.int32", "0", "float('nan')"),
        )
    ),
    *(
        Case("write_overlap", f"{BIG}nisa.tensor_copy({good}, b)", f"{BIG}nisa.tensor_copy({bad}, b)", id=bad)
        for good, bad in (
            ("big.ap([[512, 128], [4, 8], [1, 4]])", "big.ap([[512, 128], [3, 8], [1, 4]])"),
            ("big.ap([[512, 128], [1, 4], [4, 8]])", "big.ap([[512, 128], [1, 4], [3, 8]])"),
            ("big.ap([[512, 128], [0, 2], [1, 16]])", "big.ap([[512, 128], [8, 2], [1, 16]])"),
        )
    ),
    Case("write_overlap", tile("big", "(128, 64)") + "nisa.dma_copy(big[:, 0:32], x[:, 0:32])",
         tile("big", "(128, 64)") + "nisa.dma_copy(big[:, 0:1].broadcast(1, 32), x[:, 0:32])", id="by DMA"),
    *(
        Case("psum_bank", BANKS + call.format(good), BANKS + call.format(bad), id=f"{call} {bad}")
        for call, good, bad in (
            ("nisa.nc_matmul(acc[:, {}], sa, sb)", "512:1024", "256:768"),
            ("nisa.nc_matmul(acc[:, {}], sa, sb[:, 0:2])", "510:512", "511:513"),
            ("nisa.nc_transpose(acc[:, {}], sa)", "384:512", "448:576"),
        )
    ),
    Case("engine", PAIR + "nisa.tensor_tensor(a, b, b, nl.power)",
         PAIR + "nisa.tensor_tensor(a, b, b, nl.power, engine=nisa.engine.vector)", id="power of data"),
    Case("engine", PAIR + "nisa.tensor_scalar(a, b, nl.power, 2.0)",
         PAIR + "nisa.tensor_scalar(a, b, nl.power, 2.0, reverse0=True)", id="exponential by power"),
    Case("engine", PAIR + "nisa.scalar_tensor_tensor(a, b, nl.power, 2.0, nl.add, b)",
         PAIR + "nisa.scalar_tensor_tensor(a, b, nl.add, 2.0, nl.power, b)", id="power by a tensor"),
    Case("engine", PAIR + "nisa.tensor_tensor_scan(a, b, b, 1.0, nl.add, nl.add)",
         PAIR + "nisa.tensor_tensor_scan(a, b, b, 1.0, nl.power, nl.add)", id="power in a scan"),
    Case("engine", PAIR + "nisa.scalar_tensor_tensor(a, b, nl.add, 2.0, nl.add, b)",
         PAIR + "nisa.scalar_tensor_tensor(a, b, nl.add, 2.0, nl.add, b, engine=nisa.engine.gpsimd)",
         id="scalar_tensor_tensor is VectorE's"),
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


def test_the_bank_rule_is_applied_again_to_programs_from_elsewhere(tracing: Any) -> None:
    """Where in its row a product begins is part of the program, and a lie about it is no valid program."""
    body = BANKS + "nisa.nc_matmul(acc[:, 512:1024], sa, sb)"
    program = tracing(kernel(body), X)
    form = next(form for form in program.forms if form.op == "nc_matmul")
    assert form["dst"].column == 512
    operator = OPERATORS["nc_matmul"]
    moved = replace(form, operands=(replace(form["dst"], column=256), *form.operands[1:]))
    assert [breach.code for breach in operator.find_breaches(moved, targets.load("trn2"))] == ["psum_bank"]
    lying = replace(program, forms=tuple(moved if item is form else item for item in program.forms))
    with pytest.raises(IRError, match="where in its row"):
        Program.from_bytes(lying.to_bytes())


@pytest.mark.parametrize(("op", "engine"), [("power", "gpsimd"), ("add", "vector")])
def test_powers_of_tensors_run_on_gpsimd_when_nothing_is_said(op: str, engine: str, tracing: Any) -> None:
    (form,) = [
        form
        for form in tracing(kernel(PAIR + f"nisa.tensor_tensor(a, b, b, nl.{op})"), X).forms
        if form.op == "tensor_tensor"
    ]
    assert form.engine == engine


def test_of_elements_written_to_one_place_the_last_stays(simulate: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        t = nl.ndarray((8, 16), dtype=nl.float32, buffer=nl.sbuf)
        one = nl.ndarray((8, 1), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((8, 1), dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((8, 2), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=t, src=x)
        nisa.activation_reduce(one.ap([[1, 8], [0, 16]]), nl.square, t, nl.add, total)
        nisa.dma_copy(dst=out[:, 0:1], src=one)
        nisa.dma_copy(dst=out[:, 1:2], src=total)
        return out
    """
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    (found,) = simulate(text, x)
    assert np.array_equal(found, np.stack([x[:, -1] ** 2, (x**2).sum(axis=1)], axis=1))
