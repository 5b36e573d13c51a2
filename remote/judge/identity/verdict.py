"""Whether a program computes what the reference does: proven on parts of the outputs, tested, or rejected.

`proven`: equal over the residues, for two draws of the secret symbols. `rejected`: different where everything
that reached an element is inside the covered fragment on both sides and, in float64 too, by more than the
rounding of constants explains, with the simulator for a witness; or an output cannot depend on an input that
the reference's depends on.
`tested`: neither. That the numbers agreed is then all that is known, and the reason says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.dependence import Missing, missing
from remote.judge.identity.floats import Floats
from remote.judge.identity.residues import Residues, Why
from remote.judge.identity.sides import Sides, flat
from remote.judge.identity.witness import Asking

Floating = NDArray[np.float64]

DRAWS, MORE = 2, 6
"""Draws of the symbols: those that a proof takes, and those in which a difference is looked for."""

SCALES = (1.0, 2.0**-12, 2.0**-24)
"""How large inputs are in float64: terms that never count among large numbers count among small ones."""

NOISE = 2e-6
"""Relative L2 difference that constants rounded to float32 may make."""

_REASONS = {
    Why.UNKNOWN: "instructions that cannot be followed reach the result",
    Why.FUNCTION: "functions without rules reach the result",
    Why.EXPONENT: "exponentials of exponentials reach the result",
    Why.CONSTANT: "constants that stand for no simple number reach the result",
    Why.ORDER: "maxima or comparisons decide about the result",
    Why.ZERO: "divisions by zero reach the result",
    Why.ROOT: "no symbols were found whose roots say more",
}
_SLIGHT = "the formulas differ by no more than constants rounded to float32 explain"
_CONTRADICTED = "what the simulator computes does not bear out that the formulas differ"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and why.

    Of a proof the elements that it is about; of a rejection the first that is wrong, and what it lacks.
    """

    verdict: Literal["proven", "tested", "rejected"]
    reason: str = ""
    elements: int = 0
    position: int = 0
    lacks: Missing | None = None


@dataclass(frozen=True, slots=True)
class _Draw:
    """Elements that differ, and for each the marks of `Why`; those of elements that agree are of no use."""

    differs: NDArray[np.bool_]
    why: NDArray[np.uint8]

    @property
    def certain(self) -> NDArray[np.bool_]:
        """Elements that differ although all that reached them is inside the fragment."""
        certain: NDArray[np.bool_] = self.differs & (self.why == 0)
        return certain

    @property
    def open(self) -> bool:
        """Whether other symbols may show more."""
        return bool((self.differs & (self.why == Why.ROOT)).any())


def find(sides: Sides) -> Finding:
    """Compare the two over the residues; where they differ, find out what that means."""
    agreed: NDArray[np.int64] = np.zeros(sides.elements, np.int64)
    marks = Why(0)
    for number in range(MORE):
        if number == DRAWS and not marks:
            break
        draw = _drawn(sides, number)
        if draw.certain.any():
            return _confirmed(sides, draw.certain)
        agreed += ~draw.differs
        marks |= Why(int(np.bitwise_or.reduce(draw.why[draw.differs], initial=0)))
        if marks & ~Why.ROOT and not draw.open:
            break
    # Roots that say nothing for some symbols say it for others: there it is enough to agree where they do.
    proven = int((agreed >= DRAWS).sum())
    if proven and not marks & ~Why.ROOT:
        return Finding("proven", elements=proven)
    lacks = missing(sides, np.random.default_rng(list(sides.seed)))
    if lacks is not None:
        return Finding("rejected", position=lacks.position, lacks=lacks)
    return Finding("tested", next(text for why, text in _REASONS.items() if why & marks))


def _drawn(sides: Sides, number: int) -> _Draw:
    """One draw; where only the order of residues is in the way, what does not change with it is certain."""
    values, why = _residues(sides, number, descending=False)
    differs = values[0] != values[1]
    by_order = differs & ((why & ~Why.ROOT) == Why.ORDER)
    if by_order.any():
        others, _ = _residues(sides, number, descending=True)
        same = (values == others).all(axis=0)
        why = np.where(by_order & same, why & np.uint8(0xFF ^ Why.ORDER), why)
    return _Draw(differs, why)


def _residues(sides: Sides, number: int, *, descending: bool) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Residues [program and reference, elements], and all marks of both."""
    domain = Residues(sides.seed + bytes([number]), descending=descending)
    found = [side(domain, sides.boxes) for side in (sides.program, sides.reference)]
    marks = [np.concatenate([domain.why(value).reshape(-1) for value in values]) for values in found]
    return np.stack([flat(values, 0) for values in found]), marks[0] | marks[1]


def _confirmed(sides: Sides, certain: NDArray[np.bool_]) -> Finding:
    """A rejection if float64 shows the difference too, and the simulator sides with the program's formula."""
    for scale in SCALES:
        asking = Asking(sides.seed, sides.inputs, scale)
        with np.errstate(all="ignore"):
            ours = flat(sides.program(asking, sides.boxes), 0)[certain]
            truth = flat(sides.reference(Floats(sides.seed, sides.inputs, scale), sides.boxes), 0)[certain]
        error = _relative(ours, truth)
        if error > NOISE:
            simulated = sides.simulate(asking)
            if simulated is None or not _nearer(simulated[certain], ours, truth):
                return Finding("tested", _CONTRADICTED)
            text = f"by {error:.2g} in float64" + (f", inputs times {scale:.2g}" if scale != 1.0 else "")
            return Finding("rejected", text, position=int(np.argmax(certain)))
    return Finding("tested", _SLIGHT)


def _relative(found: Floating, truth: Floating) -> float:
    """The relative L2 difference of what is finite on both sides."""
    finite = np.isfinite(found) & np.isfinite(truth)
    wrong, size = (float(np.linalg.norm(item[finite])) for item in (found - truth, truth))
    return wrong / size if size else wrong


def _nearer(simulated: Floating, ours: Floating, truth: Floating) -> bool:
    """Whether the simulator is at least twice as near to the program's formula as to the reference's."""
    finite = np.isfinite(simulated) & np.isfinite(ours) & np.isfinite(truth)
    near, far = (float(np.linalg.norm((simulated - item)[finite])) for item in (ours, truth))
    return near < far / 2
