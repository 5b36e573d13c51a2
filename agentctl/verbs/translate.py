"""`agentctl translate`: writes a kernel from a NumPy reference, with no kernel to begin with and no model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.formatting import LEVELS, format_command, format_identity, format_ms
from agentctl.run_flags import config_from_flags, target_option
from agentctl.torch_module import from_torch_option, read_source
from agentctl.translation import TranslatedProblem, translate_reference
from daemon import exits
from state.output_files import write_output
from targets.base import UntranslatableError


@click.command(epilog=exits.epilog())
@click.argument("reference", required=False, type=click.Path(path_type=Path))
@from_torch_option()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the kernel to this file.")
@click.option("--into", type=click.Path(path_type=Path), help="Write a problem to this folder.")
@target_option()
@common_options
def translate(
    session: Session,
    /,
    reference: Path | None,
    module: str | None,
    output: Path | None,
    into: Path | None,
    **flags: Any,
) -> int:
    """Write a kernel that computes REFERENCE: a Python file with `reference` and `INPUT_SPECS`.

    The kernel is judged like any other. Status 0 if it is correct. A reference that has no translation ends
    with status 1 and names the first call that has none. docs/translate.md says what is translated.
    """
    from seeds.scaffold import write_problem

    config = config_from_flags(session, flags)
    file = read_source(reference, module)
    if file is None:
        raise click.UsageError("name a REFERENCE, or a module with --from-torch FILE.py:MODULE")
    try:
        found = asyncio.run(translate_reference(session.home, config, file))
    except UntranslatableError as error:
        text = f"{reference or module}: no translation: {error}"
        told: dict[str, Any] = {"kernel": None, "error": {"code": error.code, "message": str(error)}}
        if module is not None:
            told["reference"], text = file.text, f"{file.text}\n{text}"
        session.emit(told, text)
        return exits.FAILURE
    problem = found.problem
    evaluation = found.judged.evaluation
    if output is not None:
        write_output(session.home, output, problem.kernel.encode())
    if into is not None:
        write_problem(problem, into)
    lines = describe_translation(found, output, into)
    if module is not None and into is None:
        lines = [f"{module} in NumPy, as kernels are compared with:", "", file.text, *lines]
    result = {
        "kernel": problem.kernel,
        "latencies_ms": list(found.latencies_ms),
        "passed_over": list(found.judged.passed_over),
        "left_out": list(found.judged.left_out),
        "evaluation": evaluation.model_dump(mode="json"),
        "error": None,
    }
    if module is not None:
        result["reference"] = file.text
    session.emit(result, "\n".join(lines))
    return exits.OK if evaluation.is_correct else exits.FAILURE


def describe_translation(found: TranslatedProblem, output: Path | None, into: Path | None) -> list[str]:
    """The lines on the screen: the latency, what was shown of the kernel, and where it is."""
    problem, judged, evaluation = found.problem, found.judged, found.judged.evaluation
    count = sum(latency is not None for latency in found.latencies_ms)
    place = f"number {len(judged.passed_over) + 1} that was judged" if judged.passed_over else "the best"
    lines = [f"{problem.name}: {format_ms(judged.kernel.latency_ms)} predicted, {place} of {count} layouts"]
    lines += [f"  a faster layout was passed over: {reason}" for reason in judged.passed_over]
    lines += [f"  a layout was left out by a fault of this program: {fault}" for fault in judged.left_out]
    lines.append(f"  {LEVELS[evaluation.level]}" if evaluation.is_correct else "  not correct")
    if evaluation.identity is not None:
        lines.append(f"  {format_identity(evaluation.identity)}")
    if evaluation.error is not None:
        lines.append(f"  {evaluation.error.message}")
    lines += [f"  kernel: {output}"] if output else []
    if into is not None:
        lines.append(f"  optimise it: {format_command('run', '--problem', str(into))}")
    elif output is None:
        lines += ["", problem.kernel.rstrip()]
    return lines
