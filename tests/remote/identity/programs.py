"""What tests of programs share: kernels traced at a problem's reduced size, and two of them as sides."""

from __future__ import annotations

from functools import cache

import numpy as np

import seeds
from nki_sim.flow import slices
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import ArraySpec, Program
from remote.judge import tiles
from remote.judge.identity.sides import Side, Sides
from remote.judge.tiles import Tile
from seeds.spec import InputSpec
from targets.nki.judge.identity import demand, program
from targets.nki.judge.identity.excerpt import excerpt
from targets.nki.judge.identity.witness import simulate

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
def traced(kernel: str, shapes: tuple[tuple[int, ...], ...], dtype: str = "float32") -> Program:
    return Program.from_bytes(
        trace_bytes(kernel, args=[ArraySpec(shape, dtype) for shape in shapes], target="trn2")
    )


def shapes_of(problem: str) -> tuple[tuple[int, ...], ...]:
    spec = seeds.load(problem).spec
    return tuple(item.resolve(spec.dims("reduced")) for item in spec.inputs)


def whole(of: Program) -> list[Tile]:
    """All of each output."""
    shapes = [of.site(tensor).shape for tensor in of.outputs]
    return [Tile(at, tuple((0, size) for size in shape)) for at, shape in enumerate(shapes)]


def side(of: Program) -> Side:
    """A program as one of two sides."""

    def evaluate(domain, boxes):
        return program.run(of, demand.steps(of, tiles.boxes(boxes)), domain, boxes)

    return evaluate


def inputs_of(of: Program) -> tuple[InputSpec, ...]:
    return tuple(InputSpec(name=f"x{at}", shape=item.shape) for at, item in enumerate(of.specs(of.inputs)))


def sides(ours: Program, theirs: Program, boxes: list[Tile] | None = None, inputs=None) -> Sides:
    """Two programs, the second in the place of the reference."""
    boxes = boxes or whole(ours)
    part = slices.backward(ours, tiles.boxes(boxes))
    return Sides(
        program=side(part),
        reference=side(theirs),
        simulate=lambda asking: simulate(part, boxes, asking),
        boxes=boxes,
        inputs=inputs or inputs_of(ours),
        seed=b"a secret of tests",
    )


def of_problem(problem: str, kernel: str) -> Sides:
    """A kernel of a problem against its initial kernel, on boxes as the judge draws them."""
    found = seeds.load(problem)
    ours, theirs = (traced(text, shapes_of(problem)) for text in (kernel, found.kernel))
    pool = tiles.pool(found.spec, "reduced", "")
    drawn = [pool[at] for at in tiles.chosen(pool, kernel.encode())]
    boxes, _ = excerpt(ours, drawn, np.random.default_rng(7))
    return sides(ours, theirs, boxes, found.spec.inputs)
