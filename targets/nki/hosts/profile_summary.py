"""Parses profiler summaries (`view --output-format summary-json`) of neuron-profile and neuron-explorer.

Known shapes: an object of counters under the name of each profiled network (neuron-profile), the object of
counters itself (neuron-explorer), a list of such objects, one for each core, and any of these under `summary`
or `summaries`. Values that are not numbers are dropped; unknown counters are kept. Percents are 0 to 100
whatever the release prints: an active time next to its percent tells whether it prints shares. Some counters
changed meaning between releases (bytes per partition, float32 products counted twice), and no summary says
which meaning it uses; they are passed on as printed, with the tool's name.

Fields and units: the profile schema in the Neuron documentation, "Summary".
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isclose
from typing import Any

from state.model import canonical_json

_PERCENT = "_percent"
_ACTIVE = "_active_time"
_DEPTH = 4
_MOST_COUNTERS = 512
_MOST = 1e30  # keeps everything computed from such numbers finite
_TRIES = 16
ENGINES = {
    "tensor": "tensor_engine",
    "vector": "vector_engine",
    "scalar": "scalar_engine",
    "gpsimd": "gpsimd_engine",
    "dma": "dma",
}
"""What can bound a kernel, by this program's names, and the counters' prefix."""


class SummaryError(Exception):
    """A text that is not a summary; the message says why."""


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """One profiled run: `counters` by the profiler's names, in seconds and bytes, percents from 0 to 100."""

    tool: str
    counters: Mapping[str, float]

    @property
    def latency_ms(self) -> float:
        """The duration of the profiled run, milliseconds."""
        return self.counters["total_time"] * 1e3

    @property
    def busy_ms(self) -> dict[str, float]:
        """Milliseconds that each engine was busy, as far as reported."""
        found = {engine: self.counters.get(prefix + _ACTIVE) for engine, prefix in ENGINES.items()}
        return {engine: seconds * 1e3 for engine, seconds in found.items() if seconds is not None}

    @property
    def bottleneck(self) -> str | None:
        """The engine that was busy longest."""
        busy = self.busy_ms
        return max(busy, key=lambda engine: busy[engine]) if busy else None

    def render_profile(
        self, target: str, *, base_ms: float | None = None, more: Mapping[str, Any] | None = None
    ) -> str:
        """Return the profile for proposers and people: measured, not predicted.

        `base_ms` is the time of the kernel that this one was made from, measured in turns with it; `more`
        are fields that a full profile adds.
        """
        fields: dict[str, Any] = {
            "predicted": False,
            "target": target,
            "tool": self.tool,
            "counters": dict(self.counters),
            "bottleneck": self.bottleneck,
            "busy_ms": self.busy_ms,
        }
        fields |= more or {}
        if base_ms is not None:
            fields["base_remeasured_ms"] = base_ms
        return canonical_json(fields).decode()


def parse_summary(text: str, tool: str) -> ProfileSummary:
    """Read a summary; of several cores, take the one that ran longest.

    Raises:
        SummaryError: the text is not a summary.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = _parse_after_messages(text)
    runs = list(_find_runs(found, _DEPTH))
    if not runs:
        raise SummaryError(f"{tool} printed no object with a total_time: {text.strip()[:120]!r}")
    counters = max(runs, key=lambda counters: counters["total_time"])
    return ProfileSummary(tool=tool[:200], counters=_convert_to_percent(counters))


def _parse_after_messages(text: str) -> Any:
    """Parse from one of the first lines that may begin JSON: tools may print messages before it."""
    decoder = json.JSONDecoder()
    for at in islice((match.start() for match in re.finditer(r"^[{\[]", text, re.MULTILINE)), _TRIES):
        with contextlib.suppress(ValueError, RecursionError):
            found, _ = decoder.raw_decode(text, at)
            return found
    return None


def _find_runs(found: Any, depth: int) -> Iterator[dict[str, float]]:
    """The objects of counters in the output: those that have the duration of a run."""
    if depth == 0:
        return
    if isinstance(found, Mapping):
        counters = _numeric_counters(found)
        if counters.get("total_time", 0.0) > 0:
            yield counters
            return
        found = list(found.values())
    if isinstance(found, list):
        for item in found[:64]:
            yield from _find_runs(item, depth - 1)


def _numeric_counters(found: Mapping[str, Any]) -> dict[str, float]:
    items = list(found.items())[:_MOST_COUNTERS]
    return {
        str(name)[:100]: float(value)
        for name, value in items
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
    }


def _convert_to_percent(counters: Mapping[str, float]) -> dict[str, float]:
    factor = 100.0 if _prints_shares(counters) else 1.0
    return {name: value * factor if name.endswith(_PERCENT) else value for name, value in counters.items()}


def _prints_shares(counters: Mapping[str, float]) -> bool:
    """Whether percents are printed from 0 to 1."""
    total = counters["total_time"]
    for name, seconds in counters.items():
        told = counters.get(name + _PERCENT)
        if name.endswith(_ACTIVE) and told and seconds:
            share = seconds / total
            if isclose(told, share, rel_tol=0.2):
                return True
            if isclose(told, 100 * share, rel_tol=0.2):
                return False
    return all(value <= 1 for name, value in counters.items() if name.endswith(_PERCENT))
