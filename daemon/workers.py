"""The workers: evaluators and proposers by name, made when first used and closed together.

This is where the process introduces `agent_core`'s proposers and `remote`'s evaluators; everything else
here asks by what a run's configuration says. An evaluator that has to reach hosts first is prepared beside
whoever asks for it. When settings change that evaluators were made
under, what these are at is finished, and what comes next goes to new ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_core.proposers import is_llm_proposer, require_known_proposer
from daemon.errors import EvaluatorPreparing
from remote.errors import NotReadyError
from remote.registry import EvaluatorSpec

if TYPE_CHECKING:
    from agent_core.roles import Proposer
    from daemon.config import DaemonConfig
    from remote.evaluator import Evaluator
    from state.model import RunConfig

CreateEvaluator = Callable[[EvaluatorSpec], "Evaluator"]


class Workers:
    """Evaluators and proposers; each is made once, on first use.

    `get_evaluator` and `get_proposer` raise the error of the room they come from when there is none of that
    name.
    """

    def __init__(
        self,
        *,
        create_evaluator: CreateEvaluator,
        create_proposer: Callable[[str], Proposer],
        under: Callable[[DaemonConfig], CreateEvaluator] | None = None,
    ) -> None:
        """`under` returns what makes evaluators under other settings; None: they know of none."""
        self._create_evaluator = create_evaluator
        self._create_proposer = create_proposer
        self._under = under
        self._evaluators: dict[EvaluatorSpec, Evaluator] = {}
        self._preparing: dict[EvaluatorSpec, asyncio.Task[None]] = {}
        self._proposers: dict[str, Proposer] = {}
        self._replaced: dict[int, Evaluator] = {}
        self._uses: Counter[int] = Counter()

    def get_evaluator(self, config: RunConfig) -> Evaluator:
        """Return the evaluator that a run with this configuration wants."""
        wanted = EvaluatorSpec.from_config(config)
        if wanted not in self._evaluators:
            self._evaluators[wanted] = self._create_evaluator(wanted)
        return self._evaluators[wanted]

    def get_toolchain(self, config: RunConfig) -> str:
        """Return the toolchain of a run's evaluator.

        Raises:
            EvaluatorPreparing: it has to be prepared for that, which has begun; ask again when it is done.
            remote.RemoteError: it could not be prepared; who asks again has it tried anew.
        """
        wanted, evaluator = EvaluatorSpec.from_config(config), self.get_evaluator(config)
        try:
            return evaluator.toolchain()
        except NotReadyError:
            task = self._preparing.get(wanted)
            if task is None:
                task = self._preparing[wanted] = asyncio.create_task(evaluator.prepare())
            if not task.done():
                raise EvaluatorPreparing(task) from None
            del self._preparing[wanted]
            task.result()
            return evaluator.toolchain()

    @property
    def is_preparing(self) -> bool:
        """Whether an evaluator is being prepared."""
        return any(not task.done() for task in self._preparing.values())

    @property
    def remote_slots(self) -> int:
        """How many evaluations run at a time elsewhere than on this machine."""
        return sum(int(getattr(one, "slots", 0)) for one in self._evaluators.values())

    @contextmanager
    def hold_evaluator(self, config: RunConfig) -> Iterator[Evaluator]:
        """Hold an evaluator: while the block lasts it is not closed for having been replaced."""
        evaluator = self.get_evaluator(config)
        self._uses[id(evaluator)] += 1
        try:
            yield evaluator
        finally:
            self._uses[id(evaluator)] -= 1

    def apply_config(self, config: DaemonConfig) -> None:
        """Make evaluators anew, under other settings, for what comes from now on."""
        if self._under is not None:
            self._create_evaluator = self._under(config)
            self._replaced |= {id(one): one for one in self._evaluators.values()}
            self._evaluators.clear()

    async def close_replaced(self) -> None:
        """Close the evaluators that were replaced and are not held any more."""
        for key in [key for key in self._replaced if not self._uses[key]]:
            del self._uses[key]
            await self._replaced.pop(key).aclose()

    def get_proposer(self, name: str) -> Proposer:
        if name not in self._proposers:
            self._proposers[name] = self._create_proposer(name)
        return self._proposers[name]

    def require_proposer(self, name: str) -> None:
        """Make sure that there is a proposer of this name; one that asks models is made for each effect.

        Raises:
            agent_core.proposers.ProposerError: there is none.
        """
        require_known_proposer(name)
        if not is_llm_proposer(name):
            self.get_proposer(name)

    async def aclose(self) -> None:
        """Close all that were made; who asks meanwhile, or later, gets new ones."""
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        self._preparing.clear()
        kinds: tuple[dict[Any, Any], ...] = (self._evaluators, self._proposers, self._replaced)
        for made in kinds:
            while made:
                _, worker = made.popitem()
                await worker.aclose()
        self._uses.clear()
