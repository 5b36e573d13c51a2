"""Kernels that tempt rewrites: state between instructions, names bound again, what a reader cannot follow."""

from __future__ import annotations

import numpy as np

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET, Array, Sample, relative_error
from tests.support.sweeps import parametrize_sweep

TILE = "{} = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)"
COLUMN = "{} = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)"


def sample(body: list[str], meaning, before: str = "") -> Sample:
    """A kernel on x[512, 256], its body run for four tiles of rows; `row` is the window of one.

    `before` stands above the kernel.
    """
    lines = [
        "m, n = x.shape",
        "out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)",
        "for i in nl.affine_range(m // 128):",
        *(f"    {line}" for line in [TILE.format("a"), "nisa.dma_copy(dst=a, src=x[ROW])", *body]),
        "return out",
    ]
    text = "\n".join(f"    {line}" for line in lines).replace("ROW", "i * 128 : (i + 1) * 128, :")
    return Sample(f"{HEADER}\n{before}@nki.jit\ndef kernel(x):\n{text}\n", ((512, 256),), meaning)


def sum_rows_and_squares(x: Array) -> Array:
    """The rows plus their sum and that of their squares."""
    return x + x.sum(axis=1, keepdims=True) + (x * x).sum(axis=1, keepdims=True)


STORE = "nisa.dma_copy(dst=out[ROW], src={})"
PAIR = [
    TILE.format("squares"), "nisa.tensor_tensor(dst=squares, data1=a, data2=a, op=nl.multiply)",
    COLUMN.format("total"), "nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)",
]  # fmt: skip
WINDOW = "i * 128 : (i + 1) * 128, j * WIDTH : (j + 1) * WIDTH"
REGISTER = "nisa.activation(dst=copied, op=nl.copy, data=a, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.{})"

TRAPS = {
    # A sum waits in the accumulation registers while others could take its place.
    "registers": sample(
        [
            TILE.format("copied"), COLUMN.format("rows"), REGISTER.format("reset_reduce"), *PAIR,
            "nisa.activation(dst=copied, op=nl.copy, data=a, reduce_op=nl.add, reduce_res=rows)",
            "nisa.tensor_scalar(dst=copied, data=a, op0=nl.add, operand0=rows, op1=nl.add, operand1=total)",
            STORE.format("copied"),
        ],
        sum_rows_and_squares,
    ),
    # The name of an operand means another tile between producer and consumer.
    "bound again": sample(
        [
            TILE.format("b"), "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)",
            TILE.format("a"), "nisa.memset(dst=a, value=1.0)",
            TILE.format("c"), "nisa.activation(dst=c, op=nl.exp, data=b)",
            "nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.add)", STORE.format("c"),
        ],
        lambda x: np.exp(2 * x) + 1,
    ),
    "bound again by a loop": sample(
        [
            COLUMN.format("s"), "nisa.tensor_copy(dst=s, src=a[:, 0:1])",
            TILE.format("b"), "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=s)",
            COLUMN.format("s"), "for q in range(2):", "    nisa.memset(dst=s, value=3.0)",
            TILE.format("c"), "nisa.activation(dst=c, op=nl.tanh, data=b)",
            "nisa.tensor_scalar(dst=c, data=c, op0=nl.add, operand0=s)", STORE.format("c"),
        ],
        lambda x: np.tanh(x * x[:, :1]) + 3,
    ),
    # Each iteration reads what the one before has left under a name.
    "carried by a name": sample(
        [
            "current = a", "for q in range(3):", f"    {TILE.format('following')}",
            "    nisa.tensor_scalar(dst=following, data=current, op0=nl.multiply, operand0=0.5)",
            "    current = following", STORE.format("current"),
        ],
        lambda x: x / 8,
    ),
    # What nobody can read changes a tile between a copy and its reader.
    "changed behind a wall": sample(
        [
            TILE.format("b"), "nisa.tensor_copy(dst=b, src=a)", "if m > 1:",
            "    nisa.memset(dst=a, value=0.0)", TILE.format("c"),
            "nisa.activation(dst=c, op=nl.exp, data=b)",
            "nisa.tensor_tensor(dst=c, data1=c, data2=a, op=nl.add)", STORE.format("c"),
        ],
        np.exp,
    ),
    # A predicated copy keeps elements of its destination.
    "written in part": sample(
        [
            TILE.format("b"), "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=0.5)",
            "mask = nl.ndarray((128, 256), dtype=nl.uint8, buffer=nl.sbuf)",
            "nisa.tensor_scalar(dst=mask, data=a, op0=nl.greater, operand0=0.0)",
            "nisa.tensor_copy_predicated(dst=b, src=a, predicate=mask)",
            TILE.format("c"), "nisa.tensor_copy(dst=c, src=b)", STORE.format("c"),
        ],
        lambda x: np.where(x > 0, x, 0.5 * x),
    ),
    # Windows that different iterations write overlap, and the later one counts.
    "overlapping windows": sample(
        [
            TILE.format("c"), "nisa.memset(dst=c, value=0.0)",
            "for p in nl.sequential_range(2):",
            "    for q in nl.sequential_range(2):",
            ("        nisa.tensor_copy(dst=c[:, (p + q) * 64 : (p + q + 1) * 64],"
            " src=a[:, p * 128 + q * 64 : p * 128 + (q + 1) * 64])"),
            STORE.format("c"),
        ],
        lambda x: np.concatenate([x[:, :64], x[:, 128:], 0 * x[:, :64]], axis=1),
    ),
    # Nobody knows before the kernel runs how often it doubles.
    "a loop on the device": sample(
        [
            "count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)",
            "nisa.memset(dst=count, value=2)", "limit = nisa.register_alloc()",
            "nisa.register_load(limit, count)", TILE.format("b"),
            "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=0.25)",
            "def double(step):",
            "    nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=2.0)",
            "nl.fori_loop(0, limit, double)",
            TILE.format("c"), "nisa.activation(dst=c, op=nl.exp, data=b)", STORE.format("c"),
        ],
        np.exp,
    ),
    # A constant is given another value by a statement of another kind.
    "a constant bound again": sample(
        [
            TILE.format("c"), "nisa.memset(dst=c, value=0.0)",
            "nisa.tensor_copy(dst=c[:, 0:WIDTH], src=a[:, 0:WIDTH])",
            TILE.format("d"), "nisa.activation(dst=d, op=nl.exp, data=c)", STORE.format("d"),
        ],
        lambda x: np.exp(np.where(np.arange(256) < 64, x, 0)),
        "WIDTH = 128\nWIDTH: int = 64\n\n\n",
    ),
    # Half of each tile, by number: of wider tiles it would be less.
    "a part by number": sample(
        [
            "for j in nl.affine_range(n // WIDTH):",
            "    t = nl.ndarray((128, WIDTH), dtype=nl.float32, buffer=nl.sbuf)",
            f"    nisa.dma_copy(dst=t, src=x[{WINDOW}])",
            "    nisa.tensor_scalar(dst=t[:, 0:64], data=t[:, 0:64], op0=nl.multiply, operand0=2.0)",
            f"    nisa.dma_copy(dst=out[{WINDOW}], src=t)",
        ],
        lambda x: x * np.where(np.arange(256) % 128 < 64, 2, 1),
        "WIDTH = 128\n\n\n",
    ),
    # One iteration alone takes what each of them makes.
    "copied under a condition": sample(
        [
            TILE.format("c"), "nisa.memset(dst=c, value=0.5)",
            TILE.format("b"), "nisa.activation(dst=b, op=nl.tanh, data=a)",
            "if i == 2:", "    nisa.tensor_copy(dst=c, src=b)", STORE.format("c"),
        ],
        lambda x: np.where(np.arange(512)[:, None] // 128 == 2, np.tanh(x), 0.5),
    ),
    # The second of two instructions takes the first one's result twice, and an older tile has its name.
    "taken twice": sample(
        [
            COLUMN.format("b"), "nisa.memset(dst=b, value=3.0)",
            COLUMN.format("b"), "nisa.tensor_scalar(dst=b, data=a[:, 0:1], op0=nl.add, operand0=1.0)",
            COLUMN.format("r"), "nisa.tensor_scalar(dst=r, data=b, op0=nl.multiply, operand0=b)",
            TILE.format("c"), "nisa.tensor_scalar(dst=c, data=a, op0=nl.multiply, operand0=r)",
            STORE.format("c"),
        ],
        lambda x: x * (x[:, :1] + 1) ** 2,
    ),
    # A function of the module's own has the name of a built-in one.
    "another min": sample(
        [
            "w = min(256, 64)", TILE.format("c"), "nisa.memset(dst=c, value=0.0)",
            "nisa.tensor_copy(dst=c[:, 0:w], src=a[:, 0:w])", STORE.format("c"),
        ],
        lambda x: x,
        "def min(one, other):\n    return one if one > other else other\n\n\n",
    ),
}  # fmt: skip


@parametrize_sweep("trap", TRAPS.values(), ids=TRAPS.keys(), quick=4)
def test_no_rewrite_falls_into_a_trap(trap: Sample):
    assert relative_error(trap, trap.source) < 2e-5
    children, refusals = explore_rewrites(
        read_kernel(trap.source, trap.arguments, TARGET), trap.arguments, TARGET
    )
    for child in children:
        wrong = f"{child.transform.id} {child.site} {child.choice}\n{child.source}"
        assert relative_error(trap, child.source) < 2e-5, wrong
    assert children or refusals
