"""Whether a program computes what the reference does: proven on parts of the outputs, tested, or rejected.

`proven`: equal over the residues, for two draws of the secret symbols. `rejected`: different there and, in
float64 too, by more than the rounding of constants explains, with the simulator for a witness; or an output
cannot depend on an input that the reference's depends on.
`tested`: neither. That the numbers agreed is then all that is known, and the reason says why.

Outside the covered fragment, residues that differ may stand for equal numbers: there float64 and the
simulator decide alone, so that what is added for show (an unnamed constant, a maximum without effect) hides
nothing that they see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.dependence import Missing, missing
from remote.judge.identity.floats import Asking, Floats
from remote.judge.identity.residues import Residues, Why
from remote.judge.identity.sides import Sides, flat

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
_BLIND = Why.UNKNOWN | Why.ZERO
"""What float64 does not evaluate truly either; a function that it does not know gives no finite number."""

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
    def visible(self) -> NDArray[np.bool_]:
        """Elements that differ and that float64 can tell apart."""
        visible: NDArray[np.bool_] = self.differs & ((self.why & _BLIND) == 0)
        return visible

    @property
    def open(self) -> bool:
        """Whether other symbols may show more."""
        return bool((self.differs & (self.why == Why.ROOT)).any())


@dataclass(frozen=True, slots=True)
class _Draws:
    """What all draws show: elements that agreed in enough of them, all marks, and the last draw.

    The last one holds elements that certainly differ, if any draw does.
    """

    proven: int
    marks: Why
    last: _Draw

    @property
    def alike(self) -> bool:
        """Roots that say nothing for some symbols say it for others: it is enough to agree where they do."""
        return bool(self.proven) and not self.marks & ~Why.ROOT and not self.last.certain.any()


def find(sides: Sides) -> Finding:
    """Compare the two over the residues; where they differ, find out what that means."""
    draws = _draws(sides)
    if draws.alike:
        return Finding("proven", elements=draws.proven)
    reason = next((text for why, text in _REASONS.items() if why & draws.marks), _SLIGHT)
    if draws.last.certain.any():
        finding = _confirmed(sides, draws.last.certain)
        if finding.verdict == "rejected":
            return finding
        reason = finding.reason
    lacks = missing(sides, np.random.default_rng(list(sides.seed)))
    if lacks is not None:
        return Finding("rejected", position=lacks.position, lacks=lacks)
    finding = _confirmed(sides, draws.last.visible)
    return finding if finding.verdict == "rejected" else Finding("tested", reason)


def _draws(sides: Sides) -> _Draws:
    """Draw symbols until something is certain, or more of them would show no more."""
    agreed: NDArray[np.int64] = np.zeros(sides.elements, np.int64)
    marks = Why(0)
    for number in range(MORE):
        draw = _drawn(sides, number)
        agreed += ~draw.differs
        marks |= Why(int(np.bitwise_or.reduce(draw.why[draw.differs], initial=0)))
        enough = number + 1 >= DRAWS and not marks
        if enough or draw.certain.any() or (marks & ~Why.ROOT and not draw.open):
            break
    return _Draws(int((agreed >= DRAWS).sum()), marks, draw)


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


def _confirmed(sides: Sides, suspects: NDArray[np.bool_]) -> Finding:
    """A rejection if float64 shows the difference too, and the simulator sides with the program's formula."""
    reason = _SLIGHT
    for scale in SCALES if suspects.any() else ():
        asking = Asking(sides.seed, sides.inputs, scale)
        with np.errstate(all="ignore"):
            ours = flat(sides.program(asking, sides.boxes), 0)[suspects]
            truth = flat(sides.reference(Floats(sides.seed, sides.inputs, scale), sides.boxes), 0)[suspects]
            apart = np.nan_to_num(np.abs(ours - truth), nan=0.0, posinf=0.0)
        error = _relative(ours, truth)
        if error > NOISE:
            simulated = sides.simulate(asking)
            if simulated is not None and _nearer(simulated[suspects], ours, truth):
                text = f"by {error:.2g} in float64" + (f", inputs times {scale:.2g}" if scale != 1.0 else "")
                position = int(np.flatnonzero(suspects)[np.argmax(apart)])
                return Finding("rejected", text, position=position)
            reason = _CONTRADICTED
    return Finding("tested", reason)


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
