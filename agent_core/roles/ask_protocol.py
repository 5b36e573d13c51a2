"""How a role puts a question to a model: it fills in the values of its prompt, somebody else does the rest.

Whoever is behind `AskModel` renders the prompt of the run's version, picks the model, buys the answer or
takes it from the log, and settles failures that another attempt may mend. A role sees an answer or a
`RoleError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent_core.prompting import PromptSet, builtin_prompts


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What the values of a prompt may take up together, in the model's tokens; `count` estimates a text's.

    `prompts` is the set that the prompt is rendered from: sections that are chosen per problem are in it.
    """

    tokens: int
    count: Callable[[str], int]
    prompts: PromptSet = field(default_factory=builtin_prompts)


FillPrompt = Callable[[TokenBudget], Mapping[str, str]]
"""Returns all values of a role's prompt, shortened in the role's order of importance until they fit.

It is asked again, with less room, when the model says that the prompt was too large. It must be pure.
"""


class AskModel(Protocol):
    """Puts the questions of one effect, one after another; the n-th question is always the same one."""

    async def __call__(self, role: str, fill: FillPrompt) -> str:
        """Return the model's whole answer to the prompt of `role` (a name in the prompts' manifest).

        Raises:
            agent_core.roles.RoleError: no answer came; the code says of which kind the failure was.
        """
