"""Runs a program on NumPy arrays: what the kernel computes, on as many input sets as wanted.

Instructions run one after the other in program order. A tensor's memory exists from its first access to
its last; memory that nobody wrote reads as NaN (4 for integers). Accumulating matmuls are run one by one:
measured, joining a group's operands first gains nothing over adding up products of 128x128x512.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_sim.arrays import NUMPY, UNINITIALISED, Array
from nki_sim.errors import InputError, LimitError
from nki_sim.forms import HBM_BUFFERS, Form, Operand, ParamValue, merged
from nki_sim.ir import Program
from nki_sim.semantics import SEMANTICS, Semantics

MAX_BYTES = 16 << 30
MAX_ELEMENTS = 1 << 40


@dataclass(frozen=True, slots=True)
class _View:
    """How to make an operand's array from its tensor's memory.

    `fills` is the number of neighbouring elements it overwrites without reading any, 0 if it does not.
    """

    role: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    fills: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """A form made ready to run."""

    semantics: Semantics
    views: tuple[_View, ...]
    values: dict[str, ParamValue]


def run(
    program: Program,
    inputs: Sequence[Array],
    *,
    max_bytes: int = MAX_BYTES,
    max_elements: int = MAX_ELEMENTS,
) -> list[Array]:
    """The outputs, in the order the kernel returns them; inputs are not changed.

    The program must be one in which `checks` finds nothing.

    Raises:
        InputError: number, shape or type of the inputs is wrong.
        LimitError: the tensors in HBM exceed `max_bytes`, or all operands together `max_elements`.
    """
    _check_work(program, max_elements)
    memory = _Memory(program, inputs, max_bytes)
    plans = [_plan(form) for form in program.forms]
    tensors, offsets = program.tensors.tolist(), program.offsets.tolist()
    last = memory.last_uses()
    cell = 0
    with np.errstate(all="ignore"):
        for number, form in enumerate(program.form_ids.tolist()):
            plan = plans[form]
            views = {}
            for view in plan.views:
                views[view.role] = memory.view(tensors[cell], offsets[cell], view)
                cell += 1
            plan.semantics(views, plan.values)
            if number in last:
                memory.release(last[number])
    return [memory.output(number) for number in program.outputs]


def _check_work(program: Program, limit: int) -> None:
    if program.elements > limit:
        raise LimitError(
            "limit_work", f"instructions touch {program.elements} elements, the limit is {limit}"
        )


class _Memory:
    """The arrays behind tensors, flat, made on first touch."""

    def __init__(self, program: Program, inputs: Sequence[Array], max_bytes: int) -> None:
        self._program = program
        self._arrays: dict[int, Array] = {}
        self._check_size(max_bytes)
        if len(inputs) != len(program.inputs):
            raise InputError(f"{program.kernel} takes {len(program.inputs)} arrays, {len(inputs)} given")
        written = set(program.cells.tensor[program.cells.writes].tolist())
        for number, array in zip(program.inputs, inputs, strict=True):
            site = program.site(number)
            if array.shape != site.shape or array.dtype != NUMPY[site.dtype]:
                raise InputError(
                    f"input {site.name} is {array.dtype} {array.shape}, it must be {site.dtype} {site.shape}"
                )
            flat = np.ascontiguousarray(array).reshape(-1)
            self._arrays[number] = flat.copy() if number in written else flat
        for number, data in program.constants.items():
            held = np.frombuffer(data, NUMPY[program.site(number).dtype])
            self._arrays[number] = held.copy() if number in written else held

    def _check_size(self, max_bytes: int) -> None:
        program = self._program
        counts = np.bincount(program.tensor_sites, minlength=len(program.sites)).tolist()
        total = sum(
            site.size * NUMPY[site.dtype].itemsize * count
            for site, count in zip(program.sites, counts, strict=True)
            if site.buffer in HBM_BUFFERS
        )
        if total > max_bytes:
            raise LimitError("limit_memory", f"tensors in HBM take {total} bytes, the limit is {max_bytes}")

    def view(self, tensor: int, offset: int, view: _View) -> Array:
        array = self._arrays.get(tensor)
        if array is None:
            array = self._arrays[tensor] = self._allocate(tensor, view.fills)
        return np.ndarray(view.shape, view.dtype, array, offset * view.dtype.itemsize, view.strides)

    def _allocate(self, tensor: int, fills: int = 0) -> Array:
        site = self._program.site(tensor)
        dtype = NUMPY[site.dtype]
        return (
            np.empty(site.size, dtype)
            if fills == site.size
            else np.full(site.size, UNINITIALISED[dtype], dtype)
        )

    def last_uses(self) -> dict[int, list[int]]:
        """Instruction -> tensors that nothing touches after it."""
        cells = self._program.cells
        last = np.zeros(len(self._program.tensor_sites), dtype=np.int64)
        np.maximum.at(last, cells.tensor, cells.instruction)
        kept = {*self._program.outputs, *self._program.inputs, *self._program.constants}
        uses: dict[int, list[int]] = {}
        for tensor in np.unique(cells.tensor).tolist():
            if tensor not in kept:
                uses.setdefault(int(last[tensor]), []).append(tensor)
        return uses

    def release(self, tensors: list[int]) -> None:
        for tensor in tensors:
            del self._arrays[tensor]

    def output(self, tensor: int) -> Array:
        if tensor not in self._arrays:
            self._arrays[tensor] = self._allocate(tensor)
        return self._arrays[tensor].reshape(self._program.site(tensor).shape)


def _plan(form: Form) -> _Plan:
    keep_shape = form.op in {"tensor_reduce", "dma_copy", "dma_transpose"}
    prepare: Callable[[Operand, int], _View] = _raw_view if keep_shape else _row_view
    views = tuple(prepare(item, _fills(form, item)) for item in form.operands)
    return _Plan(SEMANTICS[form.op], views, dict(form.params))


def _raw_view(item: Operand, fills: int) -> _View:
    dtype = NUMPY[item.dtype]
    shape = tuple(count for _, count in item.dims)
    strides = tuple(step * dtype.itemsize for step, _ in item.dims)
    return _View(item.role, shape, dtype, strides, fills)


def _row_view(item: Operand, fills: int) -> _View:
    """[partitions, free] where the free pattern is one walk, else all its dimensions."""
    free = merged(item.dims[1:])
    if len(free) > 1:
        return _raw_view(item, fills)
    dtype = NUMPY[item.dtype]
    step, count = free[0] if free else (1, 1)
    strides = (item.dims[0][0] * dtype.itemsize, step * dtype.itemsize)
    return _View(item.role, (item.partitions, count), dtype, strides, fills)


def _fills(form: Form, item: Operand) -> int:
    joined = merged(item.dims)
    plain = item.role == "dst" and not form.param("accumulate")
    whole = not joined or (len(joined) == 1 and joined[0][0] == 1)
    return item.elements if plain and whole else 0
