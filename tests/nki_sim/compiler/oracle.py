"""What a compiled program has to be: valid, within memory, and of the same results as the traced one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from nki_sim import targets
from nki_sim.compiler.compiled_program import CompiledProgram
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.flow.chip_memory import memory_capacity, tile_footprint
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.running.interpreter import ProgramInterpreter
from nki_sim.running.machine import Machine, prepare_form
from nki_sim.running.work import WorkAllowance
from nki_sim.targets import Target

TRN1 = targets.load("trn1")


def small(sbuf_bytes: int, base: Target = TRN1) -> Target:
    """A target with that many usable bytes in each partition."""
    return replace(base, sbuf_partition_bytes=base.sbuf_reserved_bytes + sbuf_bytes)


def one_by_one(program: Program, arrays: list[Any]) -> list[Any]:
    """The outputs when every instruction is run as it comes."""
    machine = Machine(program.site)
    for number, array in zip(program.inputs, arrays, strict=True):
        machine.place_tensor(number, array.reshape(-1).copy())
    for number, data in program.constants.items():
        machine.place_tensor(number, np.frombuffer(bytearray(data), program_dtype(program, number)))
    actions = [prepare_form(form, program.target) for form in program.forms]
    with np.errstate(all="ignore"):
        runner = ProgramInterpreter(machine, actions, WorkAllowance(1 << 40))
        runner.run(numerics.instruction_columns(program), 0, len(program), program.loop_partners)
    return [machine.tensor_array(number).copy() for number in program.outputs]


def program_dtype(program: Program, tensor: int) -> Any:
    return numerics.NUMPY[program.site(tensor).dtype]


def most(program: Program, target: Target, memory: str) -> int:
    """Units of `memory_capacity` that the tiles of one core take at most, in program order."""
    core = program.tensor_cores
    change = np.zeros((2, len(program) + 1), dtype=np.int64)
    first, last = {}, {}
    for tensor, at in zip(program.cells.tensor.tolist(), program.cells.instruction.tolist(), strict=True):
        first.setdefault(tensor, at)
        last[tensor] = at
    for tensor, at in first.items():
        site = program.site(tensor)
        if site.buffer == memory and site.address is None:
            change[core[tensor], at] += tile_footprint(site, target)
            change[core[tensor], last[tensor] + 1] -= tile_footprint(site, target)
    return int(np.cumsum(change, axis=1).max(initial=0))


def agrees(program: Program, target: Target, arrays: list[Any]) -> CompiledProgram:
    """The compiled program, after all that has to hold of it has been looked at."""
    made = compile_program(program, target)
    again = Program.from_bytes(made.program.to_bytes())
    assert len(made.sources) == len(made.origins) == len(again)
    # Copies stay copies on ScalarE, where what runs is an activation.
    assert broken(again, target) <= broken(program, target) | {"engine"}
    wanted = one_by_one(program, arrays)
    for found, expected in zip(one_by_one(again, arrays), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    for memory in ("sbuf", "psum"):
        limit = memory_capacity(memory, target)
        assert most(again, target, memory) <= max(limit, largest(program, target, memory))
    return made


def broken(program: Program, target: Target) -> set[str]:
    """Codes of the rules that single instructions break."""
    forms = [program.forms[number] for number in np.unique(program.form_ids).tolist()]
    return {breach.code for form in forms for breach in OPERATORS[form.op].find_breaches(form, target)}


def issued(made: CompiledProgram) -> Counter[str]:
    """Instructions by operator."""
    return Counter(made.program.forms[form].op for form in made.program.form_ids.tolist())


def moved(made: CompiledProgram, origin: int) -> int:
    """Bytes over HBM that instructions of an origin move."""
    forms = made.program.form_ids[made.origins == origin].tolist()
    return sum(item.nbytes for form in forms for item in made.program.forms[form].operands if item.in_hbm)


def largest(program: Program, target: Target, memory: str) -> int:
    """What the tiles of the instruction that has most of them take; of PSUM, what the kernel itself uses."""
    if memory == "psum":
        return most(program, target, memory)
    taken = np.zeros(len(program), dtype=np.int64)
    pairs = set(zip(program.cells.instruction.tolist(), program.cells.tensor.tolist(), strict=True))
    for at, tensor in pairs:
        site = program.site(tensor)
        taken[at] += tile_footprint(site, target) if site.buffer == memory else 0
    return int(taken.max(initial=0))
