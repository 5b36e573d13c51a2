"""What is wrong with a workload or with knobs, in words that say which and what to do."""

from __future__ import annotations


class WorkloadError(Exception):
    """A function that no graph can be made of: which operator, its value, what is allowed."""


class KnobError(Exception):
    """Knobs that cannot be lowered: they are invalid, or no valid ones exist. The message says which."""
