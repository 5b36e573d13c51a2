"""Compares outputs with the reference's: reference files, tolerances, and the messages of rejections.

Whole outputs must meet the problem's relative L2 tolerance. A tile's error may be `TOLERANCE_FACTOR` times
the error that float32 with a shuffled order of additions has on the worst tile of the same inputs; its
tolerance is never below the problem's. Sets on which even honest float32 is meaningless are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Never
from zipfile import BadZipFile

import numpy as np

from remote.judge import seed_stream, tiles
from remote.judge.numerics import Array, BadReferenceError
from remote.judge.rejection import RejectedError
from remote.judge.seed_stream import GeneratorStates
from remote.judge.suite import EXTREME_SETS, SHIFTED_SET, is_secret_set
from seeds.inputs import dtype_of
from state.model import NumericalStability, Verdict

TOLERANCE_FACTOR = 8.0
"""How much worse than an honest reordering a kernel may be: other exact formulas round more often."""

LOOSEST_TOLERANCE = 1e-2
"""Sets whose tolerance would be above this are not judged: after cancellation nothing is left to compare."""


GROSS_ERROR = 0.1
"""On shifted lines an honest formula may lose most of its digits, but not all."""


@dataclass(frozen=True)
class ReferenceTiles:
    """The reference's tiles for one input set, the error of honest float32, and a seed's generator states."""

    truth: Sequence[Array]
    honest: float
    marks: Sequence[GeneratorStates] = ()


def set_tolerance(name: str, honest: float, own: float) -> float | None:
    """Return the tolerance for a set on which honest float32 has this error; None: not judged.

    Raises:
        BadReferenceError: a seed's reference is not finite, or zero everywhere.
    """
    if name.isdecimal():
        if not isfinite(honest):
            raise BadReferenceError(f"the reference is not finite, or zero everywhere, for seed {name}")
        return max(own, TOLERANCE_FACTOR * honest)
    if name in EXTREME_SETS:
        return own if TOLERANCE_FACTOR * honest <= own else None
    tolerance = max(own, TOLERANCE_FACTOR * honest)
    return tolerance if tolerance <= max(own, LOOSEST_TOLERANCE) else None


def refusing_tolerance(name: str, tolerance: float) -> float:
    """Return the error from which on a kernel is refused, for a set that is judged with a tolerance."""
    return max(tolerance, GROSS_ERROR) if name == SHIFTED_SET else tolerance


def assess_stability(error: float, tolerance: float) -> NumericalStability:
    """Return what the error on the set of shifted lines says about a formula."""
    verdict: Literal["stable", "unstable"] = "stable" if error < tolerance else "unstable"
    return NumericalStability(verdict=verdict, rel_l2=error, tolerance=tolerance)


def describe_set(name: str) -> str:
    """Return the name of an input set for messages, which do not say how the secret one is drawn."""
    if is_secret_set(name):
        return "the input set that the home's secret decides"
    return f"input seed {name}" if name.isdecimal() else f"input set {name}"


def require_within(outputs: Sequence[Array], error: float, tolerance: float, which: str) -> None:
    """Reject outputs whose error is not below the tolerance.

    Raises:
        RejectedError: the error is too large.
    """
    if error < tolerance:
        return
    bad = sum(int(out.size - np.count_nonzero(np.isfinite(out.astype(np.float32)))) for out in outputs)
    refuse_outputs(bad, error, tolerance, which)


def refuse_outputs(bad: int, error: float, tolerance: float, which: str) -> Never:
    """Reject outputs that are off by `error`, or of which `bad` elements are not finite.

    Raises:
        RejectedError: always.
    """
    if bad:
        text = f"{bad} output elements are not finite ({which})"
        raise RejectedError(Verdict.INCORRECT, "not_finite", text)
    text = f"relative L2 error {error:.3g} at {which}, it must be below {tolerance:.3g}"
    raise RejectedError(Verdict.INCORRECT, "wrong_result", text)


def load_whole_output(path: str) -> Array:
    """Return a file of whole outputs, mapped into memory.

    Raises:
        BadReferenceError: it cannot be read.
    """
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadReferenceError(f"{path}: {error}") from error
    return _restore_dtype(array)


def _restore_dtype(array: Array) -> Array:
    """Return the array with its type: NumPy files keep only the bytes of bfloat16."""
    return array.view(dtype_of("bfloat16")) if array.dtype.kind == "V" else array


def load_reference_tiles(path: str, pool: Sequence[tiles.OutputTile]) -> ReferenceTiles:
    """Return a file of tiles.

    Raises:
        BadReferenceError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            truth = [_restore_dtype(file[str(number)]) for number in range(len(pool))]
            marks = [file[name] for name in seed_stream.find_state_names(file.files)]
            return ReferenceTiles(truth, float(file["honest"]), marks)
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise BadReferenceError(f"{path}: {error}") from error
