"""`agentctl config`: the configuration in force, where each value comes from, and what is wrong with it."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from agentctl import config_keys as known
from agentctl.app import Session, common_options
from daemon import exits, prompt_overrides
from daemon.calls.model_checks import find_model_faults
from daemon.config import ConfigError, load_config, read_all, render_json, render_toml
from daemon.name_checks import find_unknown_names


@click.group(epilog=exits.epilog())
@common_options
def config(session: Session) -> None:
    """Show, check or explain the configuration."""


@config.command(epilog=exits.epilog())
@common_options
def show(session: Session) -> None:
    """Show every value with its origin; the text is a valid config.toml."""
    effective = load_config(session.home, os.environ)
    session.emit(render_json(effective), render_toml(effective).rstrip("\n"))


@config.command(epilog=exits.epilog())
@common_options
def check(session: Session) -> None:
    """Report every unknown key, wrong value and unknown name at once, and what is wrong with prompts.

    If planners ask models: also report missing models, missing keys, and caps of 0.
    """
    effective, _ = read_all(
        lambda: load_config(session.home, os.environ, look_up=find_unknown_names),
        lambda: prompt_overrides.load_prompts(session.home),
    )
    if wrong := find_model_faults(effective.config.run, effective.config.daemon, os.environ):
        raise ConfigError(wrong)
    session.emit({"ok": True, "home": str(session.home)}, f"ok: {session.home}")


@config.command(epilog=exits.epilog())
@common_options
def keys(session: Session) -> None:
    """List every key as a Markdown table: values, default, unit, when a change counts, meaning."""
    found = known.list_config_keys()
    session.emit([asdict(key) for key in found], "\n".join(known.format_key_table(found)))
