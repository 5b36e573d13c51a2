"""The results in words: a table in Markdown, with a dash for what is not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from statistics import median
from typing import Any

from targets.nki.knobs.variants import IDENTITY

STAGES = ("space", "exhaustive", "search", "rewrite")


def spaces(parts: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """The spaces, and what the search and the rewrite engine find at the workloads' own sizes."""
    yield (
        "| workload | points | valid % | default ms | best ms | best variant | its best ms "
        "| evaluations of both | rewrite engine from ms | its best ms | looked at | judged |"
    )
    yield "|" + "---|" * 12
    for name in names:
        if any(f"{name} {stage}" in parts for stage in STAGES if stage != "exhaustive"):
            cells = (_space_cells(parts, name), _search_cells(parts, name), _rewrite_cells(parts, name))
            yield "| " + " | ".join([name, *chain(*cells)]) + " |"


def optima(parts: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """The true optima of the reduced sizes, and how soon searches and draws are near them."""
    yield (
        "| workload, reduced | programs | best ms | worst ms | default, over the best % "
        "| near the best, % of all | budget | seeds that get near | over the best %, at worst "
        "| evaluations until near | of all % | the same by drawing |"
    )
    yield "|" + "---|" * 12
    for name in names:
        told = parts.get(f"{name} exhaustive")
        if told is not None:
            yield "| " + " | ".join([_shapes(name, told), *_cells(told)]) + " |"


def _shapes(name: str, told: Mapping[str, Any]) -> str:
    return f"{name} {' '.join('x'.join(map(str, shape)) for shape in told['shapes'].values())}"


def _cells(told: Mapping[str, Any]) -> Iterator[str]:
    searched, drawn = told["searched"], told["drawn"]
    near = [item for item in searched if item["near_after"] is not None]
    yield f"{told['programs']}{'' if told['whole'] else '+'}"
    yield f"{told['best_ms']:.4g}"
    yield f"{told['worst_ms']:.4g}"
    yield f"{_over(told['default_ms'], told['best_ms']):.1f}"
    yield f"{told['near_percent']:.1f}"
    yield str(told["budget"])
    yield f"{len(near)} of {len(searched)}"
    yield f"{_over(max(item['best_ms'] for item in searched), told['best_ms']):.1f}"
    if near:
        counts = [item["near_after"] for item in near]
        yield f"{median(counts):g} ({min(counts)} to {max(counts)})"
        yield f"{100 * median(counts) / told['programs']:.1f}"
    else:
        yield from ("-", "-")
    yield f"{sum(item['near_after'] is not None for item in drawn)} of {len(drawn)}"


def _over(ms: float, best_ms: float) -> float:
    return 100 * (ms / best_ms - 1)


def _space_cells(parts: Mapping[str, Any], name: str) -> list[str]:
    told = parts.get(f"{name} space")
    return ["-"] * 2 if told is None else [f"{told['points']:.1e}", f"{told['valid_percent']:.1f}"]


def _search_cells(parts: Mapping[str, Any], name: str) -> list[str]:
    told = parts.get(f"{name} search")
    if told is None:
        return ["-"] * 5
    plain = told["found"][IDENTITY]
    other = next(((key, item) for key, item in told["found"].items() if key != IDENTITY), None)
    cells = [f"{plain['default_ms']:.4g}", f"{plain['best_ms']:.4g}"]
    cells += ["-", "-"] if other is None else [other[0], f"{other[1]['best_ms']:.4g}"]
    return [*cells, str(sum(item["evaluations"] for item in told["found"].values()))]


def _rewrite_cells(parts: Mapping[str, Any], name: str) -> list[str]:
    told = parts.get(f"{name} rewrite")
    if told is None:
        return ["-"] * 4
    latencies = [f"{told[key]:.4g}" for key in ("initial_ms", "best_ms")]
    return [*latencies, *(str(told[key]) for key in ("looked_at", "evaluated"))]
