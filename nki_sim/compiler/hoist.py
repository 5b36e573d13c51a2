"""Dropping what is computed twice, and what nobody reads.

The legacy compiler leaves out a load of what an enclosing or the same iteration has loaded already, and
moves computation that does not change out of its loop. Loads themselves it keeps from one iteration to the
next where there is room for that (`keep`). It hoists nothing where the arrays a kernel loads do not fit on
the chip [C].
"""

from __future__ import annotations

from collections.abc import Mapping

from nki_sim.compiler.draft import Draft, Step
from nki_sim.compiler.values import KEPT, Values
from nki_sim.forms import HBM_BUFFERS

# Broadcasts are views until engines are chosen, after hoisting: they are made where they are used.
_VIEWS = frozenset({"nc_stream_shuffle"})


def hoist(draft: Draft, *, computed: bool) -> dict[int, int]:
    """Merge tiles of equal value, those of computed values only on demand, then drop what is dead.

    Returns the loaded tiles that equal an earlier one and are still loaded, each with the earlier one.
    """
    values = Values(draft)
    nodes = _Nodes(draft)
    names: dict[int, int] = {}
    left: dict[int, int] = {}
    for tensor, twin in values.twins.items():
        ops = {draft.forms[draft.steps[at].form].op for at in values.makers[tensor]}
        if ops & _VIEWS:
            continue
        first, again = values.makers[twin][0], values.makers[tensor][0]
        if nodes.encloses(draft.steps[first].source, draft.steps[again].source) or (
            computed and ops != {"dma_copy"}
        ):
            names[tensor] = names.get(twin, twin)
        elif ops == {"dma_copy"}:
            left[tensor] = names.get(twin, twin)
    merge(draft, names)
    return left


def merge(draft: Draft, names: Mapping[int, int]) -> None:
    """Put earlier tiles in the place of others that equal them, and drop what is dead then."""
    _drop_makers(draft, names)
    draft.rename(names)
    drop_dead(draft)


class _Nodes:
    """The loop iterations that instructions are in."""

    def __init__(self, draft: Draft) -> None:
        found = draft.program.iterations
        self._nodes = found.nodes.tolist()
        self._parents = found.parents.tolist()

    def encloses(self, first: int, other: int) -> bool:
        """Whether instruction `other` is in the iteration of `first` or in one inside of it."""
        if not self._nodes:
            return False
        wanted, node = self._nodes[first], self._nodes[other]
        while node > wanted:
            node = self._parents[node - 1]
        return bool(node == wanted)


def _drop_makers(draft: Draft, names: Mapping[int, int]) -> None:
    def merged(step: Step) -> bool:
        effects = draft.effects(step.form)
        written = [t for t, (write, _) in zip(step.tensors, effects, strict=True) if write]
        return bool(written) and all(tensor in names for tensor in written)

    draft.steps = [step for step in draft.steps if not merged(step)]


def drop_dead(draft: Draft) -> None:
    """Leave out instructions whose results nothing reads."""
    read: set[int] = set()
    kept: list[Step] = []
    for step in reversed(draft.steps):
        effects = draft.effects(step.form)
        form = draft.forms[step.form]
        written = [t for t, (write, _) in zip(step.tensors, effects, strict=True) if write]
        needed = form.op in KEPT or any(item.buffer == "register" for item in form.operands) or not written
        if needed or any(t in read or draft.site(t).buffer in HBM_BUFFERS for t in written):
            kept.append(step)
            read.update(t for t, (_, reads) in zip(step.tensors, effects, strict=True) if reads)
    draft.steps = kept[::-1]
