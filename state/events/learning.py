"""Events of what runs learn from one another: sequences that paid, experiences, and techniques."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import DeviceCalibration, LearntExperience, LearntSequence, LearntTechnique


class SequenceLearnt(Event):
    """In the system stream: a run ended with a verified gain over its first kernel, by this sequence."""

    version = 2
    family = "learning"
    type: Literal["SequenceLearnt"] = "SequenceLearnt"
    sequence: LearntSequence


class SequencesGiven(Event):
    """In a run, before its first round: sequences to try first, with their origin, most similar first."""

    version = 2
    family = "learning"
    type: Literal["SequencesGiven"] = "SequencesGiven"
    round: int = Field(ge=1)
    sequences: tuple[LearntSequence, ...] = Field(min_length=1)


class ExperiencesLearnt(Event):
    """In the system stream: experiences from the memory of a run that gained, or from an imported file."""

    family = "learning"
    type: Literal["ExperiencesLearnt"] = "ExperiencesLearnt"
    experiences: tuple[LearntExperience, ...] = Field(min_length=1)


class DeviceCalibrated(Event):
    """In the system stream: constants of the performance model were fitted to the times of a host's device.

    Runs that name the calibration (`run.calibration`) are predicted with them.
    """

    family = "learning"
    type: Literal["DeviceCalibrated"] = "DeviceCalibrated"
    calibration: DeviceCalibration


class ExperiencesForgotten(Event):
    """In the system stream: a person wants later runs not to see these experiences, named by their ids."""

    family = "learning"
    type: Literal["ExperiencesForgotten"] = "ExperiencesForgotten"
    ids: tuple[str, ...] = Field(min_length=1)


class ExperiencesGiven(Event):
    """In a run, before its first round: other runs' experiences for its planners, most similar first."""

    family = "learning"
    type: Literal["ExperiencesGiven"] = "ExperiencesGiven"
    round: int = Field(ge=1)
    experiences: tuple[LearntExperience, ...] = Field(min_length=1)


class TechniquesLearnt(Event):
    """In the system stream: a run that gained has ended, and models invented these techniques in it."""

    family = "learning"
    type: Literal["TechniquesLearnt"] = "TechniquesLearnt"
    techniques: tuple[LearntTechnique, ...] = Field(min_length=1)


class TechniquesGiven(Event):
    """In a run, before its first round: techniques that models invented in other runs, for its planners."""

    family = "learning"
    type: Literal["TechniquesGiven"] = "TechniquesGiven"
    round: int = Field(ge=1)
    techniques: tuple[LearntTechnique, ...] = Field(min_length=1)
