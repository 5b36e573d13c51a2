"""The results in words: a table in Markdown, with a dash for what is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from agent_core.knobs.variants import IDENTITY
from benchmarks.surface.workloads import Workload

STAGES = ("space", "exhaustive", "search")


def spaces(
    parts: Mapping[str, Any], workloads: Mapping[str, Workload], rewritten: Mapping[str, float]
) -> Iterator[str]:
    """The spaces, and what the search finds at the workloads' own sizes."""
    yield (
        "| workload | points | valid % | default ms | best ms | best variant | its best ms "
        "| evaluations of both | rewrite engine ms |"
    )
    yield "|" + "---|" * 9
    for name, workload in workloads.items():
        if f"{name} space" in parts or f"{name} search" in parts:
            best = rewritten.get(workload.shapes) if isinstance(workload.shapes, str) else None
            cells = [*_space_cells(parts, name), *_search_cells(parts, name)]
            yield "| " + " | ".join([name, *cells, "-" if best is None else f"{best:.4g}"]) + " |"


def optima(parts: Mapping[str, Any], names: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
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
