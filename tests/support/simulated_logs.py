"""Runs of the simulated world as logs: quick to make, with profiles, and with texts that mean to do harm.

For whatever shows runs: the kernels are constants, the judge knows their latency, and each correct kernel
has a profile like those of the embedded evaluator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from state.events import (
    CallCompleted,
    CallFailed,
    CallStarted,
    EvaluationCompleted,
    Event,
    PlanStarted,
    ProfileRecorded,
    RunForked,
)
from state.log import EventLog
from state.model import (
    Amount,
    ErrorInfo,
    Evaluation,
    EvaluationHost,
    LatencyBounds,
    RunConfig,
    Tokens,
    digest_of,
)
from state.reader import LogReader
from state.records import NewEvent
from tests.support.world import CONSTANT, Judge, World, judge_constants, small

HOSTILE = '</script><script>window.harmed = 1</script><img src=x onerror="window.harmed = 2">'
"""What a kernel's comment, or a model's words, may hold: run anywhere, it would set `harmed`."""

KERNEL = f'''"""A kernel of constants. {HOSTILE}"""
import nki.language as nl

TILE_M = 16
TILE_N = 64
BUFFERS = 1


@nki.jit
def kernel(x):
    # {HOSTILE}
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // TILE_M):
        tile = nl.load(x[i * TILE_M : (i + 1) * TILE_M], dtype="float32")
        nl.store(out[i * TILE_M : (i + 1) * TILE_M], tile * 2.0)
    return out
'''

PARTS = 160
START_US = 1_760_000_000_000_000
STEP_US = 40_000


def profile_of(source: str, latency_ms: float) -> bytes:
    """Return the profile of a kernel of constants: the same for the same text, nothing of it measured."""
    values = {name: int(value) for name, value in CONSTANT.findall(source)}
    buffers, wide = values.get("BUFFERS", 1), values.get("TILE_N", 64)
    load = min(96, 20 + 9 * buffers)
    work = min(90, 14 + wide // 12)
    total_s = latency_ms / 1e3
    shape = [round(50 + 50 * math.sin(part / 9 + buffers)) for part in range(PARTS)]
    busy = {"dma_load": load, "tensor": work, "vector": work // 2, "dma_store": load // 3}
    moved, flops = 8.4e6, 5.4e9
    counters = {
        "total_time": total_s,
        "hbm_read_bytes": 0.75 * moved,
        "hbm_write_bytes": 0.25 * moved,
        "hardware_flops": flops,
        "transpose_flops": 0.1 * flops,
        "peak_flops_bandwidth_ratio": 128.0,
        "mbu_estimated_percent": 100 * moved / (716e9 * total_s),
        "hfu_estimated_percent": 100 * flops / (91.6e12 * total_s),
        "tensor_engine_active_time_percent": float(work),
        "vector_engine_active_time_percent": work / 2,
        "dma_active_time_percent": float(load),
    }
    content = {
        "predicted": True,
        "target": "trn2",
        "counters": counters,
        "bottleneck": "memory",
        "busy_ms": {"dma": load * latency_ms / 100, "tensor": work * latency_ms / 100},
        "top_lines": [{"line": 13, "ms": 0.6 * latency_ms, "op": "dma_copy"}],
        "waits_ms": {"tensor": {"dependence dma": 0.3 * latency_ms}},
        "memory": {"sbuf": {"peak": 64 * wide, "capacity": 196608, "unit": "bytes per partition"}},
        "spilled": [],
        "timeline": {
            "span_ms": latency_ms,
            "busy_percent": {name: [level * share // 100 for level in shape] for name, share in busy.items()},
        },
    }
    return json.dumps(content).encode()


def judge_with_profiles(world: World) -> Judge:
    """Return a judge of constants whose correct kernels have profiles, which it puts into the world."""

    def judge(source: str) -> Evaluation:
        found = judge_constants(source)
        if found.benchmark is None:
            return found
        latency = found.benchmark.latency_ms
        draws = (latency, 1.08 * latency, 0.95 * latency)
        profile = world.put(profile_of(source, latency).decode())
        benchmark = found.benchmark.model_copy(
            update={"lo_ms": 0.95 * latency, "hi_ms": 1.08 * latency, "draws_ms": draws}
        )
        return found.model_copy(update={"benchmark": benchmark, "profile": profile})

    return judge


def world_of(
    config: RunConfig | None = None, *, kernel: str = KERNEL, order: int | None = 1, tight_ms: float = 0.8
) -> World:
    """Return a run that has not begun; `finish` or `step` it."""
    bounds = LatencyBounds(plain_ms=0.5, tight_ms=tight_ms)
    world = World(config or small(rounds=4), kernel=kernel, bounds=bounds, order=order)
    world.judge = judge_with_profiles(world)
    return world


def events_of(world: World) -> list[Event]:
    """Return a world's events with the profiles' own, as the process records them."""
    found: list[Event] = []
    for event in world.events:
        found.append(event)
        if isinstance(event, EvaluationCompleted) and event.evaluation.profile:
            counters = json.loads(world.blobs[event.evaluation.profile])["counters"]
            found.append(ProfileRecorded(key=event.key, profile=event.evaluation.profile, counters=counters))
    return found


def record(home: Path, worlds: dict[str, World], *, size: int = 2000) -> None:
    """Store runs in a home's log, with their blobs; times are a fixed step apart."""
    with EventLog.open(home) as log:
        for run, world in worlds.items():
            store(log, run, events_of(world), blobs=[*world.blobs.values()], size=size)


def store(
    log: EventLog, run: str, events: Sequence[Event], *, blobs: Sequence[bytes] = (), size: int = 2000
) -> None:
    """Append events of a run, page by page; the blobs come with the first."""
    began = log.run_seq(run)
    for first in range(0, len(events), size):
        page = [
            NewEvent(run, event, at_us=START_US + STEP_US * (began + first + number))
            for number, event in enumerate(events[first : first + size])
        ]
        log.append_now(page, blobs=blobs if first == 0 else ())


def asking(world: World, *, model: str = "house/planner-1", host: str = "trn-a") -> list[Event]:
    """Return a world's events as those of a run whose plans models made, and that judged on two hosts.

    Of the question for a round's first plan the first attempt fails; what is answered costs 2 cents.
    """
    found: list[Event] = []
    places = [
        EvaluationHost(host=host, device="trn2.3xlarge"),
        EvaluationHost(host=f"{host}-b", device="trn2.48xlarge"),
    ]
    for event in events_of(world):
        judged = isinstance(event, EvaluationCompleted)
        found.append(event.model_copy(update={"where": places[len(found) % 2]}) if judged else event)
        if isinstance(event, PlanStarted):
            found += _call_events(event.key, model)
    return found


def _call_events(key: str, model: str) -> list[Event]:
    text = digest_of(b"asked")
    told = {"key": key, "call": 0, "role": "planner", "model": model}
    fails = ".b0.p0." in key
    failed = ErrorInfo(code="overloaded", message=f"the endpoint is overloaded {HOSTILE}")
    events: list[Event] = []
    if fails:
        events += [
            CallStarted(**told, attempt=1, request=text, reserved=Amount()),
            CallFailed(**told, attempt=1, cost_usd=0.0, kind="overloaded", error=failed, ms=150.0),
        ]
    attempt = 2 if fails else 1
    tokens = Tokens(input=2000, cached=1500, output=300)
    return [
        *events,
        CallStarted(**told, attempt=attempt, request=text, reserved=Amount()),
        CallCompleted(
            **told, attempt=attempt, cost_usd=0.02, tokens=tokens, charged_tokens=tokens.total,
            answer=digest_of(b"answered"), answered_by=model, stop_reason="end", ms=2500.0,
        ),
    ]  # fmt: skip


def fork(log: EventLog, child: str, parent: str, at: int) -> None:
    """Let a run continue another from its event `at`."""
    with LogReader.open(log.home) as reader:
        digest = reader.event_hash(parent, at)
    log.append_now([NewEvent(child, RunForked(parent=parent, parent_seq=at, parent_hash=digest))])


TRICKS = (
    "\u202e\u2066\x1b[31;1m\x1b]0;owned\x07 | `x` *b* [l](http://evil.test) ![i](http://evil.test/i.png)"
    " @somebody"
)
"""What turns text around, colours a terminal or names its window, and what Markdown would read as markup."""

_WORDS = frozenset({"title", "lesson", "summary", "note", "message", "host", "device", "site"})


def spoilt(events: Sequence[Event]) -> list[Event]:
    """Return events in which all that models, people and hosts say means to do harm."""
    return [type(event).model_validate(_spoilt(event.model_dump(mode="json"))) for event in events]


def _spoilt(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _spoilt(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_spoilt(item, name) for item in value]
    return f"{value} {HOSTILE}{TRICKS}" if name in _WORDS and isinstance(value, str) and value else value
