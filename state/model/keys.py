"""Where in the search an effect belongs, who answers it, and the draws that follow from that."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import StringConstraints


class Role(StrEnum):
    """Who answers an effect."""

    PREDICTOR = "predictor"
    PLANNER = "planner"
    EXECUTOR = "executor"
    EVALUATOR = "evaluator"
    VERIFIER = "verifier"
    AUDITOR = "auditor"
    SUMMARIZER = "summarizer"
    REFLECTOR = "reflector"


JUDGES = frozenset({Role.EVALUATOR, Role.VERIFIER, Role.AUDITOR})
"""Who judges a kernel: as it is proposed, before it enters the beam, before it is reported as the best."""


class EffectKey(NamedTuple):
    """Where in the search an effect belongs; relative to its run, so twins and forks agree on it.

    Ordering is slot order, the order in which results apply whatever order they arrive in.
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
        """The id of the candidate that this place in the search produces, e.g. `r1.b0.p2.k0.f0`."""
        return str(self).rsplit(".", 1)[0]

    def for_role(self, role: Role) -> EffectKey:
        """Return the key of another role's effect at the same place."""
        return self._replace(role=role)

    @classmethod
    def parse(cls, text: str) -> EffectKey:
        """Read back what `str` wrote.

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
"""The slot of kernels that people propose: after every beam slot, so a person's duplicate never owns."""

INITIAL_KEY = EffectKey(0, 0, 0, 0, 0, Role.EVALUATOR)
"""The evaluation of the kernel that a run starts from; its candidate is `r0.b0.p0.k0.f0`."""


def draw_seed(run_seed: int, key: EffectKey) -> int:
    """Return the seed of every random draw of one effect: a function of run seed and effect key alone."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}|{key}".encode()).digest()[:8])
