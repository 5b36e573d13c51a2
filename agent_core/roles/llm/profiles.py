"""What a planner is shown of a kernel's profile: counters, source lines, waits and memories.

The order of counters is drawn for each plan, because a model reads the first items of a list with more
care than the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from agent_core.roles.llm.fitting import PromptItems
from agent_core.roles.llm.quoting import fence_text, single_line

NO_PROFILE = "(there is no profile of this kernel)"
_BUSY, _VAIN, _METRIC, _LINE, _WAIT, _QUEUE, _MEMORY, _SPILLED = range(8)
"""Kinds of lines, most important first; the last kinds are dropped first."""


def render_profile(
    profile: Mapping[str, Any], source: str, metrics: Sequence[str], draw: Random
) -> PromptItems:
    """Return the profile as lines in a fence; `draw` shuffles `metrics`."""
    if not profile:
        return PromptItems((), NO_PROFILE)
    kinds = (
        (_BUSY, _busy_lines(profile)),
        (_VAIN, _inefficiency_lines(profile)),
        (_METRIC, _counter_lines(profile, metrics, draw)),
        (_LINE, _source_lines(profile, source)),
        (_WAIT, _wait_lines(profile)),
        (_QUEUE, _queue_lines(profile)),
        (_MEMORY, _memory_lines(profile)),
        (_SPILLED, _spill_lines(profile)),
    )
    found = [(kind, text) for kind, texts in kinds for text in texts]
    return PromptItems(
        pieces=tuple(text for _, text in found),
        none=NO_PROFILE,
        ranks=tuple(kind + at / len(found) for at, (kind, _) in enumerate(found)),
        show=lambda left: fence_text("\n".join(left), "text"),
    )


def describe_profile_lines(profile: Mapping[str, Any], source: str) -> list[str]:
    """Return where a kernel's time goes: busy parts of the device, then the costliest source lines."""
    return [*_busy_lines(profile), *_source_lines(profile, source)] if profile else []


def counter_names(profile: Mapping[str, Any]) -> frozenset[str]:
    """Return the counters that a prediction may name."""
    return frozenset(profile_counters(profile)) | {"latency_ms"}


def profile_counters(profile: Mapping[str, Any]) -> dict[str, float]:
    """Return a profile's counters, without values that are not numbers."""
    found = profile.get("counters", {})
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def _busy_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    if profile.get("predicted"):
        yield "all of this is predicted by the simulator's model"
    yield from _roofline_lines(profile_counters(profile))
    if profile.get("bottleneck"):
        yield f"bottleneck: {single_line(str(profile['bottleneck']))}"
    busy = profile.get("busy_ms", {})
    if busy:
        ranked = sorted(busy.items(), key=lambda pair: -pair[1])
        yield "busy: " + ", ".join(f"{name} {ms:.4g} ms" for name, ms in ranked)


def _roofline_lines(found: Mapping[str, float]) -> Iterator[str]:
    """Yield the side of the roofline's ridge that a kernel with matrix products is on."""
    has, needed = (found.get(name) for name in ("mm_arithmetic_intensity", "peak_flops_bandwidth_ratio"))
    if has and needed:
        side = "memory" if has < needed else "compute"
        ridge = f"the ridge is at {needed:.4g}: on the side of {side}"
        yield f"roofline: {has:.4g} operations a byte of memory, {ridge}"


def _counter_lines(profile: Mapping[str, Any], metrics: Sequence[str], draw: Random) -> Iterator[str]:
    found, order = profile_counters(profile), list(metrics)
    draw.shuffle(order)
    for name in order:
        if found.get(name):  # a counter that is 0 says nothing, and most are
            yield f"{name} = {format_number(found[name])}"


def _source_lines(profile: Mapping[str, Any], source: str) -> Iterator[str]:
    """Yield the source lines that make up most of the critical path."""
    rows = source.split("\n")
    for part in profile.get("top_lines", ()):
        at = part["line"]
        if not at:
            yield f"{part['ms']:.4g} ms of the critical path are the fixed cost of any kernel"
            continue
        text = f": {single_line(rows[at - 1], 120)}" if at <= len(rows) else ""
        yield f"line {at}, {part['ms']:.4g} ms of the critical path, {part['op']}{text}"
    for part in profile.get("busy_lines", ()):
        at = part["line"]
        text = f": {single_line(rows[at - 1], 120)}" if 0 < at <= len(rows) else ""
        yield f"line {at} keeps {part['engine']} busy for {part['ms']:.4g} ms, mostly {part['op']}{text}"


def _queue_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    """Yield how long the transfers of each DMA queue take."""
    for part in profile.get("dma_queues", ()):
        yield f"DMA queue {single_line(part['queue'])}: {part['bytes']} bytes in {part['ms']:.4g} ms"


def _inefficiency_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the kernel does for nothing."""
    for one in profile.get("inefficiencies", ()):
        yield f"wasted: {single_line(str(one['message']))}"


def _wait_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    for engine, causes in profile.get("waits_ms", {}).items():
        told = ", ".join(f"{cause} {ms:.4g} ms" for cause, ms in causes.items())
        if told:
            yield f"{engine} waits: {told}"


def _memory_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    for name, use in profile.get("memory", {}).items():
        yield f"{name}: at most {use['peak']} of {use['capacity']} {use['unit']} in use"


def _spill_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    for item in profile.get("spilled", ()):
        yield "spilled: " + ", ".join(f"{name} {value}" for name, value in item.items())


def format_number(value: float) -> str:
    """Return a counter's value as models read it."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"
