"""Compiled programs compute what the traced ones do, within the memory there is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nki_sim.compiler.generated import TILE_BYTES, Writer, inputs
from tests.nki_sim.compiler.oracle import agrees, small


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), rounds=st.integers(1, 4), tiles=st.integers(4, 24), cores=st.integers(1, 2)
)
def test_a_compiled_program_computes_the_same(seed: int, rounds: int, tiles: int, cores: int) -> None:
    program = Writer(seed, rounds, cores).program
    agrees(program, small(tiles * TILE_BYTES), inputs(seed % 1000))
