"""Records what a traced kernel does: declared tensors and issued instructions, as columns of a program.

A call that repeats an earlier one except for tensors and offsets is recognised by its signature and costs one
dictionary look-up. Only a new signature is normalised, checked against the hardware's rules and added to the
table of forms.
"""

from __future__ import annotations

import ast
import sys
from array import array
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from nki_sim.dtypes import DTYPES
from nki_sim.errors import LimitError, escape_surrogates
from nki_sim.forms import MAX_NAME, Form, Operand, Params, ParamValue, Site
from nki_sim.frontend.argument_values import normalise_argument, split_list_argument
from nki_sim.frontend.compile_options import KernelConfig
from nki_sim.frontend.context import current_recorder, recording
from nki_sim.frontend.engine_state import EngineStates
from nki_sim.frontend.iterations import IterationTracker
from nki_sim.frontend.nki_tensor import NkiTensor
from nki_sim.frontend.operands import (
    PLAIN,
    as_signature_key,
    build_operands,
    check_dtype,
    check_site,
    dtype_name,
    normalise_axes,
    to_little_endian,
    validate_address,
    validate_name,
    validate_shape,
)
from nki_sim.frontend.storage import Declaration
from nki_sim.frontend.streams import (
    InstructionStream,
    SharedTensors,
    SyncPoint,
    find_written_inputs,
    merge_streams,
    sync_operands,
)
from nki_sim.frontend.tensor import Storage, Tensor, fail
from nki_sim.frontend.views import Lookup, View
from nki_sim.operators import OPERATORS, Operator
from nki_sim.program import wire
from nki_sim.targets import Target

__all__ = ["Recorder", "current_recorder", "recording"]


def _is_engine_open(engine: Any) -> bool:
    """Whether a call leaves the engine to the compiler."""
    return getattr(engine, "name", engine) in {None, "unknown"}


class Recorder(IterationTracker):
    """Collects one kernel's program for one target."""

    def __init__(
        self, target: Target, filename: str, *, max_instructions: int, names: Mapping[int, str] | None = None
    ) -> None:
        super().__init__()
        self.target = target
        self.filename = filename
        self.inputs: list[int] = []
        # The kernel's first line, for errors in its arguments and results.
        self.kernel_line = 0
        self._names = names or {}
        self._limit = max_instructions
        # Declarations by the text of their call and by its meaning, and the sites that have tensors.
        self._called: dict[tuple[Any, ...], Declaration] = {}
        self._declared: dict[Site, Declaration] = {}
        self._sites: list[Site] = []
        self._forms: dict[str, tuple[int, Form]] = {}
        self._seen: dict[tuple[Any, ...], int] = {}
        # Calls by operator and argument names: a number, and the arguments that matter.
        self._calls: dict[tuple[str, ...], tuple[int, tuple[str, ...]]] = {}
        self._tensor_sites = array("I")
        self._stream = InstructionStream()
        self._streams = [self._stream]
        # The program of the launch that is being traced: its grid, position and core.
        self.grid: tuple[int, ...] = ()
        self.program: tuple[int, ...] = ()
        self.core = 0
        self._shared = SharedTensors("nl.shared_hbm tensors")
        self._arguments = SharedTensors("arguments")
        # Open blocks whose order is kept, and open device loops.
        self.ordered = 0
        self.open_loops = 0
        self.dialect = "nki"
        # What `nki.jit` was given for the kernel of the launch.
        self.config = KernelConfig()
        # Whether the kernel places tiles itself, and whether it asks to ignore that.
        self.placed = False
        self.auto_alloc = False
        self._constants: dict[int, bytes] = {}
        # Code positions and their lines; keeping the code object keeps its id unique.
        self._lines: dict[tuple[int, int], tuple[CodeType, int]] = {}
        self._states = EngineStates(self._declare_state, target)

    # -- tensors ---------------------------------------------------------------------------------

    def declare(
        self,
        shape: Sequence[int],
        dtype: Any,
        buffer: str,
        name: str | None = None,
        address: tuple[int, int] | None = None,
    ) -> Tensor:
        """Make a new tensor, as `nl.ndarray` does."""
        found = self.prepare_declaration(shape, dtype, buffer, name, address=address)
        return self.allocate(found.site) if buffer == "shared_hbm" else self._new_declared_tensor(found)

    def prepare_declaration(
        self,
        shape: Sequence[int],
        dtype: Any,
        buffer: str,
        name: str | None = None,
        line: int | None = None,
        *,
        address: tuple[int, int] | None = None,
    ) -> Declaration:
        """Check a declaration at a line (by default the current one); it does not allocate yet."""
        line = self.current_line() if line is None else line
        sizes = tuple(shape) if isinstance(shape, list) else shape
        key = (line, sizes, dtype, buffer, name, address)
        try:
            found = self._called.get(key)
        except TypeError:  # unhashable arguments are invalid; the checks say which one
            return self._new_declaration(*key)
        if found is None:
            found = self._called[key] = self._new_declaration(*key)
        return found

    def _new_declaration(  # noqa: PLR0917  the key of a declaration
        self, line: int, shape: Any, dtype: Any, buffer: str, name: Any, address: Any
    ) -> Declaration:
        called = name or self._names.get(line, f"tensor_{line}")
        place = None if address is None else validate_address(address, called, buffer)
        site = Site(validate_name(called), validate_shape(shape), dtype_name(dtype), buffer, line, place)
        check_site(site, self.target)
        return self.declaration_of(site)

    def declaration_of(self, site: Site) -> Declaration:
        """Return the single declaration of a site."""
        found = self._declared.get(site)
        if found is None:
            found = self._declared[site] = Declaration(site)
        return found

    def declare_argument(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """Declare a kernel argument in HBM; all programs of a launch share the arguments."""
        site = Site(validate_name(name), validate_shape(shape), dtype_name(dtype), "hbm", 0)
        check_dtype(site.dtype, self.target)
        return self._arguments.next_tensor(site, self._new_argument)

    def _new_argument(self, site: Site) -> Tensor:
        tensor = self._new_tensor(site)
        self.inputs.append(tensor._storage.id)
        return tensor

    def declare_constant(self, name: str, shape: Sequence[int], dtype: Any, data: bytes) -> Tensor:
        """Declare a tensor in HBM that holds `data` (row-major, little-endian) from the start."""
        site = Site(
            validate_name(name), validate_shape(shape), dtype_name(dtype), "private_hbm", self.current_line()
        )
        if len(data) != site.size * DTYPES[site.dtype].itemsize:
            fail("shape", f"{len(data)} bytes for {name} of shape {site.shape} in {site.dtype}")
        tensor = self.allocate(site)
        self._constants[tensor._storage.id] = data
        return tensor

    def allocate(self, site: Site) -> Tensor:
        """Make a tensor of a declaration; programs of a launch share those in shared HBM, in order."""
        shared = site.buffer == "shared_hbm"
        return self._shared.next_tensor(site, self._new_tensor) if shared else self._new_tensor(site)

    def _new_tensor(self, site: Site) -> Tensor:
        return self._new_declared_tensor(self.declaration_of(site))

    def _new_declared_tensor(self, declaration: Declaration) -> Tensor:
        return NkiTensor(self.allocate_storage(declaration), 0, declaration.dims)

    def allocate_storage(self, declaration: Declaration) -> Storage:
        """Make one more tensor of a declaration."""
        if declaration.number < 0:
            declaration.number = len(self._sites)
            self._sites.append(declaration.site)
        return Storage(self._next_number(declaration.number), declaration.site, declaration.layout)

    def _next_number(self, site: int) -> int:
        """Number a new tensor of a site."""
        if len(self._tensor_sites) >= self._limit:
            raise LimitError("limit_tensors", f"more than {self._limit} tensors", self.current_line())
        self._tensor_sites.append(site)
        return len(self._tensor_sites) - 1

    def _declare_state(self, site: Site, data: bytes | None) -> Tensor:
        state = self.allocate(site)
        if data is not None:
            self._constants[state._storage.id] = data
        return state

    def analyse_source(self, tree: ast.Module) -> None:
        """Hook for recorders that need facts from the kernel's source that its run does not show."""
        del tree

    # -- programs of a launch --------------------------------------------------------------------

    def begin_program(self, place: tuple[int, ...], core: int) -> None:
        """Begin recording the program at that position of the grid."""
        self.program = place
        self._shared.rewind()
        self._arguments.rewind()
        if core != self.core:
            self.core, self._stream = core, InstructionStream()
            self._streams.append(self._stream)

    def synchronise(self, name: str, key: tuple[Any, ...], **what: Any) -> None:
        """Record that the program waits here for the other one, which must do the same."""
        self._stream.syncs.append(SyncPoint(name, key, self.current_line(), self._stream.end, **what))

    def mark_loop(self, name: str, condition: Tensor) -> None:
        """Record the begin or end of a device loop."""
        self.open_loops += 1 if name == "loop_begin" else -1
        at = self._stream.end
        self.emit(OPERATORS[name], {"condition": condition})
        self._stream.mark_loop(name, condition, self.current_line(), at)

    def _merge_streams(self) -> InstructionStream:
        if self.open_loops:
            fail("loop_left", "a loop of the device was left with break or return", "let it run to its end")
        if len(self._streams) == 1:
            return self._stream
        self._stream = InstructionStream()
        for item in merge_streams(self._streams):
            if isinstance(item[0], SyncPoint):
                for core, place in enumerate(item):
                    self.core = core
                    operands = sync_operands(item, core)
                    if operands is not None:
                        self.emit(OPERATORS[place.name], operands, place.line)
            else:
                self._stream.extend(*item)
        return self._stream

    # -- instructions ----------------------------------------------------------------------------

    def emit(self, operator: Operator, given: dict[str, Any], line: int | None = None) -> None:
        """Record one instruction; `given` are its arguments by name, `engine` among them."""
        stream = self._stream
        if len(stream.forms) >= self._limit:
            raise LimitError(
                "limit_instructions", f"more than {self._limit} instructions", self.current_line()
            )
        for name, roles in operator.groups.items() if operator.groups else ():
            given.update(
                zip(roles, split_list_argument(operator, name, roles, given.pop(name, None)), strict=False)
            )
        if operator.state is not None:
            engine = self._choose_engine(operator, given.get("engine"), ())
            given[operator.state.name] = self._states.state_view(
                operator, given, engine=engine, core=self.core, line=self.current_line()
            )
        call = operator.name, *given
        number, names = self._calls.get(call) or self._new_call(operator, call)
        key: list[Any] = [number, given.get("engine"), given.get("hints", ())]
        tensors, offsets = [], []
        for name in names:
            value = given[name]
            if value is None:
                key.append(None)
            elif isinstance(value, Tensor):
                storage, offset = value._storage, value._offset
                start = offset // storage.row if storage.on_chip else 0
                key += (storage.kind, value._dims, start, offset % storage.row if storage.banked else 0)
                tensors.append(storage.id)
                offsets.append(offset)
                if value._lookup is not None:
                    source = value._lookup.source
                    key.append(
                        (
                            Lookup,
                            value._lookup.step,
                            source._storage.kind,
                            source._dims,
                            source._start_position,
                        )
                    )
                    tensors.append(source._storage.id)
                    offsets.append(source._offset)
            elif type(value) in PLAIN:
                key += (type(value), value)
            else:
                key.append(as_signature_key(value))
        signature = tuple(key)
        try:
            form = self._seen.get(signature)
        except TypeError:
            fail("argument_type", f"nisa.{operator.name}: an argument is neither a tensor nor a constant")
        if form is None:
            form = self._seen[signature] = self._new_form(operator, given)
        stream.forms.append(form)
        stream.lines.append(self.current_line() if line is None else line)
        stream.cores.append(self.core)
        stream.nodes.append(self._node if self._node >= 0 else self._record_iterations())
        stream.tensors.extend(tensors)
        stream.offsets.extend(offsets)

    def _new_call(self, operator: Operator, call: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        """Return a number for calls with these names, and the names that become operands and parameters."""
        names = tuple(argument.name for argument in operator.arguments if argument.name in call[1:])
        return self._calls.setdefault(call, (len(self._calls), names))

    def flush(self) -> None:
        """Record what is held back; a hook for recorders that hold instructions back."""

    def pending_constant(self, tensor: View) -> float | None:
        """The constant that a tile holds without a recorded write, in recorders that fill late."""
        del tensor
        return None

    def read_values(self, tensor: View) -> Any:
        """A tensor's current elements if kernels run eagerly; None while tracing."""
        del tensor

    def _new_form(self, operator: Operator, given: dict[str, Any]) -> int:
        operands: list[Operand] = []
        params: list[tuple[str, ParamValue]] = []
        for argument in operator.arguments:
            value = normalise_argument(operator, argument, given.get(argument.name))
            if argument.kind == "axes" and isinstance(value, tuple):
                value = normalise_axes(value, given.get("data"))
            if isinstance(value, Tensor):
                operands += build_operands(operator, argument, value)
            elif value is not None:
                params.append((argument.name, value))
        engine = self._choose_engine(operator, given.get("engine"), tuple(params), operands)
        hints: Params = given.get("hints", ())
        if self.dialect == "neuronxcc" and len(operator.engines) > 1 and _is_engine_open(given.get("engine")):
            hints = (("engine", "open"), *hints)
        form = Form(operator.name, engine, tuple(operands), tuple(params), hints)
        for breach in operator.find_breaches(form, self.target):
            view = given.get(breach.role)
            place = f" ({view.name})" if isinstance(view, Tensor) else ""
            fail(breach.code, f"nisa.{operator.name}: {breach.message}{place}", breach.hint)
        # Keyed by text, which distinguishes 0.0 and -0.0 as the arithmetic does.
        return self._forms.setdefault(repr(form), (len(self._forms), form))[0]

    def _choose_engine(
        self, operator: Operator, engine: Any, params: Params, operands: Sequence[Operand] = ()
    ) -> str:
        name = getattr(engine, "name", engine)
        if _is_engine_open(engine) or operator.engines == ("dma",):
            return operator.default_engine(params, operands)
        allowed = operator.engines_of(self.target)
        if name not in allowed:
            fail("engine", f"nisa.{operator.name} does not run on {name}", f"one of {', '.join(allowed)}")
        return str(name)

    # -- the result ------------------------------------------------------------------------------

    def current_line(self) -> int:
        """The line of the kernel's file that is being executed, or 0."""
        # The only cheap way to find the caller's line.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_filename == self.filename:
                # Python finds a line by walking the whole function's table, so do it once per position.
                place = id(code), frame.f_lasti
                found = self._lines.get(place)
                if found is None:
                    found = self._lines[place] = code, frame.f_lineno
                return found[1]
            frame = frame.f_back
        return 0

    def inputs_written(self) -> list[int]:
        """Arguments that an instruction writes, in their order."""
        forms = [form for _, form in self._forms.values()]
        found = find_written_inputs(self._streams, forms, self.inputs)
        return [number for number in self.inputs if number in found]

    def to_bytes(self, kernel: str, outputs: Sequence[int]) -> bytes:
        """Return the program as bytes for `Program.from_bytes`."""
        stream = self._merge_streams()
        header = {
            "target": self.target.name,
            "dialect": self.dialect,
            "kernel": validate_name(kernel),
            "filename": escape_surrogates(self.filename)[:MAX_NAME],
            "sites": [wire.site_to_json(site) for site in self._sites],
            "forms": [wire.form_to_json(form) for _, form in self._forms.values()],
            "inputs": self.inputs,
            "outputs": list(outputs),
            "constants": list(self._constants),
            **wire.rotation_to_json(self.config.address_rotation),
        }
        columns = {
            "tensor_sites": self._tensor_sites,
            "forms": stream.forms,
            "lines": stream.lines,
            "cores": stream.cores,
            "tensors": stream.tensors,
            "offsets": stream.offsets,
            "nodes": stream.nodes if self._node_table[0] else array("I"),
            **dict(zip(("node_parents", "node_loops", "node_indices"), self._node_table, strict=True)),
            "constants": array("B", b"".join(self._constants.values())),
        }
        return wire.pack(header, {name: to_little_endian(column) for name, column in columns.items()})
