"""What tests of programs share: kernels traced at a problem's reduced size, and two of them as sides."""

from __future__ import annotations

from functools import cache

import numpy as np

import seeds
from nki_sim.flow import slices
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import ArraySpec, Program
from remote.judge import tiles
from remote.judge.identity.formula_comparison import FormulaComparison, FormulaEvaluator
from remote.judge.tiles import OutputTile
from seeds.spec import InputSpec
from targets.nki.judge.identity import demand_analysis, program_evaluation
from targets.nki.judge.identity.box_selection import select_boxes
from targets.nki.judge.identity.simulator_witness import simulate_boxes

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl
from functools import partial
tile = partial(nl.ndarray, buffer=nl.sbuf)


@nki.jit
def kernel({arguments}):
"""


def lines(arguments: str, *body: str) -> str:
    """A kernel of these arguments and lines."""
    return HEAD.replace("{arguments}", arguments) + "".join(f"    {line}\n" for line in body)


@cache
def trace_kernel(
    kernel: str, shapes: tuple[tuple[int, ...], ...], dtype: str = "float32", target: str = "trn2"
) -> Program:
    return Program.from_bytes(
        trace_bytes(kernel, args=[ArraySpec(shape, dtype) for shape in shapes], target=target)
    )


def shapes_of(problem: str) -> tuple[tuple[int, ...], ...]:
    spec = seeds.load_problem(problem).spec
    return tuple(item.resolve_shape(spec.dims("reduced")) for item in spec.inputs)


def whole(of: Program) -> list[OutputTile]:
    """All of each output."""
    shapes = [of.site(tensor).shape for tensor in of.outputs]
    return [OutputTile(at, tuple((0, size) for size in shape)) for at, shape in enumerate(shapes)]


def side(of: Program) -> FormulaEvaluator:
    """A program as one of two sides."""

    def evaluate(domain, boxes):
        return program_evaluation.evaluate_program(
            of, demand_analysis.find_demanded_steps(of, tiles.boxes_by_output(boxes)), domain, boxes
        )

    return evaluate


def inputs_of(of: Program) -> tuple[InputSpec, ...]:
    return tuple(
        InputSpec(name=f"x{at}", shape=item.shape) for at, item in enumerate(of.array_specs(of.inputs))
    )


def sides(
    ours: Program, theirs: Program, boxes: list[OutputTile] | None = None, inputs=None
) -> FormulaComparison:
    """Two programs, the second in the place of the reference."""
    boxes = boxes or whole(ours)
    part = slices.slice_backward(ours, tiles.boxes_by_output(boxes))
    return FormulaComparison(
        program=side(part),
        reference=side(theirs),
        simulate=lambda asking: simulate_boxes(part, boxes, asking),
        boxes=boxes,
        inputs=inputs or inputs_of(ours),
        seed=b"a secret of tests",
    )


def of_problem(problem: str, kernel: str) -> FormulaComparison:
    """A kernel of a problem against its initial kernel, on boxes as the judge draws them."""
    found = seeds.load_problem(problem)
    ours, theirs = (trace_kernel(text, shapes_of(problem)) for text in (kernel, found.kernel))
    pool = tiles.make_tile_pool(found.spec, "reduced", "")
    drawn = [pool[at] for at in tiles.choose_tiles(pool, kernel.encode())]
    boxes, _ = select_boxes(ours, drawn, np.random.default_rng(7))
    return sides(ours, theirs, boxes, found.spec.inputs)
