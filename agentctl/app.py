"""The verbs of `agentctl` and the options that all of them take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from agentctl.examples import EXAMPLES, HEADING, format_examples
from agentctl.progress_bar import ProgressBar
from agentctl.sections import SECTIONS
from agentctl.terminal_style import print_text, should_colour
from daemon import exits
from daemon.home_paths import HOME, resolve_home

VERBS = {
    "run": "run:run",
    "tune": "tune:tune",
    "resume": "run:resume",
    "submit": "steer:submit",
    "pause": "steer:pause",
    "cancel": "steer:cancel",
    "propose": "steer:propose",
    "set": "steer:set_settings",
    "approve": "steer:approve",
    "fork": "fork:fork",
    "tree": "tree:tree",
    "lineage": "lineage:lineage",
    "replay": "lineage:replay",
    "rescore": "rescore:rescore",
    "stats": "stats:stats",
    "report": "report:report",
    "export": "export:export",
    "status": "status:status",
    "tail": "tail:tail",
    "show": "show:show",
    "why": "why:why",
    "wait": "wait:wait",
    "best": "kernels:best",
    "diff": "kernels:diff",
    "try": "try_:try_kernel",
    "problems": "problems:problems",
    "verify": "maintenance:verify",
    "backup": "maintenance:backup",
    "restore": "maintenance:restore",
    "archive": "maintenance:archive",
    "import": "maintenance:import_run",
    "compact": "maintenance:compact",
    "repair": "maintenance:repair",
    "migrate": "maintenance:migrate",
    "config": "config:config",
    "prompts": "prompts:prompts",
    "memory": "memory:memory",
    "service": "service:service",
    "host": "host:host",
    "bench": "bench:bench",
    "doctor": "doctor:doctor",
    "completion": "completion:completion",
    "ui": "ui:ui",
}
"""Each verb's module in `agentctl.verbs` and its command there."""


@dataclass(slots=True)
class Session:
    """What the options say that every verb takes, wherever on the line they stand."""

    home_option: Path | None = None
    json: bool = False

    @property
    def home(self) -> Path:
        return resolve_home(self.home_option, os.environ)

    @property
    def home_words(self) -> tuple[str, ...]:
        """What a command to type needs to mean the same home."""
        return ("--home", str(self.home_option)) if self.home_option else ()

    def progress_bar(self, what: str) -> ProgressBar:
        """Return a bar for work that may take a while; where the answer is JSON, nobody sees it."""
        return ProgressBar(what, wanted=not self.json)

    def emit(self, value: Any, text: str | None = None, *, exact: bool = False) -> None:
        """Write `value` as one line of JSON if `--json` was given, else `text` (nothing when None).

        What is `exact` goes into a file or a pipe as it is; a terminal is sent nothing but text in any case.
        """
        if self.json:
            click.echo(json.dumps(value), color=should_colour())
        elif text is not None:
            print_text(text, exact=exact)


def _store_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(context.ensure_object(Session), str(parameter.name), value)


def common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--home` and `--json` to a command, and give it the session as its first argument."""
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
            help="The home; default: $STATE_DIRECTORY, or yours.",
        ),
    ):
        function = option(function)
    return click.make_pass_decorator(Session, ensure=True)(function)


CONTEXT_SETTINGS = {"max_content_width": 110, "help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group whose verbs are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the library's signature
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - the library's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, name = VERBS[cmd_name].split(":")
        command: click.Command = getattr(import_module(f"agentctl.verbs.{module}"), name)
        if cmd_name in EXAMPLES and not (command.epilog or "").startswith(HEADING):
            command.epilog = f"{format_examples(cmd_name)}\n\n{command.epilog or ''}"
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Carry a verb out; an error that names a command to type is told which home was named."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            session = ctx.find_object(Session)
            error.home_words = session.home_words if session else ()  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the verbs by what they are for."""
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; of one that there is not, name the nearest that there is."""
        name = args[0]
        close = [] if name in VERBS else get_close_matches(name, VERBS, n=2, cutoff=0.6)
        if close:  # letters that changed places are the commonest slip
            close.sort(key=lambda verb: sorted(verb) != sorted(name))
            ctx.fail(f"No such command {name!r}; did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=exits.epilog(), context_settings=CONTEXT_SETTINGS)
@click.version_option(package_name="nki-kernel-agent")
@common_options
def agentctl(session: Session) -> None:
    """Start, steer and look at runs that optimise kernels."""
