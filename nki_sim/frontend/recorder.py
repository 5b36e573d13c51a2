"""What a traced kernel did: tensors declared, instructions issued, as the columns of a program.

Calls that repeat an earlier one except for tensors and offsets are recognised by their signature and cost
a dictionary look-up; only a new signature is normalised, checked against the hardware's rules and added
to the table of forms.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from nki_sim import wire
from nki_sim.dtypes import DTYPES, DType
from nki_sim.errors import KernelError, LimitError
from nki_sim.forms import (
    BUFFERS,
    HBM_BUFFERS,
    MAX_NAME,
    Form,
    Operand,
    Params,
    ParamValue,
    Site,
    index_role,
)
from nki_sim.frontend.state import EngineStates
from nki_sim.frontend.tensor import Storage, Tensor, fail, row_major
from nki_sim.frontend.values import normalise
from nki_sim.frontend.views import View
from nki_sim.operators import Argument, Operator
from nki_sim.targets import Target

MAX_ELEMENTS = 1 << 40


class Recorder:
    """Collects one kernel's program for one target."""

    def __init__(
        self, target: Target, filename: str, *, max_instructions: int, names: Mapping[int, str] | None = None
    ) -> None:
        self.target = target
        self.filename = filename
        self.inputs: list[int] = []
        # Where the kernel begins: the line of errors in what it takes and returns.
        self.kernel_line = 0
        self._names = names or {}
        self._limit = max_instructions
        self._sites: dict[Site, int] = {}
        self._forms: dict[str, tuple[int, Form]] = {}
        self._seen: dict[tuple[Any, ...], int] = {}
        self._tensor_sites = array("I")
        self._form_column = array("I")
        self._lines = array("I")
        self._cores = array("B")
        self.core = 0
        self.dialect = "nki"
        self._nodes = array("I")
        self._node_table = (array("I"), array("I"), array("I"))
        # The iterations being executed, outermost first: loop, index, number (0 before it is recorded).
        self._iterating: list[list[int]] = []
        self._node = 0
        self._loops = 0
        self._constants: dict[int, bytes] = {}
        self._states = EngineStates(self._declare_state)
        self._tensors = array("I")
        # Where the operands of the last instruction begin.
        self._begin = 0
        self._offsets = array("q")

    # -- tensors ---------------------------------------------------------------------------------

    def declare(self, shape: Sequence[int], dtype: Any, buffer: str, name: str | None = None) -> Tensor:
        """A new tensor, as `nl.ndarray` makes it."""
        return self.allocate(self.site(shape, dtype, buffer, name))

    def site(
        self, shape: Sequence[int], dtype: Any, buffer: str, name: str | None = None, line: int | None = None
    ) -> Site:
        """A declaration at a line (the one being executed), checked; it takes no room before `allocate`."""
        line = self.line() if line is None else line
        called = name or self._names.get(line, f"tensor_{line}")
        site = Site(_name(called), _shape(shape), _dtype(dtype), buffer, line)
        self._check_site(site)
        return site

    def argument(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A kernel argument in HBM."""
        tensor = self.allocate(Site(_name(name), _shape(shape), _dtype(dtype), "hbm", 0))
        self.inputs.append(tensor.storage.id)
        return tensor

    def constant(self, name: str, shape: Sequence[int], dtype: Any, data: bytes) -> Tensor:
        """A tensor in HBM that holds `data` (row-major, little-endian) from the start."""
        site = Site(_name(name), _shape(shape), _dtype(dtype), "private_hbm", self.line())
        if len(data) != site.size * DTYPES[site.dtype].itemsize:
            fail("shape", f"{len(data)} bytes for {name} of shape {site.shape} in {site.dtype}")
        tensor = self.allocate(site)
        self._constants[tensor.storage.id] = data
        return tensor

    def allocate(self, site: Site) -> Tensor:
        """A tensor of a declaration."""
        number = len(self._tensor_sites)
        if number >= self._limit:
            raise LimitError("limit_tensors", f"more than {self._limit} tensors", self.line())
        self._tensor_sites.append(self._sites.setdefault(site, len(self._sites)))
        return Tensor(Storage(number, site), 0, row_major(site.shape))

    def _declare_state(self, site: Site, data: bytes | None) -> Tensor:
        state = self.allocate(site)
        if data is not None:
            self._constants[state.storage.id] = data
        return state

    def _check_site(self, site: Site) -> None:
        if site.buffer not in BUFFERS:
            fail(
                "unsupported_memory",
                f"{site.name} in {site.buffer!r}",
                f"one of {', '.join(sorted(BUFFERS))}",
            )
        if site.buffer in HBM_BUFFERS:
            return
        if len(site.shape) < 2:
            fail(
                "tile_rank", f"{site.name} of shape {site.shape} is one-dimensional on chip",
                "tiles have a partition dimension and a free dimension: (128, n)",
            )  # fmt: skip
        if site.shape[0] > self.target.partitions:
            fail(
                "num_partition_exceed_arch_limit",
                f"number of partitions {site.shape[0]} of {site.name} exceeds the limit of "
                f"{self.target.partitions}", "tile the first dimension by 128",
            )  # fmt: skip

    # -- loops whose iterations may run in any order ---------------------------------------------

    def new_loop(self) -> int:
        """A number for one execution of a loop whose iterations may run in any order (`affine_range`)."""
        self._loops += 1
        return self._loops - 1

    def enter_iteration(self, loop: int, index: int) -> None:
        """What is recorded from here on belongs to iteration `index` (not negative) of the loop."""
        self._iterating.append([loop, index, 0])
        self._node = -1

    @property
    def iteration(self) -> int:
        """The number of the iteration being executed, 0 outside."""
        return self._node if self._node >= 0 else self._record_iterations()

    def leave_iteration(self) -> None:
        """End of the innermost iteration entered."""
        self._iterating.pop()
        self._node = self._iterating[-1][2] or -1 if self._iterating else 0

    def _record_iterations(self) -> int:
        """The number of the innermost iteration; it and those around it are put into the table."""
        parents, loops, indices = self._node_table
        number = 0
        for entry in self._iterating:
            if not entry[2]:
                parents.append(number)
                loops.append(entry[0])
                indices.append(entry[1])
                entry[2] = len(parents)
            number = entry[2]
        self._node = number
        return number

    # -- instructions ----------------------------------------------------------------------------

    def emit(self, operator: Operator, given: dict[str, Any], line: int | None = None) -> None:
        """Record one instruction; `given` are its arguments by name, `engine` among them."""
        if len(self._form_column) >= self._limit:
            raise LimitError("limit_instructions", f"more than {self._limit} instructions", self.line())
        if operator.state is not None:
            engine = self._engine(operator, given.get("engine"), ())
            given[operator.state.name] = self._states.view(
                operator, given, engine=engine, core=self.core, line=self.line()
            )
        cells: list[View] = []
        key: list[Any] = [operator.name, given.get("engine")]
        for argument in operator.arguments:
            value = given.get(argument.name)
            if isinstance(value, Tensor):
                cells.append(value)
                key.append(value.sig)
                if value.lookup is not None:
                    cells.append(value.lookup.source)
            else:
                key.append(_constant(value))
        try:
            form = self._seen.get(tuple(key))
        except TypeError:
            fail("argument_type", f"nisa.{operator.name}: an argument is neither a tensor nor a constant")
        if form is None:
            form = self._seen[tuple(key)] = self._new_form(operator, given)
        self._form_column.append(form)
        self._lines.append(self.line() if line is None else line)
        self._cores.append(self.core)
        self._nodes.append(self.iteration)
        self._begin = len(self._tensors)
        for view in cells:
            self._tensors.append(view.storage.id)
            self._offsets.append(view.offset)

    def retract(self) -> int:
        """Take the last instruction back, once, before another is recorded; its line."""
        del self._tensors[self._begin :], self._offsets[self._begin :]
        self._form_column.pop()
        self._cores.pop()
        self._nodes.pop()
        return self._lines.pop()

    def _new_form(self, operator: Operator, given: dict[str, Any]) -> int:
        operands: list[Operand] = []
        params: list[tuple[str, ParamValue]] = []
        for argument in operator.arguments:
            value = normalise(operator, argument, given.get(argument.name))
            if argument.kind == "axes" and isinstance(value, tuple):
                value = _from_front(value, given.get("data"))
            if isinstance(value, Tensor):
                operands += _operands(operator, argument, value)
            elif value is not None:
                params.append((argument.name, value))
        engine = self._engine(operator, given.get("engine"), tuple(params))
        form = Form(operator.name, engine, tuple(operands), tuple(params))
        for breach in operator.breaches(form, self.target):
            view = given.get(breach.role)
            place = f" ({view.name})" if isinstance(view, Tensor) else ""
            fail(breach.code, f"nisa.{operator.name}: {breach.message}{place}", breach.hint)
        # By its text, in which zeros have signs, as they have in the arithmetic.
        return self._forms.setdefault(repr(form), (len(self._forms), form))[0]

    def _engine(self, operator: Operator, engine: Any, params: Params) -> str:
        name = getattr(engine, "name", engine)
        if name in {None, "unknown"} or operator.engines == ("dma",):
            return operator.default_engine(params)
        if name not in operator.engines:
            fail(
                "engine",
                f"nisa.{operator.name} does not run on {name}",
                f"one of {', '.join(operator.engines)}",
            )
        return str(name)

    # -- the result ------------------------------------------------------------------------------

    def line(self) -> int:
        """The line of the kernel's file that is being executed, 0 when none is."""
        # The only way to a caller's line that costs nothing.
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            if frame.f_code.co_filename == self.filename:
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def to_bytes(self, kernel: str, outputs: Sequence[int]) -> bytes:
        """The program, ready for `Program.from_bytes`."""
        header = {
            "target": self.target.name,
            "dialect": self.dialect,
            "kernel": _name(kernel),
            "filename": self.filename,
            "sites": [wire.site_to_json(site) for site in self._sites],
            "forms": [wire.form_to_json(form) for _, form in self._forms.values()],
            "inputs": self.inputs,
            "outputs": list(outputs),
            "constants": list(self._constants),
        }
        columns = {
            "tensor_sites": self._tensor_sites,
            "forms": self._form_column,
            "lines": self._lines,
            "cores": self._cores,
            "tensors": self._tensors,
            "offsets": self._offsets,
            "nodes": self._nodes if self._node_table[0] else array("I"),
            **dict(zip(("node_parents", "node_loops", "node_indices"), self._node_table, strict=True)),
            "constants": array("B", b"".join(self._constants.values())),
        }
        return wire.pack(header, {name: _little(column) for name, column in columns.items()})


def _constant(value: Any) -> Any:
    """A constant as part of a signature, in which 1, 1.0 and True differ and zeros have signs."""
    if value is None or type(value) is str:
        return value
    if type(value) is float:
        return repr(value)
    return tuple(map(_constant, value)) if type(value) in {list, tuple} else (type(value), value)


def _from_front(axes: tuple[int, ...], data: Any) -> tuple[int, ...]:
    """Axes counted from the front; those of an operand that is no tensor stay for the checks to refuse."""
    rank = data.ndim if isinstance(data, Tensor) else 0
    return tuple(axis + rank if axis < 0 else axis for axis in axes)


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    total = 1
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            fail("shape", f"shape {sizes} is not made of positive integers")
        total *= size
    if not sizes or total > MAX_ELEMENTS:
        fail("shape", f"shape {sizes} has {total} elements, the limit is {MAX_ELEMENTS}")
    return sizes


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > MAX_NAME:
        fail("name", f"the name {str(name)[:40]!r}... is not a text of at most {MAX_NAME} characters")
    return name


def _dtype(dtype: Any) -> str:
    name = dtype.name if isinstance(dtype, DType) else dtype
    if not isinstance(name, str) or name not in DTYPES:
        fail("dtype", f"{dtype!r} is not a supported data type", f"one of {', '.join(DTYPES)}")
    return name


def _operands(operator: Operator, argument: Argument, view: Tensor) -> list[Operand]:
    """The operand in the argument's role, and behind it the one that holds its indices."""
    if view.buffer not in argument.buffers:
        fail(
            "unsupported_memory",
            f"nisa.{operator.name}: {argument.name} ({view.name}) is in {view.buffer}, it must be in "
            f"{' or '.join(sorted(argument.buffers))}", _memory_hint(view.buffer),
        )  # fmt: skip
    if view.lookup is None:
        return [_operand(argument.name, view)]
    source = view.lookup.source
    return [_operand(argument.name, view, view.lookup.step), _operand(index_role(argument.name), source)]


def _operand(role: str, view: View, index_step: int = 0) -> Operand:
    storage = view.storage
    _, dims, start, column = view.sig[:4]
    buffer = storage.site.buffer
    return Operand(role, dims, storage.dtype, buffer, storage.row, start, column, index_step)


def _memory_hint(buffer: str) -> str:
    if buffer == "psum":
        return "copy PSUM to SBUF first, for example with nisa.tensor_copy"
    return "move it with nisa.dma_copy or nisa.tensor_copy first"


_current: list[Recorder] = []


def current() -> Recorder:
    """The recorder of the kernel being traced.

    Raises:
        KernelError: `nl` or `nisa` was called outside a traced kernel.
    """
    if not _current:
        raise KernelError("not_tracing", "nki calls work only inside a kernel that is being traced")
    return _current[-1]


class recording:  # noqa: N801  a context manager reads as a verb
    """Makes a recorder the current one."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> Recorder:
        _current.append(self._recorder)
        return self._recorder

    def __exit__(self, *_: object) -> None:
        _current.pop()
