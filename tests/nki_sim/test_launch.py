"""Launches on two cores: who gets which part, where programs meet, what keeps one of them waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.checks.warnings import KernelWarning
from nki_sim.errors import KernelError
from nki_sim.frontend import isa as nisa
from nki_sim.frontend import language as nl
from nki_sim.frontend.api import jit, simulate
from nki_sim.frontend.entry import trace_function
from nki_sim.program.ir import Program
from nki_sim.timing.schedule import schedule

X = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)


def mine(x: Any) -> slice:
    """The rows of this core."""
    rows = x.shape[0] // nl.num_programs()
    return slice(nl.program_id() * rows, (nl.program_id() + 1) * rows)


def tile(x: Any) -> Any:
    return nl.ndarray((x.shape[0] // nl.num_programs(), x.shape[1]), x.dtype, buffer=nl.sbuf)


@jit
def split(x: Any) -> Any:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    here = tile(x)
    nisa.dma_copy(dst=here, src=x[mine(x)])
    nisa.tensor_scalar(dst=here, data=here, op0=nl.add, operand0=100.0 * nl.program_id(0))
    nisa.dma_copy(dst=out[mine(x)], src=here)
    return out


def test_each_core_works_on_its_part() -> None:
    shift = np.repeat([0, 100], 32)[:, None].astype(np.float32)
    assert simulate(split)(X).tolist() == X.tolist()
    assert simulate(split._launched_on(1))(X).tolist() == X.tolist()
    assert simulate(split._launched_on(2))(X).tolist() == (X + shift).tolist()


def test_programs_are_counted() -> None:
    found = []

    @jit
    def kernel(x: Any) -> Any:
        found.append((nl.program_ndim(), nl.num_programs(), nl.num_programs(None), nl.program_id(0)))
        return nl.zeros((1, 4), nl.float32, buffer=nl.shared_hbm) if nl.num_programs() == 1 else split.func(x)

    for launch in (kernel, kernel._launched_on(1), kernel._launched_on(2)):
        simulate(launch)(X)
    assert found == [(0, 1, 1, 0), (1, 1, 1, 0), (1, 2, 2, 0), (1, 2, 2, 1)]


@jit
def exchanged(x: Any, engine: Any = nisa.dma_engine.dma) -> Any:
    """Both halves, the other core's added to this one's, read back behind a barrier by the other core."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    here, there, other = tile(x), tile(x), 1 - nl.program_id(0)
    nisa.dma_copy(dst=here, src=x[mine(x)])
    nisa.sendrecv(here, there, send_to_rank=other, recv_from_rank=other, pipe_id=0, dma_engine=engine)
    nisa.tensor_tensor(dst=here, data1=here, data2=there, op=nl.add)
    nisa.tensor_scalar(dst=here, data=here, op0=nl.add, operand0=float(nl.program_id(0)))
    nisa.dma_copy(dst=middle[mine(x)], src=here)
    nisa.core_barrier(middle, (0, 1))
    rows = slice(other * 32, other * 32 + 32)
    nisa.dma_copy(dst=there, src=middle[rows])
    nisa.dma_copy(dst=out[rows], src=there)
    return out


@pytest.mark.parametrize("engine", list(nisa.dma_engine))
def test_cores_exchange_tiles_and_meet(engine: Any) -> None:
    both = X[:32] + X[32:]
    assert (
        simulate(exchanged._launched_on(2))(X, engine).tolist() == np.concatenate([both, both + 1]).tolist()
    )


def test_the_program_says_which_core_does_what() -> None:
    program = Program.from_bytes(trace_function(exchanged[2], [X]).program)
    ops = [program.forms[form].op for form in program.form_ids]
    assert program.cores.tolist().count(0) == program.cores.tolist().count(1) == len(program) // 2
    assert [ops.count(name) for name in ("sendrecv", "core_barrier")] == [2, 2]
    assert len({program.site(number).name for number in program.outputs}) == 1
    assert schedule(program, targets.load("trn2")).latency_ms > 0


def both(body: Any) -> Any:
    """A launch on two cores of what `body` does with the rank and two tiles."""

    @jit
    def kernel(x: Any) -> Any:
        here, there = tile(x), tile(x)
        nisa.dma_copy(dst=here, src=x[mine(x)])
        body(nl.program_id(0), here, there)
        return split.func(x)

    return trace_function(kernel[2], [X])


def swap(rank: int, here: Any, there: Any, *, pipe: int = 0) -> None:
    nisa.sendrecv(here, there, 1 - rank, 1 - rank, pipe)


def one_more(rank: int, here: Any, there: Any) -> None:
    for _ in range(1 + rank):
        swap(rank, here, there)


def looping(rank: int, here: Any, there: Any) -> None:
    if rank:
        nl.fori_loop(0, nisa.register_alloc(2), lambda i: swap(rank, here, there))


def uneven(rank: int, here: Any, there: Any) -> None:
    swap(rank, here[: 8 + rank], there[: 8 + rank])


def shared(rank: int, here: Any, there: Any) -> None:
    nl.ndarray((4, 4 + rank), nl.float32, buffer=nl.shared_hbm)


def wide(rank: int, here: Any, there: Any) -> None:
    big = [nl.ndarray((8, 257), nl.float32, buffer=nl.sbuf) for _ in range(2)]
    nisa.memset(big[0], 0)
    nisa.sendrecv(*big, 1 - rank, 1 - rank, 0, nisa.dma_engine.gpsimd_dma)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (one_more, "core_sync_mismatch"),
        (lambda rank, here, there: swap(rank, here, there, pipe=rank), "core_sync_mismatch"),
        (uneven, "shape_mismatch"),
        (looping, "core_sync_mismatch"),
        (shared, "shared_hbm_mismatch"),
        (wide, "sendrecv_size"),
        (lambda rank, here, there: swap(rank, here, here), "sendrecv_overlap"),
        (lambda rank, here, there: swap(1 - rank, here, there), "sendrecv_rank"),
        (lambda rank, here, there: swap(rank, here, there, pipe="a"), "argument_type"),  # type: ignore[arg-type]
        (lambda rank, here, there: swap(rank, 3, there), "argument_type"),
        (lambda rank, here, there: nisa.sendrecv(here, there, 1 - rank, 1 - rank, 0, "dma"), "argument_type"),
        (lambda rank, here, there: nisa.core_barrier("here", (0, 1)), "argument_type"),
        (lambda rank, here, there: split[2](here), "nested_kernel_with_spmd_grid"),
        (lambda rank, here, there: nl.program_id(1), "axis"),
        (lambda rank, here, there: nl.num_programs(2), "axis"),
    ],
)
def test_what_launches_refuse(body: Any, code: str) -> None:
    with pytest.raises(KernelError) as caught:
        both(body)
    assert caught.value.code == code


def test_one_core_has_nobody_to_meet() -> None:
    with pytest.raises(KernelError, match="needs a launch on two cores"):
        trace_function(exchanged, [X])


@pytest.mark.parametrize("grid", [0, 3, (2, 2), "2", 1.0])
def test_grids_that_no_core_has(grid: Any) -> None:
    with pytest.raises(KernelError) as caught:
        split[grid]
    assert caught.value.code == "launch_grid"


def test_two_cores_as_one_are_there_from_trn2_on() -> None:
    with pytest.raises(KernelError) as caught:
        trace_function(exchanged[2], [X], target="trn1")
    assert caught.value.code == "generation"


def rounds(*counts: int) -> Any:
    """Each core adds what the other one has to its own, as often as its count says; the device decides."""

    @jit
    def kernel(x: Any) -> Any:
        rank = nl.program_id(0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        here, there = tile(x), tile(x)
        nisa.dma_copy(dst=here, src=x[mine(x)])

        def alone(_: Any) -> None:
            nisa.tensor_scalar(dst=here, data=here, op0=nl.add, operand0=1.0)

        def exchange(_: Any) -> None:
            nl.fori_loop(0, nisa.register_alloc(1 + rank), alone)
            swap(rank, here, there)
            nisa.tensor_tensor(dst=here, data1=here, data2=there, op=nl.add)

        nl.fori_loop(0, nisa.register_alloc(counts[rank]), exchange)
        nisa.dma_copy(dst=out[mine(x)], src=here)
        return out

    return kernel._launched_on(2)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_cores_meet_in_loops_of_the_device(count: int) -> None:
    """Loops in which they do not meet may differ from core to core."""
    first, second = X[:32].copy(), X[32:].copy()
    for _ in range(count):
        first = second = (first + 1) + (second + 2)
    assert simulate(rounds(count, count))(X).tolist() == np.concatenate([first, second]).tolist()


@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (0, 1)])
def test_a_core_that_meets_the_other_more_often_waits_for_ever(counts: tuple[int, int]) -> None:
    with pytest.raises(KernelError) as caught:
        simulate(rounds(*counts))(X)
    assert caught.value.code == "core_sync_mismatch"


def test_a_loop_of_both_cores_is_scheduled_as_one() -> None:
    program = Program.from_bytes(trace_function(rounds(2, 2), [X]).program)
    begin, end = max(program.loops, key=lambda loop: loop[1] - loop[0])
    assert set(program.cores[begin:end].tolist()) == {0, 1}
    assert [len(program.forms[program.form_ids[mark]].operands) for mark in (begin, end)] == [2, 2]
    assert len(program.loops) == 3
    assert schedule(program, targets.load("trn2")).latency_ms > 0


@pytest.mark.parametrize("met", [False, True])
def test_rounds_of_a_loop_may_overlap_from_core_to_core(met: bool) -> None:
    """What core 1 reads when a round begins, core 0 has written at the end of the round before."""

    @jit
    def kernel(x: Any) -> Any:
        rank = nl.program_id(0)
        middle = nl.ndarray((32, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        here, there = tile(x), tile(x)
        nisa.dma_copy(dst=here, src=x[mine(x)])
        if rank == 0:
            nisa.dma_copy(dst=middle, src=here)
        nisa.core_barrier(middle, (0, 1))

        def step(_: Any) -> None:
            if rank == 1:
                nisa.dma_copy(dst=here, src=middle)
            swap(rank, here, there)
            if rank == 0:
                nisa.dma_copy(dst=middle, src=there)
            if met:
                nisa.core_barrier(middle, (0, 1))

        nl.fori_loop(0, nisa.register_alloc(3), step)
        nisa.dma_copy(dst=out[mine(x)], src=here)
        return out

    program = Program.from_bytes(trace_function(kernel[2], [X]).program)
    found = [item.code for item in checks.check(program, targets.load("trn2"))]
    assert found == ([] if met else ["read_write_race"])


@pytest.mark.parametrize("different", [False, True])
def test_cores_may_store_the_same_before_a_loop_of_the_device(different: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        rank = nl.program_id(0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        here, there = tile(x), tile(x)
        nisa.memset(here, float(rank) if different else 0.0)
        nisa.dma_copy(dst=out[:32], src=here)
        nisa.dma_copy(dst=out[32:], src=here)
        nisa.core_barrier(out, (0, 1))
        nl.fori_loop(0, nisa.register_alloc(2), lambda i: swap(rank, here, there))
        return out

    if different:
        with pytest.raises(KernelError) as caught:
            simulate(kernel._launched_on(2))(X)
        assert caught.value.code == "write_write_race"
    else:
        assert not simulate(kernel._launched_on(2))(X).any()


# -- the environment -------------------------------------------------------------------------------


@jit
def counted(x: Any) -> Any:
    out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
    here = nl.full((1, 4), float(nl.num_programs()), nl.float32, buffer=nl.sbuf)
    for row in range(nl.program_id(0), 2, nl.num_programs()):
        nisa.dma_copy(dst=out[row : row + 1], src=here)
    return out


@pytest.mark.parametrize(("value", "cores"), [(None, 1), ("1", 1), ("2", 2)])
def test_the_environment_says_how_many_cores_there_are(
    value: str | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", value)
    assert simulate(counted)(X).tolist() == [[cores] * 4] * 2


def test_brackets_are_deprecated_but_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    code = "launch_brackets"
    with pytest.warns(KernelWarning, match=rf"{code}: counted\[2\] .*deprecated"):
        assert simulate(counted[2])(X).tolist() == [[2.0] * 4] * 2


@pytest.mark.parametrize(
    ("value", "target", "launch", "code"),
    [
        ("2", "trn2", 1, "lnc_mismatch"), ("1", "trn2", 2, "lnc_mismatch"), ("2", "trn1", None, "lnc"),
        ("3", "trn2", None, "lnc"),
    ],
)  # fmt: skip
def test_a_launch_that_the_graph_is_not_compiled_for_is_refused(
    value: str, target: str, launch: int | None, code: str, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", value)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    with pytest.raises(KernelError) as caught:
        simulate(counted if launch is None else counted._launched_on(launch))(X)
    assert caught.value.code == code
    assert ("NCC_EVRF066" in str(caught.value)) is (code == "lnc_mismatch")
