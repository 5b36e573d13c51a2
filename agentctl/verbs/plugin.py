"""`agentctl plugin`: puts skills and the MCP server in place for a coding agent, and takes them out."""

from __future__ import annotations

from pathlib import Path

import click

from agentctl.app import Session, common_options
from agentctl.plugin import AGENTS, FileChange, apply_changes, plan_install, plan_removal, server_command
from daemon import exits


@click.group(epilog=exits.epilog())
@common_options
def plugin(session: Session) -> None:
    """Put the plug-in for coding agents in place: skills, and the MCP server."""
    del session


@plugin.command(epilog=exits.epilog())
@click.option("--claude", is_flag=True, help="For Claude Code.")
@click.option("--codex", is_flag=True, help="For Codex.")
@click.option("--kiro", is_flag=True, help="For Kiro.")
@click.option("--cursor", is_flag=True, help="For Cursor.")
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    help="Only for this project; default: for you, in every project.",
)
@click.option("--remove", is_flag=True, help="Remove it.")
@click.option("--show", is_flag=True, help="Only show what would be written.")
@common_options
def install(session: Session, project: Path | None, *, remove: bool, show: bool, **chosen: bool) -> None:
    """Write the skills and the server's entry where a coding agent looks for them, and show what is written.

    Other entries of the agent's configuration stay. A folder of the same name that agentctl did not write
    is refused. With --home, the server serves that home.
    """
    agents = [agent for agent in AGENTS if chosen[agent]]
    if not agents:
        raise click.UsageError(f"name an agent: {', '.join(f'--{agent}' for agent in AGENTS)}")
    if project is not None and not project.is_dir():
        raise click.UsageError(f"--project {project}: there is no such folder")
    root = Path.home() if project is None else project.resolve()
    changes: list[FileChange] = []
    for agent in agents:
        if remove:
            changes += plan_removal(agent, root, project=project is not None)
        else:
            command = server_command(_absolute_words(session))
            changes += plan_install(agent, root, command, project=project is not None)
    lines = [change.describe() for change in changes]
    if not show:
        apply_changes(session.home, root, changes)
    names = ", ".join(AGENTS[agent].title for agent in agents)
    allow = "" if remove or project is None else ", and allow this project's server when asked"
    restart = f"restart {names}{allow}"
    after = "nothing to take out" if not lines else "nothing was changed" if show else restart
    session.emit({"changes": lines, "applied": not show}, "\n".join([*lines, after]))


def _absolute_words(session: Session) -> tuple[str, ...]:
    return ("--home", str(session.home.resolve())) if session.home_option else ()
