"""The numerics stage: runs a program on the suite's inputs and compares outputs with the reference.

Tiles come first because they cost least: all input sets on a few tiles of the outputs, running only the part
of the program that these need. Then come whole outputs, for as many seeds and other sets as the job asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nki_sim.errors import InputError, KernelError
from nki_sim.flow import regions, slices
from nki_sim.program.ir import Ints, Program
from nki_sim.running import numerics
from nki_sim.running.work import WorkAllowance
from remote.judge import relations, tiles, work_limits
from remote.judge.comparison import (
    assess_stability,
    describe_set,
    load_reference_tiles,
    load_whole_output,
    refusing_tolerance,
    require_within,
    set_tolerance,
)
from remote.judge.input_cache import InputCache
from remote.judge.job import JudgeJob
from remote.judge.judged_parts import JudgedParts
from remote.judge.numerics import Array, is_comparable, rel_l2
from remote.judge.rejection import RejectedError
from remote.judge.suite import SHIFTED_SET, is_secret_set
from remote.judge.tiles import OutputTile
from state.model import NumericalStability, Verdict
from targets.nki.judge.failures import reject_kernel_error
from targets.nki.judge.precision import find_lost_precision

_GATHERS = frozenset({"local_gather", "nc_n_gather"})
"""Instructions whose operands say which elements they read."""


@dataclass(frozen=True)
class _TiledPart:
    """What the judged tiles need of a program: `at` are their places in the pool, `read` boxes of inputs."""

    pool: Sequence[OutputTile]
    at: Sequence[int]
    boxes: Mapping[int, Sequence[slices.ElementBox]]
    program: Program
    read: Sequence[Ints]


@dataclass
class NumericsTrials:
    """One program, its job, and the errors found so far by seed; each trial is one of `parts`."""

    program: Program
    reply: bytes
    job: JudgeJob
    inputs: InputCache
    errors: dict[int, float]
    tolerance: float = 0.0
    """The largest tolerance that a seed was judged with; at least the problem's own."""
    by_set: dict[str, float] = field(default_factory=dict)
    """The tolerance of each set whose tiles were judged."""
    stability: NumericalStability | None = None
    parts: JudgedParts = field(default_factory=JudgedParts)

    def __post_init__(self) -> None:
        self.tolerance = self.job.spec.rel_l2

    def run(self) -> None:
        """Judge tiles, precision, then whole outputs.

        Raises:
            RejectedError: the kernel is wrong.
            BadReferenceError: the reference, or a file of it, is at fault.
        """
        most = work_limits.work_limit(self.job.spec, self.job.size)
        recall = self.parts.recall
        if self.program.loops and not self.job.references:
            recall("ends", self._require_end, most)
        if self.job.excerpts:
            self._judge_tiles()
        else:
            recall("precision", self._require_precision)
        compared = [
            name
            for name, paths in self.job.whole_sets.items()
            if name in self.by_set and recall(f"whole {name}", self._judge_whole_set, name, paths, most)
        ]
        seeds = {} if self.job.instead_of_seeds in compared else self.job.references
        for seed, paths in seeds.items():
            self.errors[seed] = recall(f"whole {seed}", self._judge_whole_seed, seed, paths, most)
        if self.job.references and self.job.spec.relations:
            self.check_relations(most)

    def _require_end(self, most: int) -> None:
        """Run a program with loops as a whole: slices leave out what no tile needs, even an endless loop."""
        first = next(iter(self.job.excerpts))
        self._run_program(self.program, self.inputs.get(self.job, first), WorkAllowance(most))

    @cached_property
    def _tiled(self) -> _TiledPart:
        pool = tiles.make_tile_pool(self.job.spec, self.job.size, self.job.secret)
        at = tiles.choose_tiles(pool, self.reply)
        boxes = tiles.boxes_by_output([pool[number] for number in at])
        part = slices.slice_backward(self.program, boxes)
        return _TiledPart(pool, at, boxes, part, find_boxes_read(part))

    def _judge_tiles(self) -> None:
        self.parts.recall("precision", self._require_precision)
        left = work_limits.tile_work_limit(self.job.spec, self.job.size, len(self.job.excerpts))
        for name, path in self.job.excerpts.items():
            try:
                told = self.parts.recall(f"tiles {name}", self._judge_tile_set, name, path, left)
            except RejectedError as rejected:
                # Loops with data-dependent bounds cannot be sliced; a kernel with one gets no latency, and
                # cannot win.
                if rejected.verdict is Verdict.TIMEOUT and self.program.loops:
                    return
                raise
            if told is not None:
                self._note_error(name, told["error"], told["tolerance"])
                left -= told["work"]

    def _require_precision(self) -> None:
        """Check the whole program if everything is judged, else only what the tiles show of it."""
        whole = self.job.references or not self.job.excerpts
        require_precision(self.program if whole else self._tiled.program, mx=self.job.spec.mx)

    def _judge_tile_set(self, name: str, path: str, work: int) -> dict[str, Any] | None:
        """Judge the tiles of a set with so much work at most; return None if it means nothing here."""
        tiled, allowance = self._tiled, WorkAllowance(work)
        excerpt = load_reference_tiles(path, tiled.pool)
        tolerance = set_tolerance(name, excerpt.honest, self.job.spec.rel_l2)
        if tolerance is None:
            return None
        self.by_set[name] = tolerance
        # Sets that are judged whole are drawn whole at once, so that they are found in the cache again.
        whole = name in {*self.job.whole_sets, *map(str, self.job.references)}
        inputs = self.inputs.get(self.job, name, None if whole else tiled.read, excerpt.marks)
        outputs = self._run_program(tiled.program, inputs, allowance, tiled.boxes)
        found = [outputs[tiled.pool[number].output][tiled.pool[number].index] for number in tiled.at]
        truth = [excerpt.truth[number] for number in tiled.at]
        floors = tiles.norm_floors(tiled.pool, excerpt.truth)
        error = tiles.worst_tile_error(found, truth, floors, tiled.at)
        self._note_error(name, error, tolerance)
        require_within(found, error, refusing_tolerance(name, tolerance), describe_set(name))
        return {"error": error, "tolerance": tolerance, "work": work - allowance.left}

    def _note_error(self, name: str, error: float, tolerance: float) -> None:
        """Note the error on the tiles of a set, which may be known from before."""
        self.by_set[name] = tolerance
        if name.isdecimal():
            self.errors[int(name)] = error
            self.tolerance = max(self.tolerance, tolerance)
        if name == SHIFTED_SET:
            self.stability = assess_stability(error, tolerance)

    def _judge_whole_seed(self, seed: int, paths: Sequence[str], most: int) -> float:
        """Compare all outputs for a seed; return the error."""
        outputs = self._run_program(self.program, self.inputs.get(self.job, str(seed)), WorkAllowance(most))
        error = self.errors[seed] = rel_l2(outputs, [load_whole_output(path) for path in paths])
        require_within(outputs, error, self.job.spec.rel_l2, f"input seed {seed}")
        return error

    def _judge_whole_set(self, name: str, paths: Sequence[str], most: int) -> bool:
        """Compare all outputs for a set that is not a seed, with the tolerance of its tiles.

        Return False if they cannot be compared.
        """
        truth = [load_whole_output(path) for path in paths]
        if not all(is_comparable(array) for array in truth):
            return False  # outside the tiles the formula itself overflows: nothing to compare with
        outputs = self._run_program(self.program, self.inputs.get(self.job, name), WorkAllowance(most))
        require_within(
            outputs, rel_l2(outputs, truth), self.by_set[name], f"input set {name}, all of the outputs"
        )
        return True

    def check_relations(self, most: int) -> None:
        """Check the relations between outputs around the first seed, where the outputs are right.

        Where data choose addresses, also around the set that no kernel can know: one that recognises the
        seed may recognise what is made from it.
        """
        bases = [str(next(iter(self.job.references)))]
        if chooses_addresses(self.program):
            bases += [name for name in self.by_set if is_secret_set(name)]
        for base in bases:
            self.parts.recall(f"relations {base}", self._check_relations_around, base, most)

    def _check_relations_around(self, base: str, most: int) -> None:
        parts: dict[str, Program] = {}

        def run(inputs: Sequence[Array], boxes: Mapping[int, Sequence[slices.ElementBox]]) -> list[Array]:
            if (key := repr(boxes)) not in parts:
                parts[key] = slices.slice_backward(self.program, boxes)
            return self._run_program(parts[key], inputs, WorkAllowance(most), boxes)

        spec, size = self.job.spec, self.job.size
        inputs = self.inputs.get(self.job, base)
        key = f"{base} {self.job.secret}".encode() + self.reply
        found = relations.find_broken_relation(spec, size, inputs, run, tolerance=self.tolerance, key=key)
        if found is not None:
            hint = "outputs are to be computed for any inputs, not only for those of the problem's seeds"
            raise RejectedError(Verdict.INCORRECT, "relation_broken", found, hint=hint)

    def _run_program(
        self,
        program: Program,
        inputs: Sequence[Array],
        allowance: WorkAllowance,
        boxes: Mapping[int, Sequence[slices.ElementBox]] | None = None,
    ) -> list[Array]:
        try:
            return numerics.run(program, inputs, only=boxes, sliced=boxes is not None, allowance=allowance)
        except KernelError as error:
            raise reject_kernel_error(Verdict.RUNTIME_ERROR, error) from error
        except InputError as error:
            raise RejectedError(Verdict.RUNTIME_ERROR, error.code, str(error)) from error


def chooses_addresses(program: Program) -> bool:
    """Whether data decide what some instruction reads or writes."""
    return any(item.index_step for item in program.operands) or any(
        form.op in _GATHERS for form in program.forms
    )


def require_precision(program: Program, *, mx: bool) -> None:
    """Reject a program that computes in a type below the problem's; `mx` allows products of MX operands.

    Raises:
        RejectedError: it does.
    """
    found = find_lost_precision(program, mx=mx)
    if found is not None:
        text, line = found
        hint = "keep it in the problem's type, or add what rounding leaves over as a second part"
        if not mx and any(form.op == "nc_matmul_mx" for form in program.forms):
            hint = "multiply in the problem's type: MX needs a problem with mx = true"
        raise RejectedError(Verdict.INCORRECT, "low_precision", text, line, hint)


def find_boxes_read(program: Program) -> list[Ints]:
    """Return, per input, the boxes (row, end row, column, end column) of it that some instruction reads."""
    cells = program.cells
    found = []
    for number in program.inputs:
        reading = np.flatnonzero((cells.tensor == number) & cells.reads)
        found.append(np.unique(regions.access_boxes(program, reading), axis=0))
    return found
