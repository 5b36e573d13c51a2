"""The stage of identity: is a kernel whose numbers are right the reference's formula, or something near it?

It looks at parts of the tiles that numbers were judged on. What symbols stand for, and where it looks, comes
from the program's bytes, the problem's digest and a secret: a verdict repeats, and no kernel can know it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from nki_sim.flow import slices
from nki_sim.program.ir import Program
from remote.judge import tiles
from remote.judge.identity import evaluate
from remote.judge.identity.domain import Domain, Planes
from remote.judge.identity.expression import Expression, ExpressionError, loads
from remote.judge.identity.sides import Side, Sides
from remote.judge.identity.verdict import Finding, find
from remote.judge.job import Job
from remote.judge.numerics import BadReferenceError
from remote.judge.rejection import RejectedError
from remote.judge.tiles import Tile
from seeds.spec import ArgumentSpec
from state.model import Identity, Verdict
from targets.nki.judge.identity import program
from targets.nki.judge.identity.demand import UnfollowedError
from targets.nki.judge.identity.excerpt import excerpt
from targets.nki.judge.identity.witness import simulate

_HINT = "compute the reference's formula from all of its inputs; other orders and intrinsics are fine"


def identify(traced: Program, reply: bytes, job: Job) -> Identity:
    """Compare a program with the reference over other numbers than floats.

    Raises:
        RejectedError: it is another formula, or lacks an input.
        BadReferenceError: the file of the reference's expression is gone.
    """
    try:
        sides = _sides(traced, _reference(job), reply, job)
        finding = find(sides)
    except (UnfollowedError, ExpressionError) as error:
        return Identity(verdict="tested", reason=str(error))
    except BadReferenceError:
        raise
    except Exception as error:  # noqa: BLE001  a fault of an evaluation is no kernel's
        return Identity(verdict="tested", reason=f"the evaluation failed: {type(error).__name__}: {error}")
    if finding.verdict == "rejected":
        raise _rejected(finding, sides, job)
    dims = job.spec.dims(job.size)
    all_of_it = sum(prod(output.resolve(dims)) for output in job.spec.outputs)
    share_percent = 100.0 * finding.elements / all_of_it
    return Identity(
        verdict=finding.verdict, reason=finding.reason, elements=finding.elements, share_percent=share_percent
    )


def _reference(job: Job) -> Side:
    if not job.expression:
        raise UnfollowedError("nobody has followed the reference")
    dims = job.spec.dims(job.size)
    shapes = [item.resolve(dims) for item in job.spec.inputs]
    try:
        data = Path(job.expression).read_bytes()
    except OSError as error:
        raise BadReferenceError(str(error)) from error
    return _of_expression(loads(data, shapes))


def _of_expression(expression: Expression) -> Side:
    return lambda domain, boxes: evaluate.evaluate(expression, boxes, domain)


def _sides(traced: Program, reference: Side, reply: bytes, job: Job) -> Sides:
    known = job.problem + job.secret
    seed = hashlib.sha256(hashlib.sha256(reply).digest() + known.encode()).digest()
    pool = tiles.pool(job.spec, job.size, job.secret)
    drawn = [pool[at] for at in tiles.chosen(pool, reply)]
    part = slices.backward(traced, tiles.boxes(drawn))
    boxes, steps = excerpt(part, drawn, np.random.default_rng(list(seed)))

    def side(domain: Domain, wanted: Sequence[Tile]) -> list[Planes]:
        return program.run(part, steps, domain, wanted)

    return Sides(side, reference, lambda asking: simulate(part, boxes, asking), boxes, job.spec.inputs, seed)


def _rejected(finding: Finding, sides: Sides, job: Job) -> RejectedError:
    output, index = sides.place(finding.position)
    where = _element(job.spec.outputs[output], index)
    if finding.lacks is None:
        text = f"{where} is another formula than the reference's; they differ {finding.reason}"
        return RejectedError(Verdict.INCORRECT, "not_identical", text, hint=_HINT)
    item = job.spec.inputs[finding.lacks.input]
    place = np.unravel_index(finding.lacks.element, item.resolve(job.spec.dims(job.size)))
    text = f"{where} cannot depend on {_element(item, [int(at) for at in place])}, the reference's does"
    return RejectedError(Verdict.INCORRECT, "missing_dependence", text, hint=_HINT)


def _element(item: ArgumentSpec, index: Sequence[int]) -> str:
    return f"{item.name}[{', '.join(map(str, index))}]"
