"""What comes back of lists that do not fit, and the order of loops in which less of them does."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.compiler.residency import KEPT_PARTS
from nki_sim.timing.spill_origins import find_spilled_tiles
from targets.nki.rewrites.memory_fit import fit_tiles
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.tile_reloads import KEPT_TILES, count_reloaded_bytes, find_long_lists
from tests.support.kernels import HEADER, TARGET, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, list_rewrites_by_site

KERNEL = """
@nki.jit
def kernel(x, w):
    out = nl.ndarray((32768, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    rows = [nl.ndarray((128, {width}), dtype=nl.float32, buffer=nl.sbuf) for _ in range(64)]
    for i in nl.affine_range(64):
        nisa.dma_copy(dst=rows[i], src=x[i * 128 : (i + 1) * 128, 0:{width}])
        nisa.tensor_scalar(dst=rows[i], data=rows[i], op0=nl.multiply, operand0=2.0)
    others = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
    for i in nl.affine_range(2):
        nisa.dma_copy(dst=others[i], src=w[i * 128 : (i + 1) * 128, :])
    for a in nl.affine_range(2):
        for b in nl.affine_range(2):
            for c in nl.affine_range(2):
                for d in nl.affine_range({count}):
                    product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_tensor(
                        dst=product, data1=rows[{tile}][:, {columns}], data2=others[b], op=nl.multiply
                    )
                    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_reduce(dst=total, op=nl.add, data=product, axis=1)
                    {end}
                    place = a * 128 + b * 64 + c * 32 + d
                    nisa.dma_copy(dst=out[{place} : {place} + 128, :], src=total)
    return out
"""
PLACE = "(a * 128 + b * 64 + c * 32 + d) * 128"
SHAPES = ((8192, 1024), (256, 512))


def meaning(x: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = 2 * x.reshape(32, 2, 128, 2, 512)  # d, a, row, c, column
    found = np.einsum("darck,brk->abcdr", rows, w.reshape(2, 128, 512))
    return found.reshape(-1, 1)


def sample(**changes: str | int) -> Sample:
    parts = {
        "width": 1024, "count": 32, "tile": "a + d * 2", "columns": "c * 512 : (c + 1) * 512", "end": "pass",
        "place": PLACE,
    }  # fmt: skip
    lines = KERNEL.format(**parts | changes).splitlines()
    kept = [line for line in lines if line.strip() not in {"pass", "place = a * 128 + b * 64 + c * 32 + d"}]
    return Sample(HEADER + "\n".join(kept), SHAPES, meaning)


def simulated_bytes(made: Sample, source: str) -> int:
    """Bytes of a partition that the simulator's compiler brings back."""
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in made.shapes])
    spilled = find_spilled_tiles(compile_program(program, TARGET))
    return sum(tile.reload_bytes for tile in spilled) // 128


@pytest.mark.slow
def test_what_comes_back_is_counted_as_the_simulator_does() -> None:
    made = sample()
    found = list_rewrites_by_site(made, "interchange")
    sources = [made.source, *(source for site in found.values() for _, source in site)]
    counted = [count_reloaded_bytes(read_kernel(one, made.arguments, TARGET), TARGET) for one in sources]
    assert counted == [simulated_bytes(made, one) for one in sources]
    assert len(set(counted)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["0:1024", "0:512"])
def test_columns_come_back_once_until_their_tile_leaves(columns: str) -> None:
    made = sample(
        columns="0:512",
        end=f"nisa.tensor_reduce(dst=total, op=nl.add, data=rows[{{tile}}][:, {columns}], axis=1)".format(
            tile="a + d * 2"
        ),
    )
    kernel = read_kernel(made.source, made.arguments, TARGET)
    assert count_reloaded_bytes(kernel, TARGET) == simulated_bytes(made, made.source)


def test_as_many_tiles_stay_as_in_the_simulator() -> None:
    assert KEPT_TILES == KEPT_PARTS


def test_what_is_used_in_some_iterations_only_is_not_counted() -> None:
    made = sample(
        end="if b == 0:\n                        nisa.tensor_copy(dst=rows[a + d * 2], src=rows[a])"
    )
    kernel = read_kernel(made.source, made.arguments, TARGET)
    assert find_long_lists(kernel, TARGET)
    assert count_reloaded_bytes(kernel, TARGET) == 0


def test_lists_that_fit_stay() -> None:
    made = sample(width=512, columns="0:512")
    kernel = read_kernel(made.source, made.arguments, TARGET)
    assert not find_long_lists(kernel, TARGET)
    assert count_reloaded_bytes(kernel, TARGET) == 0
    assert fit_tiles(kernel, made.arguments, TARGET) == []


def test_a_loop_moves_past_several_where_tiles_come_back() -> None:
    """A single swap saves nothing: the rows of 32 iterations are used between two uses of one."""
    made = sample()
    sites = list_rewrites_by_site(made, "interchange")
    assert set(sites) == {"a and b", "b and c", "c and d", "a and c", "a and d", "b and d"}
    ((_, source),) = sites["b and d"]
    order = [source.index(f"for {name} in nl.affine_range") for name in "adbc"]
    assert order == sorted(order)
    assert relative_error(made, source) < 1e-6


def test_loops_are_ordered_so_that_less_comes_back() -> None:
    made = sample()
    kernel = read_kernel(made.source, made.arguments, TARGET)
    steps = fit_tiles(kernel, made.arguments, TARGET)
    assert [(one.transform.id, one.site) for one in steps] == [("interchange", "a and d")]
    before, after = (count_reloaded_bytes(one, TARGET) for one in (kernel, steps[-1].kernel))
    assert (before, after) == (2 * 2 * 64 * 2048, 64 * 4096)
    assert relative_error(made, steps[-1].source) < 1e-6


def test_a_loop_stays_inside_one_that_it_shares_data_with() -> None:
    """Sums over `d` go into one tile, and those over `b` into the same one."""
    made = sample(
        end="nisa.tensor_tensor(dst=others[0][:, 0:1], data1=total, data2=others[0][:, 0:1], op=nl.add)"
    )
    assert list_rewrites_by_site(made, "interchange") == {}
    assert "share" in find_refusal(made, "interchange", "b and d")


def test_what_is_used_too_often_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sample()
    kernel = read_kernel(made.source, made.arguments, TARGET)
    monkeypatch.setattr("targets.nki.rewrites.tile_reloads.MAX_USES", 100)
    assert count_reloaded_bytes(kernel, TARGET) == 0
    assert fit_tiles(kernel, made.arguments, TARGET) == []
