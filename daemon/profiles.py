"""Reads the profile blob that an evaluation names."""

from __future__ import annotations

import json


def parse_counters(profile: bytes) -> dict[str, float]:
    """Return the counters of a profile (JSON with a `counters` object).

    Values that are not numbers are left out.
    """
    content = json.loads(profile).get("counters", {})
    return {name: float(value) for name, value in content.items() if type(value) in (int, float)}
