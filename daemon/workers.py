"""The workers: evaluators and proposers by name, made on first use and closed together.

This module connects `agent_core`'s proposers and `remote`'s evaluators to the process; the rest of the
package asks for them by a run's configuration. An evaluator that must reach hosts first is prepared in
the background. When settings of evaluators change, the old evaluators finish their work, and new work
goes to new ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from agent_core.ensemble import planner_of
from agent_core.proposers import ProposerError, is_built_per_effect, require_known_proposer
from agent_core.tools.rewriting import Rewriter, create_rewriter
from daemon.errors import EvaluatorPreparing
from remote.errors import NotReadyError, RemoteError
from remote.registry import EvaluatorSpec
from state.model import JUDGES, EffectKey

if TYPE_CHECKING:
    from agent_core.roles import Proposer
    from daemon.config import DaemonConfig
    from daemon.translation import KernelTranslator
    from remote.evaluator import Evaluator
    from state.model import Digest, RunConfig
    from state.run_state import RunState

CreateEvaluator = Callable[[EvaluatorSpec], "Evaluator"]


class Workers:
    """Evaluators and proposers; each is made once, on first use.

    `get_evaluator` and `get_proposer` raise an error of `remote` or `agent_core` if the name is unknown.
    """

    def __init__(
        self,
        *,
        create_evaluator: CreateEvaluator,
        create_proposer: Callable[[str], Proposer],
        under: Callable[[DaemonConfig], CreateEvaluator] | None = None,
        translator: KernelTranslator | None = None,
    ) -> None:
        """`under` returns the evaluator factory for given settings; None if evaluators do not depend on
        them. `translator` makes starting kernels from references; None if runs begin from kernels alone.
        """
        self.translator = translator
        self._create_evaluator = create_evaluator
        self._create_proposer = create_proposer
        self._under = under
        self._evaluators: dict[EvaluatorSpec, Evaluator] = {}
        self._preparing: dict[EvaluatorSpec, asyncio.Task[None]] = {}
        self._warming: dict[EvaluatorSpec, asyncio.Task[None]] = {}
        self._proposers: dict[str, Proposer] = {}
        self._replaced: dict[int, Evaluator] = {}
        self._uses: Counter[int] = Counter()
        self._rewriters: dict[str, Rewriter | None] = {}

    def get_evaluator(self, config: RunConfig) -> Evaluator:
        """Return the evaluator for a run with this configuration."""
        wanted = EvaluatorSpec.from_config(config)
        if wanted not in self._evaluators:
            self._evaluators[wanted] = self._create_evaluator(wanted)
        return self._evaluators[wanted]

    def get_toolchain(self, config: RunConfig) -> str:
        """Return the toolchain of a run's evaluator.

        Raises:
            EvaluatorPreparing: the evaluator must be prepared first, which has begun; ask again when it
                is done.
            remote.RemoteError: the preparation failed; asking again tries anew.
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

    def warm_up(self, state: RunState) -> None:
        """Have the processes that a run's open effects need start in the background, all at once.

        Only time is gained: what fails here fails again when there is work, and is reported then.
        """
        self._warm_up_evaluator(state.config, state.problem.digest)
        keys = [key for key in map(EffectKey.parse, state.open) if key.role not in JUDGES]
        engines: set[Any] = {self.translator for key in keys if not key.round}
        for name in {planner_of(state, key) for key in keys if key.round}:
            if not is_built_per_effect(name):
                with suppress(ProposerError):
                    engines.add(self.get_proposer(name))
        for engine in engines:
            if (start := getattr(engine, "warm_up", None)) is not None:
                start()

    def _warm_up_evaluator(self, config: RunConfig, problem: Digest) -> None:
        wanted = EvaluatorSpec.from_config(config)
        try:
            start = getattr(self.get_evaluator(config), "warm_up", None)
        except RemoteError:
            return
        if start is not None and wanted not in self._warming:
            self._warming[wanted] = asyncio.create_task(start(problem, config.size))

    @property
    def is_preparing(self) -> bool:
        """Whether an evaluator is being prepared."""
        return any(not task.done() for task in (*self._preparing.values(), *self._warming.values()))

    @property
    def remote_slots(self) -> int:
        """How many evaluations can run at a time on other machines."""
        return sum(int(getattr(one, "slots", 0)) for one in self._evaluators.values())

    @contextmanager
    def hold_evaluator(self, config: RunConfig) -> Iterator[Evaluator]:
        """Hold an evaluator: it is not closed while the block runs, even if it is replaced."""
        evaluator = self.get_evaluator(config)
        self._uses[id(evaluator)] += 1
        try:
            yield evaluator
        finally:
            self._uses[id(evaluator)] -= 1

    def apply_config(self, config: DaemonConfig) -> None:
        """Replace the evaluators: work from now on gets new ones, made with the changed settings."""
        if self._under is not None:
            self._create_evaluator = self._under(config)
            self._replaced |= {id(one): one for one in self._evaluators.values()}
            self._evaluators.clear()

    async def close_replaced(self) -> None:
        """Close replaced evaluators that nobody holds any more."""
        for key in [key for key in self._replaced if not self._uses[key]]:
            del self._uses[key]
            await self._replaced.pop(key).aclose()

    def get_rewriter(self, target: str) -> Rewriter | None:
        """Return the rewrite engine of a target's tools, made on first use; None if it has none."""
        if target not in self._rewriters:
            self._rewriters[target] = create_rewriter(target)
        return self._rewriters[target]

    def get_proposer(self, name: str) -> Proposer:
        if name not in self._proposers:
            self._proposers[name] = self._create_proposer(name)
        return self._proposers[name]

    def require_proposer(self, name: str) -> None:
        """Check that a proposer of this name exists. Those that ask models or start agents are not made
        here, but per effect.

        Raises:
            agent_core.proposers.ProposerError: the name is unknown.
        """
        require_known_proposer(name)
        if not is_built_per_effect(name):
            self.get_proposer(name)

    async def aclose(self) -> None:
        """Close all workers; a caller that asks during or after this gets new ones."""
        begun = (*self._preparing.values(), *self._warming.values())
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        self._preparing.clear()
        self._warming.clear()
        kinds: tuple[dict[Any, Any], ...] = (self._evaluators, self._proposers, self._replaced)
        for made in kinds:
            while made:
                _, worker = made.popitem()
                await worker.aclose()
        while self._rewriters:
            _, rewriter = self._rewriters.popitem()
            if rewriter is not None:
                await rewriter.aclose()
        self._uses.clear()
        if self.translator is not None:
            await self.translator.aclose()
