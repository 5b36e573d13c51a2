"""Whose tiles the compiler's traffic moves: hand-made compilations, and a legacy kernel end to end."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_sim import ArraySpec, targets
from nki_sim.compiler.compiled_program import (
    LOAD_AGAIN,
    RELOAD,
    SAVE,
    TRACED,
    CompiledProgram,
    compile_unchanged,
)
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.explain import explain_latency
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.spill_origins import SpilledTile, find_spilled_tiles

TRN1 = targets.load("trn1")
NBYTES = 128 * 64 * 4

# Lines 6 to 13: what a compiler might have added, written out.
MOVES = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    keep = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.private_hbm)
    a = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=keep, src=a)
    nisa.dma_copy(dst=a, src=keep)
    nisa.dma_copy(dst=a, src=keep)
    nisa.dma_copy(dst=b, src=x)
    nisa.dma_copy(dst=out, src=b)
    return out
"""


def test_traffic_is_that_of_the_tile_on_chip(tracing: Any, texts: Any) -> None:
    program = tracing(MOVES, ArraySpec((128, 64), "float32"))
    source = texts.source_of(MOVES).splitlines()
    lines = {
        name: 1 + next(n for n, text in enumerate(source) if text.strip().startswith(f"{name} = "))
        for name in "ab"
    }
    origins = np.array([TRACED, SAVE, RELOAD, RELOAD, LOAD_AGAIN, TRACED])
    found = find_spilled_tiles(CompiledProgram(program, np.arange(len(program)), origins))
    assert found == [
        SpilledTile("a", lines["a"], NBYTES, 2 * NBYTES, 0, int(program.lines[2])),
        SpilledTile("b", lines["b"], 0, 0, NBYTES, int(program.lines[4])),
    ]
    assert [item.total_bytes for item in found] == [3 * NBYTES, NBYTES]


def test_what_is_only_saved_is_needed_nowhere(tracing: Any) -> None:
    program = tracing(MOVES, ArraySpec((128, 64), "float32"))
    origins = np.array([TRACED, SAVE, TRACED, TRACED, TRACED, TRACED])
    (found,) = find_spilled_tiles(CompiledProgram(program, np.arange(len(program)), origins))
    assert (found.save_bytes, found.needed_at) == (NBYTES, 0)


def test_what_the_kernel_asks_for_is_no_spill(tracing: Any) -> None:
    assert find_spilled_tiles(compile_unchanged(tracing(MOVES, ArraySpec((128, 64), "float32")))) == []


LEGACY = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.add(nl.load(x), float(i)) for i in range({count})]
    for tile in tiles:
        nl.store(out, tile)
    return out
"""


def test_tiles_that_do_not_fit_are_named_and_are_the_counters(tracing: Any) -> None:
    for count, fits in ((8, True), (40, False)):
        program = tracing(LEGACY.format(count=count), ArraySpec((128, 2048), "float32"), target="trn1")
        predicted = forecast_program(program, TRN1)
        found, counted = explain_latency(predicted).spilled, profile_counters(predicted)
        assert (found == []) == fits
        assert sum(item.save_bytes for item in found) == counted["spill_save_bytes"]
        assert sum(item.reload_bytes for item in found) == counted["spill_reload_bytes"]
        source = LEGACY.splitlines()
        header = 3 + 2  # what the fixture puts before the kernel
        assert all("nl.add(" in source[item.line - 1 - header] for item in found)
