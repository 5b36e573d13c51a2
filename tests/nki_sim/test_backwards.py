"""Free dimensions on chip that are walked backwards: bounds, numerics, and what looks at places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import IRError, KernelError
from nki_sim.flow.element_flow import find_input_elements
from nki_sim.flow.graph import has_distinct_elements, trace_data_flow
from nki_sim.forms import Operand
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from tests.support.sweeps import scale_examples

WIDTH = 24
ROWS = 4
X = np.arange(1, ROWS * WIDTH + 1, dtype=np.float32).reshape(ROWS, WIDTH)
Pairs = Sequence[tuple[int, int]]

MOVE = """
@nki.jit
def kernel(x):
    s = nl.ndarray(({rows}, {width}), dtype=x.dtype, buffer=nl.sbuf)
    r = nl.ndarray(({rows}, {width}), dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(({rows}, {width}), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.memset(r, 0.0)
    nisa.dma_copy(dst=s, src=x)
    nisa.{move}
    nisa.dma_copy(dst=out, src=r)
    return out
"""


@st.composite
def patterns(draw: st.DrawFn, *, written: bool = False) -> tuple[int, Pairs]:
    """The first element in its row, and free (step, count) pairs inside it; no element twice if written."""
    pairs: list[tuple[int, int]] = []
    reach = 0
    for _ in range(draw(st.integers(1, 3))):
        # Each pair steps over all that the ones before it span, where nothing may be written twice.
        step = draw(st.integers(reach + 1, reach + 3) if written else st.integers(0, 6))
        count = draw(st.integers(1, max(1, min(5, 1 + (WIDTH - 1 - reach) // max(step, 1)))))
        if reach + step * (count - 1) >= WIDTH:
            break
        reach += step * (count - 1)
        pairs.append((step, count))
    signed = [(draw(st.sampled_from((1, -1))) * step, count) for step, count in reversed(pairs)]
    low = draw(st.integers(0, WIDTH - 1 - reach))
    return low - sum(step * (count - 1) for step, count in signed if step < 0), signed


def places(first: int, pairs: Pairs) -> list[int]:
    """The elements of a row that a pattern touches, in its order: the documented loop."""
    return [
        first + sum(step * at for (step, _), at in zip(pairs, where, strict=True))
        for where in product(*(range(count) for _, count in pairs))
    ]


def pattern(name: str, first: int, pairs: Pairs, width: int = WIDTH) -> str:
    return f"{name}.ap({[[width, ROWS], *(list(pair) for pair in pairs)]}, {first})"


def moved(move: str) -> str:
    return MOVE.format(rows=ROWS, width=WIDTH, move=move)


@given(patterns())
@settings(max_examples=scale_examples(40), deadline=None)
def test_reads_are_the_documented_loop(simulate: Any, found: tuple[int, Pairs]) -> None:
    first, pairs = found
    chosen = places(first, pairs)
    count = len(chosen)
    text = (
        moved(f"tensor_copy(dst=r, src={pattern('s', first, pairs)})")
        .replace(f"r = nl.ndarray(({ROWS}, {WIDTH})", f"r = nl.ndarray(({ROWS}, {count})")
        .replace(f"out = nl.ndarray(({ROWS}, {WIDTH})", f"out = nl.ndarray(({ROWS}, {count})")
    )
    (result,) = simulate(text, X)
    assert np.array_equal(result, X[:, chosen])


@given(patterns(written=True))
@settings(max_examples=scale_examples(40), deadline=None)
def test_writes_are_the_documented_loop(tracing: Any, found: tuple[int, Pairs]) -> None:
    first, pairs = found
    chosen = places(first, pairs)
    dst, data = pattern("r", first, pairs), f"s[:, 0:{len(chosen)}]"
    program = tracing(moved(f"tensor_scalar(dst={dst}, data={data}, op0=nl.add, operand0=1.0)"), X)
    assert checks.check(program, targets.load("trn2")) == []
    wanted = np.zeros_like(X)
    wanted[:, chosen] = X[:, : len(chosen)] + 1
    assert np.array_equal(numerics.run(program, [X])[0], wanted)
    # The same places, one by one: what an element of the result depends on.
    for column in {chosen[0], chosen[-1]}:
        (numbers,) = find_input_elements(program, 0, (1, column)).values()
        assert numbers.tolist() == [WIDTH + chosen.index(column)]
    assert Program.from_bytes(program.to_bytes()).forms == program.forms


@given(patterns(written=True), patterns(written=True), patterns())
@settings(max_examples=scale_examples(60), deadline=None)
def test_reads_know_the_writes_they_see(
    tracing: Any, one: tuple[int, Pairs], two: tuple[int, Pairs], read: tuple[int, Pairs]
) -> None:
    """Against a map of who wrote each element last; the row begins as a memset leaves it."""
    owner, wanted = np.zeros(WIDTH, dtype=int), np.zeros_like(X)
    lines = []
    for number, found in enumerate((one, two), 1):
        chosen = places(*found)
        lines.append(f"tensor_copy(dst={pattern('r', *found)}, src=s[:, 0:{len(chosen)}])")
        owner[chosen], wanted[:, chosen] = number, X[:, : len(chosen)]
    chosen = places(*read)
    text = moved("\n    nisa.".join(lines)).replace("src=r)", f"src={pattern('r', *read)})")
    text = text.replace(f"out = nl.ndarray(({ROWS}, {WIDTH})", f"out = nl.ndarray(({ROWS}, {len(chosen)})")
    program = tracing(text, X)
    writes = [0, len(program) - 3, len(program) - 2]
    (last,) = np.flatnonzero(program.cells.reads & (program.cells.instruction == len(program) - 1))
    sources = {int(program.cells.instruction[cell]) for cell in trace_data_flow(program).sources(int(last))}
    assert sources == {writes[number] for number in owner[chosen]}
    assert np.array_equal(numerics.run(program, [X])[0], wanted[:, chosen])


PRODUCT = """
@nki.jit
def kernel(a, b):
    k, m = a.shape
    n = b.shape[1]
    sa = nl.ndarray((k, m), dtype=a.dtype, buffer=nl.sbuf)
    sb = nl.ndarray((k, n), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=sa, src=a)
    nisa.dma_copy(dst=sb, src=b)
    flipped = nl.ndarray((k, m), dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=flipped, src=sa.ap([[m, k], [-1, m]], m - 1))
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(acc, flipped, sb)
    nisa.nc_matmul(acc.ap([[n, m], [-1, n]], n - 1), flipped, sb.ap([[n, k], [-1, n]], n - 1))
    turned = nl.ndarray((m, k), dtype=a.dtype, buffer=nl.psum)
    nisa.nc_transpose(turned, flipped)
    out, back = nl.ndarray((m, n), nl.float32, nl.shared_hbm), nl.ndarray((m, k), a.dtype, nl.shared_hbm)
    for result, tile in ((out, acc), (back, turned)):
        here = nl.ndarray(tile.shape, tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(here, tile)
        nisa.dma_copy(dst=result, src=here)
    return out, back
"""


def test_products_and_transposes_of_reversed_tiles(simulate: Any) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((32, 16), (32, 512)))
    product_, turned = simulate(PRODUCT, a, b)
    np.testing.assert_allclose(product_, 2 * a[:, ::-1].T @ b, rtol=1e-5, atol=1e-5)
    assert np.array_equal(turned, a[:, ::-1].T)


def test_legacy_index_expressions() -> None:
    text = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    t = nl.load(x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    r = nl.ndarray((nl.par_dim(4), 24), dtype=x.dtype, buffer=nl.sbuf)
    p, i, j = nl.mgrid[0:4, 0:2, 0:12]
    r[p, 2 * j + i] = 3 * t[p, j + (-12 * i + 12)] + t[p, 23 - (2 * j + i)]
    nl.store(out, r)
    return out
"""
    (found,) = numerics.run(nki_sim.trace(text, args=[ArraySpec(X.shape, "float32")]), [X])
    wanted = np.empty_like(X)
    for i, j in product(range(2), range(12)):
        wanted[:, 2 * j + i] = 3 * X[:, j - 12 * i + 12] + X[:, 23 - (2 * j + i)]
    assert np.array_equal(found, wanted)


ANY_ORDER = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    r = nl.zeros((nl.par_dim(4), 6, 4), dtype=x.dtype, buffer=nl.sbuf)
    p, i, j = nl.mgrid[0:4, 0:3, 0:4]
    narrow, short = nl.mgrid[0:4, 0:3, 0:2], nl.mgrid[0:4, 0:2, 0:4]
    for n in nl.affine_range(2):
        {body}
    nl.store(out, r.reshape((4, 24)))
    return out
"""


@pytest.mark.parametrize(
    ("body", "clash"),
    [
        # Each walks every second row; one that is not the other's, and one that is.
        ("r[p, 4 + n - 2 * i, j] = 1.0", False),
        ("r[p, 4 - 2 * i, j] = 1.0", True),
        # Columns side by side, upwards and downwards.
        ("r[narrow.p, 2 - narrow.x, 2 * n + 1 - narrow.y] = 1.0", False),
        # Rows 2..0 in one iteration, rows 0..1 or 3..4 in the other.
        ("r[(p, 2 - i, j) if n else (short.p, short.x, short.y)] = 1.0", True),
        ("r[(p, 2 - i, j) if n else (short.p, short.x + 3, short.y)] = 1.0", False),
    ],
)
def test_iterations_that_depend_on_each_other_are_found(body: str, clash: bool) -> None:
    program = nki_sim.trace(ANY_ORDER.format(body=body), args=[ArraySpec(X.shape, "float32")])
    found = {item.code for item in checks.check(program, targets.load("trn2"))}
    assert found == ({"unexpected_output_dependencies"} if clash else set())


IN_PLACE = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    r = nl.load(x)
    p, f = nl.arange(4)[:, None], nl.arange(8)[None, :]
    r[p, f] = nl.multiply(r[p, {first} - f], 2.0)
    nl.store(out, r)
    return out
"""


@pytest.mark.parametrize(("first", "instructions"), [(15, 3), (11, 4)])
def test_what_is_still_to_be_read_is_not_overwritten(first: int, instructions: int) -> None:
    program = nki_sim.trace(IN_PLACE.format(first=first), args=[ArraySpec(X.shape, "float32")])
    assert len(program) == instructions
    wanted = X.copy()
    wanted[:, 0:8] = 2 * X[:, first - 7 : first + 1][:, ::-1]
    assert np.array_equal(numerics.run(program, [X])[0], wanted)


SHIFTED = """
@nki.jit
def kernel(x, at):
    s, index = nl.load(x), nl.load(at)
    out = nl.ndarray((4, 4), dtype=x.dtype, buffer=nl.shared_hbm)
    r = nl.ndarray((4, 4), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(r, s.ap([[24, 4], [-1, 4]], 3, scalar_offset=index, indirect_dim=1))
    nisa.dma_copy(dst=out, src=r)
    return out
"""


@pytest.mark.parametrize("at", [-1, 0, 20, 21])
def test_data_move_a_pattern_within_its_row(simulate: Any, at: int) -> None:
    index = np.array([[at]], np.int32)
    if 0 <= at <= 20:
        assert np.array_equal(simulate(SHIFTED, X, index)[0], X[:, at : at + 4][:, ::-1])
        return
    with pytest.raises(KernelError) as caught:
        simulate(SHIFTED, X, index)
    assert caught.value.code == "tensor_access_out_of_bound"


@pytest.mark.parametrize(("first", "codes"), [(11, set()), (12, {"uninitialised_read"})])
def test_unwritten_elements_are_found(tracing: Any, first: int, codes: set[str]) -> None:
    text = """
@nki.jit
def kernel(x):
    t = nl.ndarray((4, 24), dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray((4, 12), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=t[:, 0:12], src=x[:, 0:12])
    nisa.dma_copy(dst=out, src=t.ap([[24, 4], [-1, 12]], FIRST))
    return out
""".replace("FIRST", str(first))
    assert {found.code for found in checks.check(tracing(text, X), targets.load("trn2"))} == codes


@pytest.mark.parametrize(
    ("access", "code"),
    [("s.ap([[24, 4], [-1, 24]], 23)", None), ("s.ap([[24, 4], [-1, 24]], 22)", "tensor_access_out_of_bound"),
     ("s.ap([[24, 3], [-1, 24]], 24 + 22)", "tensor_access_out_of_bound"),
     ("s.ap([[24, 4], [2, 12], [-1, 2]], 1)", None),
     ("s.ap([[24, 4], [2, 12], [-1, 2]], 2)", "tensor_access_out_of_bound"),
     ("s.ap([[-24, 4], [1, 24]], 72)", "access_pattern"), ("x.ap([[24, 4], [-1, 24]], 23)", "access_pattern"),
     ("s[:, ::-1]", "access_pattern"), ("s.slice(1, 0, 24, -1)", "access_pattern")],
)  # fmt: skip
def test_what_may_be_walked_backwards(tracing: Any, access: str, code: str | None) -> None:
    text = moved(f"dma_copy(dst=r, src={access})")
    if code is None:
        tracing(text, X)
        return
    with pytest.raises(KernelError) as caught:
        tracing(text, X)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [("[24,4],[-1,24]", "[-24,4],[-1,24]", "backwards"), ("[-1,24]", "[-1,25]", "outside its tensor"),
     ("[24,4],[-1,24]", "[24,3],[-1,25]", "outside its tensor")],
)  # fmt: skip
def test_bytes_that_walk_out_of_a_tensor_are_no_program(tracing: Any, old: str, new: str, text: str) -> None:
    data = tracing(moved("dma_copy(dst=r, src=s.ap([[24, 4], [-1, 24]], 23))"), X).to_bytes()
    assert data.count(old.encode()) == 1
    # Bytes of a header of the same length.
    changed = data.replace(old.encode(), new.encode())
    shorter = changed.replace(b'"kernel":"kernel"', b'"kernel":"' + b"k" * (6 - len(new) + len(old)) + b'"')
    with pytest.raises(IRError, match=text):
        Program.from_bytes(shorter)


def test_how_far_a_pattern_reaches() -> None:
    item = Operand("src", ((24, 4), (8, 2), (-2, 3)), "float32", "sbuf", 24, 0)
    assert (item.reach_below, item.extent, item.free_extent) == (4, 72 + 13, 13)
    assert item.ascending_dims == ((24, 4), (8, 2), (2, 3))
    assert has_distinct_elements(item.dims)
    assert not has_distinct_elements(((24, 4), (3, 2), (-3, 2), (1, 2)))
