"""Honest kernels for `silu` that no initial kernel looks like."""

from __future__ import annotations

from tests.adversarial.model import HEAD, Honest, body, edit

EXP = "nisa.activation(dst=t, op=nl.exp, data=s, scale=-1.0)"
SIGMOID = (
    EXP,
    "nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)",
    "nisa.reciprocal(dst=t, data=t)",
)
TILES = ("{0} = nl.ndarray(({1}, {2}), dtype=nl.float32, buffer=nl.sbuf)",)


def tile(name: str, rows: object, cols: object) -> str:
    return f"{name} = nl.ndarray(({rows}, {cols}), dtype=nl.float32, buffer=nl.sbuf)"


def indent(*lines: str) -> tuple[str, ...]:
    return tuple(f"    {line}" for line in lines)


def one(rows: object, cols: object, where: str) -> tuple[str, ...]:
    """The lines that compute the part `where` of the output."""
    return (
        tile("s", rows, cols),
        tile("t", rows, cols),
        f"nisa.dma_copy(dst=s, src=x[{where}])",
        *SIGMOID,
        "nisa.tensor_tensor(dst=t, data1=s, data2=t, op=nl.multiply)",
        f"nisa.dma_copy(dst=out[{where}], src=t)",
    )


BLOCK = "def block(a, b, c, d):"
BLOCK_LINES = (BLOCK, *indent(*one("b - a", "d - c", "a:b, c:d")))

KERNELS = (
    Honest(
        "hard-coded shapes, everything spelled out",
        "silu",
        body("for i in range(2):", *indent(*one(128, 2048, "i * 128 : (i + 1) * 128, 0:2048"))),
    ),
    Honest(
        "tiles of odd sizes with tails",
        "silu",
        body(
            *BLOCK_LINES,
            "for a in range(0, 256, 100):",
            "    for c in range(0, 2048, 683):",
            "        block(a, min(a + 100, 256), c, min(c + 683, 2048))",
        ),
    ),
    Honest(
        "a generator of tiles",
        "silu",
        body(
            *BLOCK_LINES,
            "def tiles():",
            "    for a in range(0, 256, 64):",
            "        for c in (1024, 0):",
            "            yield a, a + 64, c, c + 1024",
            "for where in tiles():",
            "    block(*where)",
        ),
    ),
    Honest(
        "recursion that halves what is left",
        "silu",
        body(
            *BLOCK_LINES,
            "def halve(a, b, c, d):",
            "    if b - a > 128:",
            "        halve(a, (a + b) // 2, c, d)",
            "        halve((a + b) // 2, b, c, d)",
            "    elif d - c > 512:",
            "        halve(a, b, c, (c + d) // 2)",
            "        halve(a, b, (c + d) // 2, d)",
            "    else:",
            "        block(a, b, c, d)",
            "halve(0, x.shape[0], 0, x.shape[1])",
        ),
    ),
    Honest(
        "closures in a table",
        "silu",
        body(
            *BLOCK_LINES,
            "import functools",
            "import itertools",
            "todo = [functools.partial(block, a, a + 128) for a in (128, 0)]",
            "for run, c in itertools.product(todo, range(0, 2048, 256)):",
            "    run(c, c + 256)",
        ),
    ),
    Honest(
        "a class that keeps the shapes",
        "silu",
        HEAD.replace(
            "@nki.jit",
            "class Walk:\n    def __init__(self, m, n):\n        self.m, self.n = m, n\n\n"
            "    def __iter__(self):\n        return iter([(a, a + 128) for a in range(0, self.m, 128)])"
            "\n\n\n@nki.jit",
        )
        + "".join(
            f"    {line}\n"
            for line in (
                *BLOCK_LINES,
                "for a, b in Walk(*x.shape):",
                "    block(a, b, 0, 2048)",
                "return out",
            )
        ),
    ),
    Honest(
        "backwards, and the first tile twice",
        "silu",
        body(
            *BLOCK_LINES,
            "for a in (0, 128, 0):",
            "    for c in range(1024, -1, -1024):",
            "        block(a, a + 128, c, c + 1024)",
        ),
    ),
    Honest(
        "a single row at a time, some of them",
        "silu",
        body(
            *BLOCK_LINES,
            "for a in range(4):",
            "    block(a, a + 1, 0, 2048)",
            "block(4, 128, 0, 2048)",
            "block(128, 256, 0, 2048)",
        ),
    ),
    Honest(
        "the device's own function",
        "silu",
        body(
            "for i in range(2):",
            *indent(
                tile("s", 128, 2048),
                "nisa.dma_copy(dst=s, src=x[i * 128 : (i + 1) * 128, 0:2048])",
                "nisa.activation(dst=s, op=nl.silu, data=s)",
                "nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:2048], src=s)",
            ),
        ),
    ),
    Honest(
        "through the hyperbolic tangent",
        "silu",
        body(
            "for i in range(2):",
            *indent(
                tile("s", 128, 2048),
                tile("t", 128, 2048),
                "nisa.dma_copy(dst=s, src=x[i * 128 : (i + 1) * 128, 0:2048])",
                "nisa.activation(dst=t, op=nl.tanh, data=s, scale=0.5)",
                "nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=0.5)",
                "nisa.tensor_tensor(dst=t, data1=t, data2=s, op=nl.multiply)",
                "nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:2048], src=t)",
            ),
        ),
    ),
    Honest(
        "recomputation instead of keeping",
        "silu",
        edit(
            "silu",
            (
                "            denominator = ",
                (
                    "            nisa.activation(dst=exp_neg, op=nl.exp, data=x_tile, scale=-1.0)\n"
                    "            denominator = "
                ),
            ),
        ),
    ),
    Honest(
        "through scratch memory in HBM",
        "silu",
        body(
            "scratch = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)",
            "nisa.dma_copy(dst=scratch, src=x)",
            "for i in range(2):",
            *indent(*one(128, 2048, "i * 128 : (i + 1) * 128, 0:2048"))[:2],
            "    nisa.dma_copy(dst=s, src=scratch[i * 128 : (i + 1) * 128, 0:2048])",
            *indent(*one(128, 2048, "i * 128 : (i + 1) * 128, 0:2048"))[3:],
        ),
    ),
    Honest(
        "a loop of the device with known bounds",
        "silu",
        body(
            "def step(i):",
            *indent(*one(128, 2048, "nl.ds(i * 128, 128), 0:2048")),
            "nl.fori_loop(0, 2, step)",
        ),
    ),
    Honest(
        "unused work and unused tiles",
        "silu",
        edit(
            "silu",
            (
                "            denominator = ",
                (
                    "            spare = nl.ndarray((TILE_M, TILE_N), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
                    "            nisa.tensor_copy(dst=spare, src=x_tile)\n            denominator = "
                ),
            ),
        ),
    ),
)
