"""Exit statuses of `agentctl` and `agentd`: one table, by the stable code of an error.

Errors of every package carry a `code`. A code that is not listed here means bad input. An error without
a code is a bug, and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Collection, Sequence
from shlex import quote
from typing import NoReturn

import click

OK = 0
FAILURE = 1
USAGE = 2
NOT_THERE = 3
LOG = 4
TIMEOUT = 5
BLOCKED = 6
STORAGE = 74
LOCKED = 75
INTERRUPTED = 130

MEANING: dict[int, str] = {
    OK: "done",
    FAILURE: "the answer is no: the kernel is not correct, the command was rejected, the run found nothing",
    USAGE: "wrong usage or bad input: flags, configuration, problem, kernel file, home",
    NOT_THERE: "nothing there: no log in this home, no such run, no such event",
    LOG: "the log is damaged, lost its tail or was written by a newer version",
    TIMEOUT: "no answer in time",
    BLOCKED: "the run is paused until you correct something, such as a key; `agentctl resume` carries on",
    STORAGE: "the disk is full or failed, or the home was moved away",
    LOCKED: "another process owns the home, or holds a lock on its log",
    INTERRUPTED: "interrupted; `agentctl resume` carries on",
}

_BY_CODE: dict[str, int] = {
    "refused": FAILURE,
    "illegal_state": FAILURE,
    "needs_approval": FAILURE,
    "event_refused": FAILURE,
    "run_exists": FAILURE,
    "run_kept": FAILURE,
    "rejected": FAILURE,
    "service_failed": FAILURE,
    "jail_deadline": FAILURE,
    "jail_killed": FAILURE,
    "jail_start": FAILURE,
    "weak_jail": FAILURE,
    "no_timeline": FAILURE,
    "export_failed": FAILURE,
    "git_failed": FAILURE,
    "worker_deadline": FAILURE,
    "worker_died": FAILURE,
    "worker_failed": FAILURE,
    "reference_failed": FAILURE,
    "bad_reference": FAILURE,
    "bad_secret": FAILURE,
    "no_host": FAILURE,
    "no_ray": FAILURE,
    "cluster_unreachable": FAILURE,
    "cluster_failed": FAILURE,
    "cluster_toolchain": FAILURE,
    "host_unreachable": FAILURE,
    "host_key_unknown": FAILURE,
    "host_key_changed": FAILURE,
    "host_key_other": FAILURE,
    "host_auth": FAILURE,
    "host_python": FAILURE,
    "host_full": FAILURE,
    "host_lacks": FAILURE,
    "host_protocol": FAILURE,
    "host_queue": FAILURE,
    "host_worker": FAILURE,
    "host_calibration": FAILURE,
    "link_lost": FAILURE,
    "host_deadline": TIMEOUT,
    "unknown_run": NOT_THERE,
    "unknown_event": NOT_THERE,
    "unknown_host": NOT_THERE,
    "unknown_candidate": NOT_THERE,
    "unknown_prompts": NOT_THERE,
    "unknown_experience": NOT_THERE,
    "unknown_calibration": NOT_THERE,
    "not_calibrated": FAILURE,
    "no_kernel": NOT_THERE,
    "no_log": NOT_THERE,
    "no_exchange": NOT_THERE,
    "blob_pruned": NOT_THERE,
    "stream_unknown": NOT_THERE,
    "blob_missing": LOG,
    "log": LOG,
    "log_too_new": LOG,
    "log_damaged": LOG,
    "tail_lost": LOG,
    "wal_lost": LOG,
    "timeout": TIMEOUT,
    "evaluation_deadline": TIMEOUT,
    "storage_full": STORAGE,
    "storage_failed": STORAGE,
    "home_moved": STORAGE,
    "home_locked": LOCKED,
    "storage_busy": LOCKED,
}

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG})
"""Errors of system calls for which the disk is to blame, not the caller."""


_COMMAND = re.compile(r"\bagentctl ([a-z]+)\b(?! --home)")
"""A command to type, as messages and hints name it."""


def status_of_code(code: str) -> int:
    """Return the exit status for an error's code."""
    return _BY_CODE.get(code, USAGE)


def status_of_error(error: Exception) -> int | None:
    """Return the exit status for `error`; None if it has no code and so is a bug."""
    code = getattr(error, "code", None)
    return status_of_code(code) if isinstance(code, str) else None


def format_statuses() -> str:
    """Return the statuses as text for `--help`."""
    return "\n".join(f"  {status:>3}  {meaning}" for status, meaning in MEANING.items())


def epilog() -> str:
    """Return the statuses for the end of a `--help` text."""
    return f"\b\nExit statuses:\n{format_statuses()}"


def run_command(command: click.Command, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `command` and exit with the status that it returns, or with that of its error.

    `arguments` default to those of the process. An error with a code prints one line to stderr, or one
    per fault; a bug keeps its traceback.
    """
    try:
        status = command.main(arguments, prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except SystemExit:
        status = OK  # click exits this way when the reader of our output has closed it, which is fine
    except OSError as error:
        if error.errno not in _DISK:
            raise
        status = STORAGE
        _drop_output()
        click.echo(f"{program}: cannot write: {error.strerror}", err=True)
    except Exception as error:
        status = status_of_error(error)
        if status is None:
            raise
        click.echo(f"{program}: {describe_error(error, _list_verbs(command))}", err=True)
    sys.exit(status or OK)


def _drop_output() -> None:
    """Discard what stdout still buffers, so that the interpreter does not fail on it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def _list_verbs(command: click.Command) -> list[str]:
    return command.list_commands(click.Context(command)) if isinstance(command, click.Group) else []


def describe_error(error: Exception, verbs: Collection[str]) -> str:
    """Return the error's text, with its hint if it has one.

    Commands in the text, which are `verbs`, get the `--home` option that you gave, so that they use the same
    home.
    """
    hint = getattr(error, "hint", None)
    text = f"{error} ({hint})" if hint else str(error)
    return add_home_option(text, getattr(error, "home_words", ()), verbs)


def add_home_option(text: str, home: Sequence[str], verbs: Collection[str]) -> str:
    """Return `text` with the `--home` option, if you gave one, added to each command of these in it."""
    if not home:
        return text
    words = " ".join(map(quote, home))
    return _COMMAND.sub(lambda found: f"{found[0]} {words}" if found[1] in verbs else found[0], text)
