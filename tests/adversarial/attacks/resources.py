"""Kernels that use up time, memory or patience, with nothing in their text that the static rules refuse."""

from __future__ import annotations

from state.model import Verdict
from tests.adversarial.model import Attack, body, broken, edit, endless, expect_refusal

RAISED = broken("kernel_exception")
TILE = "t = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf)"


def huge(size: int) -> str:
    """Return a kernel that goes through a large square in HBM."""
    return body(
        f"huge = nl.ndarray(({size}, {size}), dtype=nl.float32, buffer=nl.private_hbm)",
        "nisa.dma_copy(dst=huge[0:256, 0:2048], src=x)",
        "nisa.dma_copy(dst=out, src=huge[0:256, 0:2048])",
    )


RULES_LIMIT = (Verdict.RUNTIME_ERROR, "rules", "limit_memory")


LOOP = "    for i_m"
STORE = "            nisa.dma_copy(\n                dst=out["
PLACE = "[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]"
ROW = """    row = nl.ndarray((1, 8192), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=0.0)
    for i in range(COUNT):
        nisa.memset(dst=row[:, i // 8 : 8192 - i], value=float(i))
"""


def looked_at(rows: int, columns: int) -> str:
    """Return `silu` that passes its result through a tensor in HBM of this size."""
    big = f"    big = nl.ndarray(({rows}, {columns}), dtype=nl.float32, buffer=nl.private_hbm)\n"
    saved = f"            nisa.dma_copy(dst=big{PLACE}, src=out_tile)\n"
    return edit("silu", (LOOP, big + LOOP), (STORE, saved + STORE), ("src=out_tile,", f"src=big{PLACE},"))


def overlapping(count: int) -> str:
    """Return `silu` that first writes parts of one row, each of which overlaps with most others."""
    return edit("silu", (LOOP, ROW.replace("COUNT", str(count)) + LOOP))


ATTACKS = (
    Attack("infinite loop", body("while True: pass"), endless("cpu_limit")),
    Attack(
        "infinite loop that swallows what should stop it",
        body(
            "while True:", "    try:", "        while True: nisa.memset(dst=x, value=[])", "    except: pass"
        ),
        endless("cpu_limit"),
    ),
    Attack(
        "one operation that takes for ever",
        body("raise ValueError(len(str(7 ** (7 ** 9))))"),
        endless("cpu_limit"),
    ),
    Attack(
        "endless generator",
        body("import itertools", "sum(1 for i in itertools.count())"),
        endless("cpu_limit"),
    ),
    Attack(
        "endless instructions",
        body(TILE, "while True: nisa.memset(dst=t, value=0.0)"),
        endless("limit_instructions"),
    ),
    Attack(
        "endless tensors",
        body("while True: nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf)"),
        endless("limit_tensors"),
    ),
    Attack(
        "10 GB on standard output",
        body("text = 'x' * (1 << 24)", "for i in range(640): print(text)", "while True: print(text)"),
        endless("cpu_limit"),
    ),
    Attack("memory bomb", body("held = []", "while True: held.append([0] * (1 << 24))"), RAISED),
    Attack("a text that doubles", body("text = 'x'", "while True: text = text + text"), RAISED),
    Attack("deep recursion", body("def f(n):", "    return f(n + 1)", "f(0)"), RAISED),
    Attack(
        "recursion in C",
        body("items = []", "for i in range(10 ** 5): items = [items]", "raise ValueError(repr(items))"),
        RAISED,
    ),
    Attack("a message of 100 MB", body("raise ValueError('x' * 10 ** 8)"), RAISED),
    Attack("a message that cannot be encoded", body("raise ValueError('\\ud800\\x00\\x1b[2J')"), RAISED),
    Attack(
        "an error that fights back",
        body(
            "class Error(Exception):",
            "    def __str__(self):",
            "        raise self",
            "    def __repr__(self):",
            "        return 7",
            "raise Error",
        ),
        RAISED,
    ),
    Attack(
        "an error group",
        body("raise Exception(ExceptionGroup('a', [ValueError()]))"),
        expect_refusal("forbidden_name"),
        unruled=RAISED,
    ),
    Attack("a tensor larger than the device", huge(1 << 17), broken("hbm_capacity", "rules")),
    Attack(
        "a tensor larger than what a worker may use",
        huge(1 << 15),
        (Verdict.RUNTIME_ERROR, "numerics", "limit_memory"),
    ),
    Attack("a tensor larger than what rules may look at", looked_at(1 << 20, 2900), RULES_LIMIT),
    Attack("thousands of overlapping regions", overlapping(7000), endless("limit_work", "numerics")),
    Attack("a source of 300 KB", "#" * 300_000, expect_refusal("syntax_error")),
    Attack(
        "nesting that a parser cannot follow",
        "x = " + "(" * 5000 + ")" * 5000,
        expect_refusal("syntax_error"),
    ),
    Attack(
        "an f-string that a parser reads anew for each of its 60000 fields",
        'x = f"' + "{a}" * 60_000 + '"',
        expect_refusal("syntax_error"),
    ),
    Attack("not text", b"\xff\xfe\x00", expect_refusal("syntax_error")),
    Attack(
        "work while it is imported",
        edit("silu", ("TILE_M = 128", "TILE_M = 128\nX = max(i for i in range(10**12))")),
        endless("cpu_limit"),
    ),
    Attack("a kernel that is no kernel", "def kernel(x):\n    return x\n", broken("entry")),
    Attack(
        "work while it is decorated",
        edit("silu", ("@nki.jit", "def slow(f):\n    while True: pass\n\n\n@slow\n@nki.jit")),
        endless("cpu_limit"),
    ),
)
