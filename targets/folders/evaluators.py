"""The evaluator of a folder: the C pipeline with the folder's tools, or the folder's command."""

from __future__ import annotations

from remote.errors import InfrastructureError
from remote.evaluator import Evaluator
from remote.judge_service import JudgeService
from remote.registry import EvaluatorResources, EvaluatorSpec
from targets.c.compiler import find_compiler, read_version
from targets.c.evaluator import CpuEvaluator
from targets.c.foreign_runner import find_runner
from targets.folders.command_evaluator import CommandEvaluator, find_command
from targets.folders.description import TargetFolderError
from targets.folders.target import EVALUATOR, FolderTarget, load_folder_target


def create_evaluator(spec: EvaluatorSpec, resources: EvaluatorResources) -> Evaluator:
    """Return the evaluator of a folder for a home.

    Raises:
        InfrastructureError: bad_target, the folder is none any more.
    """
    try:
        target = load_folder_target(spec.target)
    except TargetFolderError as error:
        raise InfrastructureError(error.code, str(error), retryable=False) from error
    judge = JudgeService(
        home=resources.home, slots=resources.slots, allow_weak_jail=resources.allow_weak_jail
    )
    pipeline = target.folder.description.c
    if pipeline is None:
        return CommandEvaluator(judge, target)
    return CpuEvaluator(judge, device=target.device(pipeline), name=EVALUATOR)


def describe_tools(target: FolderTarget) -> str:
    """Return the versions of compiler and runner, or of the command.

    Raises:
        InfrastructureError: no_compiler, no_runner, no_command.
    """
    pipeline = target.folder.description.c
    if pipeline is None:
        return find_command(target)
    toolchain = target.device(pipeline).toolchain
    told = [find_compiler(toolchain).version]
    if toolchain.runner:
        told.append(read_version(find_runner(toolchain.runner, toolchain.packages)))
    counted = "instructions are counted, and latencies predicted from them"
    return f"{', '.join(told)}; {counted if pipeline.counts else 'the CPU time of kernels is measured'}"
