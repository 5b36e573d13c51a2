"""Events of what runs learn from one another: sequences that paid."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import LearntSequence


class SequenceLearnt(Event):
    """In the system stream: a run ended with a kernel that beats its first, verified; this led to it."""

    type: Literal["SequenceLearnt"] = "SequenceLearnt"
    sequence: LearntSequence


class SequencesGiven(Event):
    """In a run, before its first round: what it may try first, the nearest first, and where it is from."""

    type: Literal["SequencesGiven"] = "SequencesGiven"
    round: int = Field(ge=1)
    sequences: tuple[LearntSequence, ...] = Field(min_length=1)
