"""The operator classes as workloads call them: `NKIMatmul()(stationary=a, moving=b)`.

On arrays they compute, so that a workload's function can be run and compared; on symbols they record (see
`tracing.py`). A setting may be passed in either call. `src` is another spelling of `data`, and `op` of `op0`
if that is the only function. Softmax and RMSNorm are composed of the others.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.functions import FloatArray, canonical_name
from targets.nki.knobs.operators import OPERATORS, REQUIRED, Operator
from targets.nki.knobs.tracing import Symbol, record_call

_NEUTRAL = {"scale": 1.0, "bias": 0.0}
_AXIS = "axis"


class NKIOp:
    """One operator with some of its settings.

    Raises:
        WorkloadError: of `__init__` and `__call__`: an unknown or missing setting, operand or function.
    """

    entry: ClassVar[Operator]

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def __call__(self, *operands: Any, **named_operands: Any) -> Any:
        entry = self.entry
        if len(operands) > len(entry.operands):
            raise WorkloadError(f"{entry.name} takes the operands {', '.join(entry.operands)} and no more")
        given = {**self._settings, **dict(zip(entry.operands, operands, strict=False)), **named_operands}
        given = _canonical_arguments(entry, given)
        symbols = {key: item for key, item in given.items() if isinstance(item, Symbol)}
        arrays = {key: item for key, item in given.items() if isinstance(item, np.ndarray)}
        tensors = {*symbols, *arrays}
        settings = _complete_settings(entry, {key: item for key, item in given.items() if key not in tensors})
        _check_operands(entry, tensors, settings)
        if symbols and arrays:
            raise WorkloadError(f"{entry.name}'s {min(arrays)} is an array; operands come from the inputs")
        return record_call(entry, symbols, settings) if symbols else compute_operator(entry, arrays, settings)


def compute_operator(entry: Operator, tensors: dict[str, FloatArray], settings: dict[str, Any]) -> FloatArray:
    """An operator's result on arrays, rounded to their type; columns are float32."""
    batch = max((item.shape[:-2] for item in tensors.values()), key=len)
    if batch:
        parts = [
            compute_operator(entry, _batch_element(entry, tensors, place), settings)
            for place in np.ndindex(batch)
        ]
        return np.stack(parts).reshape((*batch, *parts[0].shape))
    wide = {
        slot: _as_rows(np.asarray(item, np.float32), slot in entry.rows) for slot, item in tensors.items()
    }
    constants = {slot: np.asarray(settings[slot], np.float32) for slot in entry.numbers & settings.keys()}
    found = entry.meaning(settings, {**wide, **constants})
    is_column = len(entry.result) == 1 or np.ndim(tensors[entry.like]) == 1
    return found[:, 0] if is_column else found.astype(tensors[entry.like].dtype)


def _batch_element(
    entry: Operator, tensors: dict[str, FloatArray], place: tuple[int, ...]
) -> dict[str, FloatArray]:
    """The operands' values at one place of a batch; some operands have fewer batch dimensions, or none."""
    return {
        slot: item[place[: max(0, item.ndim - len(entry.operands[slot]))]] for slot, item in tensors.items()
    }


def _as_rows(item: FloatArray, is_row: bool) -> FloatArray:
    if item.ndim > 1:
        return item
    return item[None] if is_row else item[:, None]


def _canonical_arguments(entry: Operator, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments under the entry's names; an axis is only checked, because sums always run over rows."""
    found = {}
    for key, item in given.items():
        if key == _AXIS and entry.reduces == "F":
            if item not in (1, -1):
                raise WorkloadError(f"{entry.name} axis {item!r}: only axis 1, along rows, is reduced")
            continue
        other = {"src": "data", "op": "op0"}.get(key, key)
        known = key in entry.operands or key in entry.setting_names
        found[key if known or other not in (*entry.operands, *entry.setting_names) else other] = item
    return found


def _complete_settings(entry: Operator, given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(entry.setting_names))
    if unknown:
        allowed = ", ".join((*entry.operands, *entry.settings))
        raise WorkloadError(
            f"{entry.name} takes no {unknown[0]!r} = {given[unknown[0]]!r}; it takes {allowed}"
        )
    found = {**entry.settings, **given}
    for key, item in found.items():
        if item is REQUIRED:
            raise WorkloadError(
                f"{entry.name} needs {key}=, one of {', '.join(sorted(entry.functions[key]))}"
            )
        if key in entry.functions and item is not None:
            found[key] = canonical_name(item, entry.functions[key], f"{entry.name}'s {key}")
        elif key in entry.numbers and not isinstance(item, int | float | np.floating):
            raise WorkloadError(f"{entry.name}'s {key} is {item!r}; it is a number or a column")
    return {key: float(item) if key in entry.numbers else item for key, item in found.items()}


def _check_operands(entry: Operator, tensors: set[str], settings: dict[str, Any]) -> None:
    for slot in entry.operands:
        if slot not in tensors and slot not in settings:
            if slot in _NEUTRAL:
                settings[slot] = _NEUTRAL[slot]
            elif slot not in entry.numbers or settings.get(f"op{slot[-1]}") is not None:
                raise WorkloadError(f"{entry.name} needs the operand {slot}=")
        elif slot in entry.numbers and settings.get(f"op{slot[-1]}", slot) is None:
            raise WorkloadError(f"{entry.name}'s {slot} needs op{slot[-1]}=")
    unknown = sorted(tensors - set(entry.operands))
    if unknown:
        allowed = ", ".join(entry.operands)
        raise WorkloadError(f"{entry.name} takes no operand {unknown[0]!r}; its operands are {allowed}")


class NKILoad(NKIOp):
    """An input on the chip. Optional: inputs are loaded where they are used."""

    entry = OPERATORS["NKILoad"]


class NKIStore(NKIOp):
    """The result in HBM. Optional: what the function returns is stored."""

    entry = OPERATORS["NKIStore"]


class NKITensorCopy(NKIOp):
    """A copy. Results in PSUM are copied anyway."""

    entry = OPERATORS["NKITensorCopy"]


class NKIMatmul(NKIOp):
    """`stationary.T @ moving`, of (K, M) and (K, N)."""

    entry = OPERATORS["NKIMatmul"]


class NKITranspose(NKIOp):
    """The transposed `data`."""

    entry = OPERATORS["NKITranspose"]


class NKIDMATranspose(NKITranspose):
    """The transposed `data`. The workload does not decide what transposes it."""


class NKITensorTensor(NKIOp):
    """`data1 op data2`, element by element."""

    entry = OPERATORS["NKITensorTensor"]


class NKITensorRow(NKIOp):
    """`data op row`: the same row, a one-dimensional input, for every row of data."""

    entry = OPERATORS["NKITensorRow"]


class NKITensorScalar(NKIOp):
    """`(data op0 operand0) op1 operand1`; operands are numbers or columns, `reverse0` swaps the first two."""

    entry = OPERATORS["NKITensorScalar"]


class NKIScalarTensorTensor(NKIOp):
    """`(data op0 operand0) op1 operand1`; operand0 is a number or a column, operand1 as wide as data."""

    entry = OPERATORS["NKIScalarTensorTensor"]


class NKIActivation(NKIOp):
    """`op(data * scale + bias)`; scale and bias are numbers or columns."""

    entry = OPERATORS["NKIActivation"]


class NKIReciprocal(NKIOp):
    """`1 / data` on VectorE."""

    entry = OPERATORS["NKIReciprocal"]


class NKITensorReduce(NKIOp):
    """Rows folded by `op` into a column."""

    entry = OPERATORS["NKITensorReduce"]


class NKIActivationReduce(NKIOp):
    """The sum of `op(data * scale + bias)` over rows, a column."""

    entry = OPERATORS["NKIActivationReduce"]


class NKISoftmax:
    """Rows of exponentials divided by their sum; the row's maximum is subtracted first."""

    def __call__(self, data: Any) -> Any:
        highest = NKITensorReduce(op="maximum")(data=data)
        shifted = NKITensorScalar(op0="subtract")(data=data, operand0=highest)
        powers = NKIActivation(op="exp")(data=shifted)
        total = NKITensorReduce(op="add")(data=powers)
        return NKITensorScalar(op0="multiply")(data=powers, operand0=NKIReciprocal()(data=total))


class NKIRMSNorm:
    """Rows divided by the root of their mean square plus `eps`."""

    def __init__(self, eps: float = 0.0) -> None:
        self._eps = eps

    def __call__(self, data: Any) -> Any:
        squares = NKIActivationReduce(op="square", reduce_op="add")(data=data)
        affine = NKITensorScalar(op0="multiply", op1="add", operand1=self._eps)
        mean = affine(data=squares, operand0=1.0 / data.shape[1])
        inverse = NKIActivation(op="rsqrt")(data=mean)
        return NKITensorScalar(op0="multiply")(data=data, operand0=inverse)
