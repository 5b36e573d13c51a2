"""What an export may quote of an attempt's error.

Failures of the infrastructure name hosts, users and paths; so may the output of a host's compiler, device or
command. Only the judge's own messages are exported, because they are about kernels and numbers. For all other
errors, only the code is exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN_STAGES = frozenset({"lint", "trace", "rules", "numerics", "identity", "timing", "benchmark", "prefilter"})
"""The stages whose messages this program writes itself."""

_DEVICE_CODES = frozenset({"device_error", "device_load", "device_hang", "device_crash"})
"""Codes in these stages whose messages come from a device's runtime."""


def quotable_attempt_error(row: Mapping[str, Any]) -> str:
    """Return what may be quoted of an attempt's error, from its row; empty if nothing may."""
    if row["verdict"] is None or row["error_code"] is None:
        return ""
    return quotable_message(row["stage"], row["error_code"], row["error_message"])


def quotable_message(stage: str, code: str, message: str) -> str:
    """Return what may be quoted of a verdict's error; empty if nothing may."""
    return message if stage in OWN_STAGES and code not in _DEVICE_CODES else ""
