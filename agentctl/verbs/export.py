"""`agentctl export`: a run in the forms that other tools read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common
from agentctl.choices import configured
from agentctl.runs import known_run, last_run
from agentctl.words import count
from daemon import exits
from state.output import check_output, write_output
from state.reader import LogReader

LAYOUTS = ("nki-kernel-agent",)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    run: str
    output: Path | None
    kernels: tuple[str, ...]
    branch: str | None
    address: str
    prompts: bool
    force: bool

    def place(self) -> Path:
        """Return where to write.

        Raises:
            click.UsageError: nobody said.
        """
        if self.output is None:
            raise click.UsageError("say where to write it: -o PATH")
        return self.output


Told = tuple[dict[str, Any], str]
"""An answer as JSON and in words."""


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
@common
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
        name = last_run(reader) if run is None else str(known_run(reader, run)["run"])
        wanted = Wanted(name, output, flags["kernels"], flags["branch"], flags["otlp"] or "", prompts, force)
        content, text = _FORMS[asked[0]](session, reader, wanted)
    session.emit({"run": name, "form": asked[0], **content}, text)


def _trace(session: Session, reader: LogReader, wanted: Wanted) -> Told:
    from agentctl.exports.traces import together
    from agentctl.timelines import timelines
    from agentctl.views.candidate import named

    output = wanted.place()
    check_output(session.home, output, replace=True)
    state = reader.state(wanted.run)
    names = [named(state, name) for name in wanted.kernels or ("initial", "best")]
    config = configured(session, {}).daemon
    wanted_names = list(dict.fromkeys(names))
    with session.bar("tracing kernels") as bar:
        made = asyncio.run(timelines(session.home, config, reader, wanted.run, wanted_names, seen=bar))
    data = together(wanted.run, made)
    write_output(session.home, output, data)
    said = f"wrote the predicted timelines of {', '.join(made)} to {output}; open it at ui.perfetto.dev"
    return {"output": str(output), "kernels": list(made), "bytes": len(data)}, said


def _layout(session: Session, reader: LogReader, wanted: Wanted) -> Told:
    from agentctl.exports.folder import write_folder
    from agentctl.exports.layout import files

    output = wanted.place()
    with session.bar("reading the run") as bar:
        made = files(reader, wanted.run, progress=bar)
    write_folder(session.home, output, made, force=wanted.force)
    said = (
        f"wrote {count(len(made), 'file')} to {output}: checkpoints/, experiments.jsonl, optimization_memory/"
    )
    return {"output": str(output), "files": sorted(made)}, said


def _git(session: Session, reader: LogReader, wanted: Wanted) -> Told:
    from agentctl.exports.repository import export as to_repository

    branch = wanted.branch or f"kernels/{wanted.run}"
    root = wanted.place()
    with session.bar("writing commits") as bar:
        made = to_repository(
            session.home, reader, wanted.run, root, branch=branch, force=wanted.force, progress=bar
        )
    new = "nothing new" if not made.new else count(made.new, "new commit")
    said = f"branch {branch} of {made.repository}: {count(made.commits, 'commit')}, {new}"
    look = f"look: git -C {made.repository} log --stat {branch}"
    told = {
        "repository": made.repository, "branch": branch, "tip": made.tip, "commits": made.commits,
        "new": made.new,
    }  # fmt: skip
    return told, f"{said}\n{look}"


def _otlp(session: Session, reader: LogReader, wanted: Wanted) -> Told:
    from agentctl.exports.otlp import send
    from agentctl.exports.telemetry import spans
    from agentctl.views.run import run_view

    with session.bar("sending spans") as bar:
        found = spans(reader, wanted.run, prompts=wanted.prompts, progress=bar)
        view = run_view(wanted.run, reader.state(wanted.run))
        sent = send(wanted.address, found, view, version=version("nki-kernel-agent"))
    said = (
        f"sent {count(sent.spans, 'span')}, {sent.questions} of them questions to models, to {wanted.address}"
    )
    return {"spans": sent.spans, "questions": sent.questions, "prompts": wanted.prompts}, said


_FORMS: dict[str, Callable[[Session, LogReader, Wanted], Told]] = {
    "trace": _trace,
    "layout": _layout,
    "git": _git,
    "otlp": _otlp,
}
