"""`agentctl memory`: shows, imports, exports and deletes the experiences that later runs are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import send_command, wait_for_answer
from agentctl.formatting import format_count, format_speedup
from agentctl.verbs.steer import report_queued
from daemon import exits, experience_files
from daemon.command_models import ExperienceCommand, Forget, Learn
from daemon.errors import DaemonError, UnknownExperience
from state.errors import NoLog
from state.model import ExperienceKind, LearntExperience
from state.output_files import write_output
from state.reader import LogReader

_COLUMNS = "{:12}  {:24}  {:20}  {:6}  {:18}  {:22}  {}"
_HEADER = _COLUMNS.format("ID", "FROM", "PROBLEM", "TARGET", "TECHNIQUE", "EFFECT", "WHAT")
_VERB_WORDS = {"learn": "memory import", "forget": "memory forget"}
"""The words that you typed, by the verb of the command that is sent."""
TITLE_WIDTH = 60
"""Characters of an experience's first line that a list shows."""


@click.group(epilog=exits.epilog())
@common_options
def memory(session: Session) -> None:
    """List, show, export, import or forget the experiences that later runs show to models."""


@memory.command("list", epilog=exits.epilog())
@click.option("--from", "origin", metavar="RUN|FILE", help="Only those of one run or file.")
@common_options
def list_experiences(session: Session, origin: str | None) -> None:
    """List the experiences, those of runs in the order in which they were learnt, then those of files."""
    found = [one for one in _read_experiences(session) if origin in (None, one.origin)]
    text = "\n".join([_HEADER, *map(_format_row, found)]) if found else "no experiences"
    session.emit([_experience_json(one) for one in found], text)


@memory.command(epilog=exits.epilog())
@click.argument("experience")
@common_options
def show(session: Session, experience: str) -> None:
    """Show an EXPERIENCE, named by its id or the beginning of it, with the kernels that it is about."""
    one = _find_experience(_read_experiences(session), experience)
    with LogReader.open(session.home) as reader:
        slow, fast = (experience_files.read_kernel(digest, reader) for digest in (one.slow, one.fast))
    about = one.about
    facts = {
        "from": f"{one.origin}, a file" if one.imported else " ".join((one.origin, *one.cites)),
        "problem": about.problem,
        "target": about.tags.target or "any",
        "toolchain": about.toolchain,
        "operators": " ".join(about.tags.operators),
        "technique": about.technique,
        "effect": _format_effect(one),
    }
    lines = [f"{one.id}", *(f"  {name}: {value}" for name, value in facts.items() if value), "", one.summary]
    for name, source in (("slow", slow), ("fast", fast)):
        lines += ["", f"--- the {name} kernel", source.rstrip("\n")] if source else []
    session.emit(_experience_json(one) | {"sources": {"slow": slow, "fast": fast}}, "\n".join(lines))


@memory.command("export", epilog=exits.epilog())
@click.argument("experiences", nargs=-1)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here instead of to stdout.")
@common_options
def export_experiences(session: Session, experiences: Sequence[str], output: Path | None) -> None:
    """Write EXPERIENCES, or all, as a list of objects with slow, fast and summary: rewrites.json."""
    known = _read_experiences(session)
    found = [_find_experience(known, one) for one in experiences] or known
    with LogReader.open(session.home) as reader:
        text = experience_files.render_experiences(found, reader)
    if output is None:
        click.echo(text, nl=False)
        return
    write_output(session.home, output, text.encode())
    said = f"wrote {format_count(len(found), 'experience')} to {output}"
    session.emit({"output": str(output), "experiences": [one.id for one in found]}, said)


@memory.command("import", epilog=exits.epilog())
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", default="", help="The target of entries that name none; default: any.")
@click.option("--name", help="The name to mark them with; default: the file's.")
@common_options
def import_experiences(session: Session, file: Path, target: str, name: str | None) -> None:
    """Take in the experiences of FILE: a list of objects with slow, fast and summary.

    Kernels may be missing; entries without a summary are passed over. What is imported is marked
    with the file's name, to people and to models.
    """
    try:
        found, without = experience_files.read_experiences(file)
    except OSError as error:
        raise DaemonError(f"{file}: {error.strerror or error}", code="bad_rewrites") from error
    result = _send_and_wait(session, Learn(file=(name or file.name)[:200], target=target, rewrites=found))
    if result is not None:
        told = [f"learnt {format_count(len(result['learnt']), 'experience')} of {file}"]
        told += [f"{result['known']} known already"] if result["known"] else []
        told += [f"{without} without a summary passed over"] if without else []
        session.emit({"state": "done", **result, "without_summary": without}, "; ".join(told))


@memory.command(epilog=exits.epilog())
@click.argument("experiences", nargs=-1)
@click.option("--from", "origin", metavar="RUN|FILE", help="All experiences of one run or file.")
@click.option("--all", "everything", is_flag=True, help="All experiences.")
@common_options
def forget(session: Session, experiences: Sequence[str], origin: str | None, everything: bool) -> None:
    """Forget these EXPERIENCES: no later run shows them. Earlier runs keep them in their logs."""
    if not (experiences or origin or everything):
        raise click.UsageError("name experiences, or say --from or --all")
    known = _read_experiences(session)
    chosen = [_find_experience(known, one).id for one in experiences]
    chosen += [one.id for one in known if everything or one.origin == origin]
    if not chosen:
        raise UnknownExperience.for_id(origin or "")
    result = _send_and_wait(session, Forget(ids=tuple(dict.fromkeys(chosen))))
    if result is not None:
        said = f"forgotten: {', '.join(result['forgotten'])}"
        session.emit({"state": "done", **result}, said)


def _read_experiences(session: Session) -> tuple[LearntExperience, ...]:
    try:
        with LogReader.open(session.home) as reader:
            return reader.system_state().experiences
    except NoLog:
        return ()


def _find_experience(known: Sequence[LearntExperience], name: str) -> LearntExperience:
    """Return the experience whose id starts with `name`.

    Raises:
        UnknownExperience: there is none, or more than one.
    """
    found = [one for one in known if name and one.id.startswith(name)]
    if len(found) != 1:
        raise UnknownExperience.for_id(name)
    return found[0]


def _send_and_wait(session: Session, command: ExperienceCommand) -> dict[str, Any] | None:
    """Send a command and return its answer; if nobody owns the home, say that it is queued and return
    None.
    """
    sent = send_command(session.home, command)
    answer = wait_for_answer(session.home, sent)
    if answer is None:
        report_queued(session, sent, _VERB_WORDS[command.verb])
        return None
    return answer.result if isinstance(answer.result, dict) else {}


def _experience_json(one: LearntExperience) -> dict[str, Any]:
    return {"id": one.id, **one.model_dump(mode="json")}


def _format_row(one: LearntExperience) -> str:
    about, title = one.about, one.summary.splitlines()[0][:TITLE_WIDTH]
    target = about.tags.target or "any"
    technique = about.technique or "-"
    return _COLUMNS.format(
        one.id, one.origin, about.problem or "-", target, technique, _format_effect(one), title
    )


def _format_effect(one: LearntExperience) -> str:
    """Return the direction and size of a change; empty if a file does not give them."""
    if one.about.kind is None:
        return ""
    way = "faster" if one.about.kind is ExperienceKind.POSITIVE else "slower"
    how = " predicted" if one.about.predicted else ""
    return f"{way} {format_speedup(one.about.speedup)}{how}" if one.about.speedup else way
