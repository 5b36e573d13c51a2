"""`agentctl report`: writes a run as one document that you can hand on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import is_owned
from agentctl.run_lookup import find_run
from agentctl.views import as_json
from daemon import exits
from state.output_files import check_output, write_output
from state.reader import LogReader

if TYPE_CHECKING:
    from agentctl.reports.document import ReportDocument


def _render_html(found: ReportDocument) -> str:
    from agentctl.reports.html_page import render_page

    return render_page(found)


def _render_markdown(found: ReportDocument) -> str:
    from agentctl.reports.markdown import render_markdown

    return render_markdown(found)


def _render_json(found: ReportDocument) -> str:
    return json.dumps(as_json(found), indent=2) + "\n"


FORMS: dict[str, Callable[[ReportDocument], str]] = {
    ".html": _render_html,
    ".htm": _render_html,
    ".md": _render_markdown,
    ".json": _render_json,
}
"""The report's format, by the ending of its file."""


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file; its ending says the form: .html, .md, .json. Default: Markdown to stdout.",
)
@common_options
def report(session: Session, run: str, output: Path | None) -> None:
    """Write a report of RUN as one file: what it found, how, at what cost, and how to repeat it.

    The HTML file loads nothing from a network. It holds the best kernel's source and what models
    wrote, no prompts, and neither keys nor hosts. You can also report on a run that has not ended.
    """
    from agentctl.reports.document import gather_report

    form = FORMS.get(output.suffix.lower()) if output else _render_json if session.json else _render_markdown
    if form is None:
        raise click.BadParameter(f"{output}: its name has to end in {', '.join(FORMS)}", param_hint="-o")
    if output is not None:
        check_output(session.home, output, replace=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with LogReader.open(session.home) as reader:
        run = str(find_run(reader, run)["run"])
        with session.progress_bar("reading the run") as bar:
            found = gather_report(
                reader,
                run,
                owned=is_owned(session.home),
                version=version("nki-kernel-agent"),
                now=now,
                progress=bar,
            )
    text = form(found)
    if output is None:
        click.echo(text, nl=False)
        return
    write_output(session.home, output, text.encode("utf-8", "backslashreplace"))
    size = len(text.encode("utf-8", "backslashreplace"))
    session.emit({"run": run, "output": str(output), "bytes": size}, f"wrote {output} ({size / 1000:.0f} kB)")
