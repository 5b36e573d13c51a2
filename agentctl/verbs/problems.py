"""`agentctl problems`: list the problems, show one, or start one of your own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentctl.app import Session, common_options
from agentctl.formatting import format_command, format_count, format_ms
from agentctl.run_flags import config_from_flags, target_option
from agentctl.run_lookup import find_run
from agentctl.torch_module import from_torch_option, read_source
from agentctl.verbs.try_ import evaluate_kernel
from agentctl.views.run import bound_percent
from daemon import exits
from state.model import Level
from state.reader import LogReader
from targets.registry import roofline_name, starting_kernel, target_names

if TYPE_CHECKING:
    from seeds import ArgumentSpec, InputSpec, Problem, ProblemSpec
    from seeds.from_reference import ReferenceFile

Row = dict[str, Any]

SIZE = "full"
LEVEL = Level.SLICES
"""The level at which `--measure` judges; the latency is always that of the whole kernel."""


@click.group(epilog=exits.epilog(), invoke_without_command=True)
@click.option(
    "--measure", is_flag=True, help="Judge each initial kernel and say how good it is; takes minutes."
)
@target_option("Target device of --measure")
@click.option("--only", default="", metavar="TEXT", help="Problems whose name contains this.")
@common_options
@click.pass_context
def problems(context: click.Context, /, session: Session, measure: bool, only: str, **flags: Any) -> None:
    """List the problems that come with the program; show one, or begin one of your own."""
    if context.invoked_subcommand is not None:
        return
    import seeds

    found = [seeds.load_problem(name) for name in seeds.builtin_problems() if only in name]
    rows = [_problem_row(problem.spec) for problem in found]
    if measure:
        _measure_all(session, found, rows, flags=flags)
    else:
        session.emit(rows, "\n".join(_list_lines(rows)))


def _problem_row(spec: ProblemSpec) -> Row:
    return {"name": spec.name, "formula": spec.formula, "sizes": spec.sizes}


def _list_lines(rows: Sequence[Row]) -> Iterator[str]:
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        yield f"{row['name']:{width}} {row['formula']}"
        yield from (f"{'':{width}}   {size}: {_format_dims(dims)}" for size, dims in row["sizes"].items())


def _format_dims(dims: dict[str, int]) -> str:
    return " ".join(f"{name}{value}" for name, value in dims.items())


# --- how good the initial kernels are ---------------------------------------------------------------

_COLUMNS = "{:24} {:>10} {:>10} {:>7} {:>10} {:>7}  {}"
_HEADER = _COLUMNS.format("PROBLEM", "PREDICTED", "ROOFLINE", "%PEAK", "MODEL", "%MODEL", "BOTTLENECK")


def _measure_all(
    session: Session, found: Sequence[Problem], rows: Sequence[Row], *, flags: dict[str, Any]
) -> None:
    """Judge the initial kernels one after the other, and print each result as soon as it is known."""
    made: list[Row] = []
    for problem, row in zip(found, rows, strict=True):
        made.append({**row, **_measure_kernel(session, problem, flags)})
        if not session.json:
            lines = [] if len(made) > 1 else [_HEADER]
            click.echo("\n".join([*lines, _measured_line(made[-1])]))
    text = (
        f"latencies in ms, predicted for {made[0]['target']}, at size {SIZE}" if made else "no such problem"
    )
    session.emit(made, text)


def _measure_kernel(session: Session, problem: Problem, flags: dict[str, Any]) -> Row:
    import remote

    config = config_from_flags(session, {**flags, "problem": problem.name, "size": SIZE})
    bounds = remote.compute_bounds(problem, SIZE, config.run.target)
    kernel = starting_kernel(problem, config.run.target)
    answer = asyncio.run(evaluate_kernel(session.home, config, problem, kernel, LEVEL))
    evaluation = answer.evaluation
    latency_ms = evaluation.benchmark.latency_ms if evaluation.benchmark else None
    return {
        "target": config.run.target,
        "verdict": evaluation.verdict.value,
        "predicted_ms": latency_ms,
        "roofline_ms": bounds.plain_ms,
        "percent_of_peak": bound_percent(bounds.plain_ms, latency_ms),
        "model_bound_ms": bounds.tight_ms,
        "tight_bound_ms": bounds.tight_ms,
        "percent_of_model_bound": bound_percent(bounds.tight_ms, latency_ms),
        "percent_of_tight_bound": bound_percent(bounds.tight_ms, latency_ms),
        "bottleneck": evaluation.bottleneck,
    }


def _measured_line(row: Row) -> str:
    numbers = (row["predicted_ms"], row["roofline_ms"], row["tight_bound_ms"])
    predicted, roofline, tight = ("-" if value is None else f"{value:.4g}" for value in numbers)
    shares = (row["percent_of_peak"], row["percent_of_tight_bound"])
    peak, close = ("-" if value is None else f"{value:.1f}" for value in shares)
    said = row["bottleneck"] if row["verdict"] == "correct" else row["verdict"]
    return _COLUMNS.format(row["name"], predicted, roofline, peak, tight, close, said)


# --- one problem -----------------------------------------------------------------------------------


@problems.command(epilog=exits.epilog())
@click.argument("name")
@click.option("--file", "file", metavar="NAME", help="The text of one of its files instead.")
@common_options
def show(session: Session, name: str, file: str | None) -> None:
    """Show what the problem NAME (or the folder of that path) asks for, and its lower bounds."""
    import seeds

    problem = seeds.load_problem(name)
    if file is not None:
        session.emit(
            {"file": file, "text": _file_text(problem, file)}, _file_text(problem, file).rstrip("\n")
        )
        return
    bounds = dict(_bounds_by_target(problem))
    content = {**problem.spec.model_dump(mode="json"), "digest": problem.digest, "bounds": bounds}
    content["files"] = {path: len(data) for path, data in problem.files.items()}
    session.emit(content, "\n".join(_show_lines(problem, bounds)))


def _file_text(problem: Problem, file: str) -> str:
    from seeds.errors import describe_unknown

    if file not in problem.files:
        raise click.UsageError(describe_unknown("file", file, problem.files))
    return problem.files[file].decode(errors="replace")


def _bounds_by_target(problem: Problem) -> Iterator[tuple[str, Row]]:
    """Yield the bounds at the full size, for every target."""
    import remote

    for target in target_names():
        yield target, remote.compute_bounds(problem, SIZE, target).model_dump()


def _show_lines(problem: Problem, bounds: dict[str, Row]) -> Iterator[str]:
    spec = problem.spec
    yield f"{spec.name}: {spec.formula}"
    yield from (f"  size {name}: {_format_dims(dims)}" for name, dims in spec.sizes.items())
    for item in spec.inputs:
        yield f"  input {_format_array(item)}, {_format_distribution(item)}{_format_kernel_shape(item)}"
    yield from (f"  scalar {item.name} = {item.value}" for item in spec.scalars)
    yield from (f"  output {_format_array(item)}" for item in spec.outputs)
    seeds = ", ".join(map(str, spec.seeds))
    yield f"  relative L2 error below {spec.rel_l2:g} on {format_count(len(spec.seeds), 'seed')} ({seeds})"
    if spec.mx:
        yield "  products may be in MX types where a target has them"
    yield from (f"  relation: {item.name}" for item in spec.relations)
    for target, found in bounds.items():
        roofline, tight = format_ms(found["plain_ms"]), format_ms(found["tight_ms"])
        yield f"  {target}: {roofline_name(target)} {roofline}, model bound {tight}"
    yield f"  files: {', '.join(problem.files)}"


def _format_array(item: ArgumentSpec) -> str:
    return f"{item.name} [{', '.join(map(str, item.shape))}] {item.dtype}"


def _format_distribution(item: InputSpec) -> str:
    drawn = {"normal": "N(0, 1)", "abs_normal": "|N(0, 1)|"}.get(item.distribution, item.distribution)
    return drawn if item.scale == 1.0 else f"{item.scale:g} * {drawn}"


def _format_kernel_shape(item: InputSpec) -> str:
    shape = item.kernel_shape
    return "" if shape is None else f", given to kernels as [{', '.join(map(str, shape))}]"


# --- a new problem ---------------------------------------------------------------------------------


@problems.command(epilog=exits.epilog())
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="Where; default: this folder.")
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="A file with `reference` and INPUT_SPECS, which the kernel is translated from.",
)
@from_torch_option()
@common_options
def new(
    session: Session, /, name: str, into: Path, reference: Path | None, module: str | None, **flags: Any
) -> int:
    """Write a folder NAME with a small problem that works as it is, for you to edit."""
    from seeds import scaffold

    folder = into / name
    if reference is None and module is None:
        problem = scaffold.create_problem(name, into)
    else:
        scaffold.check_new_problem(name, folder)
        file = read_source(reference, module, name)
        assert file is not None  # one of them is given
        problem = _translate(session, file, f"{reference or module}", flags=flags)
        scaffold.write_problem(problem, folder)
    steps = {
        "judge its kernel": format_command("try", "--problem", str(folder)),
        "optimise it": format_command("run", "--problem", str(folder)),
    }
    text = [f"{folder}: {', '.join(problem.files)}", *(f"  {what}: {how}" for what, how in steps.items())]
    session.emit({"folder": str(folder), "files": list(problem.files)}, "\n".join(text))
    return exits.OK


def _translate(session: Session, file: ReferenceFile, source: str, *, flags: dict[str, Any]) -> Problem:
    """Return the problem of a reference, with its translation as the kernel; errors name the source.

    Raises:
        click.ClickException: there is no translation.
    """
    from agentctl.translation import translate_reference
    from targets.base import UntranslatableError

    try:
        return asyncio.run(translate_reference(session.home, config_from_flags(session, flags), file)).problem
    except UntranslatableError as error:
        raise click.ClickException(f"{source}: no translation: {error}") from None


# --- the problem of a run --------------------------------------------------------------------------


@problems.command(epilog=exits.epilog())
@click.argument("run")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), help="The folder to write the problem to."
)
@click.option(
    "--kernel", type=click.Path(path_type=Path), help="Write the kernel that the run began with to this file."
)
@click.option("--force", is_flag=True, help="Replace files that are not of an earlier export.")
@common_options
def export(session: Session, run: str, folder: Path | None, kernel: Path | None, *, force: bool) -> None:
    """Write the problem of a RUN back out of its log, as the folder that `--problem` takes.

    A run keeps its problem's files; the folder that they were read from may have changed since, or be gone.
    """
    from agentctl.exports.problem import export_problem

    if folder is None and kernel is None:
        raise click.UsageError("say where: -o FOLDER, --kernel FILE, or both")
    with LogReader.open(session.home) as reader:
        run = str(find_run(reader, run)["run"])
        files = export_problem(session.home, reader, run, folder=folder, kernel=kernel, force=force)
    told = [f"wrote the problem of {run} to {folder}: {', '.join(files)}"] if folder else []
    told += [f"wrote the kernel that it began with to {kernel}"] if kernel else []
    places = {"folder": folder and str(folder), "kernel": kernel and str(kernel)}
    session.emit({"run": run, **places, "files": list(files) if folder else []}, "\n".join(told))
