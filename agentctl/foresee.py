"""`--dry-run` of the verbs that start a run: what its models would cost; nothing is started, nothing sent."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentctl.app import Session
from agentctl.choices import submission
from agentctl.words import usd
from daemon.config import ConfigError, Effective
from seeds.folder import KERNEL

if TYPE_CHECKING:
    from agentctl.cost_estimate import Estimate, Row

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what the run's models would cost, and start nothing."
)


def foresee(session: Session, wanted: Effective, kernel: Path | None) -> int:
    """Print what a run would cost.

    Raises:
        ConfigError: a planner is none, its models could not be asked, or have no room for its prompts.
    """
    import seeds
    from agent_core import proposers
    from agent_core.roles import RoleError
    from agentctl.cost_estimate import estimate
    from daemon import wording
    from daemon.calls.checks import faults

    command = submission(wanted, kernel)
    try:
        for name in command.config.planner:
            proposers.require(name)
    except proposers.ProposerError as error:
        raise ConfigError([f"run.planner: {error}"]) from error
    if wrong := faults(command.config, wanted.config.daemon, os.environ, sends=False):
        raise ConfigError(wrong)
    source = command.kernel if command.kernel is not None else command.files[KERNEL].decode()
    config = wanted.config.model_copy(update={"run": command.config})
    try:
        found = estimate(config, seeds.from_files(command.files), source, wording.read(session.home))
    except RoleError as error:
        raise ConfigError([f"run.llm.models: {error.info.message}; {error.info.hint}"]) from error
    session.emit(
        {
            "rows": [asdict(row) for row in found.rows],
            "rounds": found.rounds,
            "usd": found.usd,
            "most_usd": found.most_usd,
            "cap_usd": found.cap_usd,
        },
        "\n".join(lines(found)),
    )
    return 0


def lines(found: Estimate) -> list[str]:
    """Return an estimate for people."""
    if not found.rows:
        return ["no planner of this run asks a model: it costs nothing"]
    width = max(len(row.model) for row in found.rows)
    head = ("role", "model", "calls", "tokens in", "shared", "out", "US$")
    table = [_columns(head, width), *(_columns(_told(row), width) for row in found.rows)]
    return [*table, *(_unpriced(found) or _summed(found))]


def _columns(cells: tuple[str, ...], width: int) -> str:
    role, model, calls, *numbers = cells
    return f"{role:<11} {model:<{width}} {calls:>12} " + " ".join(f"{one:>9}" for one in numbers)


def _told(row: Row) -> tuple[str, ...]:
    calls = f"{row.calls:.0f}" if row.calls == row.most_calls else f"{row.calls:.0f} to {row.most_calls:.0f}"
    tokens = (row.input_tokens, row.shared_tokens, row.output_tokens)
    return (row.role, row.model, calls, *map(str, tokens), usd(row.usd))


def _summed(found: Estimate) -> list[str]:
    rounds = "1 round" if found.rounds == 1 else f"{found.rounds} rounds"
    return [
        f"in all {usd(found.usd)} for {rounds}, with nothing repaired and answers as short as assumed;",
        f"up to {usd(found.most_usd)} with every repair, nothing cached, and answers as long as they may be",
        f"the run ends when what is left of {usd(found.cap_usd)} (run.cap_usd) has no room for another call",
    ]


def _unpriced(found: Estimate) -> list[str]:
    models = dict.fromkeys(row.model for row in found.rows if row.usd is None)
    return [
        f"nobody knows what {model} costs: run.cap_usd cannot be kept for it; "
        f"set daemon.prices, such as {model}=3/0.3/15"
        for model in models
    ]
