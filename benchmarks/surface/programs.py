"""Every program of a small graph with its predicted latency, in a file: searches are replayed from it.

The file is gzipped JSON. A program stands under its digest (`targets.nki.knobs.program`), which holds as long
as the lowering does; `key` says of which graph the file is, and what is predicted for its default now. A
file that another version of the program wrote differs in that, as a rule, and is made anew.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nki_sim import targets
from nki_sim.forms import ArraySpec
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import Program
from nki_sim.timing.critical_path import busy_ms
from nki_sim.timing.forecast import forecast_program
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.space import iter_programs


class Found(NamedTuple):
    """A predicted latency, and the busiest engine."""

    ms: float
    engine: str


@dataclass
class Table:
    """Latencies by program, and whether these are all programs there are."""

    found: dict[str, Found] = field(default_factory=dict)
    whole: bool = False

    @property
    def best_ms(self) -> float:
        return min(item.ms for item in self.found.values())

    @property
    def worst_ms(self) -> float:
        return max(item.ms for item in self.found.values())

    def of(self, ir: KernelIR) -> Found:
        """What the table has of a point; predicted where it has not all programs."""
        known = self.found.get(program_digest(ir))
        if known is None and self.whole:
            raise LookupError(f"a program is missing in the table of all programs: {ir}")
        return predict_point(ir) if known is None else known


def predict_point(ir: KernelIR) -> Found:
    """The predicted latency of a point in ms, and its busiest engine."""
    graph = ir.graph
    specs = [ArraySpec(graph.shape(name), graph.value[name].dtype) for name in graph.inputs]
    program = Program.from_bytes(trace_bytes(render_kernel(ir), args=specs, target=graph.target))
    told = forecast_program(program, targets.load(graph.target))
    busy = busy_ms(told.timeline)
    return Found(told.latency_ms, max(busy, key=busy.__getitem__))


def table_of(graph: Graph, path: Path | None, is_over: Callable[[int], bool]) -> Table:
    """The table of a graph: from its file, or predicted, until `is_over` says so of a number of programs.

    What is predicted is kept in the file at the end, all or not; a file of a part is gone on from.
    """
    table = _read(graph, path)
    if table.whole:
        return table
    for ir in iter_programs(graph):
        if is_over(len(table.found)):
            break
        key = program_digest(ir)
        if key not in table.found:
            table.found[key] = predict_point(ir)
    else:
        table.whole = True
    if path is not None:
        _write(graph, path, table)
    return table


def _read(graph: Graph, path: Path | None) -> Table:
    if path is None or not path.exists():
        return Table()
    told = json.loads(gzip.decompress(path.read_bytes()))
    if told["key"] != _key(graph):
        return Table()
    return Table({key: Found(*item) for key, item in told["programs"].items()}, told["whole"])


def _write(graph: Graph, path: Path, table: Table) -> None:
    told = {"key": _key(graph), "whole": table.whole, "programs": table.found}
    part = path.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(gzip.compress(json.dumps(told).encode(), mtime=0))
    part.replace(path)


def _key(graph: Graph) -> Mapping[str, object]:
    first = default_ir(graph)
    return {
        "program": program_digest(first),
        "ms": predict_point(first).ms,
        "shapes": [dim.size for dim in graph.dims],
    }
