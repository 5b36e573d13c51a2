"""Honest kernels for `silu` in Python that few kernels are written in."""

from __future__ import annotations

from tests.adversarial.honest.silu import BLOCK_LINES, one
from tests.adversarial.model import Honest, body

ROWS = "for a in range(0, x.shape[0], 128):"


def define_tile_kernel(text: str, *lines: str, imports: str = "") -> str:
    """Return a kernel of these lines behind the tile's function, with imports and definitions in front."""
    kernel = body(*BLOCK_LINES, *lines).replace("@nki.jit", f"{text}\n\n\n@nki.jit" if text else "@nki.jit")
    return f"{imports}\n{kernel}" if imports else kernel


FROZEN = """@dataclass(frozen=True)
class Span:
    first: int
    size: int = 128

    @property
    def end(self) -> int:
        return self.first + self.size

    def __len__(self):
        return self.size"""
CONFIG = """@dataclass
class Config:
    dims: tuple
    kept: int = 0
    lookup: int = 0
    patterns: tuple = ()
    numpy: bool = False
    data: int = 2048
    storage: int = 128"""
HELD = """@dataclass
class Held:
    tile: object"""
COUNTED = """class Rows(nl.NKIObject):
    def __init__(self, step):
        self._step, self._next = step, 0

    def _advance(self):
        self._next += self._step

    def take(self):
        found = self._next
        self._advance()
        return found"""
NAMED = """class Where(NamedTuple):
    top: int
    left: int"""
CONTEXT = """class Block:
    def __init__(self, rows):
        self.rows = rows

    def __enter__(self):
        return self.rows.pop(0)

    def __exit__(self, *_):
        return False"""
ITERATOR = """class Steps:
    def __init__(self, end, step):
        self.at, self.end, self.step = -step, end, step

    def __iter__(self):
        return self

    def __next__(self):
        self.at += self.step
        if self.at >= self.end:
            raise StopIteration
        return self.at"""
CACHED = """@lru_cache(maxsize=None)
def ends(size, step):
    return [min(a + step, size) for a in range(0, size, step)]"""
WRAPPED = """def twice(run):
    @wraps(run)
    def both(a, b):
        run(a, a + (b - a) // 2)
        return run(a + (b - a) // 2, b)

    return both"""
GENERIC = """T = TypeVar("T")


def halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    return items[: len(items) // 2], items[len(items) // 2 :]"""
TYPED = """Rows = Sequence[int]


def starts(size: int, *, step: Optional[int] = None) -> Rows:
    return list(range(0, size, step or 128))"""

INHERITED = """class Walk:
    size = 128

    def __init__(self, end):
        self._end = end

    def __iter__(self):
        return iter(range(0, self._end, self.size))


class Late(Walk):
    def __init__(self, end):
        super().__init__(end)

    def __iter__(self):
        return reversed(list(super().__iter__()))"""
ORDERED = """class Half(IntEnum):
    TOP = 0
    BOTTOM = 1"""

KERNELS = tuple(
    Honest(idea, "silu", kernel)
    for idea, kernel in (
        (
            "names of tiles that count on from call to call",
            body(
                ROWS,
                "    number = len(NAMES)",
                "    NAMES.append(number)",
                *(
                    "    " + line.replace("nl.sbuf)", f"nl.sbuf, name=f't{{number}}-{at}')")
                    for at, line in enumerate(one(128, 2048, "a:a + 128, :"))
                ),
            ).replace("@nki.jit", "NAMES = []\n\n\n@nki.jit"),
        ),
        (
            "rows worked out once and remembered",
            define_tile_kernel(
                "@lru_cache(maxsize=None)\ndef starts(size):\n    return tuple(range(0, size, 128))",
                "for a in starts(x.shape[0]):",
                "    block(a, a + 128, 0, 2048)",
                imports="from functools import lru_cache",
            ),
        ),
        (
            "a frozen dataclass with properties",
            define_tile_kernel(
                FROZEN,
                "for span in [Span(a) for a in range(0, 256, 128)]:",
                "    block(span.first, span.end, 0, 2048)",
                "    assert len(span) == span.size, f'{span!r} has {len(span):>4d} rows'",
                imports="from dataclasses import dataclass",
            ),
        ),
        (
            "a class whose fields have names that tensors had once",
            define_tile_kernel(
                CONFIG,
                "cfg = Config(dims=x.shape)",
                "match cfg:",
                "    case Config(dims=(rows, _), kept=0):",
                "        for a in range(cfg.lookup, rows, cfg.storage):",
                "            block(a, a + cfg.storage, cfg.kept, cfg.data)",
                "assert not cfg.numpy and not cfg.patterns, f'{cfg.dims}'",
                imports="from dataclasses import dataclass",
            ),
        ),
        (
            "named tuples from a product",
            define_tile_kernel(
                NAMED,
                "for where in itertools.starmap(Where, itertools.product((0, 128), (0, 1024))):",
                "    block(where.top, where.top + 128, where.left, where.left + 1024)",
                imports="import itertools\nfrom typing import NamedTuple",
            ),
        ),
        (
            "cases matched on numbers and pairs",
            define_tile_kernel(
                "",
                "todo = [(0, 'left'), (0, 'right'), (128, 'both')]",
                "for item in todo:",
                "    match item:",
                "        case (int(a), 'both'):",
                "            block(a, a + 128, 0, 2048)",
                "        case (a, side) if a < 128:",
                "            c = 0 if side == 'left' else 1024",
                "            block(a, a + 128, c, c + 1024)",
                "        case _:",
                "            raise ValueError(f'no case for {item}')",
            ),
        ),
        (
            "a walrus in a condition",
            define_tile_kernel(
                "",
                "a = 0",
                "while (b := a + 128) <= x.shape[0]:",
                "    block(a, b, 0, 2048)",
                "    a = b",
            ),
        ),
        (
            "comprehensions that run for what they do",
            define_tile_kernel(
                "",
                "_ = [block(a, a + 64, c, c + 512) for a in range(0, 256, 64) for c in range(0, 2048, 512)]",
            ),
        ),
        (
            "a context for each tile",
            define_tile_kernel(
                CONTEXT,
                "rows = Block([0, 128])",
                "for _ in range(2):",
                "    with rows as a:",
                "        block(a, a + 128, 0, 2048)",
            ),
        ),
        (
            "an iterator of its own",
            define_tile_kernel(ITERATOR, "for a in Steps(256, 128):", "    block(a, a + 128, 0, 2048)"),
        ),
        (
            "functions cached and partly applied",
            define_tile_kernel(
                CACHED,
                "run = partial(block, c=0, d=2048)",
                "for b in reduce(lambda all, part: all + [part], ends(256, 128), []):",
                "    run(b - 128, b)",
                imports="from functools import lru_cache, partial, reduce",
            ),
        ),
        (
            "sizes by mathematics",
            define_tile_kernel(
                "",
                "step = math.gcd(math.isqrt(256 * 256), 2**7)",
                "for i in range(math.ceil(256 / step)):",
                "    block(i * step, math.prod((i + 1, step)), 0, 2048)",
                imports="import math",
            ),
        ),
        (
            "annotations, keywords and defaults",
            define_tile_kernel(
                TYPED,
                "bounds: dict[int, int] = {a: a + 128 for a in starts(x.shape[0])}",
                "for a, b in sorted(bounds.items(), key=lambda pair: -pair[0]):",
                "    block(a, b, *(0, 2048))",
                imports="from typing import Optional, Sequence",
            ),
        ),
        (
            "a generator handed on, and an else",
            define_tile_kernel(
                "",
                "def halves(a):",
                "    yield from ((a, a + 64), (a + 64, a + 128))",
                ROWS,
                "    for top, bottom in halves(a):",
                "        block(top, bottom, 0, 2048)",
                "else:",
                "    print('{0:>{width}d} rows'.format(256, width=5))",
            ),
        ),
        (
            "tiles printed, alone, in a list, in a dataclass and in a text",
            define_tile_kernel(
                HELD,
                "print(x, [x, out], Held(x), sep='; ')",
                "print(f'{x=} of {x.shape}, {x!s:>40} {nl.float32} {0.5:.1f}')",
                "for a in (0, 128):",
                "    block(a, a + 128, 0, 2048)",
                imports="from dataclasses import dataclass",
            ),
        ),
        (
            "private names of a class of its own",
            define_tile_kernel(
                COUNTED,
                "rows = Rows(128)",
                "for _ in range(2):",
                "    a = rows.take()",
                "    block(a, a + 128, 0, 2048)",
            ),
        ),
        (
            "errors caught and raised again",
            define_tile_kernel(
                "",
                "def checked(a):",
                "    try:",
                "        if a % 128:",
                "            raise IndexError(a)",
                "        block(a, a + 128, 0, 2048)",
                "    except IndexError as error:",
                "        raise ValueError(str(error)) from error",
                "    finally:",
                "        done.append(a)",
                "done = []",
                "list(map(checked, (0, 128)))",
                "assert done == [0, 128]",
            ),
        ),
        (
            "classes that inherit",
            define_tile_kernel(
                INHERITED,
                "for a in Late(256):",
                "    block(a, a + Late.size, 0, 2048)",
            ),
        ),
        (
            "a queue, names in order and operators",
            define_tile_kernel(
                ORDERED,
                "todo = deque(Half)",
                "while todo:",
                "    a = mul(todo.popleft().value, 128)",
                "    with nullcontext(a + 128) as b:",
                "        block(a, b, 0, 2048)",
                imports=(
                    "from collections import deque\nfrom contextlib import nullcontext\n"
                    "from enum import IntEnum\nfrom operator import mul"
                ),
            ),
        ),
        (
            "a dataclass whose annotations are texts",
            define_tile_kernel(
                FROZEN,
                "for span in (Span(0), Span(128, size=64), Span(192, 64)):",
                "    block(span.first, span.end, 0, 2048)",
                imports="from __future__ import annotations\n\nfrom dataclasses import dataclass",
            ),
        ),
        (
            "a function that is decorated",
            define_tile_kernel(
                WRAPPED,
                "@twice",
                "def rows(a, b):",
                "    block(a, b, 0, 2048)",
                ROWS,
                "    rows(a, a + 128)",
                imports="from functools import wraps",
            ),
        ),
        (
            "a generic function",
            define_tile_kernel(
                GENERIC,
                "for part in halves((0, 128)):",
                "    for a in part:",
                "        block(a, a + 128, 0, 2048)",
                imports="from collections.abc import Sequence\nfrom typing import TypeVar",
            ),
        ),
        (
            "a file that is also a program",
            body(*BLOCK_LINES, ROWS, "    block(a, a + 128, 0, 2048)")
            + "\n\nif __name__ == '__main__':\n    print(kernel)\n",
        ),
        (
            "sizes reckoned with NumPy",
            define_tile_kernel(
                "",
                "import numpy as np",
                "ends = np.cumsum([int(np.exp2(np.log2(128)))] * 2)",
                "for end in ends.tolist():",
                "    block(end - 128, end, 0, 2048)",
            ),
        ),
        (
            "a tile per row of a nested table",
            body(
                "table = {'top': slice(0, 128), 'bottom': slice(128, 256)}",
                "for name, rows in table.items():",
                *(f"    {line}" for line in one(128, 2048, "rows, :")),
            ),
        ),
    )
)
