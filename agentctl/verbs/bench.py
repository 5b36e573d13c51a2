"""`agentctl bench`: benchmarks of the program itself, with no LLM and no accelerator."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import click

from agentctl.app import Session, common_options
from daemon import exits
from state.model import RunConfig
from targets.registry import kernel_suffix, load_target, target_names

ARM_PROBLEMS = ("rope_single_freq_apply", "mamba", "bmm_softmax", "rmsnorm_matmul")
"""The default problems of `--arms`: elementwise, a scan, a product with softmax, a product with a norm.

silu is not among them, because one rewrite has nearly all of its gain and strategies hardly differ on
it.
"""
ARM_SEEDS = "0,1,2,3,4"


@click.group(epilog=exits.epilog())
@common_options
def bench(session: Session) -> None:
    """Run benchmarks of the program itself."""


@bench.command(epilog=exits.epilog())
@click.option("--arms", is_flag=True, help="Compare all strategies: four problems, reduced size, five seeds.")
@click.option(
    "--problems",
    metavar="A,B",
    help="Problems, by name, or as `run --problem` takes them (default: all built-in; of --arms: four).",
)
@click.option(
    "--kernels",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Begin with the kernels in a folder, each called PROBLEM-WHAT.",
)
@click.option(
    "--starts",
    type=click.Choice(get_args(RunConfig.model_fields["starts"].annotation)),
    default="kernel",
    show_default=True,
    help="What runs begin with, as `run.starts` says.",
)
@click.option("--target", type=click.Choice(target_names()), default=RunConfig().target, show_default=True)
@click.option("--size", type=click.Choice(("full", "reduced")), help="Default: full; of --arms: reduced.")
@click.option("--strategies", metavar="A,B", help="NAME, NAME-blind (without predictions), or beam-reuse.")
@click.option("--donors", metavar="A,B", help="Problems whose runs beam-reuse learns from (default: all).")
@click.option("--seeds", metavar="N,M", help="Seeds of the runs (default: 0; of --arms: 0,1,2,3,4).")
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Kernels that a run may judge.",
)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Keep results here, as JSON.")
@common_options
def search(session: Session, /, *, candidates: int, minutes: float, out: Path | None, **flags: Any) -> int:
    """Run the search from the initial kernels of problems, and say what it finds.

    With --kernels it begins with other kernels for them instead. Each run has a home of its own, which is
    deleted after it: nothing passes from one run to the next, except that beam-reuse gets what the beam
    learnt on other problems. With --out, results are kept after each run, and what the file holds is not run
    again: interrupt it and start it again as you like. All latencies are predicted.
    """
    from agentctl.bench import lessons, results, runs, tables

    jobs, donors = _plan_jobs(**flags)
    budget = runs.JobBudget(candidates, minutes, whole=flags["arms"])
    found, failed = results.read_results(out), 0
    for number, job in enumerate(jobs, start=1):
        if job.key in found and (job.key not in donors or lessons.has_lesson(found[job.key])):
            continue
        click.echo(f"{number} of {len(jobs)}: {job.key}", err=True)
        try:
            offered = (
                lessons.lessons_of_others(found, job.problem, donors) if job.arm.endswith(runs.REUSE) else ()
            )
            found[job.key] = results.result_row(job, runs.run_job(job, budget, offered))
        except RuntimeError as error:
            click.echo(str(error), err=True)
            failed += 1
            continue
        click.echo(tables.run_line(found[job.key]), err=True)
        results.write_results(out, found)
    session.emit(results.build_report(found), "\n".join(tables.render_lines(found)))
    return exits.FAILURE if failed else exits.OK


def _plan_jobs(
    *,
    arms: bool,
    problems: str | None,
    kernels: Path | None,
    starts: str,
    target: str,
    size: str | None,
    strategies: str | None,
    seeds: str | None,
    donors: str | None,
) -> tuple[list[Any], list[str]]:
    """Return the requested runs, grouped by problem, and the keys of the runs whose lessons are reused.

    Runs that reuse lessons come last.
    """
    import seeds as shipped
    from agentctl.bench.runs import ARMS, REUSE, BenchJob

    _require_possible(starts, target, arms=arms, from_files=kernels is not None)
    asked = _split_names(problems) if problems else ARM_PROBLEMS if arms else shipped.builtin_problems()
    names = [_find_problem(name) for name in asked]
    suffix = kernel_suffix(target)
    files = (
        _find_kernels(kernels, shipped.builtin_problems(), suffix) if kernels else dict.fromkeys(names, ("",))
    )
    chosen = _split_names(strategies) if strategies else ARMS if arms else ARMS[:1]
    _require_known("--strategies", chosen, ARMS)
    givers = _split_names(donors) if donors else shipped.builtin_problems()
    _require_known("--donors", givers, shipped.builtin_problems())
    numbers = _parse_numbers(seeds or (ARM_SEEDS if arms else "0"))
    at = size or ("reduced" if arms else "full")
    jobs = [
        BenchJob(name, at, target, number, arm, file, starts)
        for name in names
        for file in files.get(name, ())
        for number in numbers
        for arm in chosen
    ]
    reusing = [job for job in jobs if job.arm.endswith(REUSE)]
    learnt_from = (
        {BenchJob(name, at, target, numbers[0], starts=starts): None for name in givers} if reusing else {}
    )
    others = dict.fromkeys(job for job in jobs if job not in reusing) | learnt_from
    return [*others, *reusing], [job.key for job in learnt_from]


def _require_possible(starts: str, target: str, *, arms: bool, from_files: bool) -> None:
    from agentctl.bench.runs import KERNEL_ONLY

    if starts == KERNEL_ONLY:
        return
    why = ""
    if arms:
        why = "--arms compares searches from the kernel alone"
    elif from_files and starts == "translation":
        why = "no kernel of --kernels would be used"
    elif load_target(target).parts.translator is None:
        why = f"references are not translated for {target}"
    if why:
        raise click.BadParameter(f"{starts}: {why}", param_hint="--starts")


def _find_problem(name: str) -> str:
    """Return a built-in problem's name as it is; the absolute path of any other problem, once it was read."""
    import seeds as shipped
    from seeds.errors import SeedsError

    try:
        shipped.load_problem(name)
    except SeedsError as error:
        raise click.BadParameter(str(error), param_hint="--problems") from error
    return name if name in shipped.builtin_problems() else str(Path(name).expanduser().absolute())


def _find_kernels(folder: Path, problems: Iterable[str], suffix: str) -> dict[str, list[str]]:
    """Return the kernels in a folder, by the problem that their file names start with."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob(f"*{suffix}")):
        name, dash, _ = file.stem.partition("-")
        if not dash:
            raise click.BadParameter(
                f"{file.name} is not called PROBLEM-WHAT{suffix}", param_hint="--kernels"
            )
        _require_known("--kernels", [name], problems)
        found.setdefault(name, []).append(str(file.resolve()))
    if not found:
        raise click.BadParameter(
            f"{folder} holds no kernels called PROBLEM-WHAT{suffix}", param_hint="--kernels"
        )
    return found


def _split_names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_numbers(text: str) -> list[int]:
    wrong = [part for part in _split_names(text) if not part.isdecimal()]
    if wrong or not _split_names(text):
        raise click.BadParameter(f"{text!r}: numbers with commas are expected", param_hint="--seeds")
    return [int(part) for part in _split_names(text)]


def _require_known(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    there = list(known)
    for name in names:
        if name not in there:
            text = f"{name!r} is unknown; there are {', '.join(there)}"
            raise click.BadParameter(text, param_hint=option)
