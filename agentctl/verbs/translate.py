"""`agentctl translate`: writes a kernel from a NumPy reference, with no kernel to begin with and no model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.formatting import LEVELS, format_command, format_identity, format_ms
from agentctl.run_flags import config_from_flags, target_option
from agentctl.translation import translate_reference
from agentctl.verbs.try_ import evaluate_kernel
from daemon import exits
from state.output_files import write_output
from targets.base import UntranslatableError


@click.command(epilog=exits.epilog())
@click.argument("reference", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the kernel to this file.")
@click.option("--into", type=click.Path(path_type=Path), help="Write a problem to this folder.")
@target_option()
@common_options
def translate(session: Session, reference: Path, output: Path | None, into: Path | None, **flags: Any) -> int:
    """Write a kernel that computes REFERENCE: a Python file with `reference` and `INPUT_SPECS`.

    The kernel is judged like any other. Status 0 if it is correct. A reference that has no translation ends
    with status 1 and names the first thing in the way. docs/translate.md says what is translated.
    """
    from seeds.from_reference import read_reference
    from seeds.scaffold import write_problem

    config = config_from_flags(session, flags)
    file = read_reference(reference)
    try:
        found = asyncio.run(translate_reference(session.home, config, file))
    except UntranslatableError as error:
        text = f"{reference}: no translation: {error}"
        session.emit({"kernel": None, "error": {"code": error.code, "message": str(error)}}, text)
        return exits.FAILURE
    problem = found.problem
    config = config.model_copy(update={"run": config.run.model_copy(update={"size": "full"})})
    answer = asyncio.run(evaluate_kernel(session.home, config, problem, problem.kernel.encode()))
    evaluation = answer.evaluation
    if output is not None:
        write_output(session.home, output, problem.kernel.encode())
    if into is not None:
        write_problem(problem, into)
    times = [latency for latency in found.latencies_ms if latency is not None]
    lines = [f"{problem.name}: {format_ms(min(times))} predicted, the best of {len(times)} layouts"]
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
    result = {
        "kernel": problem.kernel,
        "latencies_ms": list(found.latencies_ms),
        "evaluation": evaluation.model_dump(mode="json"),
        "error": None,
    }
    session.emit(result, "\n".join(lines))
    return exits.OK if evaluation.is_correct else exits.FAILURE
