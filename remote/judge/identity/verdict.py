"""Decides whether a program computes the reference's formula: proven, tested, or rejected.

`proven`: equal over the residues, for two draws of the secret symbols, and wherever constants lie among them
if maxima or comparisons meet some. That is about the formula, and says nothing about rounding. `rejected`:
different there and, in float64 too, by more than rounding constants explains, and the simulator agrees with
the program's formula; or an output cannot depend on an input that the reference's output depends on.
`tested`: neither. Then only the numeric comparison holds, and the reason says why.

Outside the covered fragment, different residues may stand for equal numbers. There float64 and the simulator
decide alone. So adding an irrelevant operation (an unnamed constant, a maximum without effect) hides nothing
that they see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.dependence import MissingDependence, find_missing_dependence
from remote.judge.identity.floats import FloatDomain, TrackingFloatDomain
from remote.judge.identity.formula_comparison import FormulaComparison, flatten_component
from remote.judge.identity.residues import ConstantPlace, DoubtFlags, ResidueDomain

Floating = NDArray[np.float64]

MIN_PROOF_DRAWS, MAX_DRAWS = 2, 6
"""Draws of the symbols: the number that a proof takes, and the number in which to look for a difference."""

SCALES = (1.0, 2.0**-12, 2.0**-24)
"""Scales of the float64 inputs: terms that never count among large numbers count among small ones."""

OFFSETS = (16.0, -16.0)
"""Offsets of the inputs, in units of their spread, where it matters on which side of a constant they are."""

CONSTANT_NOISE, OFFSET_NOISE = 2e-6, 1e-3
"""Relative L2 difference that rounding constants to float32 may cause; more where offsets cancel."""

_REASONS = {
    DoubtFlags.UNKNOWN: "instructions that cannot be followed reach the result",
    DoubtFlags.FUNCTION: "functions without rules reach the result",
    DoubtFlags.EXPONENT: "exponentials of exponentials reach the result",
    DoubtFlags.CONSTANT: "constants that stand for no simple number reach the result",
    DoubtFlags.ORDER: "maxima or comparisons decide about the result",
    DoubtFlags.ZERO: "divisions by zero reach the result",
    DoubtFlags.ROOT: "no symbols were found whose roots say more",
}
_FLOAT_BLIND = DoubtFlags.UNKNOWN | DoubtFlags.ZERO
"""Values that float64 does not evaluate correctly either; an unknown function gives no finite number."""

_CONSTANTS = "where constants lie among the inputs decides about maxima or comparisons"
_SLIGHT = "the formulas differ by no more than constants rounded to float32 explain"
_CONTRADICTED = "what the simulator computes does not bear out that the formulas differ"


@dataclass(frozen=True, slots=True)
class IdentityFinding:
    """A verdict and its reason.

    A proof names the elements that it covers; a rejection names the first wrong element and what it lacks.
    """

    verdict: Literal["proven", "tested", "rejected"]
    reason: str = ""
    elements: int = 0
    position: int = 0
    lacks: MissingDependence | None = None


@dataclass(frozen=True, slots=True)
class _SymbolDraw:
    """The elements that differ, the `DoubtFlags` of each, and the symbols' domain.

    Ignore the flags of the elements that agree.
    """

    differs: NDArray[np.bool_]
    why: NDArray[np.uint8]
    domain: ResidueDomain

    @property
    def certain_differences(self) -> NDArray[np.bool_]:
        """Elements that differ although everything that reached them is inside the fragment."""
        certain: NDArray[np.bool_] = self.differs & (self.why == 0)
        return certain

    @property
    def visible_differences(self) -> NDArray[np.bool_]:
        """Elements that differ and that float64 can tell apart."""
        visible: NDArray[np.bool_] = self.differs & ((self.why & _FLOAT_BLIND) == 0)
        return visible

    @property
    def is_open(self) -> bool:
        """Whether other symbols may show more."""
        return bool((self.differs & (self.why == DoubtFlags.ROOT)).any())


@dataclass(frozen=True, slots=True)
class _DrawSummary:
    """The result of all draws: elements that agreed in enough of them, all marks, and the last draw.

    The last draw holds elements that certainly differ, if any draw does.
    """

    proven: int
    marks: DoubtFlags
    last: _SymbolDraw

    @property
    def ordered_zero(self) -> bool:
        """Whether the order of residues decided between symbols and zero, on either side."""
        return self.last.domain.ordered_zero

    @property
    def ordered_constants(self) -> bool:
        """Whether it decided between symbols and other constants."""
        return self.last.domain.ordered_constants

    @property
    def is_proof(self) -> bool:
        """Roots undefined for some symbols are defined for others: agreement where they exist is enough."""
        return (
            bool(self.proven)
            and not self.marks & ~DoubtFlags.ROOT
            and not self.last.certain_differences.any()
        )


def compare_formulas(sides: FormulaComparison) -> IdentityFinding:
    """Compare both sides over the residues; where they differ, find out what the difference means."""
    draws = _draw_until_decided(sides)
    if draws.is_proof:
        return _doubt_constants(sides, draws) or IdentityFinding("proven", elements=draws.proven)
    reason = next((text for why, text in _REASONS.items() if why & draws.marks), _SLIGHT)
    if draws.last.certain_differences.any():
        finding = _confirm_difference(sides, draws.last.certain_differences)
        if finding.verdict == "rejected":
            return finding
        reason = finding.reason
    lacks = find_missing_dependence(sides, np.random.default_rng(list(sides.seed)))
    if lacks is not None:
        return IdentityFinding("rejected", position=lacks.position, lacks=lacks)
    finding = _confirm_difference(sides, draws.last.visible_differences)
    return finding if finding.verdict == "rejected" else IdentityFinding("tested", reason)


def _draw_until_decided(sides: FormulaComparison) -> _DrawSummary:
    """Draw symbols until something is certain, or until more draws would show no more."""
    agreed: NDArray[np.int64] = np.zeros(sides.element_count, np.int64)
    marks = DoubtFlags(0)
    for number in range(MAX_DRAWS):
        draw = _draw_once(sides, number)
        agreed += ~draw.differs
        marks |= DoubtFlags(int(np.bitwise_or.reduce(draw.why[draw.differs], initial=0)))
        enough = number + 1 >= MIN_PROOF_DRAWS and not marks
        if enough or draw.certain_differences.any() or (marks & ~DoubtFlags.ROOT and not draw.is_open):
            break
    return _DrawSummary(int((agreed >= MIN_PROOF_DRAWS).sum()), marks, draw)


def _draw_once(sides: FormulaComparison, number: int) -> _SymbolDraw:
    """Make one draw; where only the order is in doubt, a difference that survives its reversal is certain."""
    values, why, domain = _evaluate_residues(sides, number)
    differs = values[0] != values[1]
    by_order = differs & ((why & ~DoubtFlags.ROOT) == DoubtFlags.ORDER)
    if by_order.any():
        others, _, _ = _evaluate_residues(sides, number, descending=True)
        same = (values == others).all(axis=0)
        why = np.where(by_order & same, why & np.uint8(0xFF ^ DoubtFlags.ORDER), why)
    return _SymbolDraw(differs, why, domain)


def _doubt_constants(sides: FormulaComparison, draws: _DrawSummary) -> IdentityFinding | None:
    """The finding where a proof depends on where constants lie in the order of residues; None if it does not.

    Zero stays where it is, so about zero float64 is asked with inputs on either side of it.
    """
    suspects = np.zeros(sides.element_count, bool)
    if draws.ordered_constants:
        suspects = _differ_by_constants(sides)
    asked = np.ones_like(suspects) if draws.ordered_zero else suspects
    finding = _confirm_difference(sides, asked, scales=SCALES[:1], offsets=OFFSETS)
    if finding.verdict == "rejected":
        return finding
    return IdentityFinding("tested", _CONSTANTS) if suspects.any() else None


def _differ_by_constants(sides: FormulaComparison) -> NDArray[np.bool_]:
    """The elements on which the sides do not agree where all constants are above, or below, all symbols.

    Draws go on while symbols without roots leave elements undecided.
    """
    found = np.zeros(sides.element_count, bool)
    for place in (ConstantPlace.ABOVE, ConstantPlace.BELOW):
        agreed = np.zeros(sides.element_count, bool)
        for number in range(MAX_DRAWS):
            values, why, _ = _evaluate_residues(sides, number, constants=place)
            agreed |= values[0] == values[1]
            if not (~agreed & ((why & DoubtFlags.ROOT) != 0)).any():
                break
        found |= ~agreed
    return found


def _evaluate_residues(
    sides: FormulaComparison,
    number: int,
    *,
    descending: bool = False,
    constants: ConstantPlace = ConstantPlace.AMONG,
) -> tuple[NDArray[np.uint64], NDArray[np.uint8], ResidueDomain]:
    """Residues [program and reference, elements], all marks of both, and the domain."""
    domain = ResidueDomain(sides.seed + bytes([number]), descending=descending, constants=constants)
    found = [side(domain, sides.boxes) for side in (sides.program, sides.reference)]
    marks = [np.concatenate([domain.doubt_flags(value).reshape(-1) for value in values]) for values in found]
    return np.stack([flatten_component(values, 0) for values in found]), marks[0] | marks[1], domain


def _confirm_difference(
    sides: FormulaComparison,
    suspects: NDArray[np.bool_],
    *,
    scales: Sequence[float] = SCALES,
    offsets: Sequence[float] = (0.0,),
) -> IdentityFinding:
    """Reject if float64 shows the difference too, and the simulator agrees with the program's formula."""
    reason = _SLIGHT
    for scale, offset in product(scales, offsets) if suspects.any() else ():
        asking = TrackingFloatDomain(sides.seed, sides.inputs, scale, offset=offset)
        with np.errstate(all="ignore"):
            ours = flatten_component(sides.program(asking, sides.boxes), 0)[suspects]
            exact = FloatDomain(sides.seed, sides.inputs, scale, offset=offset)
            truth = flatten_component(sides.reference(exact, sides.boxes), 0)[suspects]
            apart = np.nan_to_num(np.abs(ours - truth), nan=0.0, posinf=0.0)
        error = _relative_difference(ours, truth)
        if error > (OFFSET_NOISE if offset else CONSTANT_NOISE):
            simulated = sides.simulate(asking)
            if simulated is not None and _supports_program(simulated[suspects], ours, truth):
                text = f"by {error:.2g} in float64" + (f", inputs times {scale:.2g}" if scale != 1.0 else "")
                text += f", inputs moved by {offset:+g} of their spread" if offset else ""
                position = int(np.flatnonzero(suspects)[np.argmax(apart)])
                return IdentityFinding("rejected", text, position=position)
            reason = _CONTRADICTED
    return IdentityFinding("tested", reason)


def _relative_difference(found: Floating, truth: Floating) -> float:
    """The relative L2 difference over the elements that are finite on both sides."""
    finite = np.isfinite(found) & np.isfinite(truth)
    wrong, size = (float(np.linalg.norm(item)) for item in (found[finite] - truth[finite], truth[finite]))
    return wrong / size if size else wrong


def _supports_program(simulated: Floating, ours: Floating, truth: Floating) -> bool:
    """Whether the simulator is at least twice as close to the program's formula as to the reference's."""
    finite = np.isfinite(simulated) & np.isfinite(ours) & np.isfinite(truth)
    near, far = (float(np.linalg.norm((simulated - item)[finite])) for item in (ours, truth))
    return near < far / 2
