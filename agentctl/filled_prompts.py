"""The prompts of a run, filled in as its roles would be sent them now; nothing is sent or paid for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.prompting import PromptSet
from agent_core.providers.completion import CompletionRequest
from agent_core.providers.windows import estimate_request_tokens
from agentctl.command_answers import queued_runs
from agentctl.cost_estimate import calls_per_role, models_of_role, render_first_request
from agentctl.run_lookup import complete_run_id, find_run
from agentctl.sample_requests import RunStanding, SampleRequests
from daemon import prompt_overrides
from daemon.command_models import Submit, parse_command
from daemon.config import Config
from daemon.errors import DaemonError, UnknownRun
from daemon.home_paths import inbox_folder
from seeds import build_problem
from seeds.problem_files import KERNEL_FILE
from state.errors import NoLog
from state.model import RunConfig, canonical_json
from state.reader import LogReader

if TYPE_CHECKING:
    from state.run_state import RunState


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    """What one role would send to one model. `tools` are the names of those that the model may call."""

    role: str
    model: str
    tokens: int
    tools: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class RunPrompts:
    """The prompts of a run: their version, and what each role would send; empty if it asks no model."""

    run: str
    version: str
    filled: tuple[FilledPrompt, ...]


def load_run_prompts(home: Path, run: str, config: Config) -> RunPrompts:
    """Return a run's prompts as they would be sent now, from its log or from its queued command.

    Raises:
        UnknownRun: there is no such run.
        RoleError: a prompt does not fit its model.
    """
    name = complete_run_id(home, run)
    command = _find_queued(home, name)
    if command is not None:
        stand_in = _sample_of_command(command)
        return _fill_prompts(
            name, stand_in, config, run_config=command.config, prompts=prompt_overrides.load_prompts(home)
        )
    try:
        with LogReader.open(home) as reader:
            name = str(find_run(reader, name)["run"])
            state = reader.run_state(name)
            prompts = _prompts_of_run(reader, state, home)
            run_config = state.pending_config or state.config
            stand_in = _sample_of_state(reader, state, run_config)
            return _fill_prompts(name, stand_in, config, run_config=run_config, prompts=prompts)
    except NoLog as error:
        raise UnknownRun(f"no run {run!r}: nothing was started or queued here") from error


def _find_queued(home: Path, run: str) -> Submit | None:
    """Return the command in the inbox that will start a run; None if there is none."""
    for name, sent in queued_runs(home):
        if name == run:
            with suppress(OSError, DaemonError):  # its owner has just taken it
                command = parse_command((inbox_folder(home) / f"{sent.id}.json").read_bytes())
                return command if isinstance(command, Submit) else None
    return None


def _fill_prompts(
    run: str, stand_in: SampleRequests, config: Config, *, run_config: RunConfig, prompts: PromptSet
) -> RunPrompts:
    used = config.model_copy(update={"run": run_config})
    filled = [
        _describe(role, share.model, render_first_request(stand_in, role, share.model, used, prompts))
        for role in calls_per_role(run_config)
        for share in models_of_role(run_config, role)
    ]
    return RunPrompts(run, prompts.version, tuple(filled))


def _describe(role: str, model: str, request: CompletionRequest) -> FilledPrompt:
    return FilledPrompt(
        role=role,
        model=model,
        tokens=estimate_request_tokens(request),
        tools=tuple(tool.name for tool in request.tools),
        text="".join(part.text for part in (*request.guide, *request.case)),
    )


def _sample_of_command(command: Submit) -> SampleRequests:
    written = command.files.get(KERNEL_FILE, b"").decode()
    kernel = written if command.kernel is None else command.kernel
    return SampleRequests(command.config, build_problem(command.files), kernel)


def _sample_of_state(reader: LogReader, state: RunState, config: RunConfig) -> SampleRequests:
    """Return requests about the best kernel of a run; before one was judged, about its first."""
    from agent_core.requests import learning_context

    problem = build_problem({path: reader.get_blob(one) for path, one in state.problem.files.items()})
    digest = state.kernel if state.best is None else state.best.source
    kernel = reader.get_blob(digest).decode(errors="replace") if digest is not None else problem.kernel
    standing = None
    if state.best is not None:
        standing = RunStanding(
            parent=state.best,
            bounds=state.bounds,
            best_ms=state.best.latency_ms,
            context=canonical_json(learning_context(state).model_dump(mode="json")),
            read=reader.get_blob,
        )
    return SampleRequests(config, problem, kernel, standing)


def _prompts_of_run(reader: LogReader, state: RunState, home: Path) -> PromptSet:
    """Return the prompts of a run's next round; older runs recorded none, and get the home's."""
    version = state.next_prompts
    if version is None:
        return prompt_overrides.load_prompts(home)
    return PromptSet.from_json(reader.get_blob(version))


def format_run_prompts(found: RunPrompts, role: str | None) -> Iterator[str]:
    """Yield a list of the prompts, or with `role` the text of its prompt, one for each model."""
    if role is None:
        yield f"{found.run}: what each role would be sent now; plan and error are samples"
        for one in found.filled:
            tools = f", {len(one.tools)} tools" if one.tools else ""
            yield f"  {one.role:<11} {one.model}: about {one.tokens:,} tokens{tools}"
        return
    for one in found.filled:
        if one.role == role:
            yield f"--- {one.role} to {one.model}, about {one.tokens:,} tokens"
            yield one.text.rstrip("\n")
