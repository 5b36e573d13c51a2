"""The commands that reproduce a run: judge its best kernel, and run again from the start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

from daemon.config import FLAGS, MODEL_DEFAULTS
from state.fold import RunState
from state.model import RunConfig
from targets.registry import kernel_suffix, load_target

if TYPE_CHECKING:
    from seeds import Problem

FOLDER, HOME = "problem", "again"
"""The names in the commands: the problem's folder, a new home."""

_PROGRAM = "agentctl"
_PRIVATE = ("run.hosts", "run.score.command", "run.score.folder")
"""Settings that are left out because they name somebody's machines and what runs there."""
_OF_FLAGS = {"run.problem", "run.size", "run.target", "run.seed"}
_MOST_BYTES = 256 << 10
"""The maximum size of a problem's files together, to be included in a report."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Shell commands in three steps, and what they can and cannot show.

    `extract` exports what the other steps need from the run's home; `judge` judges the best kernel;
    `again` runs once more in a new home. `files` are those of a problem that is not built in, if they
    are small enough for the report.
    """

    extract: tuple[str, ...]
    judge: tuple[str, ...]
    again: tuple[str, ...]
    notes: tuple[str, ...]
    files: dict[str, str]


NO_REPRODUCTION = Reproduction((), (), (), ("this program cannot read the problem's files",), {})


def reproduction_commands(
    run: str, state: RunState, problem: Problem, *, builtin: bool, forked: bool
) -> Reproduction:
    """Return the commands for a run of `problem`, which may be built in."""
    named = problem.name if builtin else FOLDER
    at = ["--problem", named, "--size", state.config.size, "--target", state.config.target]
    kernel_file = load_target(state.config.target).language.kernel_file
    suffix = kernel_suffix(state.config.target)
    kernel, start_file = f"best{suffix}", f"start{suffix}"
    own_start = state.kernel not in {None, problem.make_ref().files.get(kernel_file)}
    start = ["--kernel", start_file] if own_start else []
    wanted = [*([] if builtin else ["-o", FOLDER]), *(["--kernel", start_file] if own_start else [])]
    export = [_shell_command("problems", "export", run, *wanted)] if wanted else []
    best = [_shell_command("best", run, "-o", kernel)] if state.best is not None else []
    judge = [_shell_command("try", kernel, *at)] if state.best is not None else []
    seed = ["--seed", str(state.config.seed)]
    again = _shell_command("run", "--home", HOME, *at, *seed, *start, *_setting_flags(state.config))
    return Reproduction(
        extract=(*export, *best),
        judge=tuple(judge),
        again=(again,),
        notes=tuple(_reproduction_notes(state, forked=forked)),
        files={} if builtin else _text_files(problem.files),
    )


def _shell_command(*words: str) -> str:
    return " ".join(map(quote, (_PROGRAM, *words)))


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run that differ from the defaults, by key; private ones are left out."""
    defaults = _flatten_settings(RunConfig().model_dump(mode="json"), "run")
    return {
        key: value
        for key, value in _flatten_settings(config.model_dump(mode="json"), "run").items()
        if value != defaults.get(key) and not key.startswith(_PRIVATE)
    }


def _setting_flags(config: RunConfig) -> Iterator[str]:
    """Yield flags for settings that are not the default, and for defaults that LLM planners change."""
    from agent_core.proposers import is_llm_proposer

    values = _flatten_settings(config.model_dump(mode="json"), "run")
    wanted = changed_settings(config)
    if any(map(is_llm_proposer, config.planner)):
        wanted |= {key: values.get(key, False) for key in MODEL_DEFAULTS}  # what is false may be left out
    for key, value in sorted(wanted.items()):
        if key in _OF_FLAGS:
            continue
        if key in FLAGS:
            yield from (FLAGS[key], str(value))
        else:
            yield from ("--set", f"{key}={json.dumps(value)}")


def _flatten_settings(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}.{name}"
        found |= _flatten_settings(value, key) if isinstance(value, dict) else {key: value}
    return found


def _reproduction_notes(state: RunState, *, forked: bool) -> Iterator[str]:
    from agent_core.proposers import is_llm_proposer

    if state.config.evaluator == "sim":
        yield "judging is exact: the same kernel has the same verdict and the same predicted latency anywhere"
    else:
        yield "devices' latencies differ a little from one time to the next; `try` predicts by the simulator"
    if any(map(is_llm_proposer, state.config.planner)):
        yield "models planned, so another run asks again, and pays again, and finds something else"
    elif state.sequences or state.experiences:
        yield "the run was given what other runs of its home had learnt; a new home has none of it"
    else:
        yield "without models a run with the same seed ends with the same kernels"
    if forked:
        yield "the run is a fork: run once more from the start, it goes by its last settings all the way"


def _text_files(files: Mapping[str, bytes]) -> dict[str, str]:
    if sum(map(len, files.values())) > _MOST_BYTES:
        return {}
    try:
        return {path: data.decode() for path, data in files.items()}
    except UnicodeDecodeError:
        return {}
