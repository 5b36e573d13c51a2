"""What each verb of `nki-sim` does: options in, exit status and report out."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.cli.show import Report
from nki_sim.cli.watch import stage
from nki_sim.errors import InputError
from nki_sim.flow.slices import Box
from nki_sim.harness import (
    Reference,
    arrays_of,
    entry_of,
    parse_argument,
    parse_element,
    parse_parts,
    parse_seeds,
    random_inputs,
    spec_of,
)
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import Array
from nki_sim.timing import counters, explain, schedule

REL_L2 = 2e-5
TILES = "tiles"

Result = tuple[int, Report]


@dataclass(frozen=True)
class Draw:
    """One seed's inputs, as the reference takes them and as the kernel does."""

    inputs: list[Any]
    arguments: list[Any]


@dataclass(frozen=True)
class Try:
    """One seed, what it draws (None: random arrays), and the parts of outputs that are wanted (None: all)."""

    seed: int
    drawn: Draw | None
    parts: Mapping[int, Sequence[Box]] | None


def blank(options: argparse.Namespace) -> Report:
    """The report of `run` before anything is known; the same keys whatever happens."""
    return {
        "correct": None,
        "rel_l2": {},
        "tolerance": getattr(options, "tolerance", None),
        "target": getattr(options, "target", None),
        "checks": [],
        "counters": {},
        "seconds": {"trace": 0.0, "run": 0.0},
        "error": None,
    }


def trace_kernel(options: argparse.Namespace) -> Result:
    program = _trace(options, _arguments(options, _reference(options)))
    found = [asdict(item) for item in checks.check(program, targets.load(options.target))]
    report = {
        "kernel": program.kernel,
        "target": program.target,
        "instructions": len(program),
        "tensors": len(program.tensor_sites),
        "bytes": len(program.to_bytes()),
        "checks": found,
    }
    if options.provenance and not found:
        report["provenance"] = _provenance(program, options.provenance)
    return int(bool(found)), report


def _provenance(program: Program, what: str) -> Report:
    """Where the outputs come from, tile by tile, or one element of one output."""
    from nki_sim.flow import elements as element_flow
    from nki_sim.flow import provenance

    with stage("following results back to inputs"):
        if what != TILES:
            found = element_flow.elements(program, *parse_element(what))
            return {"elements": {name: numbers.tolist() for name, numbers in found.items()}}
        unused = Counter(int(program.lines[number]) for number in provenance.dead(program))
        return {
            "tiles": [asdict(tile) for tile in provenance.depends(program)],
            "precisions": [asdict(item) for item in provenance.precisions(program)],
            "unused": [{"line": line, "instructions": count} for line, count in sorted(unused.items())],
        }


def run(options: argparse.Namespace) -> Result:
    seeds, parts = parse_seeds(options.seeds), parse_parts(options.slice) or None
    reference = _reference(options)
    report = options.report = blank(options)
    if options.eager:
        return _eagerly(options, reference, seeds, report)
    first = _draw(options, reference, seeds[0])
    with _timed(report, "trace"):
        program = _trace(options, first.arguments if first else _arguments(options, None))
    target = targets.load(options.target)
    with _timed(report, "run"), stage("checking"):
        report["checks"] = [asdict(item) for item in checks.check(program, target)]
    if report["checks"]:
        return 1, {**report, "correct": False}
    for seed in seeds:
        drawn = first if seed == seeds[0] else _draw(options, reference, seed)
        first = None
        _one_seed(program, reference, Try(seed, drawn, parts), report)
    with _timed(report, "run"), stage("predicting counters"):
        report["counters"] = counters.profile(program, schedule.schedule(program, target), target)
    return _judged(options, reference, report)


def _judged(options: argparse.Namespace, reference: Reference | None, report: Report) -> Result:
    if reference is not None:
        report["correct"] = all(value < options.tolerance for value in report["rel_l2"].values())
    return int(report["correct"] is False), report


def _eagerly(
    options: argparse.Namespace, reference: Reference | None, seeds: list[int], report: Report
) -> Result:
    """Compute while the kernel's Python runs, so that it can print values; broken rules are errors here."""
    from nki_sim.frontend.eager import eager

    if options.slice:
        raise InputError("--eager runs the whole kernel; leave out --slice")
    file = Path(options.kernel)
    entry = options.entry or entry_of(file.read_text())
    for seed in seeds:
        drawn = _draw(options, reference, seed) or _random(options, seed)
        with _timed(report, "run"), _importable(file.resolve().parent):
            result = eager(file, drawn.arguments, options.target, entry=entry)
        if reference is not None:
            report["rel_l2"][str(seed)] = _largest(reference.errors(drawn.inputs, arrays_of(result)))
    return _judged(options, reference, report)


def _random(options: argparse.Namespace, seed: int) -> Draw:
    given = [parse_argument(text) for text in options.arg]
    arrays = random_inputs([item for item in given if isinstance(item, ArraySpec)], seed)
    made = iter(arrays)
    return Draw(list(arrays), [next(made) if isinstance(item, ArraySpec) else item for item in given])


def _one_seed(program: Program, reference: Reference | None, one: Try, report: Report) -> None:
    seed, drawn = one.seed, one.drawn
    arrays = (
        random_inputs(program.specs(program.inputs), seed)
        if drawn is None
        else _fitting(program, drawn, seed)
    )
    with _timed(report, "run"), stage(f"running seed {seed}"):
        outputs = numerics.run(program, arrays, only=one.parts)
    if reference is not None:
        with stage(f"comparing seed {seed} with the reference"):
            errors = reference.errors(drawn.inputs if drawn else arrays, outputs, one.parts)
        report["rel_l2"][str(seed)] = _largest(errors)


def _largest(errors: list[float]) -> float:
    """NaN wins: a result that is not a number is no agreement."""
    return max(errors, key=lambda value: (value != value, value), default=0.0)  # noqa: PLR0124


@contextmanager
def _timed(report: Report, part: str) -> Iterator[None]:
    """Counts a part's time once it is done; a trace that failed leaves zero."""
    begun = time.perf_counter()
    yield
    report["seconds"][part] += time.perf_counter() - begun


def profile(options: argparse.Namespace) -> Result:
    program = _trace(options, _arguments(options, _reference(options)))
    target = targets.load(options.target)
    found = [asdict(item) for item in checks.check(program, target)]
    if found:
        return 1, {"target": options.target, "checks": found}
    with stage("predicting"):
        timeline = schedule.schedule(program, target)
        prediction = schedule.predict(program, target, timeline=timeline)
    return 0, {
        "target": options.target,
        "predicted": asdict(prediction),
        "explanation": asdict(explain.explain(program, timeline)),
        "counters": counters.profile(program, timeline, target),
    }


def ops(options: argparse.Namespace) -> Result:
    from nki_sim import support

    del options
    return 0, support.report()


def ops_lines(report: Report) -> Iterator[str]:
    from nki_sim import support

    return support.lines(report)


def rules(options: argparse.Namespace) -> Result:
    from nki_sim import rulebook

    del options
    return 0, {"rules": [asdict(rule) for rule in rulebook.rules()]}


def rules_lines(report: Report) -> Iterator[str]:
    from nki_sim import rulebook

    return rulebook.lines([rulebook.Rule(**fields) for fields in report["rules"]])


def path(options: argparse.Namespace) -> Result:
    del options
    return 0, {"path": str(Path(nki_sim.__file__).parent / "shims")}


def _reference(options: argparse.Namespace) -> Reference | None:
    return Reference(Path(options.reference)) if options.reference else None


def _draw(options: argparse.Namespace, reference: Reference | None, seed: int) -> Draw | None:
    """The reference's own inputs; None when it draws none or `--arg` says what to run on."""
    if reference is None or not reference.draws or options.arg:
        return None
    with stage(f"drawing inputs of seed {seed}"):
        inputs = reference.inputs(seed)
        return Draw(inputs, reference.arguments(inputs))


def _arguments(options: argparse.Namespace, reference: Reference | None) -> list[Any]:
    drawn = _draw(options, reference, 0)
    return drawn.arguments if drawn else [parse_argument(text) for text in options.arg]


def _fitting(program: Program, drawn: Draw, seed: int) -> list[Array]:
    arrays = arrays_of(drawn.arguments)
    specs = [spec_of(array) for array in arrays]
    if specs != list(program.specs(program.inputs)):
        raise InputError(f"seed {seed} gives inputs of other shapes or types than the first seed: {specs}")
    return arrays


def _trace(options: argparse.Namespace, arguments: list[Any]) -> Program:
    file = Path(options.kernel)
    source = file.read_text()
    with stage(f"tracing {file}"), _importable(file.resolve().parent):
        return nki_sim.trace(
            source,
            args=[spec_of(item) for item in arguments],
            target=options.target,
            entry=options.entry or entry_of(source),
            filename=str(file),
        )


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """A kernel's file may import its neighbours."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
