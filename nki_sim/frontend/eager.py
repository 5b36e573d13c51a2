"""Runs a kernel eagerly: `print(tile)`, `nki_sim.read_values(tile)` and `nl.device_print` show values.

Recorded instructions are executed when a value is read, and the rest at the end. Tiles live as long as the
run, so this is for inspecting kernels, not for full problem sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.checks.violations import raise_violations
from nki_sim.forms import Site
from nki_sim.frontend.api import Kernel, jit
from nki_sim.frontend.bind import bind_arguments, map_tensors
from nki_sim.frontend.context import targeting
from nki_sim.frontend.entry import kernel_from_source, trace_function
from nki_sim.frontend.faults import locate_errors
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.simulate import to_numpy
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.frontend.views import View
from nki_sim.program.ir import Program
from nki_sim.running.interpreter import InstructionColumns, ProgramInterpreter
from nki_sim.running.machine import Machine, PreparedForm, prepare_form
from nki_sim.running.numerics import MAX_WORK
from nki_sim.running.work import WorkAllowance
from nki_sim.semantics.arrays import NUMPY, Array


def run_eagerly(kernel: Any, inputs: Sequence[Any], target: str = "trn2", *, entry: str | None = None) -> Any:
    """Run a kernel and return its result; its values can be read while it runs.

    `kernel` is the path of a file (its kernel `entry`, as for tracing), a kernel or a function of this
    process. `inputs` are its arguments in order, arrays and plain values. The result has NumPy arrays instead
    of tensors, equal to those from tracing and then running the kernel.

    Raises:
        KernelError: the kernel breaks a rule or raises; data-dependent errors have their instruction's line.
        TargetError: unknown target.
    """
    if not isinstance(kernel, str | Path):
        return _run_kernel(jit(kernel), inputs, target)
    path = Path(kernel)
    with targeting(targets.load(target)), kernel_from_source(path.read_text(), str(path), entry) as found:
        return _run_kernel(found, inputs, target)


def _run_kernel(kernel: Kernel, inputs: Sequence[Any], target: str) -> Any:
    with locate_errors(kernel._code):
        flat = _copy_input_arrays(kernel, inputs, target)
        watched = copy.copy(kernel)
        made: list[_EagerRecorder] = []

        def recorder(*args: Any, **options: Any) -> Recorder:
            kind = type("Watching", (_EagerRecorder, kernel._recorder), {})
            made.append(kind(*args, arrays=flat, **options))
            return made[0]

        vars(watched)["_recorder"] = recorder
        with np.errstate(all="ignore"):
            traced = trace_function(watched, inputs, target=target)
            raise_violations(checks.check(Program.from_bytes(traced.program), targets.load(target)))
            made[0].execute_recorded()
        return None if traced.result is None else map_tensors(traced.result, made[0].output_array)


def _copy_input_arrays(kernel: Kernel, inputs: Sequence[Any], target: str) -> list[Array]:
    """Copy the arrays among the inputs, as flat arrays."""
    scratch = kernel._recorder(targets.load(target), "", max_instructions=1 << 20)
    _, _, arrays = bind_arguments(kernel._function, inputs, {}, scratch)
    return [to_numpy(array).reshape(-1).copy() for array in arrays]


class _EagerRecorder(Recorder):
    """A recorder with a machine that executes the recorded instructions."""

    def __init__(self, *args: Any, arrays: Sequence[Array], **options: Any) -> None:
        super().__init__(*args, **options)
        self._machine = Machine(self._site_of)
        self._given = iter(arrays)
        self._all_sites: list[Site] = []
        self._actions: list[PreparedForm] = []
        self._placed: set[int] = set()
        self._interpreter = ProgramInterpreter(self._machine, self._actions, WorkAllowance(MAX_WORK))
        self._first = [0]
        self._done = 0

    def _site_of(self, tensor: int) -> Site:
        if len(self._all_sites) < len(self._sites):
            self._all_sites = list(self._sites)
        return self._all_sites[self._tensor_sites[tensor]]

    def _new_argument(self, site: Site) -> Tensor:
        tensor = super()._new_argument(site)
        self._machine.place_tensor(tensor._storage.id, next(self._given))
        return tensor

    # -- following the recording -----------------------------------------------------------------

    def begin_program(self, place: tuple[int, ...], core: int) -> None:
        """Begin a program; the programs of a launch run one after another."""
        self.execute_recorded()
        before = self._stream
        super().begin_program(place, core)
        if self._stream is not before:
            self._first, self._done = [0], 0

    def synchronise(self, name: str, key: tuple[Any, ...], **what: Any) -> None:
        """Refuse programs that wait for each other, because they cannot run one after another."""
        del key, what
        fail("eager_launch", f"nisa.{name} is not supported eagerly", "trace and run the kernel instead")

    def execute_recorded(self) -> None:
        """Execute what has been recorded, up to a device loop that is still open."""
        self.flush()
        stream = self._stream
        self._add_actions()
        for tensor in self._constants.keys() - self._placed:
            dtype = NUMPY[self._site_of(tensor).dtype]
            self._machine.place_tensor(tensor, np.frombuffer(bytearray(self._constants[tensor]), dtype))
            self._placed.add(tensor)
        for number in range(len(self._first) - 1, len(stream.forms)):
            self._first.append(self._first[-1] + len(self._actions[stream.forms[number]].views))
        partners, end = self._match_loops(self._done)
        start, self._done = self._done, end
        columns = InstructionColumns(stream.forms, stream.lines, self._first, stream.tensors, stream.offsets)
        self._interpreter.run(columns, start, end, partners)

    def _add_actions(self) -> None:
        forms = [form for _, form in self._forms.values()]
        self._actions += [prepare_form(form, self.target.name) for form in forms[len(self._actions) :]]

    def _match_loops(self, start: int) -> tuple[dict[int, int], int]:
        """The loop marks from an instruction on, matched, and where an open loop begins, or the end."""
        partners: dict[int, int] = {}
        opened: list[int] = []
        for number in range(start, len(self._stream.forms)):
            op = self._actions[self._stream.forms[number]].form.op
            if op == "loop_begin":
                opened.append(number)
            elif op == "loop_end":
                begin = opened.pop()
                partners[begin], partners[number] = number, begin
        return partners, opened[0] if opened else len(self._stream.forms)

    # -- values ----------------------------------------------------------------------------------

    def read_values(self, tensor: View) -> Array | None:
        """A copy of a tensor's elements; None if its place depends on data or a loop is still open."""
        if tensor._lookup is not None or self.open_loops:
            return None
        self.execute_recorded()
        dtype = NUMPY[tensor._storage.dtype]
        constant = self.pending_constant(tensor)
        if constant is not None:
            return np.full(tensor.shape, constant, dtype)
        array = self._machine.tensor_array(tensor._storage.id)
        strides = tuple(step * dtype.itemsize for step, _ in tensor._dims)
        return np.ndarray(tensor.shape, dtype, array, tensor._offset * dtype.itemsize, strides).copy()

    def output_array(self, tensor: Tensor) -> Array:
        """Return an output as an array."""
        return self._machine.tensor_array(tensor._storage.id).reshape(tensor.shape)
