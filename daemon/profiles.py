"""Reading the profile blob that an evaluation names."""

from __future__ import annotations

import json


def parse_counters(profile: bytes) -> dict[str, float]:
    """Return the counters of a profile (JSON with a `counters` object, as neuron-profile names them).

    What is not a number is left out.
    """
    content = json.loads(profile).get("counters", {})
    return {name: float(value) for name, value in content.items() if type(value) in (int, float)}
