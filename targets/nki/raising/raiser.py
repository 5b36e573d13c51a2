"""Raises a kernel: from the program that it issued to source in canonical form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nki_sim.forms import Form, Operand, Site, drop_idle_steps
from nki_sim.program.ir import Program
from state.model import CanonicalKernel, Digest
from targets.nki.raising.canonical_source import write_source
from targets.nki.raising.instruction_rows import InstructionRow, NotRaised, read_rows
from targets.nki.raising.loop_recognition import Node, recognize_loops, walk_calls
from targets.nki.raising.original_source import read_original
from targets.nki.raising.ported_rows import fill_first, load_broadcasts
from targets.nki.raising.tile_families import find_families

MAX_CALLS = 600
"""Most calls of a canonical kernel: beyond, nothing was rolled up, and no rewrite could go through it."""


def program_digest(program: Program) -> Digest:
    """Return a digest that programs share if they issue the same instructions on the same tensors.

    Names, source lines and hints to the compiler do not count; nor does which declaration made a tile, if
    the declarations say the same.
    """
    digest = hashlib.sha256()
    for part in _describe(program):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _describe(program: Program) -> Iterator[str]:
    tensors = _by_first_use([*program.inputs, *program.outputs, *program.tensors.tolist()])
    forms = _by_first_use(program.form_ids.tolist())
    yield repr((program.target, len(program.inputs), len(program.outputs)))
    for tensor in tensors:
        yield repr((_site_meaning(program.site(tensor)), program.constants.get(tensor)))
    for form in forms:
        yield repr(_form_meaning(program.forms[form]))
    yield repr([forms[form] for form in program.form_ids.tolist()])
    yield repr([tensors[tensor] for tensor in program.tensors.tolist()])
    yield repr(program.offsets.tolist())
    yield repr(program.cores.tolist())


def _by_first_use(numbers: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for number in numbers:
        found.setdefault(number, len(found))
    return found


def _site_meaning(site: Site) -> object:
    return site.shape, site.dtype, site.buffer, site.address


def _form_meaning(form: Form) -> object:
    return form.op, form.engine, tuple(map(_operand_meaning, form.operands)), form.params


def _operand_meaning(operand: Operand) -> Operand:
    """The operand without steps that move nothing, unless an index may give them a meaning."""
    return operand if operand.index_step else replace(operand, dims=drop_idle_steps(operand.dims))


def raise_program(program: Program, source: str) -> str:
    """Return the source of a kernel that issues the same program, in canonical form.

    `source` is the kernel that the program was traced from. Whether the result does issue the same program
    is for the caller to see, by tracing it (`program_digest`).

    Raises:
        NotRaised: the kernel has no canonical form; the message says why.
    """
    original = read_original(source, program)
    rows = read_rows(program)
    if program.dialect == "nki":
        nodes = recognize_loops(rows, original.looped_lines)
    else:
        nodes = _recognize_ported(rows, original.looped_lines)
    _require_rolled(program, nodes)
    return write_source(program, original, nodes, find_families(nodes))


def make_canonical(program: Program, source: str) -> CanonicalKernel:
    """Return a kernel's canonical form, or why it has none, with the identity of its program."""
    same, ported = program_digest(program), program.dialect != "nki"
    try:
        return CanonicalKernel(program=same, source=raise_program(program, source), ported=ported)
    except NotRaised as reason:
        return CanonicalKernel(program=same, reason=str(reason), ported=ported)


def _recognize_ported(rows: Sequence[InstructionRow], looped_lines: AbstractSet[int]) -> tuple[Node, ...]:
    """The loops of a ported kernel, with its tiles filled first if that leaves fewer calls."""
    rows = load_broadcasts(rows)
    orders = (rows, fill_first(rows))
    return min((recognize_loops(order, looped_lines) for order in orders), key=_count_calls)


def _count_calls(nodes: Sequence[Node]) -> int:
    return sum(1 for _ in walk_calls(nodes))


def _require_rolled(program: Program, nodes: Sequence[Node]) -> None:
    calls = _count_calls(nodes)
    if calls > MAX_CALLS:
        raise NotRaised(f"{len(program)} instructions are still {calls} calls with loops: too little repeats")
