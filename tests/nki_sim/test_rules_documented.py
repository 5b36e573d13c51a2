"""Limits that the documents of single instructions give: for each a kernel that breaks it, one that does not.

Sources: the pages of `nki.isa` (SDK 2.32; ranks: 2.33), the pages on descriptors of DMA, on access patterns
and on the architecture, and for the legacy namespace those of SDK 2.26.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import NamedTuple

import pytest

Refusals = Callable[..., set[str]]

CURRENT = """
import nki
import nki.isa as nisa
import nki.language as nl

hw, sw, static = nisa.dge_mode.hwdge, nisa.dge_mode.swdge, nisa.dge_mode.none
sync, vector, scalar, gpsimd = nisa.engine.sync, nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd

@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    def bare(*shape, dtype=nl.float32, buffer=nl.sbuf):
        return nl.ndarray(shape, dtype=dtype, buffer=buffer)
    def tile(*shape, dtype=nl.float32, buffer=nl.sbuf, value=1):
        made = bare(*shape, dtype=dtype, buffer=buffer)
        nisa.memset(made, value)
        return made
    def rows(count=128, step=1):
        made = bare(128, 1, dtype=nl.uint32)
        nisa.iota(made, [[1, 1]], 0, step)
        return made[0:count]
    def table(*shape, dtype=nl.float32):
        made = bare(*shape, dtype=dtype, buffer=nl.private_hbm)
        nisa.dma_copy(made, tile(*shape, dtype=dtype))
        return made
    def chosen(tensor, index, width):
        count = index.shape[0]
        return tensor.ap([[width, count], [1, width]], vector_offset=index, indirect_dim=0)
    t, u, c, d = tile(128, 64), tile(128, 64), tile(128, 1), bare(128, 1)
    p = tile(128, 64, buffer=nl.psum)
{body}
    return out
"""

LEGACY = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.load(x)
    nl.store(out, t)
    i_p, i_f = nl.arange(128)[:, None], nl.arange(512)[None, :]
{body}
    return out
"""


class Rule(NamedTuple):
    """The code of the error, and the ends of the kernel that breaks the rule and of the one that does not."""

    what: str
    code: str
    breaks: str
    keeps: str
    target: str = "trn2"


GATHER = "nisa.dma_copy(t, chosen(table(128, 64), rows(), 64){})"
GATHERED = (
    "made = table(128, 64, dtype=nl.bfloat16)\n"
    "nisa.dma_transpose(bare(64, 128, dtype=nl.bfloat16), chosen(made, rows(), 64){})"
)
TURNED = "nisa.dma_transpose(bare({1}, {0}, dtype=nl.{2}), tile({0}, {1}, dtype=nl.{2}){3})"
CUBE = (
    "nisa.dma_transpose(bare(8, {0}, 2, dtype=nl.bfloat16), tile(2, {0}, 8, dtype=nl.bfloat16), dge_mode=hw)"
)
ADDED = "made = table(128, 64)\nplace = chosen(made, rows(), 64)\n"

DMA = [
    Rule("descriptors by hardware", "generation", "nisa.dma_copy(t, x[:, 0:64], dge_mode=hw)",
         "nisa.dma_copy(t, x[:, 0:64], dge_mode=sw)", "trn1"),
    Rule("hardware gathers nothing", "dge_mode", GATHER.format(", dge_mode=hw"),
         GATHER.format(", dge_mode=sw")),
    Rule("static descriptors gather nothing", "dge_mode", GATHER.format(", dge_mode=static"),
         "nisa.dma_copy(t, x[:, 0:64], dge_mode=static)"),
    Rule("one dynamic address in any mode", "dge_mode", GATHER.format(", dge_mode=hw"),
         "r = nisa.register_alloc(0)\n"
         "nisa.dma_copy(t[0:1], x.ap([[512, 1], [1, 64]], scalar_offset=r, indirect_dim=0), dge_mode=hw)"),
    Rule("triggers go with hwdge", "engine", "nisa.dma_copy(t, x[:, 0:64], engine=sync)",
         "nisa.dma_copy(t, x[:, 0:64], engine=sync, dge_mode=hw)"),
    Rule("triggers are sync and scalar", "engine", "nisa.dma_copy(t, x[:, 0:64], engine=vector, dge_mode=hw)",
         "nisa.dma_copy(t, x[:, 0:64], engine=scalar, dge_mode=hw)"),
    Rule("four priorities", "argument_range", "nisa.dma_copy(t, x[:, 0:64], priority=4)",
         "nisa.dma_copy(t, x[:, 0:64], priority=3)"),
    Rule("the third argument is the priority", "argument_type",
         "nisa.dma_copy(t, x[:, 0:64], nisa.oob_mode.error)", "nisa.dma_copy(t, x[:, 0:64], 0)"),
    Rule("gathers read HBM", "partition_step", "nisa.dma_copy(t, chosen(u, rows(), 64))", GATHER.format("")),
    Rule("transposes by hardware: 2 bytes", "dge_mode", TURNED.format(16, 64, "float32", ", dge_mode=hw"),
         TURNED.format(16, 64, "bfloat16", ", dge_mode=hw")),
    Rule("transposes by hardware: 16 rows", "dge_mode", TURNED.format(32, 64, "bfloat16", ", dge_mode=hw"),
         TURNED.format(16, 128, "float16", ", dge_mode=hw")),
    Rule("transposes by hardware: 16 rows in all", "dge_mode", CUBE.format(4), CUBE.format(8)),
    Rule("software makes descriptors of gathers", "dge_mode",
         TURNED.format(16, 64, "bfloat16", ", dge_mode=sw"),
         TURNED.format(16, 64, "bfloat16", ", dge_mode=static")),
    Rule("gathering transposes by software", "dge_mode", GATHERED.format(", dge_mode=hw"),
         GATHERED.format(", dge_mode=sw")),
    Rule("what is skipped has indices", "argument_pair",
         TURNED.format(16, 64, "float32", ", oob_mode=nisa.oob_mode.skip"),
         GATHERED.format(", oob_mode=nisa.oob_mode.skip")),
    Rule("sums skip by indices", "argument_pair",
         "nisa.dma_compute(t, [u, u], nl.add, oob_mode=nisa.oob_mode.skip)",
         ADDED + "nisa.dma_compute(t, [t, place], nl.add, oob_mode=nisa.oob_mode.skip)"),
    Rule("hardware converts nothing", "dtype_mismatch",
         "nisa.dma_copy(tile(128, 64, dtype=nl.bfloat16), x[:, 0:64], dge_mode=hw)",
         "nisa.dma_copy(tile(128, 64, dtype=nl.bfloat16), x[:, 0:64], dge_mode=sw)"),
    Rule("the destination is a source", "indirect_sources", ADDED + "nisa.dma_compute(place, [t, u], nl.add)",
         ADDED + "nisa.dma_compute(place, [t, place], nl.add)"),
    Rule("the other source is on the other side", "indirect_sources",
         ADDED + "nisa.dma_compute(place, [place, table(128, 64)], nl.add)",
         ADDED + "nisa.dma_compute(place, [place, t], nl.add)"),
    Rule("the tile that is added to", "indirect_sources", ADDED + "nisa.dma_compute(t, [u, place], nl.add)",
         ADDED + "nisa.dma_compute(t, [t, place], nl.add)"),
    Rule("the rows that are added to", "indirect_sources",
         ADDED + "other = table(128, 64)\nnisa.dma_compute(place, [chosen(other, rows(), 64), t], nl.add)",
         ADDED + "nisa.dma_compute(place, [place, t], nl.add)"),
    Rule("by the same indices", "indirect_sources",
         ADDED + "nisa.dma_compute(place, [chosen(made, rows(), 64), t], nl.add)",
         ADDED + "again = chosen(made, rows(), 64)\nnisa.dma_compute(again, [again, t], nl.add)"),
    Rule("each place once", "duplicate_indices",
         "made = table(128, 64)\nplace = chosen(made, rows(step=0), 64)\n"
         "nisa.dma_compute(place, [place, t], nl.add)",
         ADDED + "nisa.dma_compute(place, [place, t], nl.add)"),
]  # fmt: skip

LONG = (
    "made = tile(2, 40000, dtype=nl.bfloat16)\nnisa.tensor_copy(t[0:2, 0:2], made.ap([[40000, 2], [{}, 2]]))"
)
REDUCED = "nisa.tensor_scalar_reduce({0}, {1}, nl.subtract, 1.0, nl.add, d{2})"
DEEP = "{}.reshape((128, 2, 2, {}))"

CHAIN = (
    "m = tile(128, 64, dtype=nl.uint8)\n"
    "nisa.tensor_scalar_reduce(t, u, nl.add, 1.0, nl.maximum, d)\n"
    "nisa.select_reduce(u, m, t, 0.0, reduce_cmd=nisa.reduce_cmd.{})\n"
    "nisa.select_reduce(t, m, u, 0.0, d, nisa.reduce_cmd.{})\n"
)
PARTS = (
    "m = tile(128, 64, dtype=nl.uint8)\n"
    "nisa.tensor_scalar_reduce(t, u, nl.add, 1.0, nl.maximum, d)\n"
    "nisa.select_reduce(u[32:64], m[32:64], t[32:64], 0.0)\n"
    "nisa.select_reduce(t[{0}], m[{0}], u[{0}], 0.0, d[{0}], nisa.reduce_cmd.reduce)\n"
)

ENGINES = [
    Rule("strides are int16", "access_stride", LONG.format(32768), LONG.format(32767)),
    Rule("strides of DMA are not", "access_stride", LONG.format(32768),
         LONG.format(32768).replace("tensor_copy", "dma_copy")),
    Rule("partitions are neighbours", "partition_step", "nisa.tensor_copy(t[0:64], u[0:128:2])",
         "nisa.tensor_copy(t[0:64], u[64:128])"),
    Rule("GpSimd: rsqrt", "engine", "nisa.tensor_scalar(t, u, nl.add, 1.0, engine=gpsimd)",
         "nisa.tensor_scalar(t, u, nl.add, 1.0, op1=nl.rsqrt, operand1=0.0, engine=gpsimd)"),
    Rule("nothing is turned round", "unsupported_argument", REDUCED.format("t", "u", ", reverse0=True"),
         REDUCED.format("t", "u", ", reverse0=False")),
    Rule("3 free dimensions of data", "access_rank", REDUCED.format("t", DEEP.format("u", "2, 8"), ""),
         REDUCED.format("t", DEEP.format("u", "16"), "")),
    Rule("3 free dimensions of dst", "access_rank", REDUCED.format(DEEP.format("t", "2, 8"), "u", ""),
         REDUCED.format(DEEP.format("t", "16"), "u", "")),
    Rule("over partitions also with xor", "reduce_op",
         "made = tile(128, 8, dtype=nl.int32)\n"
         "nisa.tensor_partition_reduce(bare(1, 8, dtype=nl.int32), nl.minimum, made)",
         "made = tile(128, 8, dtype=nl.int32)\n"
         "nisa.tensor_partition_reduce(bare(1, 8, dtype=nl.int32), nl.bitwise_xor, made)"),
    Rule("sums may stay in the engine", "missing_argument", "nisa.activation_reduce(t, nl.exp, u, None, d)",
         "nisa.activation_reduce(t, nl.exp, u, nl.add, None)"),
    Rule("idle may change the registers", "accumulators_undefined", CHAIN.format("idle", "reduce"),
         CHAIN.format("idle", "reset_reduce")),
    Rule("a chain is not left idle", "accumulators_undefined", CHAIN.format("idle", "reduce"),
         CHAIN.format("reduce", "reduce")),
    Rule("what idle leaves is not read", "accumulators_undefined",
         CHAIN.format("reset_reduce", "idle"), CHAIN.format("idle", "reset_reduce")),
    Rule("idle changes its own lanes", "accumulators_undefined", PARTS.format("32:64"), PARTS.format("0:32")),
    Rule("nothing divides", "op", "nisa.tensor_tensor(t, u, u, nl.divide)",
         "nisa.reciprocal(t, u)\nnisa.tensor_tensor(t, u, t, nl.multiply)"),
    Rule("nor does the language", "op", "nl.divide(t, u)", "nl.multiply(t, nl.reciprocal(u))"),
    Rule("nothing has remainders", "op", "nisa.tensor_scalar(t, u, nl.add, 1.0, op1=nl.mod, operand1=2.0)",
         "nl.mod(t, u)"),
    Rule("ScalarE alone squares", "generation", "nisa.tensor_scalar(t, u, nl.square, None)",
         "nisa.activation(t, nl.square, u)"),
    Rule("ScalarE alone rectifies", "generation", "nisa.tensor_scalar_reduce(t, u, nl.relu, 0.0, nl.add, d)",
         "nisa.activation(t, nl.relu, u)"),
    Rule("constants are of the tile's kind", "memset_value", "tile(8, 8, dtype=nl.int32, value=2.0)",
         "tile(8, 8, dtype=nl.int32, value=2)"),
    Rule("hints of DMA are of DMA", "unsupported_argument", "nisa.tensor_copy(t, u, dge_mode=sw)",
         "nisa.tensor_copy(t, u)"),
]  # fmt: skip

BEFORE = [
    Rule("no 32-bit integers in affine_select", "operand_invalid_type",
         "nisa.affine_select(i_p >= i_f, nl.copy(t, dtype=nl.int32), 0.0)",
         "nisa.affine_select(i_p >= i_f, nl.copy(t, dtype=nl.int16), 0.0)"),
    Rule("no 32-bit integers out of affine_select", "operand_invalid_type",
         "nisa.affine_select(i_p >= i_f, t, 0.0, dtype=nl.uint32)",
         "nisa.affine_select(i_p >= i_f, t, 0.0, dtype=nl.uint16)"),
    Rule("the first dimension is the partitions", "partition_step",
         "made = nl.ndarray((2, 128, 4), dtype=nl.float32, buffer=nl.sbuf)\nmade[0] = t[:, 0:4]",
         "made = nl.ndarray((2, nl.par_dim(128), 4), dtype=nl.float32, buffer=nl.sbuf)\nmade[0] = t[:, 0:4]"),
]  # fmt: skip

CASES = [
    pytest.param(prelude, rule, id=f"{name}: {rule.what}")
    for name, prelude, rules in (
        ("dma", CURRENT, DMA),
        ("engines", CURRENT, ENGINES),
        ("legacy", LEGACY, BEFORE),
    )
    for rule in rules
]


@pytest.mark.parametrize(("prelude", "rule"), CASES)
def test_a_documented_limit(prelude: str, rule: Rule, refusals: Refusals) -> None:
    sources = [prelude.format(body=textwrap.indent(body, "    ")) for body in (rule.breaks, rule.keeps)]
    assert [refusals(source, rule.target) for source in sources] == [{rule.code}, set()]
