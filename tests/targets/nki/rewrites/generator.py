"""Random small kernels for the property test of rewrites: what a seed draws, it draws on every machine.

A kernel works on tiles of 128 rows of its inputs, in one loop over them or in two passes. Its body is a
chain of stages, each of which makes a tile `(128, n)` from those that are there: element-wise steps,
reductions that scale or shift rows, softmax, loops over chunks of columns, products through PSUM, copies in
other types, sums that a loop collects. What a kernel means is what it computes before a rewrite, so no stage
needs a formula beside it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
P = 128
COLUMNS = (256, 512)
CHUNK = 128


@dataclass(frozen=True)
class Drawn:
    """A kernel's source, the shapes of its float32 arguments, and whether it rounds to 16 bits."""

    source: str
    shapes: tuple[tuple[int, ...], ...]
    narrow: bool


@dataclass
class _Body:
    """Lines of a loop body that is being made; `tiles` hold `(128, n)` float32."""

    random: Random
    lines: list[str] = field(default_factory=list)
    tiles: list[str] = field(default_factory=list)
    names: int = 0
    narrow: bool = False

    def name(self, base: str) -> str:
        self.names += 1
        return f"{base}_{self.names}"

    def add(self, *lines: str, depth: int = 0) -> None:
        self.lines += [f"{'    ' * depth}{line}" for line in lines]

    def tile(
        self,
        base: str,
        shape: str = "(P, n)",
        *,
        dtype: str = "float32",
        buffer: str = "sbuf",
        depth: int = 0,
    ) -> str:
        name = self.name(base)
        self.add(f"{name} = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.{buffer})", depth=depth)
        return name

    def column(self, base: str, depth: int = 0) -> str:
        return self.tile(base, "(P, 1)", depth=depth)

    def pick(self) -> str:
        """A tile, the last one most often."""
        return self.random.choice([*self.tiles, self.tiles[-1], self.tiles[-1]])

    def mark_written(self, name: str) -> None:
        self.tiles.append(name)

    def some(self, *options: str) -> str:
        return self.random.choice(options)


# -- stages ----------------------------------------------------------------------------------------

_UNARY = (
    "activation(dst={d}, op=nl.tanh, data={s})",
    "activation(dst={d}, op=nl.exp, data={s}, scale=-0.5)",
    "activation(dst={d}, op=nl.square, data={s})",
    "activation(dst={d}, op=nl.sigmoid, data={s}, bias={c})",
    "tensor_scalar(dst={d}, data={s}, op0=nl.multiply, operand0=0.5)",
    "tensor_scalar(dst={d}, data={s}, op0=nl.add, operand0=1.5)",
    "tensor_scalar(dst={d}, data={s}, op0=nl.subtract, operand0=2.0, reverse0=True)",
    "tensor_scalar(dst={d}, data={s}, op0=nl.multiply, operand0=0.25, op1=nl.add, operand1=0.5)",
    "tensor_scalar(dst={d}, data={s}, op0=nl.maximum, operand0=0.0)",
    "tensor_scalar(dst={d}, data={s}, op0=nl.multiply, operand0={c})",
    "tensor_scalar(dst={d}, data={s}, op0=nl.multiply, operand0=1.0)",
    "tensor_scalar(dst={d}, data={s}, op0=nl.add, operand0=0.0)",
    "tensor_copy(dst={d}, src={s})",
    "tensor_copy(dst={d}, src={s}, engine=nisa.engine.scalar)",
)
_BINARY = (
    "tensor_tensor(dst={d}, data1={s}, data2={t}, op=nl.add)",
    "tensor_tensor(dst={d}, data1={s}, data2={t}, op=nl.subtract)",
    "tensor_tensor(dst={d}, data1={s}, data2={t}, op=nl.multiply)",
    "tensor_tensor(dst={d}, data1={s}, data2={t}, op=nl.maximum)",
    "scalar_tensor_tensor(dst={d}, data={s}, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1={t})",
)


def _call(body: _Body, goal: str, source: str, other: str) -> str:
    """An element-wise instruction from a view to another of the same shape."""
    form = body.some(*_UNARY, *_BINARY)
    return f"nisa.{form.format(d=goal, s=source, t=other, c='edge')}"


def _elementwise(body: _Body) -> None:
    source, other = body.pick(), body.pick()
    goal = source if body.random.random() < 0.15 and len(body.tiles) > 1 else body.tile("e")
    body.add(_call(body, goal, source, other))
    body.mark_written(goal)


def _chain(body: _Body) -> None:
    """Two steps, of which only the second result is used on."""
    middle, goal = body.tile("inner"), body.tile("e")
    source = body.pick()
    body.add(_call(body, middle, source, source), _call(body, goal, middle, body.pick()))
    body.mark_written(goal)


def _twice(body: _Body) -> None:
    """The same instruction on the same tile, and something that nobody needs."""
    source = body.pick()
    form = body.some(*_UNARY)
    first, second, idle, goal = (body.tile(base) for base in ("one", "two", "idle", "e"))
    for dst in (first, second, idle):
        body.add(f"nisa.{form.format(d=dst, s=source, c='edge')}")
    body.add(f"nisa.tensor_tensor(dst={goal}, data1={first}, data2={second}, op=nl.add)")
    body.mark_written(goal)


def _halves(body: _Body) -> None:
    """A tile made in two parts."""
    goal, source, other = body.tile("half"), body.pick(), body.pick()
    for part in ("[:, 0 : n // 2]", "[:, n // 2 : n]"):
        body.add(_call(body, goal + part, source + part, other + part))
    body.mark_written(goal)


def _rows(body: _Body) -> None:
    """A sum or maximum along each row, and the row changed by it."""
    source, goal, found = body.pick(), body.tile("r"), body.column("found")
    op, negate = body.some("add", "maximum", "minimum"), body.some("", ", negate=True")
    body.add(f"nisa.tensor_reduce(dst={found}, op=nl.{op}, data={source}, axis=1{negate})")
    if op == "add":
        mean = body.column("mean")
        body.add(f"nisa.tensor_scalar(dst={mean}, data={found}, op0=nl.multiply, operand0=1.0 / n)")
        found = mean
    how = body.some(
        f"tensor_scalar(dst={goal}, data={source}, op0=nl.add, operand0={found})",
        f"tensor_scalar(dst={goal}, data={source}, op0=nl.multiply, operand0={found})",
        f"activation(dst={goal}, op=nl.tanh, data={source}, bias={found})",
    )
    body.add(f"nisa.{how}")
    body.mark_written(goal)


def _norm(body: _Body) -> None:
    """Rows over the root of their mean square, spelled out in one of three ways."""
    source, squares, goal = body.pick(), body.tile("squares"), body.tile("n")
    total, mean, inverse = body.column("total"), body.column("mean"), body.column("inverse")
    body.add(
        f"nisa.tensor_tensor(dst={squares}, data1={source}, data2={source}, op=nl.multiply)",
        f"nisa.tensor_reduce(dst={total}, op=nl.add, data={squares}, axis=1)",
        f"nisa.tensor_scalar(dst={mean}, data={total}, op0=nl.multiply, operand0=1.0 / n, "
        f"op1=nl.add, operand1=0.1)",
    )
    if body.random.random() < 0.5:
        root = body.column("root")
        body.add(f"nisa.activation(dst={root}, op=nl.sqrt, data={mean})")
        body.add(f"nisa.reciprocal(dst={inverse}, data={root})")
    else:
        body.add(f"nisa.activation(dst={inverse}, op=nl.rsqrt, data={mean})")
    body.add(f"nisa.tensor_scalar(dst={goal}, data={source}, op0=nl.multiply, operand0={inverse})")
    body.mark_written(goal)


def _standardise(body: _Body) -> None:
    """Rows over the root of the mean square of what is left of their mean."""
    source, centred, squares, goal = body.pick(), body.tile("centred"), body.tile("squares"), body.tile("z")
    total, mean, spread, inverse = (body.column(base) for base in ("total", "mean", "spread", "inverse"))
    body.add(
        f"nisa.tensor_reduce(dst={total}, op=nl.add, data={source}, axis=1)",
        f"nisa.tensor_scalar(dst={mean}, data={total}, op0=nl.multiply, operand0=1.0 / n)",
        f"nisa.tensor_scalar(dst={centred}, data={source}, op0=nl.subtract, operand0={mean})",
    )
    if body.random.random() < 0.5:
        body.add(
            f"nisa.activation_reduce(dst={squares}, op=nl.square, data={centred}, reduce_op=nl.add, "
            f"reduce_res={spread})"
        )
    else:
        body.add(f"nisa.tensor_tensor(dst={squares}, data1={centred}, data2={centred}, op=nl.multiply)")
        body.add(f"nisa.tensor_reduce(dst={spread}, op=nl.add, data={squares}, axis=1)")
    body.add(
        f"nisa.tensor_scalar(dst={inverse}, data={spread}, op0=nl.multiply, operand0=1.0 / n, "
        f"op1=nl.add, operand1=0.1)",
        f"nisa.activation(dst={inverse}, op=nl.rsqrt, data={inverse})",
        f"nisa.tensor_scalar(dst={goal}, data={centred}, op0=nl.multiply, operand0={inverse})",
    )
    body.mark_written(goal)


def _neighbours(body: _Body) -> None:
    """The sum or maximum of each column and the next one, both loaded as windows."""
    goal, op = body.tile("w"), body.some("add", "maximum")
    left, right = body.tile("left", "(P, n - 1)"), body.tile("right", "(P, n - 1)")
    body.add(
        f"nisa.dma_copy(dst={left}, src=x[i * P : (i + 1) * P, 0 : n - 1])",
        f"nisa.dma_copy(dst={right}, src=x[i * P : (i + 1) * P, 1:n])",
        f"nisa.memset(dst={goal}, value=0.5)",
        f"nisa.tensor_tensor(dst={goal}[:, 0 : n - 1], data1={left}, data2={right}, op=nl.{op})",
    )
    body.mark_written(goal)


def _gate(body: _Body) -> None:
    """z / (1 + exp(-z)), step by step."""
    source, goal = body.pick(), body.tile("gate")
    exps, ones, gate = (body.tile(base) for base in ("exps", "ones", "inverse"))
    body.add(
        f"nisa.activation(dst={exps}, op=nl.exp, data={source}, scale=-1.0)",
        f"nisa.tensor_scalar(dst={ones}, data={exps}, op0=nl.add, operand0=1.0)",
        f"nisa.reciprocal(dst={gate}, data={ones})",
        f"nisa.tensor_tensor(dst={goal}, data1={source}, data2={gate}, op=nl.multiply)",
    )
    body.mark_written(goal)


def _softmax(body: _Body) -> None:
    """exp(x - max) over its sum, the scores whole or chunk by chunk."""
    source, goal = body.pick(), body.tile("p")
    if body.random.random() < 0.6:
        scores = body.tile("scores")
        at = "[:, j * T : (j + 1) * T]"
        body.add("for j in nl.affine_range(n // T):")
        move = body.some(
            f"tensor_copy(dst={scores}{at}, src={source}{at})",
            f"tensor_scalar(dst={scores}{at}, data={source}{at}, op0=nl.multiply, operand0=0.5)",
        )
        body.add(f"nisa.{move}", depth=1)
        source = scores
    top, exps, total, inverse = (
        body.column("top"),
        body.tile("exps"),
        body.column("total"),
        body.column("inv"),
    )
    body.add(
        f"nisa.tensor_reduce(dst={top}, op=nl.maximum, data={source}, axis=1, negate=True)",
        f"nisa.activation(dst={exps}, op=nl.exp, data={source}, bias={top})",
        f"nisa.tensor_reduce(dst={total}, op=nl.add, data={exps}, axis=1)",
        f"nisa.reciprocal(dst={inverse}, data={total})",
        f"nisa.tensor_scalar(dst={goal}, data={exps}, op0=nl.multiply, operand0={inverse})",
    )
    body.mark_written(goal)


def _chunks(body: _Body) -> None:
    """A loop over chunks of columns, through a tile of its own or straight."""
    source, other, goal = body.pick(), body.pick(), body.tile("c")
    at = "[:, j * T : (j + 1) * T]"
    body.add(f"for j in nl.{body.some('affine_range', 'sequential_range')}(n // T):")
    if body.random.random() < 0.6:
        part = body.tile("part", "(P, T)", depth=1)
        body.add(_call(body, part, source + at, other + at), depth=1)
        body.add(_call(body, goal + at, part, other + at), depth=1)
    else:
        body.add(_call(body, goal + at, source + at, other + at), depth=1)
    body.mark_written(goal)


def _sum_in_column(body: _Body) -> None:
    """A sum over chunks, collected in a column that a memset or a condition sets first."""
    source, goal, total = body.pick(), body.tile("s"), body.column("total")
    first = f"nisa.memset(dst={total}, value=0.0)"
    condition = body.random.random() < 0.5
    if not condition:
        body.add(first)
    body.add("for j in nl.affine_range(n // T):")
    if condition:
        body.add("if j == 0:", f"    {first}", depth=1)
    piece = body.column("piece", depth=1)
    body.add(
        f"nisa.tensor_reduce(dst={piece}, op=nl.add, data={source}[:, j * T : (j + 1) * T], axis=1)",
        f"nisa.tensor_tensor(dst={total}, data1={total}, data2={piece}, op=nl.add)",
        depth=1,
    )
    body.add(f"nisa.tensor_scalar(dst={goal}, data={source}, op0=nl.add, operand0={total})")
    body.mark_written(goal)


def _sum_weighted_rows(body: _Body) -> None:
    """A sum of products of a tile with rows of the second input, each the same in all partitions."""
    source, total = body.pick(), body.tile("total")
    body.add(f"nisa.memset(dst={total}, value=0.0)", "for j in nl.sequential_range(3):")
    row, part = body.tile("row", depth=1), body.tile("part", depth=1)
    body.add(
        f"nisa.dma_copy(dst={row}, src=w[j : j + 1, 0:n].broadcast(0, P))",
        f"nisa.tensor_tensor(dst={part}, data1={source}, data2={row}, op=nl.multiply)",
        f"nisa.tensor_tensor(dst={total}, data1={total}, data2={part}, op=nl.add)",
        depth=1,
    )
    body.mark_written(total)


def _recurrence(body: _Body) -> None:
    """A column that is carried along the columns of two tiles, step by step."""
    scale, shift, goal = body.tile("scale"), body.pick(), body.tile("steps")
    carried = body.column("carried")
    body.add(
        f"nisa.activation(dst={scale}, op=nl.sigmoid, data={body.pick()})",
        f"nisa.memset(dst={carried}, value=0.5)",
        "for t in nl.sequential_range(n):",
    )
    at = "[:, t : t + 1]"
    operators = body.some("op0=nl.multiply, {}, op1=nl.add, {}", "op0=nl.multiply, {}, op1=nl.maximum, {}")
    words = operators.format(f"operand0={scale}{at}", f"operand1={shift}{at}")
    body.add(
        f"nisa.scalar_tensor_tensor(dst={carried}, data={carried}, {words})",
        f"nisa.tensor_copy(dst={goal}{at}, src={carried})",
        depth=1,
    )
    body.mark_written(goal)


def _transpose_tile(body: _Body) -> str:
    """A tile, transposed chunk by chunk."""
    source, left = body.pick(), body.tile("left", "(P, n // P, P)")
    body.add("for q in nl.affine_range(n // P):")
    turned = body.tile("turned", "(P, P)", buffer="psum", depth=1)
    body.add(
        f"nisa.nc_transpose(dst={turned}, data={source}[:, q * P : (q + 1) * P])",
        f"nisa.tensor_copy(dst={left}[:, q, :], src={turned})",
        depth=1,
    )
    return left


def _product(body: _Body) -> None:
    """A tile, transposed chunk by chunk, times the second input, collected in PSUM and brought back."""
    goal, left = body.tile("m"), _transpose_tile(body)
    body.add("for j in nl.affine_range(n // T):")
    acc = body.tile("acc", "(P, T)", buffer="psum", depth=1)
    body.add("for q in nl.affine_range(n // P):", depth=1)
    right = body.tile("right", "(P, T)", depth=2)
    body.add(
        f"nisa.dma_copy(dst={right}, src=w[q * P : (q + 1) * P, j * T : (j + 1) * T])",
        f"nisa.nc_matmul(dst={acc}, stationary={left}[:, q, :], moving={right})",
        depth=2,
    )
    _copy_from_psum(body, goal, acc)


def _copy_from_psum(body: _Body, goal: str, acc: str) -> None:
    """Columns `j` of a tile, brought back from PSUM."""
    done = body.some(
        f"tensor_copy(dst={goal}[:, j * T : (j + 1) * T], src={acc})",
        f"activation(dst={goal}[:, j * T : (j + 1) * T], op=nl.tanh, data={acc})",
        f"tensor_scalar(dst={goal}[:, j * T : (j + 1) * T], data={acc}, op0=nl.multiply, operand0=0.125)",
    )
    body.add(f"nisa.{done}", depth=1)
    body.mark_written(goal)


def _summed_product(body: _Body) -> None:
    """The same, added up in SBUF: in chunks of columns or whole, from zeros or from something else."""
    left, total = _transpose_tile(body), body.tile("total")
    width = body.some("T", "T", "n")
    at = "" if width == "n" else "[:, j * T : (j + 1) * T]"
    body.add(f"nisa.memset(dst={total}, value={body.some('0.0', '0.0', '0.0', '1.0')})")
    body.add("for q in nl.sequential_range(n // P):", f"    for j in nl.affine_range(n // {width}):")
    part = body.tile("part", f"(P, {width})", buffer="psum", depth=2)
    right = body.tile("right", f"(P, {width})", depth=2)
    operands = body.some(f"data1={total}{at}, data2={part}", f"data1={part}, data2={total}{at}")
    columns = f"j * {width} : (j + 1) * {width}"
    body.add(
        f"nisa.dma_copy(dst={right}, src=w[q * P : (q + 1) * P, {columns}])",
        f"nisa.nc_matmul(dst={part}, stationary={left}[:, q, :], moving={right})",
        f"nisa.tensor_tensor(dst={total}{at}, {operands}, op=nl.add)",
        depth=2,
    )
    body.mark_written(total)


def _short_product(body: _Body) -> None:
    """Some columns of a tile times as many rows of the second input: fewer than the array has rows."""
    rows = body.some("P // 2", "P // 4")
    source, goal = body.pick(), body.tile("m")
    turned = body.tile("turned", f"({rows}, P)", buffer="psum")
    left, right = body.tile("left", f"({rows}, P)"), body.tile("right", f"({rows}, n)")
    body.add(
        f"nisa.nc_transpose(dst={turned}, data={source}[:, 0 : {rows}])",
        f"nisa.tensor_copy(dst={left}, src={turned})",
        f"nisa.dma_copy(dst={right}, src=w[0 : {rows}, 0:n])",
        "for j in nl.affine_range(n // T):",
    )
    acc = body.tile("acc", "(P, T)", buffer="psum", depth=1)
    part = f"{right}[:, j * T : (j + 1) * T]"
    body.add(f"nisa.nc_matmul(dst={acc}, stationary={left}, moving={part})", depth=1)
    _copy_from_psum(body, goal, acc)


def _weights(body: _Body) -> None:
    """A tile of the second input, the same for all rows."""
    name, goal, source = body.tile("weights"), body.tile("e"), body.pick()
    body.add(f"nisa.dma_copy(dst={name}, src=w[0:P, 0:n])")
    body.add(f"nisa.tensor_tensor(dst={goal}, data1={source}, data2={name}, op=nl.multiply)")
    body.mark_written(goal)


def _turned_weights(body: _Body) -> None:
    """Columns of the second input that DMA turns on their way: all at once, or chunk by chunk."""
    name, goal, source = body.tile("rows"), body.tile("e"), body.pick()
    if body.random.random() < 0.5:
        body.add(f"nisa.dma_transpose(dst={name}, src=w[0:n, 0:P])")
    else:
        chunk = body.some("q * P : (q + 1) * P", "nl.ds(q * P, P)")
        body.add("for q in nl.affine_range(n // P):")
        body.add(f"nisa.dma_transpose(dst={name}[:, {chunk}], src=w[{chunk}, P : 2 * P])", depth=1)
    body.add(f"nisa.tensor_tensor(dst={goal}, data1={source}, data2={name}, op=nl.multiply)")
    body.mark_written(goal)


def _round_through_bfloat16(body: _Body) -> None:
    """Through bfloat16 and back."""
    body.narrow = True
    source, narrow, goal = body.pick(), body.tile("narrow", dtype="bfloat16"), body.tile("wide")
    body.add(f"nisa.tensor_copy(dst={narrow}, src={source})", f"nisa.tensor_copy(dst={goal}, src={narrow})")
    body.mark_written(goal)


def _permute_columns(body: _Body) -> None:
    """Columns in another order: a view with its axes permuted."""
    source, goal = body.pick(), body.tile("view")
    view = ".reshape_dim(1, (2, n // 2)).permute((0, 2, 1))"
    middle = body.tile("pairs", "(P, n // 2, 2)")
    body.add(f"nisa.tensor_copy(dst={middle}, src={source}{view})")
    body.add(f"nisa.tensor_copy(dst={goal}, src={middle}.reshape((P, n)))")
    body.mark_written(goal)


Stage = Callable[[_Body], None]
_STAGES: tuple[tuple[Stage, int], ...] = (
    (_elementwise, 4), (_chain, 3), (_twice, 1), (_halves, 1), (_rows, 2), (_norm, 2), (_gate, 1),
    (_softmax, 3), (_chunks, 2), (_sum_in_column, 1), (_product, 3), (_weights, 1),
    (_round_through_bfloat16, 1), (_permute_columns, 1), (_short_product, 2), (_sum_weighted_rows, 1),
    (_recurrence, 1), (_summed_product, 2), (_turned_weights, 2), (_standardise, 1), (_neighbours, 1),
)  # fmt: skip


# -- kernels ---------------------------------------------------------------------------------------

_PLAIN, _PIECES, _TAIL, _GRID, _PASSES = "plain", "pieces", "tail", "grid", "passes"


def draw(seed: int) -> Drawn:
    """The kernel of a seed."""
    random = Random(seed)
    form = random.choice([_PLAIN, _PLAIN, _PLAIN, _PIECES, _TAIL, _GRID, _PASSES])
    body = _Body(random)
    n = random.choice(COLUMNS)
    rows = P * random.choice([1, 2, 4])
    if form == _TAIL:
        return _tail(body, rows + random.choice([-32, 32]), n)
    if form == _GRID:
        return _grid(body, rows, n)
    if form == _PASSES:
        return _passes(body, rows, n)
    _load(body, pieces=form == _PIECES)
    stages, weights = zip(*_STAGES, strict=True)
    for stage in random.choices(stages, weights, k=random.randint(1, 4)):
        stage(body)
    _store(body, pieces=form == _PIECES)
    return Drawn(_source(body, ["i in nl.affine_range(m // P)"]), ((rows, n), (n, n)), body.narrow)


def _load(body: _Body, *, pieces: bool) -> None:
    row = "i * P : (i + 1) * P"
    tile, edge = body.tile("x_tile"), "edge"
    if pieces:
        at = "j * T : (j + 1) * T"
        body.add("for j in nl.affine_range(n // T):")
        part = body.tile("piece", "(P, T)", depth=1)
        body.add(
            f"nisa.dma_copy(dst={part}, src=x[{row}, {at}])",
            f"nisa.tensor_copy(dst={tile}[:, {at}], src={part})",
            depth=1,
        )
    else:
        body.add(f"nisa.dma_copy(dst={tile}, src=x[{row}, 0:n])")
    body.add(f"{edge} = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)")
    body.add(f"nisa.tensor_copy(dst={edge}, src={tile}[:, 0:1])")
    body.mark_written(tile)


def _store(body: _Body, *, pieces: bool) -> None:
    row, last = "i * P : (i + 1) * P", body.tiles[-1]
    if pieces:
        body.add("for j in nl.affine_range(n // T):")
        at = "j * T : (j + 1) * T"
        body.add(f"nisa.dma_copy(dst=out[{row}, {at}], src={last}[:, {at}])", depth=1)
    else:
        body.add(f"nisa.dma_copy(dst=out[{row}, 0:n], src={last})")


def _tail(body: _Body, rows: int, n: int) -> Drawn:
    """Element-wise work on tiles of which the last one is not full."""
    body.add("start = i * P", "size = min(P, m - start)")
    source, at = body.tile("x_tile"), "[0:size, :]"
    body.add(f"nisa.dma_copy(dst={source}{at}, src=x[start : start + size, 0:n])")
    source = _steps(body, source, "(P, n)", at)
    body.add(f"nisa.dma_copy(dst=out[start : start + size, 0:n], src={source}{at})")
    return Drawn(_source(body, ["i in nl.affine_range((m + P - 1) // P)"]), ((rows, n), (n, n)), narrow=False)


def _grid(body: _Body, rows: int, n: int) -> Drawn:
    """Element-wise work on tiles of rows and columns, some with few rows; the first may be one for a row."""
    window = "[i * P : (i + 1) * P, j * T : (j + 1) * T]"
    source = body.tile("x_tile", "(P, T)")
    outside = [body.lines.pop()] if body.random.random() < 0.5 else []
    body.add(f"nisa.dma_copy(dst={source}, src=x{window})")
    source = _steps(body, source, "(P, T)", "")
    body.add(f"nisa.dma_copy(dst=out{window}, src={source})")
    loops = ["i in nl.affine_range(m // P)", "j in nl.affine_range(n // T)"]
    partitions = body.random.choice([P, P // 2, P // 4])
    return Drawn(_source(body, loops, outside, partitions), ((rows, n), (n, n)), narrow=False)


def _passes(body: _Body, rows: int, n: int) -> Drawn:
    """Two loops over tiles of rows; the second loads what the first stored: the same rows, or others."""
    row = "i * P : (i + 1) * P"
    _load(body, pieces=False)
    _elementwise(body)
    body.add(f"nisa.dma_copy(dst=between[{row}, 0:n], src={body.tiles[-1]})")
    second = _Body(body.random, names=body.names if body.random.random() < 0.5 else 0)
    others = ["0:P", row if body.random.random() < 0.5 else row.replace("i", "(m // P - 1 - i)")]
    source = second.random.choice([row, row, *others])
    tile, edge = second.tile("back"), second.column("edge")
    if second.random.random() < 0.5:
        second.add("for j in nl.affine_range(n // T):")
        at = "j * T : (j + 1) * T"
        part = second.tile("piece", "(P, T)", depth=1)
        second.add(
            f"nisa.dma_copy(dst={part}, src=between[{source}, {at}])",
            f"nisa.tensor_copy(dst={tile}[:, {at}], src={part})",
            depth=1,
        )
    else:
        second.add(f"nisa.dma_copy(dst={tile}, src=between[{source}, 0:n])")
    second.add(f"nisa.dma_copy(dst={edge}, src=x[{row}, 0:1])")
    second.mark_written(tile)
    form = second.some(*_UNARY, *_BINARY).format(d=tile, s=tile, t=tile, c=edge)
    second.add(f"nisa.{form}", f"nisa.dma_copy(dst=out[{row}, 0:n], src={tile})")
    made = _source(body, ["i in nl.affine_range(m // P)"])
    index = second.some("i", "r")
    lines = [line if index == "i" else re.sub(r"\bi\b", index, line) for line in second.lines]
    loop = "\n".join([f"    for {index} in nl.affine_range(m // P):", *(f"        {line}" for line in lines)])
    between = "    between = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.hbm)\n"
    made = made.replace("    for i in", f"{between}    for i in", 1).replace(
        "    return", f"{loop}\n    return"
    )
    return Drawn(made, ((rows, n), (n, n)), narrow=False)


def _steps(body: _Body, source: str, shape: str, at: str) -> str:
    """One to three element-wise steps, each to a tile of its own; the last tile."""
    for _ in range(body.random.randint(1, 3)):
        goal = body.tile("e", shape)
        form = body.some(*(item for item in (*_UNARY, *_BINARY) if "{c}" not in item))
        body.add(f"nisa.{form.format(d=goal + at, s=source + at, t=source + at)}")
        source = goal
    return source


def _source(body: _Body, loops: list[str], outside: Sequence[str] = (), partitions: int = P) -> str:
    """The module; `outside` are lines in front of the innermost loop."""
    head = ["m, n = x.shape", "out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)"]
    nest = [f"{'    ' * depth}for {loop}:" for depth, loop in enumerate(loops)]
    nest[-1:-1] = [f"{'    ' * (len(loops) - 1)}{line}" for line in outside]
    inner = [f"{'    ' * len(loops)}{line}" for line in body.lines]
    text = textwrap.indent("\n".join([*head, *nest, *inner, "return out"]), "    ")
    return f"{HEADER}\nP = {partitions}\nT = {CHUNK}\n\n\n@nki.jit\ndef kernel(x, w):\n{text}\n"
