"""Lays a run out in files: the baseline, batches of points, edits, and a summary.

`batch_<n>` has the points of round n + 1 in slot order. Every other kernel is an edit, numbered through the
run. The same log gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from state.model import canonical_json
from state.quotable_errors import quotable_message
from targets.nki.knobs.errors import KnobError, WorkloadError
from targets.nki.knobs.export.figures import PeakScale
from targets.nki.knobs.export.gather import GatheredRun, JudgedKernel
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.tuning.history import TECHNIQUE
from targets.nki.knobs.tuning.points import parse_point, variant_graphs
from targets.nki.knobs.tuning.problem import baseline_kernel
from targets.nki.knobs.workload_file import WORKLOAD_FILE, load_graph

BASELINE, SUMMARY = "nkipy_baseline", "summary.json"
KERNEL, IR, LOG, RESULT, NOTES = "kernel.py", "ir.txt", "log.txt", "result.json", "NOTES.md"

OURS = "mechanical lowering of the default knobs, ours: the vendor's is not available"
GIVEN = "the initial kernel of the problem"


@dataclass(frozen=True)
class RunLayout:
    """A run as files by relative path. `blob` reads the log's content by digest."""

    run: str
    found: GatheredRun
    scale: PeakScale
    target_mfu: float | None
    blob: Callable[[str], bytes]

    def build_files(self) -> dict[str, bytes]:
        """Return all files, the summary last."""
        made: dict[str, bytes] = {}
        for folder, kernel in self.folders.items():
            made |= {f"{folder}/{name}": data for name, data in self._kernel_files(kernel, folder)}
        return made | {SUMMARY: _to_json(self.build_summary())}

    @cached_property
    def folders(self) -> Mapping[str, JudgedKernel]:
        """The kernels by their folders."""
        first, *others = self.found.kernels
        folders = {BASELINE: first}
        edits = 0
        counts: dict[int, int] = {}
        for kernel in others:
            if is_point(kernel):
                batch = kernel.key.round - 1
                counts[batch] = counts.get(batch, -1) + 1
                folders[f"batch_{batch}/kernel_{counts[batch]}"] = kernel
            else:
                folders[f"edit_{edits}/kernel"] = kernel
                edits += 1
        return folders

    def build_summary(self) -> dict[str, Any]:
        """The run in figures: the baseline, the target, and the best kernel so far after each batch."""
        first = self.found.kernels[0]
        return {
            "function": self.found.created.problem.name,
            "run": self.run,
            "baseline": {"source": self._baseline_origin, **self._kernel_figures(first)},
            "target_mfu": self.target_mfu,
            "tuning": {
                f"batch_{number}": self._best_after_batch(number) for number in range(self.found.rounds)
            },
        }

    def latest_best(self) -> dict[str, Any]:
        """The best kernel so far, from the summary of the latest batch."""
        return self._best_after_batch(max(0, self.found.rounds - 1))

    def _best_after_batch(self, batch: int) -> dict[str, Any]:
        """The run's best kernel after a batch; in an unfinished batch, the fastest correct one so far."""
        known = self.found.bests.get(batch + 1)
        ready = [
            (kernel.id != known, kernel.min_ms, kernel.key, folder)
            for folder, kernel in self.folders.items()
            if kernel.min_ms is not None and kernel.key.round <= batch + 1
        ]
        if not ready:
            return {"running_best_kernel": None, "mfu": None, "min_ms": None, "predicted": None}
        folder = min(ready)[-1]
        return {"running_best_kernel": folder, **self._kernel_figures(self.folders[folder])}

    def _kernel_figures(self, kernel: JudgedKernel) -> dict[str, Any]:
        judged = kernel.verdict
        timed = judged.benchmark if judged is not None else None
        return {
            "mfu": self.scale.mfu(kernel.min_ms),
            "min_ms": kernel.min_ms,
            "predicted": timed.predicted if timed else None,
        }

    def _kernel_files(self, kernel: JudgedKernel, folder: str) -> Iterator[tuple[str, bytes]]:
        yield KERNEL, self.blob(kernel.source)
        dump = self._ir_text(kernel, folder)
        if dump is not None:
            yield IR, f"{dump}\n".encode()
        yield (
            LOG,
            _judge_log(kernel, f"by {kernel.author}" if kernel.author else self._baseline_origin).encode(),
        )
        yield RESULT, _to_json(self.scale.kernel_figures(kernel))
        if folder.startswith("edit_"):
            yield NOTES, self._edit_notes(kernel).encode()

    def _ir_text(self, kernel: JudgedKernel, folder: str) -> str | None:
        """The canonical text of a point's IR; None for an edit, or if this version cannot parse it."""
        if self._workload_graph is None:
            return None
        graphs = variant_graphs(self._workload_graph)
        try:
            if is_point(kernel) and kernel.plan is not None:
                return repr(parse_point(kernel.plan.site, graphs).ir)
            if folder == BASELINE and self._baseline_origin == OURS:
                return repr(default_ir(self._workload_graph))
        except KnobError:
            return None
        return None

    @cached_property
    def _workload_graph(self) -> Graph | None:
        created = self.found.created
        if WORKLOAD_FILE not in created.problem.files:
            return None
        try:
            return load_graph(
                self.blob(created.problem.files[WORKLOAD_FILE]), created.config.size, created.config.target
            )
        except WorkloadError:
            return None

    @cached_property
    def _baseline_origin(self) -> str:
        """Where the baseline comes from: our lowering, or a kernel that the problem or a person gave."""
        try:
            ours = self._workload_graph is not None and baseline_kernel(
                self._workload_graph
            ).encode() == self.blob(self.found.kernels[0].source)
        except KnobError:
            ours = False
        return OURS if ours else GIVEN

    def _edit_notes(self, kernel: JudgedKernel) -> str:
        """Describe for people where an edit comes from and what it does."""
        folders = {item.id: folder for folder, item in self.folders.items()}
        parent = folders.get(kernel.parent or "", "")
        lines = [f"# {kernel.id}", "", f"By `{kernel.author}`" + (f", from `{parent}`." if parent else ".")]
        if kernel.plan is not None:
            told = kernel.plan.prediction
            lines += ["", f"{kernel.plan.title} [{kernel.plan.technique}]", ""]
            lines += [f"Predicted before it was judged: {told.speedup:.3f}x. {told.reason}".rstrip()]
        if kernel.note and (kernel.plan is None or kernel.note != kernel.plan.title):
            lines += ["", kernel.note]
        judged = kernel.verdict
        if kernel.min_ms is not None and judged is not None and judged.benchmark is not None:
            said = "predicted" if judged.benchmark.predicted else "measured"
            lines += ["", f"Correct; {kernel.min_ms:.6g} ms {said}."]
        elif judged is not None:
            lines += ["", f"Judged {judged.verdict.value}."]
        return "\n".join(lines) + "\n"


def is_point(kernel: JudgedKernel) -> bool:
    """Whether a kernel is a point of the space, lowered from knobs."""
    return kernel.plan is not None and kernel.plan.technique.startswith(TECHNIQUE)


def _judge_log(kernel: JudgedKernel, origin: str) -> str:
    """The kernel's author, and what the judge said, line by line."""
    lines = [f"kernel {kernel.id}, {origin}"]
    if kernel.error is not None:
        lines.append(f"not judged: {kernel.error.code}")
    for judged in (kernel.evaluation, kernel.refuted):
        if judged is None:
            continue
        lines.append(f"{judged.verdict.value} (stage {judged.stage}), compared: {judged.level.value}")
        if judged.error is not None:
            where = f" line {judged.error.line}" if judged.error.line is not None else ""
            said = quotable_message(judged.stage, judged.error.code, judged.error.message)
            lines.append(f"  {judged.error.code}{where}{': ' if said else ''}{said}")
        lines += [f"  seed {seed}: relative L2 error {error:.3g}" for seed, error in judged.rel_l2.items()]
        if judged.identity is not None:
            lines.append(f"  formula {judged.identity.verdict} {judged.identity.reason}".rstrip())
        if judged.benchmark is not None:
            said = "predicted" if judged.benchmark.predicted else "measured"
            lines.append(f"  {judged.benchmark.latency_ms:.6g} ms {said}, bottleneck {judged.bottleneck}")
    return "\n".join(lines) + "\n"


def _to_json(value: dict[str, Any]) -> bytes:
    """JSON for people and programs, keys in the given order; fails for floats that JSON cannot express."""
    canonical_json(value)
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
