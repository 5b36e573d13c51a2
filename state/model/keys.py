"""Effect keys: the place of an effect in the search, the role that answers it, and its random seed."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import StringConstraints


class Role(StrEnum):
    """The roles that answer effects."""

    PREDICTOR = "predictor"
    PLANNER = "planner"
    EXECUTOR = "executor"
    EVALUATOR = "evaluator"
    VERIFIER = "verifier"
    AUDITOR = "auditor"
    SUMMARIZER = "summarizer"
    REFLECTOR = "reflector"


JUDGES = frozenset({Role.EVALUATOR, Role.VERIFIER, Role.AUDITOR})
"""The roles that judge a kernel: when proposed, before it enters the beam, before it is reported."""


class EffectKey(NamedTuple):
    """The place of an effect in the search; relative to its run, so that twins and forks agree on it.

    Keys sort in slot order, in which results apply whatever order they arrive in.
    """

    round: int
    slot: int
    plan: int
    implementation: int
    repair: int
    role: Role

    def __str__(self) -> str:
        return f"r{self.round}.b{self.slot}.p{self.plan}.k{self.implementation}.f{self.repair}.{self.role}"

    @property
    def candidate_id(self) -> str:
        """The id of the candidate at this place in the search, e.g. `r1.b0.p2.k0.f0`."""
        return str(self).rsplit(".", 1)[0]

    def for_role(self, role: Role) -> EffectKey:
        """Return the key of another role's effect at the same place."""
        return self._replace(role=role)

    @classmethod
    def parse(cls, text: str) -> EffectKey:
        """Parse what `str` wrote.

        Raises:
            ValueError: `text` is not an effect key.
        """
        return _parse_key(text)


_KEY = re.compile(r"r(\d+)\.b(\d+)\.p(\d+)\.k(\d+)\.f(\d+)\.([a-z]+)")


@lru_cache(maxsize=8192)
def _parse_key(text: str) -> EffectKey:
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError(f"not an effect key: {text!r}")
    *numbers, role = match.groups()
    round_, slot, plan, implementation, repair = map(int, numbers)
    return EffectKey(round_, slot, plan, implementation, repair, Role(role))


Key = Annotated[str, StringConstraints(pattern=_KEY.pattern + "$")]

PERSON_SLOT = 1000
"""The slot of people's kernels: after every beam slot, so that a person's duplicate never owns the code."""

INITIAL_KEY = EffectKey(0, 0, 0, 0, 0, Role.EVALUATOR)
"""The evaluation of a run's initial kernel; its candidate is `r0.b0.p0.k0.f0`."""


TRANSLATION_KEY = EffectKey(0, 1, 0, 0, 0, Role.EXECUTOR)
"""The translation of the reference that a run begins from; its candidate is `r0.b1.p0.k0.f0`."""


SIMPLIFIED_SLOT = 2000
"""The slot of simplified winners: before its end, a run looks for a simpler kernel as fast as its best.

Their round is the one after the last, so that nothing of a round is mistaken for them.
"""


def simplification_key(round_: int) -> EffectKey:
    """Return the key under which a run that ends after a round has its best kernel simplified."""
    return EffectKey(round_ + 1, SIMPLIFIED_SLOT, 0, 0, 0, Role.EXECUTOR)


def is_simplification(key: EffectKey) -> bool:
    """Return whether the kernel at this place is a run's best kernel, simplified."""
    return key.slot == SIMPLIFIED_SLOT


def draw_seed(run_seed: int, key: EffectKey) -> int:
    """Return the seed of all random draws of one effect, from the run's seed and the effect key alone."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}|{key}".encode()).digest()[:8])
