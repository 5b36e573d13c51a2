"""`agentctl prompts`: shows the prompts of the LLM roles, and which of them this home overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from agent_core.prompting import FileKind, PromptBlock, PromptSet, RenderError, TextLifetime, builtin_prompts
from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.event_lines import SHORT_VERSION
from agentctl.formatting import format_command, format_count
from agentctl.run_flags import target_option
from agentctl.views import as_json
from daemon import exits, prompt_overrides
from daemon.config import load_config
from daemon.errors import DaemonError
from state.errors import BlobMissing, NoLog
from state.home import prepare_home
from state.model import RunConfig
from state.reader import LogReader

_LASTS = {
    TextLifetime.RELEASE: "always the same",
    TextLifetime.RUN: "same for a run",
    TextLifetime.ROUND: "same for a round",
    TextLifetime.CANDIDATE: "same for a candidate",
    TextLifetime.CALL: "other in each call",
}


@click.command(epilog=exits.epilog())
@click.option("--show", "shown", metavar="ROLE|FILE", help="What a role sees, or one file, as text.")
@target_option("The target whose prompts a role sees", default=RunConfig().target)
@click.option(
    "--run",
    "run",
    metavar="RUN",
    shell_complete=complete_runs,
    help="What this run's roles would be sent now, filled in. Nothing is sent.",
)
@click.option("--version", metavar="DIGEST", help="A version that the log holds, as RoundStarted names it.")
@click.option("--copy", "copied", metavar="FILE", help="Put this file into the home, to be edited there.")
@common_options
def prompts(
    session: Session,
    *,
    shown: str | None,
    target: str,
    run: str | None,
    version: str | None,
    copied: str | None,
) -> None:
    """List the prompts of LLM roles, with those that this home replaces; check them as a whole.

    A file of the same path in <home>/prompts/ replaces one of the program's own. Edits are picked up by
    whoever owns the home, and count from each run's next round on.

    With --run, list how long a run's prompts are; with --show too, show one. The run may still be queued.
    """
    if run is not None:
        if version is not None or copied is not None:
            raise click.UsageError("--run can be combined only with --show")
        _show_run_prompts(session, run, shown)
        return
    if copied is not None:
        there = str(prompt_overrides.copy_prompt(prepare_home(session.home, create=True).home, copied))
        session.emit({"copied": copied, "file": there}, f"copied to {there}; edits of it count")
        return
    found = (
        prompt_overrides.load_prompts(session.home)
        if version is None
        else _read_logged_prompts(session.home, version)
    )
    if shown is None:
        listed = _prompts_json(found, session.home)
        session.emit(listed, "\n".join(_format_listing(listed, session.home)))
        return
    text = _prompt_text(found, shown, target)
    session.emit({"shown": shown, "version": found.version, "text": text}, text.rstrip("\n"))


def _show_run_prompts(session: Session, run: str, role: str | None) -> None:
    """Print what a run's roles would be sent, or what one of them would.

    Raises:
        RenderError: the run asks no role of that name.
    """
    from agentctl.filled_prompts import format_run_prompts, load_run_prompts

    found = load_run_prompts(session.home, run, load_config(session.home, os.environ).config)
    roles = list(dict.fromkeys(one.role for one in found.filled))
    if role is not None and role not in roles:
        known = f"its roles are {', '.join(roles)}" if roles else "it asks no model"
        raise RenderError(f"{found.run} asks no role {role!r}; {known}")
    wanted = replace(found, filled=tuple(one for one in found.filled if role in (None, one.role)))
    session.emit(as_json(wanted), "\n".join(format_run_prompts(wanted, role)))


def _read_logged_prompts(home: Path, version: str) -> PromptSet:
    """Return the prompt set of a version that the log holds.

    Raises:
        DaemonError: the log has no such set.
    """
    with LogReader.open(home) as reader:
        try:
            return PromptSet.from_json(reader.get_blob(version))
        except (BlobMissing, ValueError) as error:
            hint = "agentctl show RUN@SEQ of a RoundStarted names the whole version"
            text = f"no prompts {version!r} in this log"
            raise DaemonError(text, code="unknown_prompts", hint=hint) from error


def _prompts_json(found: PromptSet, home: Path) -> dict[str, Any]:
    """Return the set as JSON; `recorded` is the version that the log holds for new runs."""
    return {
        "version": found.version,
        "recorded": _recorded_version(home),
        "replaced": list(found.changed_paths(builtin_prompts())),
        "targets": list(found.manifest.targets),
        "roles": {role: list(_role_blocks(found, role)) for role in found.manifest.roles},
        "items": {path: _item_json(found, path) for path in found.manifest.items},
    }


def _item_json(found: PromptSet, path: str) -> dict[str, Any]:
    """Return what the manifest says about a file: its purpose, its version, and how far it was checked."""
    item = found.manifest.items[path]
    return {
        "kind": item.kind.value,
        "version": item.version,
        "status": item.status.value,
        "source": item.source,
        "targets": list(item.targets),
        "replaced": path in found.changed_paths(builtin_prompts()),
    }


def _role_blocks(found: PromptSet, role: str) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a role's prompt, in order; one that differs by target comes once for each text,
    with the targets that are told it.
    """
    known = found.manifest
    told = {
        target: {block.path: block for block in found.role_blocks(role, target)} for target in known.targets
    }
    targets: dict[PromptBlock, list[str]] = {}
    for name in known.roles[role].blocks:
        for target in known.targets:
            if path := known.block_path(name, target):
                targets.setdefault(told[target][path], []).append(target)
    for block, its in targets.items():
        yield {
            "file": block.path,
            "bytes": len(block.text.encode()),
            "lasts": block.lasts.name.lower(),
            "targets": its,
            "replaced": block.path in found.changed_paths(builtin_prompts()),
        }


def _recorded_version(home: Path) -> str | None:
    """Return the version that the log holds for new runs; None if no edit was recorded (the built-in set
    is used).
    """
    try:
        with LogReader.open(home) as reader:
            return reader.system_state().prompts
    except NoLog:
        return None


def _format_listing(listed: dict[str, Any], home: Path) -> list[str]:
    number = len(listed["replaced"])
    there = (
        f"{format_count(number, 'file')} replaced by {home / prompt_overrides.PROMPTS_FOLDER}"
        if number
        else "the program's own"
    )
    lines = [f"prompts {listed['version'][:SHORT_VERSION]}: {there}", *_pending_edit_lines(listed)]
    for role, blocks in listed["roles"].items():
        lines.append(f"{role}, in this order:")
        lines += [
            f"  {block['file']:20} {block['bytes']:>6} bytes  {_LASTS[TextLifetime[block['lasts'].upper()]]}"
            + ("" if block["targets"] == listed["targets"] else f"  {', '.join(block['targets'])}")
            + ("  replaced" if block["replaced"] else "")
            for block in blocks
        ]
    lines += _format_chosen_files(listed["items"])
    return [*lines, f"read them with: {format_command('prompts', '--show', 'planner')}"]


def _format_chosen_files(items: dict[str, Any]) -> Iterator[str]:
    """Yield the files of which only the fitting ones go into a prompt, one line per folder."""
    chosen = [path for path, item in items.items() if item["kind"] != FileKind.BLOCK]
    if chosen:
        yield "chosen per problem, plan or implementation:"
    for folder in dict.fromkeys(Path(path).parent for path in chosen):
        names = [path for path in chosen if Path(path).parent == folder]
        marks = [f"{Path(path).stem}{' (replaced)' if items[path]['replaced'] else ''}" for path in names]
        yield f"  {folder}/: {', '.join(marks)}"


def _pending_edit_lines(listed: dict[str, Any]) -> list[str]:
    """Return a note if new runs would still get another version than the files hold."""
    told = listed["recorded"] or builtin_prompts().version
    if told == listed["version"]:
        return []
    return [f"runs get {told[:SHORT_VERSION]} until whoever owns this home has taken the edit"]


def _prompt_text(found: PromptSet, shown: str, target: str) -> str:
    """Return a role's blocks, or one file.

    Raises:
        RenderError: there is no such role, file or target.
    """
    if shown in found.manifest.roles:
        blocks = found.role_blocks(shown, target)
        return "\n".join(f"--- {block.path} ({_LASTS[block.lasts]})\n{block.text}" for block in blocks)
    if shown in found.files:
        return found.files[shown]
    known = [*found.manifest.roles, *found.files]
    close = get_close_matches(shown, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"roles are {', '.join(found.manifest.roles)}"
    raise RenderError(f"no role or file {shown!r}; {hint}")
