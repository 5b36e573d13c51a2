"""`agentctl tune`: turns a workload file into a tuned kernel, as a run like any other, and writes its
files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

import remote
from agentctl.app import Session, common_options
from agentctl.command_answers import send_command
from agentctl.formatting import format_command, format_ms, format_percent
from agentctl.run_flags import build_submission, config_from_flags, effective_from_flags, search_options
from agentctl.run_lookup import find_run
from agentctl.run_tracker import RunTracker
from agentctl.screen import Screen
from agentctl.translation import translate_reference
from agentctl.verbs.run import check_output_now, follow_to_end, output_option
from daemon import exits
from daemon.command_models import run_id
from daemon.config import DEFAULT_ORIGIN, Config, EffectiveConfig
from daemon.errors import DaemonError
from state.errors import StateError
from state.events import RoundCompleted
from state.model import RunConfig
from state.reader import LogReader
from state.records import RecordedEvent
from targets.base import UntranslatableError, import_part
from targets.registry import load_families, load_target

if TYPE_CHECKING:
    from seeds import Problem

KNOBS = "knobs"
PLANNERS = (KNOBS, "builtin")
"""The default planners: one picks points of the knob space, the other edits their sources."""

TARGET_KEY, STARTS_KEY = "run.search.target_ms", "run.starts"


@click.command(epilog=exits.epilog())
@click.argument("workload", required=False, type=click.Path(path_type=Path))
@search_options
@click.option("--sim", is_flag=True, help="Use the simulator, even if the workload names hosts.")
@click.option("--into", type=click.Path(path_type=Path), help="Write the files here, not under CACHE_ROOT.")
@click.option("--export", "again", metavar="RUN", help="Only write the files of RUN anew, from the log.")
@output_option
@common_options
def tune(session: Session, /, workload: Path | None, again: str | None, **flags: Any) -> int:
    """Tune the kernel of a WORKLOAD: a file with the mathematics, its inputs and a target (docs/tune.md)."""
    if again is not None:
        return _export_again(session, workload, again, flags=flags)
    if workload is None:
        raise click.UsageError("name a WORKLOAD, or give --export RUN")
    check_output_now(session, flags["output"])
    wanted = effective_from_flags(session, flags)
    started = _load_workload(session.home, workload, wanted.config)
    wanted = _select_hosts(session, wanted, started.workload.hosts, flags=flags)
    root = flags["into"] or Path(started.workload.cache_root)
    wanted, note = _set_target(wanted, started)
    _load_tuner(wanted.config.run.target).check_root(session.home, root)
    click.echo(note, err=True)
    allowed = flags["allow_unknown_prices"]
    command = build_submission(wanted, started.problem, None, allow_unknown_prices=allowed)
    sent = send_command(session.home, command)
    run = run_id(sent.id, started.problem.name)
    return follow_to_end(
        session, run, sent, wanted.config.daemon, flags["output"], beside=TuneFiles(session, root)
    )


def _load_tuner(target: str | None = None) -> Any:
    """Return the tuner of a target, or the first one of any target.

    Raises:
        click.UsageError: the target has none.
    """
    candidates = load_families() if target is None else [load_target(target)]
    part = next((one.parts.tuner for one in candidates if one.parts.tuner is not None), None)
    if part is None:
        raise click.UsageError(f"workloads cannot be tuned for {target}")
    return import_part(part)


def _select_hosts(
    session: Session, wanted: EffectiveConfig, hosts: Sequence[str], *, flags: dict[str, Any]
) -> EffectiveConfig:
    """Return the configuration with the hosts of the workload, unless you named others.

    `--sim` uses the simulator, whoever names hosts.
    """
    if flags["sim"]:
        at_home = (*flags["settings"], "run.evaluator=sim")
        return (
            effective_from_flags(session, {**flags, "settings": at_home})
            if wanted.config.run.hosts
            else wanted
        )
    if hosts and not wanted.config.run.hosts:
        return effective_from_flags(session, {**flags, "host": tuple(hosts)})
    return wanted


@dataclass(frozen=True, slots=True)
class TuneInput:
    """A workload, and the problem made from it."""

    workload: Any
    problem: Problem
    unsearched: str | None = None
    """Why knobs are not searched, if they are not."""

    def mfu_scale(self, config: Config) -> Any:
        return _load_tuner(config.run.target).PeakScale(
            self.problem.spec.minimal_work(config.run.size), config.run.target
        )


def _load_workload(home: Path, path: Path, config: Config) -> TuneInput:
    tuner = _load_tuner(config.run.target)
    workload = tuner.load_workload(path, config.run.target)
    if workload.graphs is None:
        return TuneInput(workload, *_translate_workload(home, path, workload, config=config))
    return TuneInput(workload, tuner.workload_problem(path, workload, config.run.size, config.run.target))


def _translate_workload(
    home: Path, path: Path, workload: Any, *, config: Config
) -> tuple[Problem, str | None]:
    """Return the problem of a workload with `f_numpy` alone: its kernel is the translation.

    It has a graph for knobs, or the reason why not comes with it.

    Raises:
        click.ClickException: there is no translation.
    """
    tuner, size, target = _load_tuner(config.run.target), config.run.size, config.run.target
    file = tuner.workload_reference(path, workload, size)
    try:
        found = asyncio.run(translate_reference(home, config, file))
    except UntranslatableError as error:
        raise click.ClickException(f"workload {path}: no translation: {error}") from None
    problem, reason = tuner.add_graph(found.problem, found.formula, size, target)
    return problem, reason


def _set_target(wanted: EffectiveConfig, started: TuneInput) -> tuple[EffectiveConfig, str]:
    """Return the configuration with the target as a latency, and a line that explains it.

    The run begins from the kernel of the workload's first point, which the points that follow are compared
    with, unless you chose `run.starts`.
    """
    sources = dict(wanted.sources)
    run = wanted.config.run
    if started.unsearched is None:
        run, sources["run.planner"] = _with_knobs(run, sources.get("run.planner", DEFAULT_ORIGIN))
    if sources.get(STARTS_KEY, DEFAULT_ORIGIN) == DEFAULT_ORIGIN:
        run, sources[STARTS_KEY] = run.model_copy(update={"starts": "kernel"}), "tune"
    scale, share = started.mfu_scale(wanted.config), started.workload.target_mfu
    target_ms = scale.latency_at_mfu(share)
    if sources.get(TARGET_KEY, DEFAULT_ORIGIN) != DEFAULT_ORIGIN:
        note = f"target: {format_ms(run.search.target_ms)}, by {TARGET_KEY}, not TARGET_MFU"
    elif target_ms is None:
        note = "the workload has no products: TARGET_MFU says nothing, the run ends by its other rules"
    else:
        run = run.model_copy(update={"search": run.search.model_copy(update={"target_ms": target_ms})})
        sources[TARGET_KEY] = "TARGET_MFU"
        best = scale.mfu(scale.roofline_ms) or 0.0
        note = f"target: an MFU of {format_percent(100 * share)}, which is {format_ms(target_ms)}"
        tight_ms = remote.compute_bounds(started.problem, run.size, run.target).tight_ms
        if best < share:
            note += f"; the roofline of {run.target} allows {format_percent(100 * best)} at most"
        elif target_ms < tight_ms:
            note += f"; below the model bound of {format_ms(tight_ms)}, so that other rules will end the run"
    if started.unsearched is not None:
        note += f"\nknobs are not searched: {started.unsearched}"
    config = wanted.config.model_copy(update={"run": run})
    return replace(wanted, config=config, sources=sources), note


def _with_knobs(run: RunConfig, origin: str) -> tuple[RunConfig, str]:
    """Add the `knobs` planner to those of a file or the environment; a flag of this call wins."""
    if origin.startswith("--") or KNOBS in run.planner:
        return run, origin
    planner = PLANNERS if origin == DEFAULT_ORIGIN else (KNOBS, *run.planner)
    return run.model_copy(update={"planner": planner}), "tune"


def _export_again(session: Session, workload: Path | None, run: str, *, flags: dict[str, Any]) -> int:
    """Write a run's files under the given folder, or under the workload's."""

    with LogReader.open(session.home) as reader:
        run = str(find_run(reader, run)["run"])
    if flags["into"] is None and workload is None:
        raise click.UsageError("say where: name the WORKLOAD, or give --into")
    root = flags["into"]
    if root is None:
        assert workload is not None
        target = config_from_flags(session, flags).run.target
        root = Path(_load_tuner(target).load_workload(workload, target).cache_root)
    done = _load_tuner().export_run(session.home, run, root)
    session.emit(
        {
            "run": run,
            "cache_root": str(done.root),
            "files": done.files,
            "best": done.best,
            "mfu": done.mfu,
            "predicted": done.predicted,
        },
        f"wrote {done.files} files of {run} under {done.root}",
    )
    return exits.OK


@dataclass
class TuneFiles:
    """Writes a run's files after each round and at its end."""

    session: Session
    root: Path
    trouble: str = ""

    def wrap_screen(self, screen: Screen, run: str) -> Screen:
        return FileWritingScreen(screen, run, self)

    def write_files(self, run: str) -> dict[str, Any]:
        """Export the files; an error is reported at the end, and does not stop the run."""
        try:
            done = _load_tuner().export_run(self.session.home, run, self.root)
        except (StateError, DaemonError) as error:
            self.trouble = str(error)
            return {"cache_root": str(self.root), "cache_error": self.trouble}
        self.trouble = ""
        told = {"best_folder": done.best, "mfu": done.mfu, "predicted": done.predicted}
        return {"cache_root": str(done.root), **told}

    def report_extras(self, tracker: RunTracker) -> tuple[dict[str, Any], str]:
        if tracker.state is None:
            return {}, ""
        told = self.write_files(tracker.run)
        if self.trouble:
            again = self._export_command(tracker.run, "FOLDER")
            return told, f"The files could not be written: {self.trouble}; write them with {again}"
        where = f"Files are under {self.root}; "
        if told["best_folder"] is None:
            where += "there is no correct kernel among them"
        else:
            how = "predicted" if told["predicted"] else "measured"
            share = "" if told["mfu"] is None else f", MFU {format_percent(100 * told['mfu'])} {how}"
            where += f"the best kernel is {told['best_folder']}{share}"
        if not tracker.has_ended:
            where += (
                f"\nWhat comes later is written there by {self._export_command(tracker.run, str(self.root))}"
            )
        return told, where

    def _export_command(self, run: str, root: str) -> str:
        """Return the command that writes a run's files again."""
        return format_command("tune", *self.session.home_words, "--export", run, "--into", root)


@dataclass
class FileWritingScreen:
    """A screen that writes files whenever a round is done."""

    inner: Screen
    run: str
    files: TuneFiles
    written: int = field(default=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: another context exits the inner screen."""

    def show_event(self, item: RecordedEvent, tracker: RunTracker) -> None:
        self.inner.show_event(item, tracker)
        if isinstance(item.event, RoundCompleted) and item.event.round > self.written:
            self.written = item.event.round
            self.files.write_files(self.run)

    def show_state(self, tracker: RunTracker) -> None:
        self.inner.show_state(tracker)

    def show_line(self, text: str) -> None:
        self.inner.show_line(text)
