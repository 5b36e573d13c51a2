"""The LLM roles: planner, executor, repairer, summarizer and reflector that ask a model.

A role fills in the values of its prompt and parses the answer strictly. It knows nothing of models, money or
the log: `AskModel` buys the answer or takes it from the log. Everything follows from the request, so the same
question is asked again whenever an effect is delivered again.

Each role has a file. Helpers: `questions.py` asks a question and reports a faulty answer to the model,
`fitting.py` shortens a prompt that is too large, `quoting.py` quotes untrusted text, `blocks.py` and
`edits.py` parse answers. Open `planner.py` first.
"""

from __future__ import annotations

from agent_core.effects import ImplementRequest, PlanRequest, ReflectRequest, SummarizeRequest
from agent_core.roles import ExperienceAnswer, KernelAnswer, PlanAnswer, ReadBlob, ReflectionAnswer
from agent_core.roles.ask_protocol import AskModel
from agent_core.roles.llm import executor, planner, reflector, repairer, summarizer
from agent_core.roles.llm.planner import PlannerOptions
from agent_core.roles.session_protocol import SessionHost

__all__ = ["LlmRoles", "PlannerOptions"]

_DEFAULTS = PlannerOptions()


class LlmRoles:
    """All roles of one effect, under the name of the endpoint that answers them."""

    repairs = True

    def __init__(
        self,
        name: str,
        ask: AskModel,
        options: PlannerOptions = _DEFAULTS,
        *,
        session: SessionHost | None = None,
    ) -> None:
        """`session` serves requests for sessions; without it they are answered as questions."""
        self.name = name
        self._ask = ask
        self._options = options
        self._session = session

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:
        """Return one plan, with its prediction; a session may return several.

        A request for a session is answered as a question where the run's prompts are older than sessions.
        """
        if request.session is not None and self._session is not None:
            from agent_core.roles.llm import planner_session

            if planner_session.ROLE in self._session.prompts.manifest.roles:
                return await planner_session.plan_in_session(request, read, self._session, self._options)
        lab = self._session.lab if self._session is not None else None
        return await planner.propose_plan(request, read, self._ask, options=self._options, lab=lab)

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:
        """Return the plan's kernel; if earlier kernels were refused, the last of them repaired.

        A request for a session is answered as a question where the run's prompts are older than sessions.
        """
        if request.session is not None and self._session is not None:
            from agent_core.roles.llm import session

            if session.ROLE in self._session.prompts.manifest.roles:
                return await session.implement_in_session(request, read, self._session)
        carry_out = repairer.repair_kernel if request.failed else executor.implement_plan
        return await carry_out(request, read, self._ask)

    async def summarize(self, request: SummarizeRequest, read: ReadBlob) -> ExperienceAnswer:
        """Return what a pair of kernels teaches."""
        return await summarizer.summarize_pair(request, read, self._ask)

    async def reflect(self, request: ReflectRequest, read: ReadBlob) -> ReflectionAnswer:
        """Return the attempt's grade, and the reason for its result."""
        return await reflector.reflect_on_attempt(request, read, self._ask)

    async def aclose(self) -> None:
        """Do nothing: no connection is held."""
