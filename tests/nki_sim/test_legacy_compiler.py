"""`nki.compiler`: where blocks are placed, by functions of the kernel and by the documented formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.errors import KernelError
from nki_sim.frontend.legacy import compiler as ncc
from nki_sim.frontend.recorder import Recorder, recording


@pytest.fixture(autouse=True)
def recorder() -> Iterator[Recorder]:
    with recording(Recorder(targets.load("trn1"), "kernel.py", max_instructions=10)) as made:
        yield made


def test_blocks_of_sbuf_go_round_over_the_tiles_there_are() -> None:
    place = ncc.sbuf.mod_alloc(base_addr=64, num_free_tiles=(2,))._place
    assert [place((i,), 128, 1024) for i in range(4)] == [(0, 64), (0, 1088), (0, 64), (0, 1088)]


def test_several_block_dimensions_count_row_major() -> None:
    place = ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2, 3), num_par_tiles=(1, 2))._place
    for i in range(4):
        for j in range(5):
            assert place((i, j), 32, 100) == (j % 2 * 32, ((i % 2) * 3 + j % 3) * 100)


def test_without_tiles_every_block_is_at_the_base() -> None:
    assert {ncc.sbuf.mod_alloc(base_addr=8)._place((i, 3), 128, 512) for i in range(3)} == {(0, 8)}


def test_a_tensor_without_block_dimensions_lies_at_the_base() -> None:
    assert ncc.sbuf.mod_alloc(base_addr=8, num_free_tiles=(4,))._place((), 128, 512) == (0, 8)


def test_blocks_of_psum_go_round_over_banks() -> None:
    place = ncc.psum.mod_alloc(base_bank=1, num_bank_tiles=(2,))._place
    assert [place((i,), 128, 2048) for i in range(3)] == [(0, 2048), (0, 4096), (0, 2048)]


def test_a_function_of_the_kernel_places_blocks() -> None:
    seen: list[Any] = []

    def place(idx: Any, pdim_size: int, fdim_size: int) -> Any:
        seen.append((idx, pdim_size, fdim_size))
        return 32, idx[0] * fdim_size

    assert ncc.sbuf.alloc(place)._place((2, 0), 32, 256) == (32, 512)
    assert seen == [((2, 0), 32, 256)]
    assert ncc.psum.alloc(lambda **_: (3, 0, 0))._place((), 128, 2048) == (0, 3 * 2048)


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
        allocation._place((0,), 128, nbytes)
    assert refused.value.code == code


def test_forced_automatic_allocation_drops_placements(recorder: Any) -> None:
    recorder.auto_alloc = True
    assert ncc.sbuf.mod_alloc(base_addr=8)._place((0,), 128, 4) is None


def test_automatic_allocation_is_the_plain_memory() -> None:
    assert (ncc.sbuf.auto_alloc(), ncc.psum.auto_alloc()) == ("sbuf", "psum")


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


PLACED = """
import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.language as nl


{directive}
@nki.jit
def kernel(a):
    out = nl.ndarray((4, 128, 8), dtype=a.dtype, buffer=nl.shared_hbm)
    blocks = nl.ndarray(
        (4, nl.par_dim(128), 8), dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=64, num_free_tiles=(2,))
    )
    for i in nl.affine_range(4):
        blocks[i] = nl.load(a[i])
        nl.store(out[i], value=blocks[i])
    return out
"""


@pytest.mark.parametrize(
    ("directive", "wanted"),
    [("", {(0, 64), (0, 96)}), ("@ncc.skip_middle_end_transformations", {(0, 64), (0, 96)})],
)
def test_tiles_are_declared_where_the_kernel_places_them(directive: str, wanted: Any) -> None:
    program = nki_sim.trace(PLACED.format(directive=directive), args=[ArraySpec((4, 128, 8), "float32")])
    found = {site.address for site in program.sites if site.name == "blocks"}
    assert found == wanted


def test_a_kernel_may_ask_for_its_placements_to_be_ignored() -> None:
    text = PLACED.format(directive="@ncc.force_auto_alloc")
    program = nki_sim.trace(text, args=[ArraySpec((4, 128, 8), "float32")])
    assert {site.address for site in program.sites} == {None}
