"""Intervals and comparisons: which constants move, that draws are paired, excerpts of long programs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.errors import ScheduleError
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing import uncertainty
from nki_sim.timing.excerpt import RUN_INSTRUCTIONS, take_excerpt
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.schedule import schedule
from nki_sim.timing.uncertainty import (
    ForecastInterval,
    constant_ranges,
    draw_share,
    draw_target,
    predict_interval,
    win_share,
)
from state.model import Benchmark
from tests.nki_sim.legacy_kernels import HEADER
from tests.support.sweeps import scale_examples

TRN1, TRN2 = targets.load("trn1"), targets.load("trn2")
ALL = [targets.load(name) for name in targets.names()]
DRAWN = st.integers(0, 40)


def spec(*shape: int) -> ArraySpec:
    return ArraySpec(shape, "float32")


def stream(tracing: Any, texts: Any, rows: int, *, width: int = 512) -> Program:
    return tracing(texts.stream(width=width), spec(128 * rows, 1024))


# -- what moves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ALL, ids=lambda target: target.name)
def test_every_uncertain_constant_has_a_range_around_its_value(target: Target) -> None:
    found = constant_ranges(target)
    uncertain = {name for name, tag in target.sources.items() if tag in {"C", "I"}}
    uncertain -= {name for name in uncertain if isinstance(getattr(target, name), bool)}  # switches
    assert uncertain <= found.keys()
    for name, one in found.items():
        assert one.value == getattr(target, name), name
        assert one.low <= one.value <= one.high, name
        assert one.low < one.high or not one.value, name  # ranges are factors
        assert [one.value_at(share) for share in (0.0, 0.5, 1.0)] == pytest.approx(
            [one.low, one.value, one.high]
        )


@pytest.mark.parametrize(("name", "low", "high"), [
    ("vector_overhead_sbuf_cycles", 0.8, 1.42),
    ("vector_overhead_psum_cycles", 0.75, 1.05),
    ("scalar_overhead_sbuf_cycles", 0.8, 1.39),
    ("scalar_overhead_psum_cycles", 0.37, 1.53),
    ("issue_window", 0.83, 2.09),
])  # fmt: skip
def test_fitted_constants_go_as_far_as_fits_without_one_of_the_kernels(
    name: str, low: float, high: float
) -> None:
    reach = constant_ranges(targets.load("trn1"))[name]
    assert reach.low <= low * reach.value
    assert reach.high >= high * reach.value


@pytest.mark.parametrize("target", ALL, ids=lambda target: target.name)
@given(draw=DRAWN)
@settings(max_examples=scale_examples(20))
def test_a_draw_moves_uncertain_constants_within_their_ranges_and_nothing_else(
    target: Target, draw: int
) -> None:
    changed, known = draw_target(target, draw), constant_ranges(target)
    for field in fields(Target):
        value, before = getattr(changed, field.name), getattr(target, field.name)
        if field.name in known and not known[field.name].compiles:
            assert known[field.name].low - 0.5 <= value <= known[field.name].high + 0.5
            assert type(value) is type(before)
        else:
            assert value == before


@pytest.mark.parametrize(("tag", "low", "high"), [("I", 1, 2048), ("C", 16, 60)])
def test_lookahead_moves_from_strict_order_to_none_that_binds_unless_it_is_calibrated(
    tag: str, low: int, high: int
) -> None:
    target = replace(TRN2, issue_window=32, sources={**TRN2.sources, "issue_window": tag})
    windows = np.array([draw_target(target, draw).issue_window for draw in range(400)])
    assert windows.min() == low
    assert windows.max() > high
    assert np.mean(windows < 32) == pytest.approx(0.5, abs=0.05)


@given(draw=DRAWN, name=st.text(max_size=8))
def test_a_draw_depends_on_name_and_number_alone_and_odd_ones_mirror_even_ones(draw: int, name: str) -> None:
    assert 0.0 <= draw_share(name, draw) <= 1.0
    assert draw_share(name, 2 * draw) + draw_share(name, 2 * draw + 1) == 1.0
    assert draw_share("semaphore_ns", 0) == pytest.approx(0.404255, abs=1e-6)  # the same on every machine


# -- intervals -------------------------------------------------------------------------------------


@given(rows=st.integers(1, 3), target=st.sampled_from(ALL), draws=st.integers(0, 5))
@settings(max_examples=15)
def test_the_interval_encloses_the_prediction_and_repeats(
    rows: int, target: Target, draws: int, tracing: Any, texts: Any
) -> None:
    found = forecast_program(stream(tracing, texts, rows), target)
    made = predict_interval(found, draws=draws)
    assert 0 < made.lo_ms <= made.latency_ms <= made.hi_ms
    assert made.latency_ms == found.latency_ms
    assert len(made.draws_ms) == draws
    assert made == predict_interval(found, draws=draws)


def test_draws_are_schedules_with_the_constants_moved(tracing: Any, texts: Any) -> None:
    program = stream(tracing, texts, 2)
    made = predict_interval(forecast_program(program, TRN2), draws=4)
    wanted = [schedule(program, draw_target(TRN2, draw)).latency_ms for draw in range(4)]
    assert made.draws_ms == pytest.approx(wanted)


def test_without_uncertain_constants_draws_are_alike_and_the_interval_keeps_its_width(
    tracing: Any, texts: Any
) -> None:
    sure = replace(TRN2, sources=dict.fromkeys(TRN2.sources, "D"))
    made = predict_interval(forecast_program(stream(tracing, texts, 1), sure), draws=4)
    assert set(made.draws_ms) == {made.latency_ms}
    assert made.lo_ms < made.hi_ms


# -- comparisons -----------------------------------------------------------------------------------


def of(*draws_ms: float, latency_ms: float = 1.0) -> ForecastInterval:
    return ForecastInterval(latency_ms, 0.5, 2.0, draws_ms)


@pytest.mark.parametrize(
    ("one", "other", "wins"),
    [
        (of(1.0, 1.0), of(2.0, 2.0, latency_ms=2.0), 1.0),
        (of(1.0, 3.0), of(2.0, 2.0, latency_ms=2.0), 0.5),
        (of(3.0, 3.0), of(2.0, 2.0, latency_ms=2.0), 0.0),  # the faster prediction loses every draw
        (of(1.0, 2.0), of(2.0, 2.0, latency_ms=2.0), 1.0),  # one draw does not tell them apart
        (of(1.9901), of(2.0, latency_ms=2.0), 0.5),  # too near to tell
        (of(1.9899), of(2.0, latency_ms=2.0), 1.0),
        (of(1.0, 3.0), of(2.0, latency_ms=2.0), 1.0),  # draws of one alone say nothing
        (of(), of(), 0.5),
    ],
)
def test_the_share_of_draws_in_which_the_winner_wins(
    one: ForecastInterval, other: ForecastInterval, wins: float
) -> None:
    assert win_share(one, other) == wins
    if one.latency_ms != other.latency_ms:
        assert win_share(other, one) == wins


LEVELS = ((55.0, 1.01), (80.0, 1.2), (95.0, 2.0))


@pytest.mark.parametrize(
    ("slower_ms", "draws", "percent"),
    [
        (1.004, (3.0, 3.0), 50.0),  # too near for any measured pair
        (1.1, (3.0, 3.0), 55.0),
        (1.2, (3.0, 3.0), 80.0),
        (5.0, (3.0, 3.0), 95.0),
        (5.0, (3.0, 3.0, 3.0, 1.0), 72.5),  # a draw of four disagrees: half as far from 50
        (5.0, (3.0, 1.0), 50.0),
        (5.0, (1.0, 1.0), 0.0),
    ],
)
def test_an_order_is_as_sure_as_measured_pairs_were_and_less_if_draws_disagree(
    slower_ms: float, draws: tuple[float, ...], percent: float
) -> None:
    fast = replace(of(*[2.0] * len(draws)), order_confidence=LEVELS)
    slow = replace(of(*draws, latency_ms=slower_ms), order_confidence=LEVELS)
    assert uncertainty.order_percent(fast, slow) == uncertainty.order_percent(slow, fast)
    assert uncertainty.order_percent(fast, slow) == pytest.approx(percent)
    mine, other = (
        Benchmark(
            latency_ms=one.latency_ms,
            lo_ms=one.lo_ms,
            hi_ms=one.hi_ms,
            predicted=True,
            draws_ms=one.draws_ms,
            samples=1,
            order_confidence=LEVELS,
        )
        for one in (fast, slow)
    )
    assert mine.wins_percent(other) == pytest.approx(percent)


def test_more_of_the_same_work_loses_every_draw_and_a_copy_ties(tracing: Any, texts: Any) -> None:
    small, same, large = (
        predict_interval(forecast_program(stream(tracing, texts, rows), TRN2)) for rows in (1, 1, 2)
    )
    assert win_share(small, large) == 1.0
    assert win_share(small, same) == 0.5


def test_two_ways_whose_order_hangs_on_a_constant_do_not_win_every_draw() -> None:
    """Few large transfers against an engine's overheads: the model is not sure which costs more."""
    fast, slow = of(1.0, 1.2, 0.9, 1.3), of(1.1, 1.1, 1.1, 1.1, latency_ms=1.05)
    assert win_share(fast, slow) == 0.5


# -- excerpts --------------------------------------------------------------------------------------


def test_a_short_program_is_its_own_excerpt(tracing: Any, texts: Any) -> None:
    program = stream(tracing, texts, 1)
    assert take_excerpt(program, len(program)) is program


@given(count=st.integers(20, 300))
@settings(max_examples=15)
def test_an_excerpt_has_the_instructions_asked_for_and_only_what_they_use(
    count: int, tracing: Any, texts: Any
) -> None:
    program = stream(tracing, texts, 40)
    part = take_excerpt(program, count)
    assert len(part) == count
    assert set(part.tensors.tolist()) == set(range(len(part.tensor_sites)))
    assert set(part.form_ids.tolist()) == set(range(len(part.forms)))
    assert sorted(set(part.lines.tolist())) == sorted(set(program.lines.tolist()))
    assert part.cells.operand.max() < len(part.operands)


def test_an_excerpt_of_a_loop_changes_as_the_whole_does(tracing: Any, texts: Any) -> None:
    program = tracing(texts.matmul, spec(128 * 6, 128 * 6), spec(128 * 6, 512 * 12))
    found = forecast_program(program, TRN2)
    assert len(program) > 4 * RUN_INSTRUCTIONS // 3
    whole = predict_interval(found, draws=6, work=6 * len(program))
    part = predict_interval(found, draws=6, work=6 * RUN_INSTRUCTIONS)
    assert part.draws_ms == pytest.approx(whole.draws_ms, rel=0.05)
    assert part.draws_ms != whole.draws_ms


LOOP = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    z = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)
    for i in range({extra}):
        nisa.memset(dst=z, value=0.0, engine=nisa.engine.gpsimd)
    for i in range(x.shape[0] // 128):
        a = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i * 128:(i + 1) * 128, :])
        nisa.activation(dst=a, op=nl.exp, data=a)
        nisa.tensor_tensor(dst=a, data1=a, data2=a, op=nl.add)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=a)
    return out
"""


def test_excerpts_of_variants_are_parts_of_the_same_work(tracing: Any) -> None:
    """Instructions that change nothing, in front of a long loop, change no draw either."""
    found = [tracing(LOOP.format(extra=extra), spec(128 * 500, 64)) for extra in (1, 2, 6)]
    one, *others = (
        predict_interval(forecast_program(program, TRN2), draws=4, work=4 * RUN_INSTRUCTIONS)
        for program in found
    )
    for other in others:
        assert other.latency_ms == one.latency_ms
        assert other.draws_ms == one.draws_ms
        assert win_share(one, other) == 0.5


@given(count=st.integers(1, 4 * RUN_INSTRUCTIONS), rows=st.integers(1, 60))
@settings(max_examples=10)
def test_runs_of_an_excerpt_do_not_overlap(count: int, rows: int, tracing: Any, texts: Any) -> None:
    program = stream(tracing, texts, rows)
    part = take_excerpt(program, count)
    length = count // max(1, count // RUN_INSTRUCTIONS)
    assert len(part) == min(len(program), length * max(1, count // RUN_INSTRUCTIONS))


DYNAMIC = """
@nki.jit
def kernel(x, n):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.dma_copy(dst=count, src=n)
    bound = nisa.register_alloc()
    nisa.register_load(bound, count)
    def body(i):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
    nl.fori_loop(0, bound, body)
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def test_loops_that_depend_on_data_are_not_taken_apart(tracing: Any) -> None:
    program = tracing(DYNAMIC, spec(128, 64), ArraySpec((1, 1), "int32"))
    assert take_excerpt(program, 3) is program
    assert predict_interval(forecast_program(program, TRN2), draws=2).dynamic_loops == 1


# -- what the compiler does --------------------------------------------------------------------------

LEGACY = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        rows = i * 128 + nl.arange(128)[:, None]
        columns = nl.arange(x.shape[1])[None, :]
        tile = nl.load(x[rows, columns])
        nl.store(out[rows, columns], nl.exp(tile))
    return out
"""


CLIFF = """
@nki.jit
def kernel(x):
    out = nl.ndarray((16, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = nl.ndarray((10, nl.par_dim(128), 4400), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(10):
        tiles[i] = nl.load(x[i * 128:(i + 1) * 128, 0:4400])
    for r in nl.affine_range(16):
        total = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        for i in nl.affine_range(10):
            total += nisa.nc_matmul(tiles[i][:, 0:128], tiles[i][:, 3888:4400])
        nl.store(out[r], nl.multiply(nl.copy(total), r * 1.0 + 1.0))
    return out
"""


@pytest.mark.parametrize("work", [40_000, 3 * RUN_INSTRUCTIONS])
def test_draws_know_that_a_kernel_just_fits(work: int) -> None:
    """Ten tiles of 17 KiB per partition: 4 KiB are left, and a third of the draws take 8 away."""
    program = nki_sim.trace(HEADER + CLIFF, args=[spec(1280, 4400)], target="trn1")
    made = predict_interval(forecast_program(program, TRN1), draws=8, work=work, recompile=True)
    fallen = [draw for draw, latency_ms in enumerate(made.draws_ms) if latency_ms > 1.5 * made.latency_ms]
    assert fallen == [2, 4]
    other = replace(made, latency_ms=2 * made.latency_ms, draws_ms=(1.5 * made.latency_ms,) * 8)
    assert win_share(made, other) == 6 / 8


def legacy() -> Program:
    return nki_sim.trace(HEADER + LEGACY, args=[spec(512, 256)], target="trn1")


def test_legacy_kernels_are_compiled_again_with_other_capacities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Target] = []

    def recording(program: Program, target: Target) -> Any:
        seen.append(target)
        if target.sbuf_reserved_bytes > TRN1.sbuf_reserved_bytes:
            raise ScheduleError("does not fit")
        return compiling(program, target)

    compiling = uncertainty.compile_program
    found = forecast_program(legacy(), TRN1)
    monkeypatch.setattr(uncertainty, "compile_program", recording)
    made = predict_interval(found, draws=2)
    assert made.lo_ms <= made.latency_ms <= made.hi_ms
    reserved = sorted({target.sbuf_reserved_bytes - TRN1.sbuf_reserved_bytes for target in seen})
    assert reserved == [-8192, 8192]
    seen.clear()
    predict_interval(found, draws=2, recompile=False)
    predict_interval(found, draws=2, work=2)
    assert seen == []
