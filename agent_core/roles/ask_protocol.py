"""The protocol with which a role asks an LLM: the role fills in its prompt, `AskModel` does the rest.

`AskModel` renders the prompt of the run's version, picks the model, buys the answer or takes it from the log,
and retries failures that another attempt may fix. A role sees an answer or a `RoleError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent_core.prompting import PromptSet, builtin_prompts

if TYPE_CHECKING:
    from agent_core.providers.completion import AnswerSchema


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens the values of a prompt may have together; `count` estimates the tokens of a text.

    `prompts` is the set that the prompt is rendered from, for `target`; some sections are chosen from it by
    problem.
    """

    tokens: int
    count: Callable[[str], int]
    target: str
    prompts: PromptSet = field(default_factory=builtin_prompts)


FillPrompt = Callable[[TokenBudget], Mapping[str, str]]
"""Returns all values of a role's prompt, shortened in the role's order of importance until they fit.

It must be pure: it is called again, with less room, if the model says that the prompt was too large.
"""


class AskModel(Protocol):
    """Asks the questions of one effect in turn; the n-th question is the same on every delivery."""

    async def __call__(self, role: str, fill: FillPrompt, form: AnswerSchema | None = None) -> str:
        """Return the model's whole answer to the prompt of `role` (a name in the prompts' manifest).

        A server that can is told to answer with JSON of this form alone; what others answer may have any.

        Raises:
            agent_core.roles.RoleError: no answer came; the code gives the kind of failure.
        """
