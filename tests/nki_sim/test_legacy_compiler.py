"""`nki.compiler`: where blocks are placed, by functions of the kernel and by the documented formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nki_sim import targets
from nki_sim.errors import KernelError
from nki_sim.frontend.legacy import compiler as ncc
from nki_sim.frontend.recorder import Recorder, recording


@pytest.fixture(autouse=True)
def recorder() -> Iterator[Recorder]:
    with recording(Recorder(targets.load("trn1"), "kernel.py", max_instructions=10)) as made:
        yield made


def test_blocks_of_sbuf_go_round_over_the_tiles_there_are() -> None:
    place = ncc.sbuf.mod_alloc(base_addr=64, num_free_tiles=(2,)).place
    assert [place((i,), 128, 1024) for i in range(4)] == [(0, 64), (0, 1088), (0, 64), (0, 1088)]


def test_several_block_dimensions_count_row_major() -> None:
    place = ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2, 3), num_par_tiles=(1, 2)).place
    for i in range(4):
        for j in range(5):
            assert place((i, j), 32, 100) == (j % 2 * 32, ((i % 2) * 3 + j % 3) * 100)


def test_without_tiles_every_block_is_at_the_base() -> None:
    assert {ncc.sbuf.mod_alloc(base_addr=8).place((i, 3), 128, 512) for i in range(3)} == {(0, 8)}


def test_blocks_of_psum_go_round_over_banks() -> None:
    place = ncc.psum.mod_alloc(base_bank=1, num_bank_tiles=(2,)).place
    assert [place((i,), 128, 2048) for i in range(3)] == [(0, 2048), (0, 4096), (0, 2048)]


def test_a_function_of_the_kernel_places_blocks() -> None:
    seen: list[Any] = []

    def place(idx: Any, pdim_size: int, fdim_size: int) -> Any:
        seen.append((idx, pdim_size, fdim_size))
        return 32, idx[0] * fdim_size

    assert ncc.sbuf.alloc(place).place((2, 0), 32, 256) == (32, 512)
    assert seen == [((2, 0), 32, 256)]
    assert ncc.psum.alloc(lambda **_: (3, 0, 0)).place((), 128, 2048) == (0, 3 * 2048)


@pytest.mark.parametrize(
    ("allocation", "nbytes", "code"),
    [
        (ncc.psum.alloc(lambda **_: (0, 0, 0)), 2052, "psum_bank"),
        (ncc.psum.alloc(lambda **_: (0, 32, 0)), 2048, "allocation"),
        (ncc.psum.alloc(lambda **_: (0, 0)), 2048, "allocation"),
        (ncc.sbuf.alloc(lambda **_: (0, -4)), 2048, "allocation"),
        (ncc.sbuf.alloc(lambda **_: None), 2048, "allocation"),
        (ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2, 2)), 4, "allocation"),
    ],
)
def test_places_that_there_are_not(allocation: Any, nbytes: int, code: str) -> None:
    with pytest.raises(KernelError) as refused:
        allocation.place((0,), 128, nbytes)
    assert refused.value.code == code


def test_forced_automatic_allocation_drops_placements(recorder: Any) -> None:
    recorder.auto_alloc = True
    assert ncc.sbuf.mod_alloc(base_addr=8).place((0,), 128, 4) is None


def test_automatic_allocation_is_the_plain_memory() -> None:
    assert (ncc.sbuf.auto_alloc(), ncc.psum.auto_alloc()) == ("sbuf", "psum")
    assert (ncc.sbuf.name, ncc.psum.name) == ("sbuf", "psum")


def test_directives_leave_kernels_as_they_are() -> None:
    def kernel() -> None: ...

    assert ncc.skip_middle_end_transformations(kernel) is kernel
    assert ncc.enable_stack_allocator(kernel) is kernel
    assert ncc.enable_stack_allocator(log_level=10)(kernel) is kernel
    assert ncc.force_auto_alloc(kernel) is kernel
    with ncc.allocation_scope(), ncc.no_reorder(), ncc.multi_buffer(factor=3):
        pass
    with pytest.raises(KernelError, match="argument_value"):
        ncc.multi_buffer(0)
