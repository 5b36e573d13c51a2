"""Errors about workloads and knobs; the message says which value is wrong and what to do."""

from __future__ import annotations


class WorkloadError(Exception):
    """A function that cannot become a graph; the message has the operator, its value, and what is allowed."""


class KnobError(Exception):
    """Knobs that cannot be lowered: they are invalid, or no valid ones exist. The message says which."""
