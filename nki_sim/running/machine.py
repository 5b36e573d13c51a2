"""The machine that runs instructions: memory as flat arrays, operands as views of them.

It runs one instruction at a time, for callers that walk a program (`numerics`) or record one
(`frontend.eager`). It resolves and checks data-dependent addresses. For tensors whose writes are known only
at run time, it checks that elements are written before they are read. Unwritten memory reads as NaN (4 for
integers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim.checks.undefined import deciding_roles, spread_undefined
from nki_sim.errors import KernelError, RuleError
from nki_sim.flow.regions import pattern_in_bytes
from nki_sim.forms import Dims, Form, Operand, ParamValue, Site, chooses_columns, index_role, merge_dims
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Bools, Ints
from nki_sim.running.work import form_work
from nki_sim.semantics import SEMANTICS, TOUCHED, Semantics
from nki_sim.semantics.arrays import NUMPY, UNINITIALISED, Array

_KEEPS_SHAPE = frozenset({"tensor_reduce", "dma_copy", "dma_compute", "dma_transpose"})
"""Instructions whose arithmetic needs all dimensions of its operands."""


@dataclass(frozen=True, slots=True)
class OperandView:
    """How to make an operand's array from its tensor's memory.

    `fills` is the number of neighbouring elements that it overwrites without reading any, else 0.
    """

    role: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    fills: int


@dataclass(frozen=True, slots=True)
class PreparedForm:
    """A form ready to run; `indexed` forms have operands whose address depends on data.

    `deciding` are the roles that hold addresses or conditions; `work` is the cost of running it.
    """

    form: Form
    semantics: Semantics
    views: tuple[OperandView, ...]
    values: dict[str, ParamValue]
    effects: tuple[tuple[bool, bool], ...]
    indexed: bool
    deciding: frozenset[str]
    work: int


def prepare_form(form: Form, target: str) -> PreparedForm:
    """Compute everything about a form that is the same for all its instructions."""
    operator = OPERATORS[form.op]
    effects = tuple(operator.effect(form, item.role) for item in form.operands)
    indexed = any(item.index_step for item in form.operands)
    views = tuple(
        make_view(form, item, fills=_filled_elements(item) if effect == (True, False) and not indexed else 0)
        for item, effect in zip(form.operands, effects, strict=True)
    )
    values = {**dict(form.params), "engine": form.engine, "target": target}
    return PreparedForm(
        form, SEMANTICS[form.op], views, values, effects, indexed, deciding_roles(form), form_work(form)
    )


def make_view(form: Form, item: Operand, dims: Dims | None = None, *, fills: int = 0) -> OperandView:
    """Return an operand's view; `dims` overrides its access pattern.

    The view is [partitions, free] if the free pattern is one walk and the instruction needs no more.
    """
    pattern = item.dims if dims is None else dims
    free = merge_dims(pattern[1:])
    if form.op not in _KEEPS_SHAPE and len(free) < 2:
        pattern = (pattern[0], free[0] if free else (1, 1))
    dtype = NUMPY[item.dtype]
    strides = tuple(step * dtype.itemsize for step, _ in pattern)
    return OperandView(item.role, tuple(count for _, count in pattern), dtype, strides, fills)


def _filled_elements(item: Operand) -> int:
    joined = merge_dims(item.dims)
    return item.elements if not joined or (len(joined) == 1 and joined[0][0] == 1) else 0


class Machine:
    """Tensors by number, made on first touch; `site` gives a tensor's site.

    After `track_writes(tensor)` the machine notes which elements are written. An instruction that reads other
    elements makes its results undefined if their tensors are tracked too; elsewhere the machine raises an
    error. `carried` are the tensors that became undefined in part, with the tensor where that began and the
    line of the instruction that read it.
    """

    def __init__(self, site: Callable[[int], Site]) -> None:
        self.site = site
        self._arrays: dict[int, Array] = {}
        self.written: dict[int, Bools] = {}
        self.carried: dict[int, tuple[int, int]] = {}

    def place_tensor(self, tensor: int, array: Array) -> None:
        """Set a tensor's elements, as a flat array."""
        self._arrays[tensor] = array

    def track_writes(self, tensor: int) -> None:
        """Record from now on which bytes are written; a tensor already in memory counts as written."""
        site = self.site(tensor)
        nbytes = site.size * NUMPY[site.dtype].itemsize
        self.written[tensor] = np.full(nbytes, tensor in self._arrays, dtype=bool)

    def tensor_array(self, tensor: int, fills: int = 0) -> Array:
        """A tensor's elements, flat; `fills` of them are about to be written."""
        array = self._arrays.get(tensor)
        if array is None:
            site = self.site(tensor)
            dtype = NUMPY[site.dtype]
            if fills == site.size:
                array = np.empty(site.size, dtype)
            else:
                array = np.full(site.size, UNINITIALISED[dtype], dtype)
            self._arrays[tensor] = array
        return array

    def operand_array(self, tensor: int, offset: int, view: OperandView) -> Array:
        """An operand's array, `offset` elements into its tensor."""
        array = self._arrays.get(tensor)
        if array is None:
            array = self.tensor_array(tensor, view.fills)
        return np.ndarray(view.shape, view.dtype, array, offset * view.dtype.itemsize, view.strides)

    def release_tensors(self, tensors: Sequence[int]) -> None:
        """Release tensors that nothing touches any more."""
        for tensor in tensors:
            self._arrays.pop(tensor, None)

    def execute(
        self, action: PreparedForm, tensors: Sequence[int], offsets: Sequence[int],
        views: Sequence[OperandView], line: int = 0,
    ) -> None:  # fmt: skip
        """Run one instruction; `views` are usually `action.views`, others if it reads from elsewhere.

        `line` is that of the kernel's file.

        Raises:
            KernelError: an address is out of bounds, or an unwritten element is read.
        """
        if action.indexed or (self.written and any(tensor in self.written for tensor in tensors)):
            _CheckedExecution(self, action, tensors, offsets, views, line=line).execute()
            return
        arrays = {}
        for item, tensor, offset in zip(views, tensors, offsets, strict=True):
            arrays[item.role] = self.operand_array(tensor, offset, item)
        action.semantics(arrays, action.values)


@dataclass(slots=True, eq=False)
class _CheckedOperand:
    """One operand of an instruction that runs with checks.

    `places` are the flat elements of an operand gathered by a vector of indices, and `valid` says which
    positions of its first dimension are in bounds; both are None if the address is a plain pattern.
    """

    item: Operand
    view: OperandView
    tensor: int
    offset: int
    writes: bool
    reads: bool
    places: Ints | None = None
    valid: Bools | None = None


class _CheckedExecution:
    """Runs one instruction with data-dependent addresses or tracked tensors."""

    def __init__(
        self, machine: Machine, action: PreparedForm, tensors: Sequence[int], offsets: Sequence[int],
        views: Sequence[OperandView], *, line: int,
    ) -> None:  # fmt: skip
        self._machine = machine
        self._sites = machine.site
        self._action = action
        self._line = line
        self._skips = action.form.param("oob_mode") == "skip"
        columns = (action.form.operands, views, tensors, offsets, action.effects)
        self._operands = {
            item.role: _CheckedOperand(item, view, tensor, offset, *effect)
            for item, view, tensor, offset, effect in zip(*columns, strict=True)
        }

    def execute(self) -> None:
        operands = self._operands
        for role, operand in operands.items():
            if operand.item.index_step and not self._resolve_address(operand, operands[index_role(role)]):
                return
        views = {role: self._operand_array(operand) for role, operand in operands.items()}
        partial = OPERATORS[self._action.form.op].partial(self._action.form)
        for role in self._action.deciding & operands.keys():
            self._check_written(operands[role])
        touched = TOUCHED[self._action.form.op](views, self._action.values) if partial else {}
        lost = self._undefined_reads(partial, touched)
        kept = self._save_skipped(views)
        self._action.semantics(views, self._action.values)
        for role, (skipped, before) in kept.items():
            views[role][skipped] = before
        for role, operand in operands.items():
            if operand.writes:
                self._store_result(operand, views[role], kept.get(role), touched=touched.get(role), lost=lost)

    def _resolve_address(self, operand: _CheckedOperand, index: _CheckedOperand) -> bool:
        """Resolve the address; False if none of it is in bounds and the instruction skips that."""
        self._check_written(index)
        read = self._machine.operand_array(index.tensor, index.offset, index.view)
        if chooses_columns(operand.item, index.item):
            self._resolve_columns(operand, read.reshape(read.shape[0], -1).astype(np.int64))
            return True
        values = read.reshape(-1).astype(np.int64)
        # Clip values that would wrap around 64 bits; they are out of bounds at either end.
        most = (1 << 62) // operand.item.index_step
        starts = operand.offset + np.clip(values, -most, most) * operand.item.index_step
        valid = self._in_bounds(operand, starts)
        if not valid.all() and not self._skips:
            self._refuse_index(operand, int(values[int(np.argmin(valid))]))
        if operand.item.dims[0][0] or len(values) == 1:
            operand.offset = int(starts[0])
            return bool(valid[0])
        operand.valid = valid
        operand.places = np.where(valid, starts, 0)[:, None] + _pattern_elements(operand.item.dims[1:])
        if operand.writes and self._action.form.param("unique_indices"):
            self._check_unique(operand, operand.places[valid])
        return bool(valid.any())

    def _resolve_columns(self, operand: _CheckedOperand, offsets: Ints) -> None:
        """Resolve the columns that offsets [P, K] choose, see `Form.column_lookups`."""
        item, form = operand.item, self._action.form
        partition, place = np.arange(item.partitions), np.arange(item.free)
        row = place % form.column_group + (partition - partition % form.column_group)[:, None]
        column = np.broadcast_to(place // form.column_group, row.shape)
        if row.max() >= offsets.shape[0] or column.max() >= offsets.shape[1]:
            raise RuleError(
                "indirect_offsets",
                f"nisa.{form.op}: {item.role} takes {item.free} columns, its index has fewer offsets",
                hint="pass num_elem=, the number of offsets that a group of partitions uses",
            )
        chosen = offsets[row, column]
        places = operand.offset + item.dims[0][0] * partition[:, None] + item.index_step * chosen
        inside = places // item.row == (operand.offset // item.row + partition)[:, None]
        if not inside.all():
            self._refuse_index(operand, int(chosen[~inside][0]))
        operand.places, operand.valid = places, np.ones(item.partitions, dtype=bool)
        if operand.writes:
            self._check_unique(operand, places)

    def _check_unique(self, operand: _CheckedOperand, places: Ints) -> None:
        """Check that indices name each place once: a second sum would read the old one, and no document says
        which of two results stays.
        """
        if np.unique(places).size < places.size:
            name = self._sites(operand.tensor).name
            raise KernelError(
                "duplicate_indices", f"nisa.{self._action.form.op}: indices name a place of "
                f"{operand.item.role} ({name}) twice",
                hint="add up what goes to one place before, or add it in turns",
            )  # fmt: skip

    def _in_bounds(self, operand: _CheckedOperand, starts: Ints) -> Bools:
        """Which starts keep the pattern inside the tensor and, on chip, inside the partition's row."""
        item, site = operand.item, self._sites(operand.tensor)
        size = site.size * NUMPY[site.dtype].itemsize // item.itemsize
        moves = operand.item.dims[0][0] == 0
        extent = item.free_extent if moves else item.extent
        low = starts - item.reach_below
        valid: Bools = (low >= 0) & (low + extent <= size)
        if not item.in_hbm:
            valid &= low % item.row + item.free_extent <= item.row
            if item.index_step % item.row:
                valid &= starts // item.row == operand.offset // item.row
        return valid

    def _refuse_index(self, operand: _CheckedOperand, value: int) -> None:
        site = self._sites(operand.tensor)
        raise RuleError(
            "tensor_access_out_of_bound",
            f"nisa.{self._action.form.op}: index {value} moves {operand.item.role} ({site.name}) out of "
            f"its shape {site.shape}", hint="clamp the index, or pass oob_mode=nisa.oob_mode.skip",
        )  # fmt: skip

    def _operand_array(self, operand: _CheckedOperand) -> Array:
        if operand.places is None:
            return self._machine.operand_array(operand.tensor, operand.offset, operand.view)
        return self._tensor_elements(operand)[operand.places].reshape(operand.view.shape)

    def _tensor_elements(self, operand: _CheckedOperand) -> Array:
        """The operand's whole tensor, as elements of the type of the access."""
        return self._machine.tensor_array(operand.tensor).view(operand.view.dtype)

    def _save_skipped(self, views: dict[str, Array]) -> dict[str, tuple[Bools, Array]]:
        """Save the contents of skipped rows, for outputs that are not scattered themselves."""
        skipped = [~operand.valid for operand in self._operands.values() if operand.valid is not None]
        if not skipped or not any(rows.any() for rows in skipped):
            return {}
        rows = np.logical_or.reduce(skipped)
        kept = {}
        for role, operand in self._operands.items():
            if operand.writes:
                if views[role].shape[0] != len(rows):
                    raise KernelError(
                        "unsupported", f"nisa.{self._action.form.op}: skipped indices of {len(rows)} rows, "
                        f"{role} has {views[role].shape[0]}", hint="give both sides the same first dimension",
                    )  # fmt: skip
                kept[role] = (rows, views[role][rows].copy())
        return kept

    def _undefined_reads(self, partial: frozenset[str], touched: dict[str, Bools]) -> dict[str, Bools]:
        """Undefined positions [P, F] that are read, by role."""
        found = {}
        for role, operand in self._operands.items():
            if operand.reads and not (operand.writes and role in partial):
                missing = self._undefined_places(operand, touched.get(role))
                if missing is not None:
                    found[role] = missing
        written = self._machine.written
        if found and not all(item.tensor in written for item in self._operands.values() if item.writes):
            role, missing = next(iter(found.items()))
            self._refuse_unwritten(self._operands[role], missing)
        return found

    def _undefined_places(self, operand: _CheckedOperand, touched: Bools | None = None) -> Bools | None:
        """Positions [P, F] that a read finds undefined; None if there are none."""
        bits, item = self._machine.written.get(operand.tensor), operand.item
        if bits is None:
            return None
        if operand.places is None:
            there = _written_bits(bits, operand).all(axis=-1)
            there = there if touched is None else there | ~_spread_mask(touched, item)
        else:
            assert operand.valid is not None
            there = bits.reshape(-1, item.itemsize)[operand.places].all(axis=-1)
            there = there | ~operand.valid[:, None]
        return None if there.all() else ~there.reshape(item.partitions, item.free)

    def _store_result(
        self, operand: _CheckedOperand, result: Array, kept: tuple[Bools, Array] | None,
        *, touched: Bools | None, lost: dict[str, Bools],
    ) -> None:  # fmt: skip
        """Scatter results that were computed aside, and record what is now written."""
        rows = slice(None) if kept is None else ~kept[0]
        bits, action = self._machine.written.get(operand.tensor), self._action
        foul = (
            spread_undefined(action.form, str(action.values["target"]), lost, operand.item) if lost else None
        )
        if foul is not None:
            self._carry_undefined(operand.tensor, self._operands[next(iter(lost))].tensor)
        if operand.places is not None:
            places = operand.places[rows]
            self._tensor_elements(operand)[places] = result.reshape(operand.places.shape)[rows]
            if bits is not None:
                cells = bits.reshape(-1, operand.item.itemsize)
                cells[places] = True
                if foul is not None:
                    cells[places[foul.reshape(operand.places.shape)[rows]]] = False
        elif bits is not None:
            area = _written_bits(bits, operand)
            chosen = rows if touched is None else _spread_mask(touched, operand.item)
            if foul is None:
                area[chosen] = True
            else:
                area[chosen] = np.broadcast_to(_spread_mask(~foul, operand.item)[..., None], area.shape)[
                    chosen
                ]

    def _carry_undefined(self, tensor: int, source: int) -> None:
        carried = self._machine.carried
        carried.setdefault(tensor, carried.get(source, (source, self._line)))

    def _check_written(self, operand: _CheckedOperand) -> None:
        missing = self._undefined_places(operand)
        if missing is not None:
            self._refuse_unwritten(operand, missing)

    def _refuse_unwritten(self, operand: _CheckedOperand, missing: Bools) -> None:
        site = self._sites(operand.tensor)
        raise RuleError(
            "uninitialised_read",
            f"nisa.{self._action.form.op}: {int(missing.sum())} elements of {operand.item.role} "
            f"({site.name}, declared in line {site.line}) are read before they are written",
            hint="write the whole tile first",
        )  # fmt: skip


def _spread_mask(touched: Bools, item: Operand) -> Bools:
    """Expand a mask [P, F], or [P, 1] for whole rows, to the dimensions of an access pattern."""
    return np.broadcast_to(touched, (item.partitions, item.free)).reshape([count for _, count in item.dims])


def _written_bits(bits: Bools, operand: _CheckedOperand) -> Bools:
    dims = pattern_in_bytes(operand.item)
    shape = tuple(count for _, count in dims)
    start = operand.offset * operand.item.itemsize
    return np.ndarray(shape, np.bool_, bits, start, tuple(step for step, _ in dims))


def _pattern_elements(dims: Dims) -> Ints:
    """The elements of a pattern, flat, counted from its first."""
    places: Ints = np.zeros(1, np.int64)
    for step, count in dims:
        places = (places[:, None] + step * np.arange(count)).reshape(-1)
    return places
