"""The verbs of `agentctl` and the options that all of them take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from agentctl.examples import EXAMPLES, HEADING, format_examples
from agentctl.progress_bar import ProgressBar
from agentctl.terminal_style import print_text, should_colour
from agentctl.verb_table import SECTIONS, VERBS
from daemon import exits
from daemon.home_paths import HOME, resolve_home
from daemon.privileges import become_home_user


@dataclass(slots=True)
class Session:
    """The values of the options that every verb takes, wherever they stand on the line."""

    home_option: Path | None = None
    json: bool = False
    resolved_home: Path | None = None

    @property
    def home(self) -> Path:
        return self.resolved_home or resolve_home(self.home_option, os.environ)

    def become_home_user(self) -> None:
        """Do all that follows as the user of the home, if this process is root."""
        self.resolved_home = self.home  # the user's environment would name another one
        become_home_user(self.resolved_home)

    @property
    def home_words(self) -> tuple[str, ...]:
        """The words that a suggested command needs to use the same home."""
        return ("--home", str(self.home_option)) if self.home_option else ()

    def progress_bar(self, what: str) -> ProgressBar:
        """Return a progress bar for slow work; it stays hidden with `--json`."""
        return ProgressBar(what, wanted=not self.json)

    def emit(self, value: Any, text: str | None = None, *, exact: bool = False) -> None:
        """Write `value` as one line of JSON with `--json`, else `text` (nothing if it is None).

        `exact` text is written unchanged to a file or a pipe; a terminal always gets printable text
        only.
        """
        if self.json:
            click.echo(json.dumps(value), color=should_colour())
        elif text is not None:
            print_text(text, exact=exact)


def _store_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(context.ensure_object(Session), str(parameter.name), value)


def common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--home` and `--json` to a command, and pass it the session as its first argument.

    Root becomes the user of the home first.
    """
    return _with_options(_as_home_user(function))


def root_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do what `common_options` does, for a command that root runs as root."""
    return _with_options(function)


def _as_home_user(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(session: Session, *arguments: Any, **options: Any) -> Any:
        if click.get_current_context().invoked_subcommand is None:  # `--home` may stand after the subcommand
            session.become_home_user()
        return function(session, *arguments, **options)

    return run


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--json",
            "json",
            is_flag=True,
            expose_value=False,
            callback=_store_option,
            help="Write JSON to stdout.",
        ),
        click.option(
            "--home",
            "home_option",
            type=HOME,
            expose_value=False,
            callback=_store_option,
            help="The home, which holds the log; default: $STATE_DIRECTORY, else nki-kernel-agent in "
            "$XDG_STATE_HOME or ~/.local/state.",
        ),
    ):
        function = option(function)
    return click.make_pass_decorator(Session, ensure=True)(function)


CONTEXT_SETTINGS = {"max_content_width": 110, "help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group that imports a verb's module only when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the library's signature
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - the library's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, name = VERBS[cmd_name].command.split(":")
        command: click.Command = getattr(import_module(f"agentctl.verbs.{module}"), name)
        if cmd_name in EXAMPLES and not (command.epilog or "").startswith(HEADING):
            command.epilog = f"{format_examples(cmd_name)}\n\n{command.epilog or ''}"
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; if it fails, attach the `--home` option to the error, for the commands that the
        error suggests.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:
            session = ctx.find_object(Session)
            error.home_words = session.home_words if session else ()  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the verbs, grouped by purpose."""
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for an unknown one, suggest the nearest verbs."""
        name = args[0]
        close = [] if name in VERBS else get_close_matches(name, VERBS, n=2, cutoff=0.6)
        if close:  # swapped letters are the commonest slip, so such verbs come first
            close.sort(key=lambda verb: sorted(verb) != sorted(name))
            ctx.fail(f"No such command {name!r}; did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=exits.epilog(), context_settings=CONTEXT_SETTINGS)
@click.version_option(package_name="nki-kernel-agent")
@common_options
def agentctl(session: Session) -> None:
    """Start, steer and look at runs that optimise kernels."""
