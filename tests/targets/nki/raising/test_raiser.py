"""Kernels in the styles of many authors: each is raised to the same program, in a form that rewrites read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.program.ir import Program
from targets.nki.raising.constant_texts import constant_text
from targets.nki.raising.instruction_rows import NotRaised
from targets.nki.raising.raiser import make_canonical, program_digest, raise_program
from targets.nki.rewrites.kernel_ir import ArrayArgument, Kernel, StatementKind
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.source_form import describe_form
from tests.nki_sim.test_indirection import MX
from tests.support.kernels import HEADER, TARGET

X = ((256, 1024),)


@dataclass(frozen=True)
class Style:
    """A kernel as somebody writes it, its arguments' shapes, and the trips of the loops in it."""

    name: str
    source: str
    shapes: tuple[tuple[int, ...], ...]
    trips: tuple[int, ...]


def _kernel(body: str, parameters: str = "x", before: str = "") -> str:
    return f"{HEADER}{before}\n@nki.jit\ndef kernel({parameters}):\n{body}"


TUTORIAL = _kernel("""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // nl.tile_size.pmax):
        tile = nl.load(x[i * 128:(i + 1) * 128, :])
        nl.store(out[i * 128:(i + 1) * 128, :], nl.exp(tile))
    return out
""")

STUDENT = _kernel("""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = []
    for r in range(0, 256, 128):
        for c in range(0, 1024, 256):
            t = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[r:r+128, c:c+256])
            tiles.append((r, c, t))
    for r, c, t in tiles:
        answer = t
        nisa.activation(dst=answer, op=nl.exp, data=t)
        nisa.dma_copy(dst=out[r:r+128, c:c+256], src=answer)
    return out
""")

ENGINEER = _kernel(
    """
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    for block in Blocks(x, out, width=512).walk():
        tile = block.fetch()
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        block.put(tile)
    return out
""",
    before="""
class Block:
    def __init__(self, source, goal, rows, columns):
        self.source, self.goal, self.key = source, goal, (rows, columns)

    def fetch(self):
        window = self.source[self.key]
        tile = nl.ndarray(window.shape, dtype=window.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=window)
        return tile

    def put(self, tile):
        nisa.dma_copy(dst=self.goal[self.key], src=tile)


class Blocks:
    def __init__(self, source, goal, width=256, height=128):
        self.source, self.goal, self.width, self.height = source, goal, width, height

    def walk(self):
        rows, columns = self.source.shape
        for r in range(rows // self.height):
            for c in range(columns // self.width):
                yield Block(self.source, self.goal, nl.ds(r * self.height, self.height),
                            nl.ds(c * self.width, self.width))
""",
)

BY_HAND = _kernel("""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, :])
    nisa.activation(dst=a[:, 0:256], op=nl.tanh, data=a[:, 0:256])
    nisa.activation(dst=a[:, 256:512], op=nl.tanh, data=a[:, 256:512])
    nisa.activation(dst=a[:, 512:768], op=nl.tanh, data=a[:, 512:768])
    nisa.activation(dst=a[:, 768:1024], op=nl.tanh, data=a[:, 768:1024])
    nisa.dma_copy(dst=out[0:128, :], src=a)
    b = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=x[128:256, :])
    nisa.activation(dst=b[:, 0:256], op=nl.tanh, data=b[:, 0:256])
    nisa.activation(dst=b[:, 256:512], op=nl.tanh, data=b[:, 256:512])
    nisa.activation(dst=b[:, 512:768], op=nl.tanh, data=b[:, 512:768])
    nisa.activation(dst=b[:, 768:1024], op=nl.tanh, data=b[:, 768:1024])
    nisa.dma_copy(dst=out[128:256, :], src=b)
    return out
""")

TWO_BUFFERS = _kernel("""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    buffers = [nl.ndarray((32, 1024), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
    for i in range(8):
        nisa.dma_copy(dst=buffers[i % 2], src=x[i * 32:(i + 1) * 32, :])
        nisa.dma_copy(dst=out[i * 32:(i + 1) * 32, :], src=buffers[i % 2])
    return out
""")

CARRIED = _kernel("""
    out = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.shared_hbm)
    last = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=last, value=0.0)
    for k in reversed(range(4)):
        new = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=new, src=x[0:128, k * 256:(k + 1) * 256])
        nisa.tensor_tensor(dst=new, data1=new, data2=last, op=nl.add)
        nisa.dma_copy(dst=out[:, k * 256:(k + 1) * 256], src=new)
        last = new
    return out
""")

RAGGED = _kernel("""
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    r = 0
    while r < m:
        p = min(96, m - r)
        t = nl.ndarray((p, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[r:r + p, :])
        nisa.dma_copy(dst=out[r:r + p, :], src=t)
        r += p
    return out
""")

VIEWS = _kernel(
    """
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    w = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=w, src=gamma.reshape((1, n)).broadcast(0, 128))
    for i in range(m // 128):
        t = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x.reshape((m // 128, 128, n))[i])
        top = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=t.reshape((128, 16, n // 16)), axis=2)
        nisa.tensor_tensor(dst=t, data1=t, data2=w, op=nl.multiply)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=top[:, 3])
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128], src=t)
    return out
""",
    parameters="x, gamma",
)

FLAT_ROWS = _kernel(
    """
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    for i in range(4):
        t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x.ap([[512, 128], [1, 512]], offset=i * 128 * 512))
        nisa.dma_copy(dst=out.ap([[512, 128], [1, 512]], offset=i * 128 * 512), src=t)
    return out
"""
)

PRODUCT = _kernel(
    """
    k, m = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for j in range(n // 512):
        for i in range(k // 128):
            left = nl.ndarray((128, m), dtype=nl.float32, buffer=nl.sbuf)
            right = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[i * 128:(i + 1) * 128, :])
            nisa.dma_copy(dst=right, src=b[i * 128:(i + 1) * 128, nl.ds(j * 512, 512)])
            nisa.nc_matmul(dst=bank, stationary=left, moving=right, accumulate=i != 0)
        c = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=c, src=bank, engine=nisa.engine.scalar)
        nisa.dma_copy(dst=out[:, j * 512:(j + 1) * 512], src=c)
    return out
""",
    parameters="a, b",
)

FIRST_OF_ITS_KIND = _kernel("""
    out = nl.ndarray((512, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    tops, scores = {}, {}
    for i in range(4):
        for j in range(4):
            for k in range(2):
                t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=x[j * 128:(j + 1) * 128, (i * 2 + k) * 128:(i * 2 + k + 1) * 128])
                scores[i, j, k] = t
                top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(dst=top, op=nl.maximum, data=t, axis=1)
                if (i, k) == (0, 0):
                    tops[j] = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=tops[j], src=top)
                else:
                    nisa.tensor_tensor(dst=tops[j], data1=tops[j], data2=top, op=nl.maximum)
    for j in range(4):
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(4):
            for k in range(2):
                part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=part, data=tops[j], op0=nl.subtract, operand0=scores[i, j, k][:, 0:1])
                if (i, k) == (0, 0):
                    nisa.tensor_copy(dst=total, src=part)
                else:
                    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        nisa.dma_copy(dst=out[j * 128:(j + 1) * 128, :], src=total)
    return out
""")
"""Totals begin with a copy: other calls use the tiles of the first iteration than those of the others."""

STYLES = (
    Style("tutorial", TUTORIAL, X, (2,)),
    Style("student", STUDENT, X, (2, 4, 2, 4)),
    Style("engineer", ENGINEER, X, (2, 2)),
    Style("unrolled by hand", BY_HAND, X, (2, 4)),
    Style("two buffers", TWO_BUFFERS, X, (4, 2)),
    Style("carried backwards", CARRIED, X, (3,)),
    Style("ragged", RAGGED, ((300, 64),), (3,)),
    Style("views", VIEWS, ((256, 1024), (1024,)), (2,)),
    Style("rows of another length", FLAT_ROWS, ((256, 1024),), (4,)),
    Style("first of its kind", FIRST_OF_ITS_KIND, ((512, 1024),), (4, 3, 4, 2, 4, 3, 2)),
    Style("product with one bank", PRODUCT, ((512, 128), (512, 1024)), (2, 3)),
)


def trace(source: str, shapes: tuple[tuple[int, ...], ...]) -> Program:
    return nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in shapes])


def read(source: str, shapes: tuple[tuple[int, ...], ...]) -> Kernel:
    return read_kernel(source, [ArrayArgument(shape, "float32") for shape in shapes], TARGET)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_every_style_is_raised_to_its_own_program_in_a_form_that_rewrites_read(style: Style) -> None:
    before = trace(style.source, style.shapes)
    raised = raise_program(before, style.source)
    assert program_digest(trace(raised, style.shapes)) == program_digest(before)
    kernel = read(raised, style.shapes)
    assert [loop.trips for loop in kernel.loops] == list(style.trips)
    assert not [item.reason for item in kernel.statements if item.kind is StatementKind.OPAQUE]
    arguments = [ArrayArgument(shape, "float32") for shape in style.shapes]
    assert describe_form(raised, arguments, TARGET).obstacles == ()


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_raising_twice_changes_nothing_but_comments(style: Style) -> None:
    raised = raise_program(trace(style.source, style.shapes), style.source)
    again = raise_program(trace(raised, style.shapes), raised)
    assert _without_comments(again) == _without_comments(raised)


def _without_comments(source: str) -> list[str]:
    return [line for line in source.splitlines() if not line.strip().startswith("#")]


def test_a_tile_is_declared_where_its_iterations_do_not_share_it() -> None:
    raised = raise_program(trace(CARRIED, X), CARRIED)
    assert "    new = [nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]" in raised
    assert "nisa.tensor_tensor(dst=new[i + 1], data1=new[i + 1], data2=new[i], op=nl.add)" in raised
    assert "x[0 : 128, 512 - i * 256 : 768 - i * 256]" in raised


def test_a_raised_kernel_refuses_other_shapes_than_those_it_was_raised_for() -> None:
    raised = raise_program(trace(TUTORIAL, X), TUTORIAL)
    with pytest.raises(KernelError, match="AssertionError"):
        trace(raised, ((512, 1024),))


def test_comments_have_the_original_lines() -> None:
    raised = raise_program(trace(STUDENT, X), STUDENT)
    line = next(n for n, text in enumerate(STUDENT.splitlines(), 1) if "nisa.activation" in text)
    assert f"# {line}: nisa.activation(dst=answer, op=nl.exp, data=t)" in raised


QUANTISED = _kernel("""
    out = nl.ndarray((64, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    for j in range(2):
        t = nl.ndarray((128, 256), dtype=nl.bfloat16, buffer=nl.sbuf)
        q = nl.ndarray((128, 64), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        s = nl.ndarray((128, 64), dtype=nl.uint8, buffer=nl.sbuf)
        p = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
        r = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(t, x[:, j * 256:(j + 1) * 256])
        nisa.memset(s, 127)
        nisa.quantize_mx(q, t, s)
        nisa.nc_matmul_mx(p, q, q, s, s)
        nisa.memset(s.view(nl.int8), -1)
        nisa.tensor_copy(r, p)
        nisa.dma_copy(out[:, j * 64:(j + 1) * 64], r)
    return out
""")

CHOSEN = _kernel(
    """
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    i = nl.ndarray((128, 2), dtype=nl.uint16, buffer=nl.sbuf)
    r = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(t, x)
    nisa.dma_copy(i, index)
    nisa.memset(r, 0.0)
    for k in range(4):
        nisa.tensor_copy(r[:, k * 8:(k + 1) * 8], t[:, k * 16:(k + 1) * 16].indirect(i, 8))
    nisa.tensor_copy(r[:, 32:64:2].indirect(i, 16), t[:, 0:16])
    nisa.dma_copy(out, r)
    return out
""",
    parameters="x, index",
)

MX_COLUMNS = HEADER + MX.format(moving="b.indirect(i, 32)", scale="sb.indirect(i, 32)")


def trace_trn3(source: str, *arrays: tuple[tuple[int, ...], str]) -> Program:
    return nki_sim.trace(source, args=[ArraySpec(*one) for one in arrays], target="trn3")


def test_mx_kernels_are_raised_with_integers_in_tiles_of_integers() -> None:
    before = trace_trn3(QUANTISED, ((128, 512), "bfloat16"))
    raised = raise_program(before, QUANTISED)
    assert "nisa.memset(dst=s, value=127)" in raised
    assert re.search(r"nisa\.memset\(dst=s\..*int8\), value=-1\)", raised)
    assert "stationary_scale=s[0 : 100, :], moving_scale=s[0 : 100, :]" in raised
    assert program_digest(trace_trn3(raised, ((128, 512), "bfloat16"))) == program_digest(before)


def test_columns_that_an_index_chooses_are_raised() -> None:
    arrays = ((128, 64), "float32"), ((128, 2), "uint16")
    before = trace_trn3(CHOSEN, *arrays)
    raised = raise_program(before, CHOSEN)
    assert "for i in nl.affine_range(4):" in raised
    assert "t.ap(pattern=[[64, 128], [1, 16]], offset=i * 16).indirect(i_2, num_elem=8)" in raised
    assert "r.ap(pattern=[[64, 128], [2, 16]], offset=32).indirect(i_2, num_elem=16)" in raised
    assert program_digest(trace_trn3(raised, *arrays)) == program_digest(before)


def test_chosen_columns_of_mx_operands_have_no_canonical_form() -> None:
    kinds = ("float8_e4m3fn_x4", "float8_e4m3fn_x4", "uint8", "uint8", "uint16")
    arrays = [((64, columns), kind) for columns, kind in zip((16, 48, 16, 48, 1), kinds, strict=True)]
    form = make_canonical(trace_trn3(MX_COLUMNS, *arrays), MX_COLUMNS)
    assert form.source is None
    assert form.reason == "nc_matmul_mx of columns that an index chooses, as quadrants share its scales"


DEVICE_LOOP = _kernel("""
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    count = nisa.register_alloc(3)
    nisa.memset(dst=t, value=1.0)
    def body(i):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    nl.fori_loop(0, count, body)
    nisa.dma_copy(dst=out, src=t)
    return out
""")

NOTHING_REPEATS = _kernel("""
    out = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:128, :])
    for i in range(700):
        nisa.memset(dst=t[:, 0:1 + i * i % 1000], value=float(i * i % 17))
    nisa.dma_copy(dst=out, src=t)
    return out
""")

CONSTANT = "import numpy as np\n" + _kernel("""
    out = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    held = nl.shared_constant(ARRAY)
    t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=held)
    nisa.dma_copy(dst=out, src=t)
    return out
""")
SCATTERED = CONSTANT.replace(
    "ARRAY", "(np.arange(128 * 128) ** 2 % 8191).astype(np.float32).reshape(128, 128)"
)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (DEVICE_LOOP, "a loop of the device"),
        (NOTHING_REPEATS, "too little repeats"),
        (SCATTERED, "constant data in which too little repeats: `constant`"),
        (SCATTERED.replace("np.float32", "np.uint16"), "constant data of type"),
        (TUTORIAL.replace("(x)", "(x, *more)"), "something else than plain parameters"),
    ],
)
def test_what_has_no_canonical_form_is_kept_with_a_reason(source: str, reason: str) -> None:
    with pytest.raises(NotRaised, match=reason):
        raise_program(trace(source, X), source)
    form = make_canonical(trace(source, X), source)
    assert form.source is None
    assert reason in form.reason


@pytest.mark.parametrize(
    "array",
    [
        "np.full((128, 128), 0.25, dtype=np.float32)",
        "np.eye(128, 128, dtype=np.float32)",
        "np.tri(128, 128, dtype=np.float32)",
        "np.tri(128, 128, dtype=np.float32).T",
    ],
)
def test_a_constant_array_is_written_as_numpy_says_it(array: str) -> None:
    source = CONSTANT.replace("ARRAY", f"0.0 + {array}")
    raised = raise_program(trace(source, X), source)
    assert f"nl.shared_constant({array})" in raised
    assert program_digest(trace(raised, X)) == program_digest(trace(source, X))


@pytest.mark.parametrize(
    ("array", "written"),
    [
        (
            "np.where(np.tri(128, dtype=bool), 0.0, -np.inf)",
            "np.repeat([0.0, -np.inf], [128, 127])[np.arange",
        ),
        ("np.kron(np.eye(8), np.full((16, 16), 1 / 16))", ".repeat(16, 0)"),
        ("np.arange(128 * 128).reshape(128, 128)", "(0.0 + 1.0 * np.arange(16384))"),
        ("np.tile(np.cos(np.arange(4.0)), (128, 32))", "np.tile(np.array([1.0, "),
        (
            "np.eye(128, k=3) - 0.5 * np.eye(128, k=-3)",
            "np.repeat([0.0, -0.5, 0.0, 1.0, 0.0], [124, 1, 5, 1, 124])",
        ),
        ("np.eye(128) * -0.0", "np.full((128, 128), -0.0"),
    ],
)
def test_constant_data_is_described_by_what_repeats_in_it(array: str, written: str) -> None:
    source = CONSTANT.replace("ARRAY", f"({array}).astype(np.float32)")
    raised = raise_program(trace(source, X), source)
    assert written in raised.split("shared_constant(")[1].split("\n")[0]
    assert program_digest(trace(raised, X)) == program_digest(trace(source, X))
    assert describe_form(raised, [ArrayArgument(X[0], "float32")], TARGET).obstacles == ()


@given(
    rows=st.sampled_from([1, 2, 6, 16]),
    columns=st.sampled_from([1, 3, 8, 16]),
    values=st.lists(st.sampled_from([0.0, -0.0, 1.5, math.inf, math.nan]), min_size=1, max_size=4),
    kind=st.sampled_from(["float32", "float16"]),
    stride=st.integers(1, 9),
)
def test_the_text_of_constant_data_makes_the_same_bytes(
    rows: int, columns: int, values: list[float], kind: str, stride: int
) -> None:
    places = (np.arange(rows)[:, None] * (stride // 3) + np.arange(columns) // stride) % len(values)
    held = np.array(values, dtype=kind)[places]
    made = eval(constant_text(held.tobytes(), held.shape, kind, "held"), {"np": np})
    assert (made.shape, made.dtype) == (held.shape, held.dtype)
    assert made.tobytes() == held.tobytes()


def test_programs_that_differ_in_one_window_have_different_digests() -> None:
    other = TUTORIAL.replace("out[i * 128:(i + 1) * 128, :]", "out[(1 - i) * 128:(2 - i) * 128, :]")
    assert program_digest(trace(TUTORIAL, X)) != program_digest(trace(other, X))
    renamed = TUTORIAL.replace("tile", "t").replace("nl.t_size", "nl.tile_size")
    assert program_digest(trace(TUTORIAL, X)) == program_digest(trace(renamed, X))


def test_a_vector_as_a_row_is_raised_to_a_reshape() -> None:
    source = _kernel("""
    out = nl.ndarray((1, 1024), dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((1, 1024), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x.ap([[1, 1], [1, 1024]], offset=0))
    nisa.dma_copy(dst=out, src=row)
    return out
""")
    before = trace(source, ((1024,),))
    raised = raise_program(before, source)
    assert "src=x.reshape((1, 1024))" in raised
    assert program_digest(trace(raised, ((1024,),))) == program_digest(before)
