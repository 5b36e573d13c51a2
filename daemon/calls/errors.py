"""Errors with which a question ends without an answer, besides the failures of providers."""

from __future__ import annotations

from agent_core.providers.failures import FailureKind
from agent_core.roles import RoleError
from state.model import ErrorInfo


class EffectDeferred(Exception):  # noqa: N818 - named for what happens to the effect
    """The effect stays open because its run is paused or over. It is delivered again when the run goes on."""


_FAILURE_TEXTS = {
    FailureKind.AUTH: "does not take the key",
    FailureKind.INVALID: "does not take the question",
    FailureKind.TOO_LARGE: "finds the prompt too large, also with half of it left out",
    FailureKind.RATE: "asked for more patience than the question has",
    FailureKind.OVERLOADED: "was overloaded for longer than the question has patience",
    FailureKind.SPEND_LIMIT: "has no money left in its account",
    FailureKind.REFUSED: "refused to answer",
    FailureKind.TRUNCATED: "did not come to an end, also with more room",
    FailureKind.TRANSPORT: "could not be reached for longer than the question has patience",
    FailureKind.SERVER: "failed for longer than the question has patience",
}


def unanswered_error(model: str, kind: FailureKind) -> RoleError:
    """Return the error for a role whose question was given up.

    Its text does not depend on the number of attempts or on restarts, because it becomes part of what
    the run has learnt.
    """
    return RoleError(ErrorInfo(code=f"llm_{kind.value}", message=f"{model} {_FAILURE_TEXTS[kind]}"))


def unavailable_error(model: str) -> RoleError:
    """Return the error for a role whose question waited too long for a broken endpoint."""
    text = f"{model} failed so often that it was left alone for longer than the question has patience"
    return RoleError(ErrorInfo(code="llm_unavailable", message=text))


def no_budget_error(resource: str) -> RoleError:
    """Return the error for a role whose question has no room in a budget."""
    return RoleError(
        ErrorInfo(code="budget", message=f"no room for another call under the cap on {resource}")
    )


def no_model_error(planner: str) -> RoleError:
    """Return the error for a role whose planner has no model."""
    hint = f'set run.llm.models, such as ["{planner}/MODEL"]'
    return RoleError(ErrorInfo(code="no_model", message=f"no model is given for {planner}", hint=hint))
