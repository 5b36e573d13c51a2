"""How long engines are busy: reads of accumulated PSUM, and the tensor engine's ramp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.timing.busy_time import ClockRamp
from nki_sim.timing.psum_sums import reads_sums
from nki_sim.timing.schedule import QUEUES, Timeline, schedule

TRN1, TRN2 = targets.load("trn1"), targets.load("trn2")
X = ArraySpec((128, 512), "float32")

SUMS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    r = nl.ndarray((128, WIDTH), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(t, x)
    p = nl.ndarray((128, WIDTH), dtype=nl.float32, buffer=nl.psum)
    q = nl.ndarray((128, WIDTH), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(q, t[:, 0:128], t[:, 0:WIDTH])
    for i in range(COUNT):
        nisa.nc_matmul(p, t[:, 0:128], t[:, 0:WIDTH])
    nisa.nc_matmul(q, t[:, 0:128], t[:, 0:WIDTH], accumulate=False)
    READ
    nisa.dma_copy(out[:, 0:WIDTH], r)
    return out
"""
READS = {"scalar": "nisa.activation(r, nl.copy, p)", "vector": "nisa.tensor_copy(r, p)"}


def reading(tracing: Any, engine: str, *, width: int, count: int) -> float:
    """Cycles that an engine takes to read the sum of `count` products of that width."""
    text = SUMS.replace("WIDTH", str(width)).replace("COUNT", str(count)).replace("READ", READS[engine])
    timeline = schedule(tracing(text, X, target="trn1"), TRN1)
    number = int(np.flatnonzero(timeline.queue == QUEUES.index(engine))[-1])
    return float(timeline.end_ns[number] - timeline.start_ns[number]) * TRN1.clock_ghz(engine)


@pytest.mark.parametrize("engine", READS)
@pytest.mark.parametrize("width", [128, 512])
def test_sums_of_products_are_read_more_slowly_than_products(engine: str, width: int, tracing: Any) -> None:
    """1.4 N, or N and the overhead if that is more."""
    plain = reading(tracing, engine, width=width, count=1)
    summed = reading(tracing, engine, width=width, count=2)
    overhead = getattr(TRN1, f"{engine}_overhead_psum_cycles")
    assert plain == pytest.approx(width + overhead)
    assert summed == pytest.approx(max(width + overhead, TRN1.psum_accumulate_stretch * width))
    assert reading(tracing, engine, width=width, count=5) == pytest.approx(summed)


def test_what_counts_is_the_last_product_before_the_read(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        t, r = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(t, x)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for flag in (False, True, False):
            nisa.nc_matmul(p, t[:, 0:128], t, accumulate=flag)
            nisa.tensor_copy(r, p)
        nisa.tensor_copy(r, t)
        nisa.dma_copy(out, r)
        return out
    """
    program = tracing(text, X)
    assert np.flatnonzero(reads_sums(program)).tolist() == [4]


# With the start partitions that the hardware has.
BOXES = st.tuples(
    st.sampled_from([(0, 128), (0, 96), (0, 64), (64, 128), (0, 32), (32, 64), (64, 96), (96, 128)]),
    st.integers(0, 7),
    st.integers(1, 8),
).map(lambda box: (*box[0], 8 * box[1], 8 * min(8, box[1] + box[2])))
ACCESSES = st.lists(st.tuples(st.sampled_from(["new", "add", "read"]), BOXES), min_size=1, max_size=16)


@given(accesses=ACCESSES, shared=st.booleans())
def test_what_counts_is_what_was_added_to_the_elements_that_are_read(
    accesses: list[tuple[str, tuple[int, ...]]], shared: bool, tracing: Any
) -> None:
    """Element by element, also where two tiles lie in one place of PSUM."""
    lines, sums, expected = [], np.zeros((128, 64), dtype=bool), []
    for number, (kind, (top, bottom, left, right)) in enumerate(accesses):
        part = (slice(top, bottom), slice(left, right))
        place = f"{'pq'[shared and number % 2]}[{top}:{bottom}, {left}:{right}]"
        if kind == "read":
            lines.append(f"nisa.tensor_copy(r[{top}:{bottom}, {left}:{right}], {place})")
            expected.append(bool(sums[part].any()))
        else:
            sums[part] = kind == "add"
            lines.append(
                f"nisa.nc_matmul({place}, t[:, 0:{bottom - top}], t[:, 0:{right - left}], "
                f"accumulate={kind == 'add'})"
            )
    tiles = "p, q = (nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum, address=(0, 0)) for _ in 'pq')"
    body = "\n    ".join([tiles, *lines])
    program = tracing(
        f"""
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    t, r = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    nisa.memset(t, 1.0)
    {body}
    nisa.dma_copy(out, t)
    return out
""",
        X,
    )
    reads = [program.forms[form].op == "tensor_copy" for form in program.form_ids.tolist()]
    assert reads_sums(program)[reads].tolist() == expected


@pytest.mark.parametrize("columns", ["511:512", "0:1", "0:512:2"])
def test_another_product_does_not_make_reading_a_sum_cheap(columns: str, tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        t, r = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(t, x)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for flag in (False, True):
            nisa.nc_matmul(p, t[:, 0:128], t, accumulate=flag)
        nisa.nc_matmul(p[:, COLUMNS], t[:, 0:128], t[:, COLUMNS], accumulate=False)
        nisa.tensor_copy(r, p)
        nisa.dma_copy(out, r)
        return out
    """
    timeline = schedule(tracing(text.replace("COLUMNS", columns), X, target="trn1"), TRN1)
    number = int(np.flatnonzero(timeline.queue == QUEUES.index("vector"))[-1])
    took = (timeline.end_ns[number] - timeline.start_ns[number]) * TRN1.vector_clock_ghz
    assert took == pytest.approx(TRN1.psum_accumulate_stretch * 512)


CHAIN = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(t, 1.0)
    p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i in range(COUNT):
        nisa.nc_matmul(p, t[:, 0:128], t)
    nisa.dma_copy(out, x)
    return out
"""


def products(tracing: Any, target: Any = TRN2, name: str = "trn2") -> tuple[Any, Any]:
    timeline = schedule(tracing(CHAIN.replace("COUNT", "16"), X, target=name), target)
    mine = timeline.queue == QUEUES.index("tensor")
    return timeline.start_ns[mine] - timeline.start_ns[mine][0], (timeline.end_ns - timeline.start_ns)[mine]


def test_the_tensor_engine_reaches_its_clock_after_the_documented_time(tracing: Any) -> None:
    start, took = products(tracing)
    full = took[-1]
    late = 1.03 * TRN2.tensor_ramp_ns  # an instruction's overhead is no work
    assert np.all(took[start + took < TRN2.tensor_ramp_ns] == pytest.approx(full / TRN2.tensor_ramp_ratio))
    assert np.all(took[start >= late] == pytest.approx(full))
    assert (start >= late).sum() > 8
    slow = TRN2.tensor_ramp_ns * (1 - TRN2.tensor_ramp_ratio)
    assert took.sum() == pytest.approx(16 * full + slow, rel=0.01)


def test_half_of_the_rows_never_raise_the_clock_but_keep_it_for_a_while() -> None:
    """As batched products of 64 rows on a device: slow, unless products of all rows go before them."""
    ramp, at = ClockRamp(TRN2), 0.0
    for _ in range(100):
        extra = ramp.extra_ns(at, 400.0, 0.496)
        assert extra == pytest.approx(400.0)
        at += 400.0 + extra
    for _ in range(20):
        at += 400.0 + ramp.extra_ns(at, 400.0, 1.0)
    kept = 0
    while ramp.extra_ns(at, 400.0, 0.496) == 0.0:
        at += 400.0
        kept += 1
    assert 100 < kept < 2000


def test_the_first_generation_has_no_ramp(tracing: Any) -> None:
    _, took = products(tracing, TRN1, "trn1")
    assert np.ptp(took) == pytest.approx(0.0, abs=1e-6)


@given(share=st.floats(0.05, 0.95), piece=st.floats(5.0, 100.0))
def test_the_clock_follows_the_load(share: float, piece: float) -> None:
    """In the long run it is full when the engine works more than half of the time, lowered when less."""
    ramp, at, extra = ClockRamp(TRN2), 0.0, 0.0
    for _ in range(3):
        extra = ramp.extra_ns(at, 2000.0, 1.0)
        at += 2000.0 + extra
    assert extra == 0.0
    for _ in range(round(40 * TRN2.tensor_ramp_ns / piece)):
        at += piece * (1 - share)
        extra = ramp.extra_ns(at, piece * share, 1.0)
        at += piece * share + extra
    # With the lowered clock the same work loads the engine more.
    slow_load = share / TRN2.tensor_ramp_ratio / (share / TRN2.tensor_ramp_ratio + 1 - share)
    if share > 0.52:
        assert extra == 0.0
    if slow_load < 0.48:
        assert extra > 0.0


def test_a_given_order_keeps_what_the_ramp_added(tracing: Any) -> None:
    """Faster products load the tensor engine less, which lowers its clock: not so in a given order."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(t, 1.0)
        p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for i in range(60):
            nisa.nc_matmul(p, t[:, 0:128], t, accumulate=False)
            nisa.tensor_copy(t, p)
        nisa.dma_copy(out, x)
        return out
    """
    program = tracing(text, X)
    first = schedule(program, TRN2)
    faster = replace(TRN2, tensor_clock_ghz=2 * TRN2.tensor_clock_ghz)
    again: Timeline = schedule(program, faster, order=first)
    np.testing.assert_array_equal(again.ramp_ns, first.ramp_ns)
    assert again.span_ns < first.span_ns
    assert schedule(program, faster).ramp_ns.sum() > 0
