"""Checks that a program's outputs can depend on all inputs that the reference's outputs depend on.

Some of the input elements that the reference reads are marked. If a mark must reach an element of the
reference's output but cannot reach it in the program, both are evaluated again with that input moved. The
difference counts if the move changes the reference's output and not the simulator's result for the program;
the check is needed because the sets do not see that terms cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remote.judge.identity.dependence_domain import MAX_MARKED, DependenceDomain
from remote.judge.identity.floats import FloatDomain, TrackingFloatDomain
from remote.judge.identity.formula_comparison import FormulaComparison, flatten_component

_MAX_TRIED = 4
"""Number of missing dependences to check."""

_CHANGE_RATIO = 1e-7
"""Relative change of an output that counts as a change."""


@dataclass(frozen=True, slots=True)
class MissingDependence:
    """A compared element, by position, and the (input, element) that it cannot depend on."""

    position: int
    input: int
    element: int


def find_missing_dependence(
    sides: FormulaComparison, generator: np.random.Generator
) -> MissingDependence | None:
    """Find an input that the reference's outputs depend on and the program's cannot depend on."""
    marked = _choose_input_elements(sides, generator)
    must = flatten_component(sides.reference(DependenceDomain(marked, "must"), sides.boxes), 0)
    may = flatten_component(sides.program(DependenceDomain(marked, "may"), sides.boxes), 0)
    lacking = must & ~may
    for position in np.flatnonzero(lacking)[:_MAX_TRIED].tolist():
        bits = int(lacking[position])
        found = MissingDependence(position, *marked[(bits & -bits).bit_length() - 1])
        if _confirm_missing(sides, found):
            return found
    return None


def _confirm_missing(sides: FormulaComparison, found: MissingDependence) -> bool:
    """Whether moving the input changes the reference's output but not the simulator's result."""
    truths, simulated = [], []
    for moved in (None, (found.input, found.element)):
        asking = TrackingFloatDomain(sides.seed, sides.inputs, moved=moved)
        with np.errstate(all="ignore"):
            sides.program(asking, sides.boxes)
            truth = flatten_component(
                sides.reference(FloatDomain(sides.seed, sides.inputs, moved=moved), sides.boxes), 0
            )
        given = sides.simulate(asking)
        if given is None:
            return False
        truths.append(float(truth[found.position]))
        simulated.append(float(given[found.position]))
    return abs(truths[1] - truths[0]) > _CHANGE_RATIO * abs(truths[0]) and simulated[0] == simulated[1]


def _choose_input_elements(sides: FormulaComparison, generator: np.random.Generator) -> list[tuple[int, int]]:
    """Input elements that the reference reads for the boxes, about equally many from each input."""
    asking = TrackingFloatDomain(sides.seed, sides.inputs)
    sides.reference(asking, sides.boxes)
    share = MAX_MARKED // max(1, len(asking.requested_elements))
    found = []
    for number, elements in asking.requested_elements.items():
        chosen = generator.permutation(np.unique(np.concatenate(elements)))[:share]
        found += [(number, element) for element in chosen.tolist()]
    return found
