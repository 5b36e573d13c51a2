"""Asks a model one question and parses its answer; a faulty first answer gets one second chance.

The second question is the first one plus its fault. Both belong to the same effect, so an error of form costs
one more call and not the proposal. If the second answer is faulty too, the effect fails with the code of that
fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from agent_core.roles import RoleError
from agent_core.roles.ask_protocol import AskModel, FillPrompt, TokenBudget
from agent_core.roles.llm.blocks import AnswerFault
from agent_core.roles.llm.fitting import PromptItems, ShedStep, fit_values
from agent_core.roles.llm.quoting import fence_text, single_line
from state.model import ErrorInfo

if TYPE_CHECKING:
    from agent_core.providers.completion import AnswerSchema

T = TypeVar("T")
_ANSWER_SHOWN = 6000
"""How many characters of a faulty answer are shown to the model."""
_MESSAGE = 1000

MakeValues = Callable[[TokenBudget], Mapping[str, str | PromptItems]]
"""Returns the values of a prompt before any are shortened, for the budget's target, from its prompt set."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a role asks: its prompt, its values, the order in which these are shortened, the answer's form."""

    role: str
    values: MakeValues
    order: Sequence[ShedStep]
    form: AnswerSchema | None = None

    def make_fill(self, fault: str) -> FillPrompt:
        """Return the function that fills in the prompt; `fault` is about the faulty answer before, if any."""

        def filled(room: TokenBudget) -> Mapping[str, str]:
            values = {**self.values(room), "fault": fault}
            texts = fit_values(values, self.order, room)
            wanted = room.prompts.manifest.roles[self.role].values
            return {name: texts.get(name, "") for name in wanted}  # other versions may differ

        return filled


async def ask_question(ask: AskModel, question: Question, read: Callable[[str], T]) -> T:
    """Return what `read` makes of the model's answer; if that has a fault, of its second answer.

    Raises:
        RoleError: no answer came, or both were faulty; the code is then that of the second fault.
    """
    first = await ask(question.role, question.make_fill(""), question.form)
    try:
        return read(first)
    except AnswerFault as fault:
        second = await ask(question.role, question.make_fill(_fault_text(fault, first)), question.form)
    try:
        return read(second)
    except AnswerFault as fault:
        text = f"the {question.role}'s answer cannot be used, nor could the one before: {fault}"
        raise RoleError(ErrorInfo(code=fault.code, message=single_line(text, _MESSAGE))) from fault


def _fault_text(fault: AnswerFault, answer: str) -> str:
    return (
        "# Your last answer could not be used\n\n"
        f"{single_line(str(fault), _MESSAGE)}\n\n"
        f"It was:\n\n{fence_text(answer, 'text', limit=_ANSWER_SHOWN)}\n\n"
        "Answer again, whole, in the form that was asked for."
    )
