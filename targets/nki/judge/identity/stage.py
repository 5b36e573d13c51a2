"""The identity stage: does a kernel with correct outputs compute the reference's formula?

It compares parts of the tiles of the numeric stage. The symbols' values and the compared parts come from the
program's bytes, the problem's digest and a secret: a verdict repeats, and no kernel can predict them.
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
from remote.judge.identity import expression_evaluation
from remote.judge.identity.domain import Planes, ValueDomain
from remote.judge.identity.expression import ArrayExpression, InvalidExpressionError, load_expression
from remote.judge.identity.formula_comparison import FormulaComparison, FormulaEvaluator
from remote.judge.identity.verdict import IdentityFinding, compare_formulas
from remote.judge.job import JudgeJob
from remote.judge.numerics import BadReferenceError
from remote.judge.rejection import RejectedError
from remote.judge.tiles import OutputTile
from seeds.spec import ArgumentSpec
from state.model import FormulaIdentity, Verdict
from targets.nki.judge.identity import program_evaluation
from targets.nki.judge.identity.box_selection import select_boxes
from targets.nki.judge.identity.demand_analysis import NotEvaluableError
from targets.nki.judge.identity.simulator_witness import simulate_boxes

_HINT = "compute the reference's formula from all of its inputs; other orders and intrinsics are fine"


class IdentityFailedError(Exception):
    """The evaluation of a formula failed through a fault of its own."""


def identify(traced: Program, reply: bytes, job: JudgeJob) -> FormulaIdentity:
    """Compare a program with the reference over other numbers than floats.

    Raises:
        RejectedError: it computes another formula, or does not depend on an input.
        BadReferenceError: the file of the reference's expression is gone.
        IdentityFailedError: an evaluation failed, which says nothing about the kernel.
    """
    try:
        sides = _make_comparison(traced, _load_reference(job), reply, job=job)
        finding = compare_formulas(sides)
    except (NotEvaluableError, InvalidExpressionError) as error:
        return FormulaIdentity(verdict="tested", reason=str(error))
    except BadReferenceError:
        raise
    except Exception as error:
        raise IdentityFailedError(f"the evaluation failed: {type(error).__name__}: {error}") from error
    if finding.verdict == "rejected":
        raise _make_rejection(finding, sides, job)
    dims = job.spec.dims(job.size)
    all_of_it = sum(prod(output.resolve_shape(dims)) for output in job.spec.outputs)
    # Several tiles of a very short output may show the same element.
    covered = min(finding.elements, all_of_it)
    share_percent = 100.0 * covered / all_of_it
    return FormulaIdentity(
        verdict=finding.verdict, reason=finding.reason, elements=covered, share_percent=share_percent
    )


def _load_reference(job: JudgeJob) -> FormulaEvaluator:
    if not job.expression:
        raise NotEvaluableError("nobody has followed the reference")
    dims = job.spec.dims(job.size)
    shapes = [item.resolve_shape(dims) for item in job.spec.inputs]
    try:
        data = Path(job.expression).read_bytes()
    except OSError as error:
        raise BadReferenceError(str(error)) from error
    return _expression_evaluator(load_expression(data, shapes))


def _expression_evaluator(expression: ArrayExpression) -> FormulaEvaluator:
    return lambda domain, boxes: expression_evaluation.evaluate_boxes(expression, boxes, domain)


def _make_comparison(
    traced: Program, reference: FormulaEvaluator, reply: bytes, *, job: JudgeJob
) -> FormulaComparison:
    known = job.problem + job.secret
    seed = hashlib.sha256(hashlib.sha256(reply).digest() + known.encode()).digest()
    pool = tiles.make_tile_pool(job.spec, job.size, job.secret)
    drawn = [pool[at] for at in tiles.choose_tiles(pool, reply)]
    part = slices.slice_backward(traced, tiles.boxes_by_output(drawn))
    boxes, steps = select_boxes(part, drawn, np.random.default_rng(list(seed)))

    def side(domain: ValueDomain, wanted: Sequence[OutputTile]) -> list[Planes]:
        return program_evaluation.evaluate_program(part, steps, domain, wanted)

    return FormulaComparison(
        side, reference, lambda asking: simulate_boxes(part, boxes, asking), boxes, job.spec.inputs, seed
    )


def _make_rejection(finding: IdentityFinding, sides: FormulaComparison, job: JudgeJob) -> RejectedError:
    output, index = sides.locate_element(finding.position)
    where = _name_element(job.spec.outputs[output], index)
    if finding.lacks is None:
        text = f"{where} is another formula than the reference's; they differ {finding.reason}"
        return RejectedError(Verdict.INCORRECT, "not_identical", text, hint=_HINT)
    item = job.spec.inputs[finding.lacks.input]
    place = np.unravel_index(finding.lacks.element, item.resolve_shape(job.spec.dims(job.size)))
    text = f"{where} cannot depend on {_name_element(item, [int(at) for at in place])}, the reference's does"
    return RejectedError(Verdict.INCORRECT, "missing_dependence", text, hint=_HINT)


def _name_element(item: ArgumentSpec, index: Sequence[int]) -> str:
    return f"{item.name}[{', '.join(map(str, index))}]"
