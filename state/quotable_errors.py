"""What an export may quote of how an attempt failed.

Failures of the machinery name hosts, users and paths, and so may words that a host's compiler, device or
command printed. Only the judge's own words leave, which are of kernels and numbers; of all else only the
code does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN_STAGES = frozenset({"lint", "trace", "rules", "numerics", "identity", "timing", "benchmark", "prefilter"})
"""The stages whose verdicts this machine words."""

_DEVICE_CODES = frozenset({"device_error", "device_load", "device_hang", "device_crash"})
"""Codes of failures in these stages of which a device's run time tells."""


def quotable_attempt_error(row: Mapping[str, Any]) -> str:
    """Return what may be quoted of an attempt's error, by its row; empty where nothing may."""
    if row["verdict"] is None or row["error_code"] is None:
        return ""
    return quotable_message(row["stage"], row["error_code"], row["error_message"])


def quotable_message(stage: str, code: str, message: str) -> str:
    """Return what may be quoted of a verdict's error; empty where nothing may."""
    return message if stage in OWN_STAGES and code not in _DEVICE_CODES else ""
