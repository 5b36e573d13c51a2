"""Runs in the pool's processes: returns the next points of a space, or a point's kernel; JSON to JSON.

Every answer is either `{"ok": ...}` or `{"error": {"code", "message"}}`; the same request always gets the
same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any

from targets.nki.knobs.errors import KnobError, WorkloadError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import is_valid
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.search import ProfileFeedback, SearchMode, Trial, TriedBatch, next_batch
from targets.nki.knobs.tuning.points import KnobPoint, describe_turns, parse_point, variant_graphs
from targets.nki.knobs.workload_file import load_graph

DRAWS = 4
"""Points drawn for each that is wanted when points are drawn uniformly: some are the same program."""


def answer_request(request: str) -> str:
    """Answer one request `{"job": ..., ...}`."""
    values = json.loads(request)
    try:
        graphs = _load_graphs(values["workload"], values["size"], values["target"])
        made = _JOBS[values["job"]](graphs, values)
    except WorkloadError as error:
        return json.dumps({"error": {"code": "no_graph", "message": str(error)}})
    except KnobError as error:
        return json.dumps({"error": {"code": "no_point", "message": str(error)}})
    return json.dumps({"ok": made}, sort_keys=True)


@lru_cache(maxsize=8)
def _load_graphs(workload: str, size: str, target: str) -> Mapping[str, Graph]:
    return variant_graphs(load_graph(workload.encode(), size, target))


def _default_points(graphs: Mapping[str, Graph], values: Mapping[str, Any]) -> dict[str, Any]:
    """One default per variant that has one; the first is the mirror of the baseline."""
    told, left_out = [], []
    for name, graph in graphs.items():
        try:
            told.append(_point_data(KnobPoint(name, default_ir(graph)), f"the default of the variant {name}"))
        except KnobError as error:
            left_out.append(f"{name}: {error}")
    return {"points": told, "reasons": left_out}


def _next_points(graphs: Mapping[str, Graph], values: Mapping[str, Any]) -> dict[str, Any]:
    """The next points of one variant, given a history of its batches."""
    variant = values["variant"]
    if variant not in graphs:
        raise KnobError(f"there is no variant {variant} of this workload any more")
    history = [
        TriedBatch(SearchMode(one["mode"]), tuple(_parse_trials(one["trials"], graphs)), one["knob"])
        for one in values["history"]
    ]
    feedback = ProfileFeedback(values["bottleneck"], values["mbu_percent"])
    batch = next_batch(graphs[variant], Random(values["draw"]), history, feedback, values["count"])  # noqa: S311
    points = [KnobPoint(variant, ir) for ir in batch.points]
    return {
        "mode": batch.mode.value,
        "knob": batch.knob,
        "reason": batch.reason,
        "points": [_point_data(point, _describe_origin(graphs, values["start"], point)) for point in points],
    }


def _describe_origin(graphs: Mapping[str, Graph], start: str, point: KnobPoint) -> str:
    """Describe a point's turns, from the start or, for another variant, from that variant's default."""
    if start:
        return describe_turns(parse_point(start, graphs), point)
    return f"from its default, {describe_turns(KnobPoint(point.variant, default_ir(point.ir.graph)), point)}"


def _parse_trials(told: list[list[Any]], graphs: Mapping[str, Graph]) -> Iterator[Trial]:
    """Trials by text; texts that are no points of the workload (of an earlier version) are skipped."""
    for text, ms, failure in told:
        try:
            ir = parse_point(text, graphs).ir
            if is_valid(ir):
                yield Trial(ir, ms, failure)
        except KnobError:
            continue


def _random_points(graphs: Mapping[str, Graph], values: Mapping[str, Any]) -> dict[str, Any]:
    """Points drawn uniformly, over all variants with valid points, no two of them the same program."""
    random = Random(values["draw"])  # noqa: S311  a search, no secret
    found: dict[str, dict[str, Any]] = {}
    starts = dict(_default_irs(graphs))
    for _ in range(DRAWS * values["count"] if starts else 0):
        name = random.choice(list(starts))
        point = KnobPoint(name, sample_ir(starts[name], random))
        found.setdefault(f"{name} {program_digest(point.ir)}", _point_data(point, f"drawn: {name}"))
        if len(found) == values["count"]:
            break
    return {
        "mode": SearchMode.JOINT.value,
        "knob": "",
        "reason": "drawn evenly",
        "points": list(found.values()),
    }


def _default_irs(graphs: Mapping[str, Graph]) -> Iterator[tuple[str, KernelIR]]:
    """The defaults of the variants that fit the chip."""
    for name, graph in graphs.items():
        with suppress(KnobError):
            yield name, default_ir(graph)


def _render_point(graphs: Mapping[str, Graph], values: Mapping[str, Any]) -> dict[str, Any]:
    point = parse_point(values["point"], graphs)
    return {"source": render_kernel(point.ir)}


def _point_data(point: KnobPoint, title: str) -> dict[str, Any]:
    return {"text": str(point), "source": render_kernel(point.ir), "title": f"{point.variant}: {title}"}


_JOBS = {"defaults": _default_points, "next": _next_points, "drawn": _random_points, "render": _render_point}
