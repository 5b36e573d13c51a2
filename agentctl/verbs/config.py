"""`agentctl config`: the configuration in force, where each value comes from, and what is wrong with it."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from agentctl import config_keys as known
from agentctl.app import Session, common
from daemon import exits, wording
from daemon.calls.checks import faults
from daemon.config import ConfigError, all_of, load, render_json, render_toml
from daemon.names import unknown


@click.group(epilog=exits.epilog())
@common
def config(session: Session) -> None:
    """Show, check or explain the configuration."""


@config.command(epilog=exits.epilog())
@common
def show(session: Session) -> None:
    """Show every value with its origin; the text is a valid config.toml."""
    effective = load(session.home, os.environ)
    session.emit(render_json(effective), render_toml(effective).rstrip("\n"))


@config.command(epilog=exits.epilog())
@common
def check(session: Session) -> None:
    """Report every unknown key, wrong value and unknown name at once, and what is wrong with prompts.

    Where models are asked, also models and keys that are missing, and a run that may not spend.
    """
    effective, _ = all_of(
        lambda: load(session.home, os.environ, look_up=unknown), lambda: wording.read(session.home)
    )
    if wrong := faults(effective.config.run, effective.config.daemon, os.environ):
        raise ConfigError(wrong)
    session.emit({"ok": True, "home": str(session.home)}, f"ok: {session.home}")


@config.command(epilog=exits.epilog())
@common
def keys(session: Session) -> None:
    """List every key as a Markdown table: values, default, unit, when a change counts, meaning."""
    found = known.keys()
    session.emit([asdict(key) for key in found], "\n".join(known.table(found)))
