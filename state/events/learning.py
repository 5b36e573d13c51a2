"""Events of what runs learn from one another: sequences that paid, experiences, and techniques."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import LearntExperience, LearntSequence, LearntTechnique


class SequenceLearnt(Event):
    """In the system stream: a run ended with a kernel that beats its first, verified; this led to it."""

    version = 2
    type: Literal["SequenceLearnt"] = "SequenceLearnt"
    sequence: LearntSequence


class SequencesGiven(Event):
    """In a run, before its first round: what it may try first, the nearest first, and where it is from."""

    version = 2
    type: Literal["SequencesGiven"] = "SequencesGiven"
    round: int = Field(ge=1)
    sequences: tuple[LearntSequence, ...] = Field(min_length=1)


class ExperiencesLearnt(Event):
    """In the system stream: what a run that gained had in its memory as it ended, or what a file had."""

    type: Literal["ExperiencesLearnt"] = "ExperiencesLearnt"
    experiences: tuple[LearntExperience, ...] = Field(min_length=1)


class ExperiencesForgotten(Event):
    """In the system stream: somebody wants no later run to be told these, named by their ids."""

    type: Literal["ExperiencesForgotten"] = "ExperiencesForgotten"
    ids: tuple[str, ...] = Field(min_length=1)


class ExperiencesGiven(Event):
    """In a run, before its first round: what others learnt that its planners are told, the nearest first."""

    type: Literal["ExperiencesGiven"] = "ExperiencesGiven"
    round: int = Field(ge=1)
    experiences: tuple[LearntExperience, ...] = Field(min_length=1)


class TechniquesLearnt(Event):
    """In the system stream: a run that gained ended, and these techniques were invented in it."""

    type: Literal["TechniquesLearnt"] = "TechniquesLearnt"
    techniques: tuple[LearntTechnique, ...] = Field(min_length=1)


class TechniquesGiven(Event):
    """In a run, before its first round: what models invented in others, for its planners to be offered."""

    type: Literal["TechniquesGiven"] = "TechniquesGiven"
    round: int = Field(ge=1)
    techniques: tuple[LearntTechnique, ...] = Field(min_length=1)
