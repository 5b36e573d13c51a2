"""The workers: evaluators and proposers by name, made when first used and closed together.

This is where the process introduces `agent_core`'s proposers and `remote`'s evaluators; everything else
here asks by the name that a run's configuration gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_core.roles import Proposer
    from remote.evaluator import Evaluator


class Workers:
    """Evaluators and proposers; each is made once, on first use.

    `evaluator` and `proposer` raise the error of the room they come from when there is none of that name.
    """

    def __init__(
        self, *, create_evaluator: Callable[[str], Evaluator], create_proposer: Callable[[str], Proposer]
    ) -> None:
        self._create_evaluator = create_evaluator
        self._create_proposer = create_proposer
        self._evaluators: dict[str, Evaluator] = {}
        self._proposers: dict[str, Proposer] = {}

    def evaluator(self, name: str) -> Evaluator:
        if name not in self._evaluators:
            self._evaluators[name] = self._create_evaluator(name)
        return self._evaluators[name]

    def proposer(self, name: str) -> Proposer:
        if name not in self._proposers:
            self._proposers[name] = self._create_proposer(name)
        return self._proposers[name]

    async def aclose(self) -> None:
        """Close all that were made; who asks meanwhile, or later, gets new ones."""
        kinds: tuple[dict[str, Any], ...] = (self._evaluators, self._proposers)
        for made in kinds:
            while made:
                _, worker = made.popitem()
                await worker.aclose()
