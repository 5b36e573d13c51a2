"""Runs a program on NumPy arrays: computes what the kernel computes, for any number of input sets.

The run is planned once per program (`plan_execution`): it computes only what the outputs need, skips unneeded
copies, and joins matmuls into large products. Results differ from an instruction-by-instruction run only by
the order of float32 additions within a product. Programs with data-dependent loops run instruction by
instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from nki_sim.checks.coverage import examine_coverage
from nki_sim.checks.races import find_agreeing_writes
from nki_sim.errors import InputError, KernelError, LimitError, RuleError
from nki_sim.flow import slices
from nki_sim.flow.graph import data_dependent_tensors
from nki_sim.forms import HBM_BUFFERS
from nki_sim.program.ir import Program
from nki_sim.running.execution_plan import ExecutionPlan, plan_execution
from nki_sim.running.interpreter import InstructionColumns, ProgramInterpreter, locate_error
from nki_sim.running.machine import Machine, PreparedForm, prepare_form
from nki_sim.running.products import MatrixProduct, multiply_blocks
from nki_sim.running.work import WorkAllowance, program_work
from nki_sim.semantics.arrays import NUMPY, UNINITIALISED, Array

MAX_BYTES = 16 << 30
MAX_WORK = 1 << 37
"""Units of `work` that a run may use, including loops with data-dependent bounds."""

_OVERSIZE = 1 << 20
"""In programs whose compiler spills, larger tiles (bytes per partition) count like tensors in HBM."""

_plan_cache: WeakKeyDictionary[Program, dict[frozenset[int], ExecutionPlan]] = WeakKeyDictionary()
_stage_cache: WeakKeyDictionary[Program, list[frozenset[int]]] = WeakKeyDictionary()


def run(
    program: Program,
    inputs: Sequence[Array],
    *,
    only: Mapping[int, Sequence[slices.ElementBox]] | None = None,
    sliced: bool = False,
    max_bytes: int = MAX_BYTES,
    allowance: WorkAllowance | None = None,
    partial_outputs: bool = False,
) -> list[Array]:
    """Return the outputs in the order the kernel returns them; inputs are not changed.

    `checks` must find nothing in the program. `only` names parts of outputs by position; the run then
    computes just what they need (`slices.slice_backward`) and other elements have arbitrary values. Many
    input sets can share one slice: `sliced` says that the program is already the slice for `only`. The run
    consumes work from `allowance`; the default allowance is `MAX_WORK`. With `partial_outputs`, elements of
    outputs that are never written are undefined: NaN in types that have it.

    Raises:
        InputError: number, shape or type of the inputs is wrong.
        LimitError: tensors in HBM (and tiles far larger than SBUF) exceed `max_bytes`, or the instructions
            exceed the allowance; in loops with data-dependent bounds every iteration counts.
        KernelError: data breaks a rule: an address is out of bounds, or unwritten elements are read.
    """
    if only is not None and not sliced:
        program = slices.slice_backward(program, only)
    allowance = allowance or WorkAllowance(MAX_WORK)
    if not program.loop_partners:
        allowance.take(program_work(program))
    _check_size(program, max_bytes)
    stages = _tracking_stages(program)
    for tracked in stages:
        machine = Machine(program.site)
        _place_inputs(program, machine, inputs)
        _fill_undefined(program, machine, only or {}, tracked=tracked)
        for tensor in sorted(tracked):
            machine.track_writes(tensor)
        try:
            _execute_program(program, machine, tracked, allowance=allowance)
            break
        except MemoryError as error:
            raise LimitError("limit_memory", "the program needs more memory than there is") from error
        except KernelError as error:
            # Unwritten elements leave the tracked tensors: track everything to see where they go.
            if error.code != "uninitialised_read" or tracked is stages[-1]:
                raise
    partial = only is not None or partial_outputs
    return [_read_output(program, machine, number, partial=partial) for number in program.outputs]


def _execute_program(
    program: Program, machine: Machine, tracked: frozenset[int], *, allowance: WorkAllowance
) -> None:
    with np.errstate(all="ignore"):
        if program.loop_partners:
            actions = [prepare_form(form, program.target) for form in program.forms]
            runner = ProgramInterpreter(machine, actions, allowance)
            _run_interpreted(program, machine, runner, actions=actions)
        else:
            _run_plan(program, machine, _cached_plan(program, tracked))


def _tracking_stages(program: Program) -> list[frozenset[int]]:
    """The tensors to track: those that data decide about; all if undefined elements reach these."""
    made = _stage_cache.get(program)
    if made is None:
        loose = data_dependent_tensors(program) - {*program.inputs, *program.constants}
        every = frozenset(program.cells.tensor[program.cells.writes].tolist()) if loose else loose
        made = [every] if not loose or examine_coverage(program).open else [loose, every]
        _stage_cache[program] = made
    return made


def _cached_plan(program: Program, tracked: frozenset[int]) -> ExecutionPlan:
    plans = _plan_cache.setdefault(program, {})
    if tracked not in plans:
        plans[tracked] = plan_execution(program, tracked)
    return plans[tracked]


def _check_size(program: Program, max_bytes: int) -> None:
    counts = np.bincount(program.tensor_sites, minlength=len(program.sites)).tolist()
    total = sum(
        site.size * NUMPY[site.dtype].itemsize * count
        for site, count in zip(program.sites, counts, strict=True)
        if site.buffer in HBM_BUFFERS or site.partition_bytes > _OVERSIZE
    )
    if total > max_bytes:
        raise LimitError("limit_memory", f"tensors take {total} bytes, the limit is {max_bytes}")


def _place_inputs(program: Program, machine: Machine, inputs: Sequence[Array]) -> None:
    """Put inputs and constants into memory; copies inputs that the kernel writes."""
    if len(inputs) != len(program.inputs):
        raise InputError(f"{program.kernel} takes {len(program.inputs)} arrays, {len(inputs)} given")
    kept = {*program.cells.tensor[program.cells.writes].tolist(), *program.outputs}
    for number, array in zip(program.inputs, inputs, strict=True):
        site = program.site(number)
        if array.shape != site.shape or array.dtype != NUMPY[site.dtype]:
            raise InputError(
                f"input {site.name} is {array.dtype} {array.shape}, it must be {site.dtype} {site.shape}"
            )
        flat = np.ascontiguousarray(array).reshape(-1)
        machine.place_tensor(number, flat.copy() if number in kept else flat)
    for number, data in program.constants.items():
        machine.place_tensor(number, np.frombuffer(bytearray(data), NUMPY[program.site(number).dtype]))


def _fill_undefined(
    program: Program,
    machine: Machine,
    only: Mapping[int, Sequence[slices.ElementBox]],
    *,
    tracked: frozenset[int],
) -> None:
    """Mark the wanted parts of outputs as undefined; leave their other elements uninitialised."""
    for at, boxes in only.items():
        number = program.outputs[at]
        if number in tracked or number in program.inputs or number in program.constants:
            continue
        site = program.site(number)
        dtype = NUMPY[site.dtype]
        array = np.empty(site.shape, dtype)
        for box in boxes:
            array[tuple(slice(first, end) for first, end in box)] = UNINITIALISED[dtype]
        machine.place_tensor(number, array.reshape(-1))


def _read_output(program: Program, machine: Machine, tensor: int, *, partial: bool) -> Array:
    site = program.site(tensor)
    bits = machine.written.get(tensor)
    if bits is not None and not partial and not bits.all():
        if tensor in machine.carried:
            number, line = machine.carried[tensor]
            source = program.site(number)
            raise RuleError(
                "uninitialised_read", f"elements of {source.name} (declared in line {source.line}) are read "
                f"before they are written, and output {site.name} depends on them", line,
                "write the whole tile first",
            )  # fmt: skip
        raise RuleError(
            "tensor_output_not_written_to", f"{int((~bits).sum())} bytes of output {site.name} are never "
            "written", site.line, "cover every element of the output, also the tails",
        )  # fmt: skip
    return machine.tensor_array(tensor).reshape(site.shape)


def instruction_columns(program: Program) -> InstructionColumns:
    columns = (program.form_ids, program.lines, program.cells.first, program.tensors, program.offsets)
    return InstructionColumns(*(column.tolist() for column in columns))


def _run_interpreted(
    program: Program, machine: Machine, runner: ProgramInterpreter, *, actions: Sequence[PreparedForm]
) -> None:  # fmt: skip
    """Run everything in order; pause after writes that two cores must make alike, all outside loops."""
    table, cells, pairs = instruction_columns(program), program.cells, find_agreeing_writes(program)
    held: dict[int, Array] = {}
    begin = 0
    for number in sorted(pairs):
        runner.run(table, begin, number + 1, program.loop_partners)
        begin = number + 1
        cell, other = pairs[number]
        view = actions[table.forms[number]].views[cell - table.first[number]]
        held[number] = machine.operand_array(table.tensors[cell], table.offsets[cell], view).copy()
        try:
            _compare_writes(program.site(int(cells.tensor[cell])).name, held, number, other=other)
        except KernelError as error:
            raise locate_error(error, table.lines[number]) from error
    runner.run(table, begin, len(program), program.loop_partners)


def _run_plan(program: Program, machine: Machine, todo: ExecutionPlan) -> None:
    """Run the steps of a plan."""
    actions = [prepare_form(form, program.target) for form in program.forms]
    forms, first = program.form_ids.tolist(), program.cells.first.tolist()
    tensors, offsets, views = todo.tensors, todo.offsets, todo.views
    lines = program.lines.tolist()
    held: dict[int, Array] = {}
    for step in todo.steps:
        number = step.number
        start, end = first[number], first[number + 1]
        if step.product is None:
            try:
                machine.execute(
                    actions[forms[number]], tensors[start:end], offsets[start:end], views[start:end],
                    lines[number],
                )  # fmt: skip
                if number in todo.agreeing:
                    cell, other = todo.agreeing[number]
                    held[number] = machine.operand_array(tensors[cell], offsets[cell], views[cell]).copy()
                    _compare_writes(program.site(tensors[cell]).name, held, number, other=other)
            except KernelError as error:
                raise locate_error(error, lines[number]) from error
        elif step.product.result is not None:
            machine.place_tensor(
                step.product.result, multiply_blocks(step.product, machine.tensor_array).reshape(-1)
            )
        else:
            _store_product(
                step.product, machine, machine.operand_array(tensors[start], offsets[start], views[start])
            )
        machine.release_tensors(step.dead)


def _compare_writes(name: str, held: dict[int, Array], one: int, *, other: int) -> None:
    """Raise unless two cores that write one place without an order write the same values."""
    if other in held and held.pop(other).tobytes() != held.pop(one).tobytes():
        raise RuleError(
            "write_write_race",
            f"two cores write different values to {name}, and nothing says which comes first",
            hint="put nisa.core_barrier between the two, or give each core its own part",
        )


def _store_product(product: MatrixProduct, machine: Machine, dst: Array) -> None:
    """Store a product at the place of its matmuls."""
    result = multiply_blocks(product, machine.tensor_array).reshape(dst.shape)
    if product.adds:
        np.add(dst, result, out=dst)
    else:
        np.copyto(dst, result)
