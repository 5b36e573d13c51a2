"""Raises a kernel: from the program that it issued to source in canonical form."""

from __future__ import annotations

from collections.abc import Sequence

from nki_sim.program.ir import Program
from state.model import CanonicalKernel
from targets.nki.raising.canonical_source import write_source
from targets.nki.raising.instruction_rows import NotRaised, read_rows
from targets.nki.raising.loop_recognition import Node, recognize_loops, walk_calls
from targets.nki.raising.original_source import read_original
from targets.nki.raising.program_identity import program_digest
from targets.nki.raising.tile_families import find_families

MAX_CALLS = 600
"""Most calls of a canonical kernel: beyond, nothing was rolled up, and no rewrite could go through it."""


def raise_program(program: Program, source: str) -> str:
    """Return the source of a kernel that issues the same program, in canonical form.

    `source` is the kernel that the program was traced from. Whether the result does issue the same program
    is for the caller to see, by tracing it (`program_identity`).

    Raises:
        NotRaised: the kernel has no canonical form; the message says why.
    """
    original = read_original(source, program)
    nodes = recognize_loops(read_rows(program), original.looped_lines)
    _require_rolled(program, nodes)
    return write_source(program, original, nodes, find_families(nodes))


def make_canonical(program: Program, source: str) -> CanonicalKernel:
    """Return a kernel's canonical form, or why it has none, with the identity of its program."""
    same = program_digest(program)
    try:
        return CanonicalKernel(program=same, source=raise_program(program, source))
    except NotRaised as reason:
        return CanonicalKernel(program=same, reason=str(reason))


def _require_rolled(program: Program, nodes: Sequence[Node]) -> None:
    calls = sum(1 for _ in walk_calls(nodes))
    if calls > MAX_CALLS:
        raise NotRaised(f"{len(program)} instructions are still {calls} calls with loops: too little repeats")
