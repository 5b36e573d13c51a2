"""The recorder of legacy kernels; it delays decisions until the next call shows what the kernel meant.

Operators return new tiles. `t[...] = nisa.op(...)` makes `t` the destination of that last instruction instead
of adding a copy. A tile filled with a constant is not written until something needs it: a matmul that
accumulates into zeros simply overwrites them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

from nki_sim.errors import KernelError
from nki_sim.forms import merge_dims, reach_below
from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.legacy.scopes import Scopes
from nki_sim.frontend.legacy.split import split_to_rank
from nki_sim.frontend.psum import infer_accumulate
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.tensor import Storage, Tensor, fail, row_major_dims
from nki_sim.frontend.views import View
from nki_sim.operators import OPERATORS, Operator

_LAST_GENERATION = 3
"""The last generation that the legacy namespace has: it ended before NeuronCore-v4 came [D: SDK 2.29]."""

_ALL = -1
"""Every element's bit in `Storage.started`."""


class PendingFill(NamedTuple):
    """A constant that a tile holds without a recorded write, and the iteration that asked for it."""

    storage: Storage
    value: float
    line: int
    iteration: int


PendingInstruction = tuple[Operator, dict[str, Any], int]
"""An instruction, its arguments and line; recorded when the next comes, so its result can be redirected."""


class LegacyRecorder(Recorder):
    """A recorder that can redirect its last instruction and that fills tiles late."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.target.generation > _LAST_GENERATION:
            fail(
                "generation", f"neuronxcc.nki does not know {self.target.name}",
                "write the kernel in the namespace nki",
            )  # fmt: skip
        self.dialect = "neuronxcc"
        self._pending: PendingInstruction | None = None
        # Numbers of result tiles that nothing was written to in the end.
        self._spare: list[int] = []
        self._fills: dict[int, PendingFill] = {}
        # Tiles written by something other than a reduction over a loop.
        self._written: set[int] = set()
        self._reductions: set[tuple[Any, ...]] = set()
        self._reducing: set[int] = set()
        # PSUM tiles written by something other than a matmul.
        self._foreign: set[int] = set()
        # Arguments that the kernel writes, and the line of the first instruction that does.
        self.written_inputs: dict[int, int] = {}
        self._scopes = Scopes(ast.Module(body=[], type_ignores=[]))
        # Lines of tensors, and of instructions that may use them.
        self._in_scope: set[tuple[int, int]] = set()
        # The first action that is not allowed in kernels that place their tiles.
        self._barred: KernelError | None = None

    def analyse_source(self, tree: ast.Module) -> None:
        self._scopes = Scopes(tree)

    def is_nested(self) -> bool:
        """Whether the current line is in a block, or in a function that the kernel calls."""
        return self._scopes.is_nested(self.current_line(), self.kernel_line)

    def bar_where_placed(self, code: str, message: str, hint: str, line: int | None = None) -> None:
        """Refuse this at the end if the kernel places tiles itself anywhere."""
        if self._barred is None:
            self._barred = KernelError(code, message, self.current_line() if line is None else line, hint)

    def declare_argument(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        from nki_sim.frontend.legacy.tiles import as_tile

        return as_tile(super().declare_argument(name, shape, dtype))

    def _next_number(self, site: int) -> int:
        if not self._spare:
            return super()._next_number(site)
        self._tensor_sites[self._spare[-1]] = site
        return self._spare.pop()

    # -- instructions ----------------------------------------------------------------------------

    def emit(self, operator: Operator, given: dict[str, Any], line: int | None = None) -> None:
        self.flush()
        line = self.current_line() if line is None else line
        for view in given.values():
            if isinstance(view, Tensor):
                if getattr(view, "_reach", None) is not None:
                    _refuse_reach(view)
                if view._lookup is not None:
                    _refuse_reach(view._lookup.source)
                if (view._storage.site.line, line) not in self._in_scope:
                    self._check_scope(view, line)
        self._bar_hidden_operands(operator, given, line)
        self._pending = operator, given, line

    def _check_scope(self, view: View, line: int) -> None:
        made = view._storage.site.line
        if self._scopes.is_in_scope(made, line):
            self._in_scope.add((made, line))
            return
        block = self._scopes.innermost_block(made)
        if block is None or view._storage.id in self._constants:
            return
        fail(
            "local_variable_used_out_of_scope",
            f"{view.name}, made at line {made}, is used outside the block of lines {block.first} to "
            f"{block.last} that it belongs to",
            "declare it before the block with nl.ndarray and assign to it there: t[...] = ...",
        )  # fmt: skip

    def _bar_hidden_operands(self, operator: Operator, given: dict[str, Any], line: int) -> None:
        """Bar zero biases and identities, for which the compiler has no room in kernels that place tiles."""
        if self._barred is not None:
            return
        if operator.name in {"activation", "activation_reduce"} and given.get("bias") is None:
            self.bar_where_placed(
                "bias_tensor_must_be_specified_in_allocation",
                "an activation without a bias tile in a kernel that places its tiles",
                "call nisa.activation with bias= a tile of zeros that has a place", line,
            )  # fmt: skip
        if operator.name == "nc_transpose" and getattr(given.get("engine"), "name", "") != "vector":
            self.bar_transpose(line)

    def bar_transpose(self, line: int | None = None) -> None:
        """Bar transposes on the tensor engine, which multiply by an identity that would need a place."""
        self.bar_where_placed(
            "transpose_on_tensor_engine_not_allowed_in_allocated_kernel",
            "a transpose on the tensor engine in a kernel that places its tiles",
            "call nisa.nc_matmul with an identity that has a place; up to 32x32 engine=nisa.vector_engine",
            line,
        )  # fmt: skip

    def flush(self) -> None:
        """Record the last instruction as it is."""
        if self._pending is None:
            return
        operator, given, line = self._pending
        self._pending = None
        if self._fills:
            self._fill_operands(operator, given)
        if operator.name == "nc_matmul":
            _infer_accumulate(given)
        try:
            for part in split_to_rank(operator, given, self.target.access_rank_max):
                super().emit(operator, part, line)
        except KernelError as error:
            error.line = error.line or line
            raise
        self._note_writes(operator, given, line)

    def _note_writes(self, operator: Operator, given: dict[str, Any], line: int) -> None:
        for role in operator.outputs:
            view = given.get(role)
            if view is not None:
                if view._storage.id not in self._reducing:
                    self._written.add(view._storage.id)
                if view._storage.banked and operator.name != "nc_matmul":
                    self._foreign.add(view._storage.id)
                if view._storage.id in self.inputs:
                    self.written_inputs.setdefault(view._storage.id, line)

    @contextmanager
    def record_in_iteration(self, iteration: int) -> Iterator[None]:
        """Record into that iteration meanwhile; it encloses the current one."""
        self.flush()
        node, self._node = self.current_iteration, iteration
        yield
        self.flush()
        self._node = node

    def begin_program(self, place: tuple[int, ...], core: int) -> None:
        self.flush()
        super().begin_program(place, core)

    def enter_iteration(self, loop: int, index: int) -> None:
        if self._pending is not None:
            self.flush()
        super().enter_iteration(loop, index)

    def leave_iteration(self) -> None:
        if self._pending is not None:
            self.flush()
        super().leave_iteration()

    def inputs_written(self) -> list[int]:
        self.flush()
        return super().inputs_written()

    def to_bytes(self, kernel: str, outputs: Sequence[int]) -> bytes:
        self.flush()
        if self.placed and self._barred is not None:
            raise self._barred
        return super().to_bytes(kernel, outputs)

    # -- fills -----------------------------------------------------------------------------------

    def fill_lazily(self, storage: Storage, value: float, line: int, iteration: int) -> None:
        """Let the whole tile hold `value` from here on; a memset is recorded before its first use, if needed.

        A pending fill of another iteration is recorded, not dropped, so that the rules can judge two fills of
        one tile. Call `flush` first if a pending instruction uses the tile.
        """
        earlier = self._fills.get(storage.id)
        if earlier is not None and earlier.iteration != iteration:
            self._write_fill(earlier)
        storage.started = 0
        self._foreign.discard(storage.id)
        self._fills[storage.id] = PendingFill(storage, value, line, iteration)

    def pending_constant(self, tensor: View) -> float | None:
        """The constant that a tile holds without a recorded write."""
        fill = self._fills.get(tensor._storage.id)
        return None if fill is None else fill.value

    def _fill_operands(self, operator: Operator, given: dict[str, Any]) -> None:
        for role, view in given.items():
            if isinstance(view, Tensor) and view._storage.id in self._fills:
                fill = self._fills.pop(view._storage.id)
                if not _is_overwritten(operator, given, role):
                    self._write_fill(fill)

    def _write_fill(self, fill: PendingFill) -> None:
        whole = Tensor(fill.storage, 0, row_major_dims(fill.storage.site.shape))
        node, self._node = self.current_iteration, fill.iteration
        super().emit(OPERATORS["memset"], {"dst": whole, "value": fill.value}, fill.line)
        self._node = node
        self._written.add(fill.storage.id)

    # -- what tiles ask --------------------------------------------------------------------------

    def begins_reduction(self, goal: Tensor) -> bool:
        """Whether a reduction into these elements is the first, and nothing else wrote there."""
        self.flush()
        number = goal._storage.id
        key = (number, goal._offset, goal._dims)
        first = number not in self._written and number not in self._fills and key not in self._reductions
        self._reductions.add(key)
        self._reducing.add(number)
        return first

    def can_accumulate(self, tensor: Tensor) -> bool:
        """Whether a matmul may accumulate there: a PSUM tile that holds products or zeros."""
        storage = tensor._storage
        if not storage.banked or storage.id in self._foreign:
            return False
        return storage.id not in self._fills or self._fills[storage.id][1] == 0

    # -- redirection -----------------------------------------------------------------------------

    def redirect_result(self, result: Tensor, goal: Tensor, **changes: Any) -> bool:
        """Make the last instruction write `goal` instead of its result tile; False if that is impossible."""
        if self._pending is None:
            return False
        operator, given, _ = self._pending
        written = given.get("dst")
        # A tile that earlier instructions also wrote would lose their values.
        alone = result._storage.id not in self._written
        if written is None or written._storage is not result._storage or not alone:
            return False
        place = _place_in_goal(written, result, goal)
        if place is None or not _can_write(operator, given.get("engine"), goal.buffer):
            return False
        own = result._storage.id, place._storage.id
        for view in given.values():
            read = isinstance(view, Tensor) and view is not written and view._storage.id in own
            if read and _views_collide(place, view, result):
                return False
        given["dst"] = place
        given.update(changes)
        self._spare.append(result._storage.id)
        return True

    def inherits_type(self, result: Tensor) -> bool:
        """Whether the last instruction reads a tile of its result's type."""
        given = self._pending[1].values() if self._pending else ()
        return any(
            isinstance(view, Tensor) and view._storage is not result._storage and view.dtype == result.dtype
            for view in given
        )

    @property
    def last_operator(self) -> str:
        """The name of the instruction whose result can still be redirected, or ""."""
        return self._pending[0].name if self._pending else ""


def legacy_recorder() -> LegacyRecorder:
    """Return the recorder of the legacy kernel being traced.

    Raises:
        KernelError: nothing is being traced.
    """
    recorder = current_recorder()
    assert isinstance(recorder, LegacyRecorder), "the launch of legacy kernels installs their recorder"
    return recorder


def _refuse_reach(view: View) -> None:
    reach = getattr(view, "_reach", None)
    if reach is not None:
        reach.refuse(view.name)


def _infer_accumulate(given: dict[str, Any]) -> None:
    """Decide `accumulate=None`; whole tiles, the common case, without looking at their elements."""
    dst = given["dst"]
    storage = dst._storage
    if storage.started in {0, _ALL} and storage.banked and dst._size == storage.size:
        if given.get("accumulate") is None:
            given["accumulate"] = storage.started == _ALL
        storage.started = _ALL
    else:
        infer_accumulate(given)


def _can_write(operator: Operator, engine: Any, buffer: str) -> bool:
    """Whether an engine can write to a memory: the tensor engine only to PSUM, GpSimd never to PSUM."""
    barred = "gpsimd" if buffer == "psum" else "tensor"
    name = getattr(engine, "name", "unknown")
    runs = operator.engines[0] if name == "unknown" else name
    return buffer in operator.arguments_by_name["dst"].buffers and barred != runs


def _is_overwritten(operator: Operator, given: dict[str, Any], role: str) -> bool:
    """Whether an operand is overwritten whole without being read."""
    view = given[role]
    uses = sum(1 for other in given.values() if isinstance(other, Tensor) and other._storage is view._storage)
    whole = prod(count for step, count in view._dims if step or count == 1) == view._storage.size
    return uses == 1 and whole and role in operator.outputs and not given.get("accumulate")


def _views_collide(written: Tensor, read: Tensor, result: Tensor) -> bool:
    """Whether an instruction would overwrite operand elements in place that it still has to read."""
    if read._storage.id == result._storage.id:
        return True
    if written._offset == read._offset and merge_dims(written._dims) == merge_dims(read._dims):
        return False
    row = written._storage.row
    spans = []
    for view in (written, read):
        first, free = divmod(view._offset, row)
        last = free + sum(step * (count - 1) for step, count in view._dims[1:] if step > 0)
        spans.append((first, first + view._dims[0][1] - 1, free - reach_below(view._dims[1:]), last))
    (a, b, c, d), (e, f, g, h) = spans
    return a <= f and e <= b and c <= h and g <= d


def _place_in_goal(written: Tensor, result: Tensor, goal: Tensor) -> Tensor | None:
    """The part of the goal that corresponds to what an instruction writes of its result tile."""
    if written._dims == result._dims:
        return goal
    if len(written._dims) != len(goal._dims) or any(
        count > 1 and step != other
        for (step, count), (other, _) in zip(written._dims, result._dims, strict=True)
    ):
        return None
    rest, offset, dims = written._offset - result._offset, goal._offset, []
    for (own, _), (_, count), (step, _) in zip(result._dims, written._dims, goal._dims, strict=True):
        at, rest = divmod(rest, own)
        offset += at * step
        dims.append((step, count))
    return Tensor(goal._storage, offset, tuple(dims))
