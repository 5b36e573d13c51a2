"""`agentctl export`: writes a run in the formats that other tools read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.formatting import format_count
from agentctl.run_flags import config_from_flags
from agentctl.run_lookup import find_last_run, find_run
from daemon import exits
from state.output_files import check_output, write_output
from state.reader import LogReader

LAYOUTS = ("nki-kernel-agent",)


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What you asked for on the command line."""

    run: str
    output: Path | None
    kernels: tuple[str, ...]
    branch: str | None
    address: str
    prompts: bool
    force: bool

    def require_output(self) -> Path:
        """Return the output path.

        Raises:
            click.UsageError: none was given.
        """
        if self.output is None:
            raise click.UsageError("say where to write it: -o PATH")
        return self.output


ExportAnswer = tuple[dict[str, Any], str]
"""An answer as JSON and as text."""


@click.command(epilog=exits.epilog())
@click.argument("run", required=False)
@click.option(
    "--trace", is_flag=True, help="Kernels' predicted timelines as a Chrome trace, for ui.perfetto.dev."
)
@click.option("--layout", type=click.Choice(LAYOUTS), help="Checkpoints, experiments and memory as files.")
@click.option("--git", is_flag=True, help="Kernels as a Git branch, a commit for each improvement.")
@click.option("--otlp", metavar="URL", help="Send traces and metrics by OpenTelemetry's protocol over HTTP.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file, folder or repository.")
@click.option(
    "--kernel", "kernels", multiple=True, metavar="ID", help="With --trace: which; default: initial and best."
)
@click.option("--branch", metavar="NAME", help="With --git: the branch; default: kernels/RUN.")
@click.option("--prompts", is_flag=True, help="With --otlp: prompts and answers, too.")
@click.option("--force", is_flag=True, help="Replace files, or a branch, that are not of an earlier export.")
@common_options
def export(
    session: Session, run: str | None, output: Path | None, *, force: bool, prompts: bool, **flags: Any
) -> None:
    """Write a RUN (default: the last) in a form that other tools read; the first four options say which.

    Everything is made from the log, and the same each time; export again as a run goes on.
    """
    asked = [name for name in _FORMS if flags[name]]
    if len(asked) != 1:
        raise click.UsageError("say what to export: one of --trace, --layout, --git, --otlp URL")
    with LogReader.open(session.home) as reader:
        name = find_last_run(reader) if run is None else str(find_run(reader, run)["run"])
        wanted = ExportRequest(
            name, output, flags["kernels"], flags["branch"], flags["otlp"] or "", prompts, force
        )
        content, text = _FORMS[asked[0]](session, reader, wanted)
    session.emit({"run": name, "form": asked[0], **content}, text)


def _export_trace(session: Session, reader: LogReader, wanted: ExportRequest) -> ExportAnswer:
    from agentctl.exports.traces import merge_traces
    from agentctl.timelines import trace_kernels
    from agentctl.views.candidate import resolve_candidate

    output = wanted.require_output()
    check_output(session.home, output, replace=True)
    state = reader.run_state(wanted.run)
    names = [resolve_candidate(state, name) for name in wanted.kernels or ("initial", "best")]
    config = config_from_flags(session, {}).daemon
    wanted_names = list(dict.fromkeys(names))
    with session.progress_bar("tracing kernels") as bar:
        made = asyncio.run(trace_kernels(session.home, config, reader, wanted.run, wanted_names, seen=bar))
    data = merge_traces(wanted.run, made)
    write_output(session.home, output, data)
    said = f"wrote the predicted timelines of {', '.join(made)} to {output}; open it at ui.perfetto.dev"
    return {"output": str(output), "kernels": list(made), "bytes": len(data)}, said


def _export_layout(session: Session, reader: LogReader, wanted: ExportRequest) -> ExportAnswer:
    from agentctl.exports.folder import write_folder
    from agentctl.exports.run_files import collect_run_files

    output = wanted.require_output()
    with session.progress_bar("reading the run") as bar:
        made = collect_run_files(reader, wanted.run, progress=bar)
    write_folder(session.home, output, made, force=wanted.force)
    parts = "checkpoints/, experiments.jsonl, optimization_memory/"
    said = f"wrote {format_count(len(made), 'file')} to {output}: {parts}"
    return {"output": str(output), "files": sorted(made)}, said


def _export_git(session: Session, reader: LogReader, wanted: ExportRequest) -> ExportAnswer:
    from agentctl.exports.repository import export_branch as to_repository

    branch = wanted.branch or f"kernels/{wanted.run}"
    root = wanted.require_output()
    with session.progress_bar("writing commits") as bar:
        made = to_repository(
            session.home, reader, wanted.run, root, branch=branch, force=wanted.force, progress=bar
        )
    new = "nothing new" if not made.new else format_count(made.new, "new commit")
    said = f"branch {branch} of {made.repository}: {format_count(made.commits, 'commit')}, {new}"
    look = f"look: git -C {made.repository} log --stat {branch}"
    told = {
        "repository": made.repository, "branch": branch, "tip": made.tip, "commits": made.commits,
        "new": made.new,
    }  # fmt: skip
    return told, f"{said}\n{look}"


def _export_otlp(session: Session, reader: LogReader, wanted: ExportRequest) -> ExportAnswer:
    from agentctl.exports.otlp import send_telemetry
    from agentctl.exports.telemetry import iterate_spans
    from agentctl.views.run import run_view

    with session.progress_bar("sending spans") as bar:
        found = iterate_spans(reader, wanted.run, prompts=wanted.prompts, progress=bar)
        view = run_view(wanted.run, reader.run_state(wanted.run))
        sent = send_telemetry(wanted.address, found, view, version=version("nki-kernel-agent"))
    spans = format_count(sent.spans, "span")
    said = f"sent {spans}, {sent.questions} of them questions to models, to {wanted.address}"
    return {"spans": sent.spans, "questions": sent.questions, "prompts": wanted.prompts}, said


_FORMS: dict[str, Callable[[Session, LogReader, ExportRequest], ExportAnswer]] = {
    "trace": _export_trace,
    "layout": _export_layout,
    "git": _export_git,
    "otlp": _export_otlp,
}
