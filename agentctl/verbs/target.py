"""`agentctl target`: makes the folder of a target from documents, and checks one."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.formatting import format_command, format_count
from agentctl.run_flags import config_from_flags
from agentctl.target_building import BuiltTarget, build_target, check_target
from daemon import exits
from daemon.errors import DaemonError
from targets.base import UnknownTargetError


@click.group(name="target", epilog=exits.epilog())
@common_options
def target(session: Session) -> None:
    """Make the folder of a target from documents, or check one."""


@target.command(epilog=exits.epilog())
@click.argument("name")
@click.option(
    "--from",
    "documents",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="A document, or a folder of them; may be repeated.",
)
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="Where; default: this folder.")
@click.option(
    "--model", help="ENDPOINT/MODEL to ask; default: the first of run.llm.models, if a planner asks."
)
@click.option("--no-model", is_flag=True, help="Ask no model: take only tables, prototypes, code and rules.")
@click.option("--update", is_flag=True, help="Build an existing folder again; what was edited is kept.")
@common_options
def build(
    session: Session,
    name: str,
    *,
    documents: tuple[Path, ...],
    into: Path,
    model: str | None,
    no_model: bool,
    update: bool,
) -> int:
    """Make the folder NAME of a target from documents.

    A model distils architecture, interface, rules, examples and techniques, each with its source; without a
    model, only tables, prototypes, code and sentences with "must" are taken. Edit the files as you like.
    """
    folder = into / name
    _require_place(folder, name, update=update)
    if model is not None and no_model:
        raise click.UsageError("give --model or --no-model, not both")
    config = config_from_flags(session, {})
    with session.progress_bar("reading") as bar:
        built = asyncio.run(
            build_target(folder, documents, config, model=model, asks=not no_model, env=os.environ, said=bar)
        )
    session.emit(_built_json(folder, built), "\n".join(_describe_built(folder, built)))
    return exits.OK


def _require_place(folder: Path, name: str, *, update: bool) -> None:
    from targets.folders.description import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, name):
        raise click.UsageError(f"{name!r} is no name: small letters, digits, - and _, at most 40")
    if folder.exists() and not update:
        hint = "--update builds it again and keeps what was edited"
        raise DaemonError(f"{folder}: is there already", code="target_exists", hint=hint)


def _built_json(folder: Path, built: BuiltTarget) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "model": built.model,
        "tokens": built.tokens,
        "items": built.counts,
        "written": built.files.written,
        "kept": built.files.kept,
        "drafts": built.files.drafts,
        "refused": built.refused,
        "compiled": built.compiled,
    }


def _describe_built(folder: Path, built: BuiltTarget) -> list[str]:
    how = f"distilled by {built.model}, {built.tokens} tokens" if built.model else "taken without a model"
    told = ", ".join(format_count(number, kind) for kind, number in built.counts.items()) or "nothing"
    lines = [f"{folder}: {told}, {how}", *(f"  wrote {one}" for one in built.files.written)]
    lines += [f"  kept {one}: it was edited" for one in built.files.kept]
    lines += [f"  put aside {one}" for one in built.files.drafts]
    lines += [f"  refused {one}" for one in built.refused]
    if not built.compiled:
        lines.append("  no compiler of the target is here: examples were not compiled")
    check = format_command("target", "check", str(folder))
    return [*lines, f"edit {folder / 'target.toml'} first; check the folder with: {check}"]


@target.command(epilog=exits.epilog())
@click.argument("folder", type=click.Path(path_type=Path))
@common_options
def check(session: Session, folder: Path) -> int:
    """Check the FOLDER of a target: its files, its tools here, its examples, and texts that were edited.

    The status is 1 if it cannot be used, or an example does not compile.
    """
    try:
        found = asyncio.run(check_target(folder.resolve()))
    except UnknownTargetError as error:
        raise DaemonError(str(error), code=error.code) from error
    lines = [f"{folder}: {found.toolchain}"]
    lines += [f"  {name}: compiles" for name in found.compiled]
    lines += [f"  {name}: does not compile: {why}" for name, why in found.broken.items()]
    lines += [
        f"  {name}: edited since its version; raise that, and set digest = {digest!r}, in items.toml"
        for name, digest in found.edited.items()
    ]
    session.emit(
        {
            "folder": str(folder),
            "toolchain": found.toolchain,
            "compiled": found.compiled,
            "broken": found.broken,
            "edited": found.edited,
        },
        "\n".join(lines),
    )
    return exits.FAILURE if found.broken else exits.OK
