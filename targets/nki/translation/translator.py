"""What `agentctl` uses: kernels from a reference's formula, and the work that the formula needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod

from remote.judge.identity.expression import (
    ArrayExpression,
    InvalidExpressionError,
    UnfollowedError,
    load_expression,
)
from seeds.spec import ProblemSpec
from targets.base import UntranslatableError
from targets.nki.translation.borders import split_borders
from targets.nki.translation.kernel import RESERVED, KernelWriter, Signature
from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.minimal_work import count_work
from targets.nki.translation.running_sums import find_running_sums, scan_sums
from targets.nki.translation.simplify import NoInstructionError
from targets.nki.translation.totals import split_totals
from targets.nki.translation.values import Buffer

_GIVEN = frozenset({"input", "constant", "unknown"})
"""Kinds of operations that compute nothing."""
_LONGEST = 20
"""How many times the instructions of the shortest layout another one may have; tracing takes as long."""


def write_kernels(spec: ProblemSpec, size: str, formula: bytes) -> list[str]:
    """Return kernels that compute a reference's formula, in different layouts; the likely best comes first.

    Raises:
        UntranslatableError: there is no translation; the message names what is in the way.
    """
    return [source for source, _ in write_variants(spec, size, formula)]


def write_variants(
    spec: ProblemSpec,
    size: str,
    formula: bytes,
    near: str | None = None,
    *,
    leave_out: Callable[[str, Exception], None] | None = None,
) -> list[tuple[str, str]]:
    """Return kernels, each with the name of its layout: the usual ones, or those that differ little from one.

    Where writing one of the others fails by a fault of this program, `leave_out` is told its name and the
    error; without it the error is raised.

    Raises:
        UntranslatableError: there is no translation; the message names what is in the way.
    """
    given = split_borders(_load(spec, size, formula))
    signature = make_signature(spec, size)
    forms = _Forms(given)
    layout = KernelLayout() if near is None else KernelLayout.from_name(near)
    writer = KernelWriter(forms.of(layout), signature, layout)
    try:
        found = {writer.write(): layout.name}
    except NoInstructionError as error:
        raise UntranslatableError(_explain_missing(error, writer.expression, signature)) from error
    writer.choices.has_split_totals = forms.has_split_totals
    writer.choices.has_running_sums = bool(forms.running_sums)
    for other in layout.neighbours(writer.choices, is_first=near is None):
        try:
            source = KernelWriter(forms.of(other), signature, other).write()
            found.setdefault(source, other.name)
        except UntranslatableError:
            continue  # this layout does not fit; others do
        except Exception as error:
            if leave_out is None:
                raise
            leave_out(other.name, error)
    counts = {source: _count_instructions(source) for source in found}
    most = _LONGEST * min(counts.values())
    return [(source, name) for source, name in found.items() if counts[source] <= most]


class _Forms:
    """A reference's expression in the forms that layouts choose between."""

    def __init__(self, given: ArrayExpression) -> None:
        self.running_sums = find_running_sums(given)
        scanned = scan_sums(given, self.running_sums)
        self._forms = {
            (is_whole, scans): split_totals(one, is_whole=is_whole)
            for scans, one in ((False, given), (True, scanned))
            for is_whole in (False, True)
        }

    @property
    def has_split_totals(self) -> bool:
        split, whole = (self._forms[is_whole, False] for is_whole in (False, True))
        return len(split.nodes) != len(whole.nodes)

    def of(self, layout: KernelLayout) -> ArrayExpression:
        """The form that a layout is of."""
        return self._forms[layout.whole_totals, layout.scans_sums]


def name_arithmetic(layout: str) -> str:
    """Return what of a layout, given by name, decides how results are rounded."""
    return KernelLayout.from_name(layout).arithmetic


def _explain_missing(error: NoInstructionError, expression: ArrayExpression, signature: Signature) -> str:
    """What is missing, where the reference needs it, and whether the rest before it has a translation."""
    line = expression.lines.get(error.function)
    users = [node for node in expression.nodes if node.params[:1] == (error.function,)]
    before = [at for node in users[:1] for at in node.args if expression.nodes[at].kind not in _GIVEN]
    part = replace(expression, outputs=before[:1])
    rest = _explain_part(part, signature) if before else ""
    return f"{error}{f' ({line})' if line else ''}{rest}"


def _explain_part(part: ArrayExpression, signature: Signature) -> str:
    """Whether a part of a reference has a translation, as the end of a sentence."""
    outputs = tuple(
        Buffer(f"part_{at}", part.nodes[number].shape or (1,)) for at, number in enumerate(part.outputs)
    )
    try:
        KernelWriter(part, replace(signature, outputs=outputs)).write()
    except UntranslatableError as error:
        return f"; what comes before it has no translation either: {error}"
    return "; what comes before it can be translated"


def _count_instructions(source: str) -> int:
    """How many instructions a kernel runs, counting all iterations of its loops whose count is a number."""
    total, loops = 0, list[tuple[int, int]]()
    for line in source.splitlines():
        depth = len(line) - len(line.lstrip())
        loops = [loop for loop in loops if loop[0] < depth]
        words = line.strip()
        if words.startswith("for "):
            found = re.search(r"\((\d+)\):$", words)
            loops.append((depth, int(found[1]) if found else 1))
        elif words.startswith("nisa."):
            total += prod(count for _, count in loops)
    return total


def estimate_work(spec: ProblemSpec, size: str, formula: bytes) -> dict[str, int]:
    """Return the least work of a formula, as `[work]` in `problem.toml` counts it."""
    return count_work(_load(spec, size, formula))


def _load(spec: ProblemSpec, size: str, formula: bytes) -> ArrayExpression:
    dims = spec.dims(size)
    try:
        return load_expression(formula, [item.resolve_shape(dims) for item in spec.inputs])
    except UnfollowedError as error:
        rest = "" if error.part is None else _explain_part(error.part, make_signature(spec, size))
        raise UntranslatableError(f"{error}{rest}") from None
    except InvalidExpressionError as error:
        raise UntranslatableError(str(error)) from None


def make_signature(spec: ProblemSpec, size: str) -> Signature:
    dims = spec.dims(size)
    taken = {*RESERVED, spec.name}
    inputs = tuple(
        Buffer(_free_name(item.name, taken), item.resolve_kernel_shape(dims), item.dtype)
        for item in spec.inputs
    )
    outputs = tuple(
        Buffer(_free_name(item.name, taken), item.resolve_shape(dims), item.dtype) for item in spec.outputs
    )
    scalars = iter([_free_name(item.name, taken) for item in spec.scalars])
    arguments = spec.call_arguments([item.name for item in inputs], lambda _: next(scalars))
    return Signature(spec.name, tuple(arguments), inputs, outputs)


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
