"""`--dry-run` of the verbs that start a run: estimates what its models would cost, and starts nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentctl.app import Session
from agentctl.formatting import format_usd
from agentctl.run_flags import load_submission
from daemon.config import ConfigError, EffectiveConfig
from seeds.problem_files import KERNEL_FILE

if TYPE_CHECKING:
    from agentctl.cost_estimate import CostEstimate, EstimateRow
    from daemon.command_models import Submit

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what the run's models would cost, and start nothing."
)


def estimate_submission(home: Path, wanted: EffectiveConfig, command: Submit) -> CostEstimate:
    """Return what the run that a command starts would cost.

    Raises:
        ConfigError: a planner is unknown, or its models cannot be asked or are too small for its
            prompts.
    """
    import seeds
    from agent_core import proposers
    from agent_core.roles import RoleError
    from agentctl.cost_estimate import estimate_cost
    from daemon import prompt_overrides
    from daemon.calls.model_checks import find_model_faults

    try:
        for name in command.config.planner:
            proposers.require_known_proposer(name)
    except proposers.ProposerError as error:
        raise ConfigError([f"run.planner: {error}"]) from error
    if wrong := find_model_faults(command.config, wanted.config.daemon, os.environ, sends=False):
        raise ConfigError(wrong)
    source = command.kernel if command.kernel is not None else command.files.get(KERNEL_FILE, b"").decode()
    config = wanted.config.model_copy(update={"run": command.config})
    problem = seeds.build_problem(command.files)
    try:
        return estimate_cost(config, problem, source, prompt_overrides.load_prompts(home))
    except RoleError as error:
        raise ConfigError([f"run.llm.models: {error.info.message}; {error.info.hint}"]) from error


def print_estimate(session: Session, wanted: EffectiveConfig, kernel: Path | None) -> int:
    """Print what a run would cost.

    Raises:
        ConfigError: as `estimate_submission` does.
    """
    found = estimate_submission(session.home, wanted, load_submission(session.home, wanted, kernel))
    session.emit(
        {
            "rows": [asdict(row) for row in found.rows],
            "rounds": found.rounds,
            "usd": found.usd,
            "most_usd": found.most_usd,
            "cap_usd": found.cap_usd,
            "agent_usd": found.agent_usd,
            "breadths": [one._asdict() for one in found.breadths],
        },
        "\n".join(format_estimate(found)),
    )
    return 0


def format_estimate(found: CostEstimate) -> list[str]:
    """Return the lines of an estimate."""
    agents = list(_agent_lines(found))
    if not found.rows:
        return agents or ["no planner of this run asks a model: it costs nothing"]
    width = max(len(row.model) for row in found.rows)
    head = ("role", "model", "calls", "tokens in", "shared", "out", "US$")
    table = [_format_columns(head, width), *(_format_columns(_row_cells(row), width) for row in found.rows)]
    return [*table, *agents, *(_unpriced_lines(found) or ([] if agents else _summary_lines(found)))]


def _agent_lines(found: CostEstimate) -> Iterator[str]:
    if found.agent_usd == 0:
        yield "the coding agent is said to be free (run.agent.usd = 0)"
    elif found.agent_usd is not None:
        held, cap = format_usd(found.agent_usd), format_usd(found.cap_usd)
        yield f"each plan of the coding agent holds {held} of {cap} (run.cap_usd) while it works;"
        yield "what it costs in all is not known beforehand"


def _format_columns(cells: tuple[str, ...], width: int) -> str:
    role, model, calls, *numbers = cells
    return f"{role:<11} {model:<{width}} {calls:>12} " + " ".join(f"{one:>9}" for one in numbers)


def _row_cells(row: EstimateRow) -> tuple[str, ...]:
    calls = f"{row.calls:.0f}" if row.calls == row.most_calls else f"{row.calls:.0f} to {row.most_calls:.0f}"
    tokens = (row.input_tokens, row.shared_tokens, row.output_tokens)
    return (row.role, row.model, calls, *map(str, tokens), format_usd(row.usd))


def _summary_lines(found: CostEstimate) -> list[str]:
    rounds = "1 round" if found.rounds == 1 else f"{found.rounds} rounds"
    usd, most_usd, cap_usd = map(format_usd, (found.usd, found.most_usd, found.cap_usd))
    return [
        *_breadth_lines(found),
        f"in all {usd} for {rounds}, with nothing repaired and answers as short as assumed;",
        f"up to {most_usd} with every repair, nothing cached, and answers as long as they may be",
        f"the run ends when what is left of {cap_usd} (run.cap_usd) has no room for another call",
    ]


def _breadth_lines(found: CostEstimate) -> Iterator[str]:
    """Yield what rounds ask for where the cap decides it, equal rounds together."""
    number = 1
    for breadth, equal in groupby(found.breadths):
        last = number + len(list(equal)) - 1
        rounds = f"round {number}" if last == number else f"rounds {number} to {last}"
        kernels = "1 kernel" if breadth.kernels == 1 else f"{breadth.kernels} kernels"
        times = "once" if breadth.implementations == 1 else f"{breadth.implementations} times"
        plans = "1 plan" if breadth.plans == 1 else f"{breadth.plans} plans"
        yield f"{rounds}: {kernels}, {plans} for each, carried out {times} (run.llm.scale_to_cap)"
        number = last + 1


def _unpriced_lines(found: CostEstimate) -> list[str]:
    models = dict.fromkeys(row.model for row in found.rows if row.usd is None)
    return [
        f"nobody knows what {model} costs: run.cap_usd cannot be kept for it; "
        f"set daemon.prices, such as {model}=3/0.3/15"
        for model in models
    ]
