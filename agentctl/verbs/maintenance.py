"""Keeps a log safe: `verify`, `backup`, `restore`, `archive`, `import`, `compact`, `repair` and
`migrate`.

Verbs that write the log need it for themselves. If another process owns it, they name that process and
exit with status 75.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from agentctl.app import Session, common_options
from agentctl.formatting import format_count
from agentctl.run_flags import target_option
from daemon import exits
from state.reader import LogReader

PATH_TYPE = click.Path(path_type=Path)
COMPACTION_SECONDS = 3600.0
"""How long an owner may take to compact its log: it proves all of it."""

replace_option = click.option("--replace", is_flag=True, help="Replace an existing file.")


@click.command(epilog=exits.epilog())
@common_options
def init(session: Session) -> None:
    """Make an empty home, for a service to use; an existing home stays as it is."""
    from state.log import EventLog

    with EventLog.open(session.home) as log:
        events = log.head.seq
    text = f"there already, with {format_count(events, 'event')}" if events else "ready"
    session.emit({"home": str(session.home), "events": events}, f"{session.home}: {text}")


@click.command(epilog=exits.epilog())
@click.option(
    "--deep/--quick",
    default=True,
    show_default=True,
    help="Check everything, also states, lists, snapshots and blobs; or only hash chains and HEAD.",
)
@common_options
def verify(session: Session, deep: bool) -> int:
    """Check the log: derive its hash chains, states and lists again. If a row is bad, name it; status 4."""
    from remote.references import list_damaged_references
    from state import verify as proof

    LogReader.open(session.home).close()  # fails with one line if there is nothing to verify
    with session.progress_bar("verified") as bar:
        report = proof.verify_log(session.home, deep=deep, progress=bar)
    findings = [str(finding) for finding in report.findings]
    counted = f"{report.events} events, {report.state_hashes} state hashes, {report.blobs} blobs"
    gone = [f"not in this log any more: {report.taken_out} events, {report.pruned} blobs (pruned)"]
    damaged = list_damaged_references(session.home) if deep else []
    text = [f"ok: {counted}"] if report.is_ok else findings
    text += [f"cache: {path} is not as it was computed; it is computed again when needed" for path in damaged]
    text += gone if report.taken_out or report.pruned else []
    text += [] if report.anchored else ["no HEAD: a lost tail cannot be noticed"]
    found = {
        "ok": report.is_ok,
        "events": report.events,
        "taken_out": report.taken_out,
        "blobs": report.blobs,
        "pruned": report.pruned,
        "anchored": report.anchored,
        "findings": findings,
        "cache": [str(path) for path in damaged],
    }
    session.emit(found, "\n".join(text))
    return exits.OK if report.is_ok else exits.LOG


@click.command(epilog=exits.epilog())
@click.argument("file", type=PATH_TYPE)
@replace_option
@common_options
def backup(session: Session, file: Path, replace: bool) -> None:
    """Copy the whole log to FILE and check the copy, whether its owner runs or not."""
    from state.backup import backup_log as make

    with session.progress_bar("copied") as bar:
        report = make(session.home, file, replace=replace, progress=bar)
    found = {"file": str(file), "events": report.events, "head": report.head.seq, "hash": report.head.hash}
    session.emit(
        found, f"{file}: {report.events} events, up to event {report.head.seq} ({report.head.hash[:12]})"
    )


@click.command(epilog=exits.epilog())
@click.argument("file", type=PATH_TYPE, required=False)
@click.option(
    "--from", "replica", metavar="REPLICA", help="A replica: a folder, or ssh://[USER@]HOST[:PORT]/PATH."
)
@click.option("--at", metavar="TIME|RUN@SEQ", help="Only what was there at that time, or up to that event.")
@common_options
def restore(session: Session, file: Path | None, replica: str | None, at: str | None) -> None:
    """Put the backup FILE, or a REPLICA, in the place of the log, which is kept beside it."""
    if (file is None) == (replica is None):
        raise click.UsageError("give either the FILE of a backup, or a replica with --from")
    if at is not None and replica is None:
        raise click.UsageError("--at needs a replica: a backup FILE holds one moment only")
    with session.progress_bar("verified") as bar:
        if file is not None:
            from state.backup import restore_log

            done = restore_log(session.home, file, progress=bar)
        else:
            from remote.replica_stores import open_store
            from state.replica import restore_replica

            done = restore_replica(session.home, open_store(str(replica), session.home), at, progress=bar)
    _emit_rewritten_log(
        session, done, f"restored {done.event.detail}: {format_count(done.report.events, 'event')}, verified"
    )


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.option("-o", "--output", type=PATH_TYPE, help="Where to; default: RUN.jsonl.gz here.")
@replace_option
@common_options
def archive(session: Session, run: str, output: Path | None, replace: bool) -> None:
    """Write RUN, with all that it needs, to a file of its own; `compact` may then take it out of the log."""
    from state.archive import archive_run as write

    with session.progress_bar("archived") as bar:
        made = write(session.home, run, output or Path(f"{run}.jsonl.gz"), replace=replace, progress=bar)
    found = {
        "file": str(made.path),
        "run": run,
        "events": made.events,
        "blobs": made.blobs,
        "head": made.head.hex(),
        "sha256": made.sha256,
        "ended": made.manifest.ended,
    }
    text = f"{made.path}: {made.events} events, {made.blobs} blobs, SHA-256 {made.sha256}"
    session.emit(
        found, text if made.manifest.ended else f"{text}\n{run} has not ended: this is how far it came"
    )


@click.command("import", epilog=exits.epilog())
@click.argument("file", type=PATH_TYPE)
@common_options
def import_run(session: Session, file: Path) -> None:
    """Append the run in the archive FILE to the log; one that had not ended is paused."""
    from state.archive_import import import_archive

    with session.progress_bar("verified") as bar:
        done = import_archive(session.home, file, progress=bar)
    (run,) = done.event.runs
    _emit_rewritten_log(session, done, f"{run}: {done.event.runs[run]}", run=run)


@click.command(epilog=exits.epilog())
@click.argument("archives", type=PATH_TYPE, nargs=-1)
@common_options
def compact(session: Session, archives: tuple[Path, ...]) -> None:
    """Write the log's file anew, without the runs in ARCHIVES and without blobs that nothing names.

    If another process owns the log, that process does it, and its runs go on meanwhile.
    """
    from agentctl.command_answers import is_owned
    from state.compact import compact_log as make

    if is_owned(session.home):
        _compact_elsewhere(session, archives)
        return
    with session.progress_bar("verified") as bar:
        done = make(session.home, archives, progress=bar)
    text = f"{done.event.detail}, {format_count(done.event.taken_out, 'event')} taken out"
    _emit_rewritten_log(
        session, done, "\n".join([text, *(f"  {run}: {how}" for run, how in done.event.runs.items())])
    )


def _compact_elsewhere(session: Session, archives: tuple[Path, ...]) -> None:
    """Have the owner of the home compact its log, and say what it answers."""
    from agentctl.command_answers import send_command, wait_for_answer
    from daemon.command_models import Compact

    wanted = Compact(archives=tuple(str(path.resolve()) for path in archives))
    answer = wait_for_answer(session.home, send_command(session.home, wanted), seconds=COMPACTION_SECONDS)
    if answer is None:
        session.emit({"queued": True}, "the owner has left; whoever owns the home next compacts its log")
        return
    found = cast("dict[str, Any]", answer.result)
    text = f"{found['detail']}, {format_count(found['taken_out'], 'event')} taken out, while its owner works"
    session.emit(found, "\n".join([text, *(f"  {run}: {how}" for run, how in found["runs"].items())]))


@click.command(epilog=exits.epilog())
@common_options
def repair(session: Session) -> None:
    """Save what is sound of a damaged log, cutting only runs that are damaged, and say what was lost."""
    from state.repair import repair_log as make

    with session.progress_bar("verified") as bar:
        done = make(session.home, progress=bar)
    if done.rewritten is None:
        session.emit({"repaired": False, "lost": {}, "blobs": []}, "nothing to repair: the log verifies")
        return
    lost = {loss.stream: str(loss) for loss in done.lost}
    lines = [done.rewritten.event.detail, *(f"  {run}: {what}" for run, what in lost.items())]
    lines += [f"  blob {digest}" for digest in done.blobs]
    _emit_rewritten_log(
        session,
        done.rewritten,
        "\n".join(lines),
        repaired=True,
        lost=lost,
        blobs=list(done.blobs),
        unknown=done.unknown,
    )


@click.command(epilog=exits.epilog())
@click.argument("kernel", type=PATH_TYPE, required=False)
@click.option("--problem", help="The kernel's problem: a name from `agentctl problems`, or a folder.")
@click.option("--size", help="Problem size: full or reduced.")
@target_option()
@click.option("-o", "--output", type=PATH_TYPE, help="Write the kernel here instead of to stdout.")
@common_options
def migrate(session: Session, kernel: Path | None, output: Path | None, **flags: Any) -> int:
    """Bring a log that an older version wrote up to date, without running anything.

    With KERNEL, write that kernel anew instead: in the current namespace and in the form that rewrites read
    best. The result is judged; status 0 if it is correct, else 1.
    """
    from state.log_rebuild import migrate_log as bring_up

    if kernel is not None:
        from agentctl.verbs.kernel_migration import migrate_kernel

        return migrate_kernel(session, kernel, output, flags)

    with session.progress_bar("bringing it up to date"):
        before, after = bring_up(session.home)
    text = f"schema {after}: up to date" if before == after else f"schema {before} brought to {after}"
    session.emit({"before": before, "after": after}, text)
    return exits.OK


def _emit_rewritten_log(session: Session, done: Any, text: str, **more: Any) -> None:
    """Print the result of a rewritten log, and where its old files are."""
    kept = None if done.kept is None else str(done.kept)
    found = {
        **done.event.model_dump(mode="json", exclude={"type"}),
        "events": done.report.events,
        "kept": kept,
    }
    session.emit({**found, **more}, text if kept is None else f"{text}\nthe old log is kept in {kept}")
