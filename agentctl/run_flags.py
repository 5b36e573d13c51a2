"""Turns command-line flags into a run's configuration and its submit command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentctl.app import Session
from agentctl.kernel_predictions import make_kernel_error, warn_of_unread_parts
from daemon.command_models import Submit
from daemon.config import FILE_NAME, FLAGS, Config, EffectiveConfig, load_config
from daemon.errors import DaemonError
from targets.registry import load_target, target_names

if TYPE_CHECKING:
    from seeds import Problem
    from state.model import RunConfig

KNOBS = "knobs"
"""The proposer that needs a problem with a graph."""

_KEYS = {flag.removeprefix("--"): key for key, flag in FLAGS.items()}


def target_option(what: str = "Target device", *, default: str | None = None) -> Callable[..., Any]:
    """Return the option that takes a target's name, or its folder."""
    names = f"{', '.join(target_names())}, or a folder (docs/own-targets.md)"
    shown = default is not None
    return click.option(
        "--target", help=f"{what}: {names}.", default=default, show_default=shown, callback=_resolve_target
    )


def _resolve_target(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return a folder by its absolute path, which is its name everywhere else."""
    del context, option
    if value is None or value in target_names():
        return value
    path = Path(value).expanduser()
    return str(path.resolve()) if "/" in value or path.is_dir() else value


_SEARCH_OPTIONS = (
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of the configuration; `run.` may be left out.",
    ),
    target_option(),
    click.option(
        "--allow-unknown-prices",
        is_flag=True,
        help="Start even if a model's price is unknown; cap_usd cannot be kept then.",
    ),
    click.option("--seed", type=int, help="Seed of every random draw."),
    click.option("--strategy", help="beam, or one to compare it with (docs/search.md)."),
    click.option("--rounds", type=int, help="Rounds at most."),
    click.option("--size", help="Problem size: full or reduced."),
    click.option(
        "--host",
        "host",
        multiple=True,
        metavar="[USER@]HOST[:PORT]",
        help="Run kernels there, over SSH; may be repeated.",
    ),
)


def search_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how a run searches."""
    for option in _SEARCH_OPTIONS:
        function = option(function)
    return function


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide what a run works on, and how it searches."""
    function = search_options(function)
    for option in (
        click.option("--kernel", type=click.Path(path_type=Path), help="Start from this kernel."),
        click.option("--problem", help="A name from `agentctl problems`, or a folder."),
    ):
        function = option(function)
    return function


def config_from_flags(session: Session, flags: dict[str, Any]) -> Config:
    """Return the effective configuration; see `effective_from_flags`."""
    return effective_from_flags(session, flags).config


def effective_from_flags(session: Session, flags: dict[str, Any]) -> EffectiveConfig:
    """Return the effective configuration with its sources: flags over environment over file.

    Raises:
        daemon.config.ConfigError: a source has faults.
    """
    given = {_KEYS[name]: value for name, value in flags.items() if name in _KEYS and value not in (None, ())}
    given |= parse_assignments(map(_qualify_setting, flags.get("settings", ())), "--set ")
    return load_config(session.home, os.environ, given)


def _qualify_setting(setting: str) -> str:
    """Return a setting with its full key; `run.` may be omitted, as with `set` and `fork`."""
    section = setting.partition("=")[0].partition(".")[0]
    return setting if section in Config.model_fields else f"run.{setting}"


def parse_assignments(settings: Iterable[str], said: str = "") -> dict[str, Any]:
    """Parse `KEY=VALUE` texts; each value is read as JSON, or else as text.

    Raises:
        click.UsageError: one has no `=`, or a key has two values.
    """
    given: dict[str, Any] = {}
    for setting in settings:
        key, mark, text = setting.partition("=")
        if not mark:
            raise click.UsageError(f"{said}{setting}: expected KEY=VALUE")
        if key in given:
            raise click.UsageError(f"{said}{setting}: {key} has a value already; give it once")
        given[key] = _parse_value(text)
    return given


def load_submission(
    home: Path, wanted: EffectiveConfig, kernel: Path | None, *, allow_unknown_prices: bool = False
) -> Submit:
    """Return the command that starts a run with a configuration.

    Raises:
        seeds.SeedsError: the problem is unknown, or its files have faults.
        DaemonError: the kernel's file cannot be read or has a fault, or no planner of the run can work on it.
    """
    name = problem_of_kernel(wanted, kernel)
    problem = load_named_problem(name)
    source = None if kernel is None else read_kernel_source(kernel)
    begins_from = kernel or _own_kernel_file(wanted.config.run, name)
    if begins_from is not None:
        text = read_kernel_source(begins_from) if source is None else source
        require_readable_kernel(begins_from, text, wanted.config.run.target)
        is_replaceable = kernel is None and wanted.config.run.starts == "both"
        warn_of_unread_parts(home, wanted.config, problem, begins_from, text, is_replaceable=is_replaceable)
    return build_submission(wanted, problem, source, allow_unknown_prices=allow_unknown_prices)


def _own_kernel_file(run: RunConfig, problem: str) -> Path | None:
    """Return the kernel in a user's problem folder that a run begins from; None if there is none."""
    path = Path(problem).expanduser() / load_target(run.target).language.kernel_file
    return path if run.starts != "translation" and path.is_file() else None


def problem_of_kernel(wanted: EffectiveConfig, kernel: Path | None) -> str:
    """Return the name of the problem: what was asked for, else the folder of the kernel.

    Raises:
        click.UsageError: a kernel is given whose folder has no problem, and nothing says which is meant.
        DaemonError: the kernel's file cannot be read.
    """
    from seeds.problem_files import SPEC_FILE

    if kernel is None or "run.problem" in wanted.sources:
        return wanted.config.run.problem
    read_kernel_source(kernel)  # what is no file needs another name, not a problem
    if (kernel.parent / SPEC_FILE).is_file():
        return str(kernel.parent)
    raise click.UsageError(
        f"which problem does {kernel} solve? Give --problem NAME or FOLDER; its own folder has no {SPEC_FILE}"
    )


def load_named_problem(name: str) -> Problem:
    """Load a problem by its name or folder; for what is neither, say what was probably meant.

    Raises:
        seeds.SeedsError: its files have faults, or the name is unknown.
        DaemonError: the name is a path that leads to no problem.
    """
    import seeds
    from seeds.problem_files import SPEC_FILE

    path = Path(name).expanduser()
    if path.is_file() and (path.parent / SPEC_FILE).is_file():
        hint = f"--problem {path.parent}; to start from this kernel, add --kernel {path}"
        raise DaemonError(f"{name} is a file of a problem, not its folder", code="unknown_problem", hint=hint)
    try:
        return seeds.load_problem(name)
    except seeds.UnknownProblemError as error:
        if "/" not in name:
            raise
        text = f"{name} is no folder" if not path.exists() else f"{name} is no folder with a problem"
        hint = "`agentctl problems` lists the built-in ones; `agentctl problems new` makes a folder"
        raise DaemonError(text, code="unknown_problem", hint=hint) from error


def require_readable_kernel(path: Path, source: str, target: str) -> None:
    """Refuse a kernel that breaks a rule of its language, before a run begins.

    Raises:
        DaemonError: it does; the error has the line and the source line.
    """
    error = load_target(target).language.lint(source.encode())
    if error is not None:
        raise make_kernel_error(path, source, error)


def build_submission(
    wanted: EffectiveConfig, problem: Problem, source: str | None, *, allow_unknown_prices: bool = False
) -> Submit:
    """Return the command that starts a run on `problem`, from the kernel `source` or the problem's own.

    Raises:
        DaemonError: `knobs` is a planner, but the problem has no graph.
    """
    from seeds.problem_files import WORKLOAD_FILE

    if KNOBS in wanted.config.run.planner and WORKLOAD_FILE not in problem.files:
        text = f"run.planner has {KNOBS!r}, and the problem {problem.name} carries no {WORKLOAD_FILE}"
        raise DaemonError(text, code="no_graph")
    run = wanted.config.run.model_copy(update={"problem": problem.name})
    pinned = tuple(
        key for key, origin in wanted.sources.items() if key.startswith("run.") and origin != FILE_NAME
    )
    return Submit.model_construct(
        config=run,
        files=dict(problem.files),
        kernel=source,
        pinned=pinned,
        allow_unknown_prices=allow_unknown_prices,
    )


def read_kernel_source(path: Path) -> str:
    """Return the text of a kernel's file.

    Raises:
        DaemonError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except IsADirectoryError as error:
        text = f"{path} is a folder, and a kernel is a file"
        hint = f"for the problem in that folder: --problem {path}"
        raise DaemonError(text, code="unreadable_kernel", hint=hint) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise DaemonError(f"{path}: {reason}", code="unreadable_kernel") from error


def _parse_value(text: str) -> Any:
    """Read a value as JSON, or else as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
