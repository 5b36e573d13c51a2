"""Kernels as one Chrome trace, for ui.perfetto.dev or chrome://tracing: one process per kernel and core.

The simulator predicts when each instruction runs (`agentctl.timelines`), even if a device judged the
kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentctl.hidden_characters import escape_hidden

TraceEvent = dict[str, Any]

MAX_CORES = 1000
"""The number of process ids reserved for each kernel."""


def merge_traces(run: str, made: Mapping[str, bytes]) -> bytes:
    """Merge the traces of kernels, given by id, into one; the first is on top."""
    parts = {name: json.loads(data) for name, data in made.items()}
    about = {
        "predicted": True,
        "run": run,
        "kernels": [{"candidate": name, **part.get("otherData", {})} for name, part in parts.items()],
    }
    events = [
        event
        for number, (name, part) in enumerate(parts.items())
        for event in _renumber_events(name, number, part["traceEvents"])
    ]
    content = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _renumber_events(name: str, number: int, events: list[TraceEvent]) -> Iterator[TraceEvent]:
    """Yield a kernel's events with process ids of their own."""
    first = number * MAX_CORES
    for event in events:
        told = {**event, "pid": first + event["pid"]}
        if event["ph"] == "M" and event["name"] == "process_name":
            title = " ".join(escape_hidden(str(event["args"]["name"])).split())
            told["args"] = {"name": f"{name}: {title}"}
            yield {
                "ph": "M", "name": "process_sort_index", "pid": told["pid"], "tid": event["tid"],
                "args": {"sort_index": told["pid"]},
            }  # fmt: skip
        yield told
