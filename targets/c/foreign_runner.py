"""Starts kernels of another machine: a runner, such as an emulator, and this project's programs for it.

Two programs are compiled, once each, as kernels are: one for the device, which loads a kernel and calls it,
and one for this machine, qemu's plugin that counts instructions. Their sources are in `foreign/`.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext
from remote.jail_backends import JailStrength
from targets.c.compiler import KernelBuilder, find_compiler, read_version
from targets.c.header import render_header
from targets.c.toolchain import CDevice

_SOURCES = Path(__file__).with_name("foreign")
_COUNTER = "@COUNTER@"
_NEW_INTERFACE = 9
"""The first major version of qemu whose plugins name version 2 of their interface."""


@dataclass(frozen=True, slots=True)
class StartedRunner:
    """The command that calls kernels, and the folders that it needs to see."""

    command: tuple[str, ...]
    counts: bool
    folders: tuple[Path, ...]

    def request(self) -> dict[str, Any]:
        """Return what the jailed program is told."""
        return {"command": self.command, "counter": _COUNTER if self.counts else None}


class ForeignRunner:
    """Makes the command that starts kernels of a device."""

    def __init__(self, home: Path, strength: JailStrength, device: CDevice) -> None:
        self._device = device
        self._programs = KernelBuilder(home, strength, device.toolchain)
        self._plugins = KernelBuilder(home, strength)

    async def start(self, run: EvaluationContext) -> StartedRunner:
        """Return the command for the kernels of a problem.

        Raises:
            InfrastructureError: no_runner, no_compiler, program_failed.
        """
        toolchain = self._device.toolchain
        runner = [find_runner(toolchain.runner, toolchain.packages), *toolchain.runner[1:]]
        compiler = find_compiler(toolchain)
        program = await self._programs.build_program(
            _render_caller(run),
            [compiler.path, *toolchain.flags, "-O1", "-D_GNU_SOURCE"],
            header=render_header(run.problem.spec, run.request.size),
        )
        folders, counts = [program.parent], self._device.instruction_ns is not None
        if counts:
            plugin = await self._build_plugin(runner[0])
            folders.append(plugin.parent)
            runner += ["-plugin", f"{plugin},fd={_COUNTER}"]
        return StartedRunner((*runner, str(program)), counts, tuple(folders))

    async def _build_plugin(self, emulator: str) -> Path:
        version = re.search(r"version (\d+)", read_version(emulator))
        interface = 2 if version and int(version[1]) >= _NEW_INTERFACE else 1
        source = (_SOURCES / "count_instructions.c").read_text()
        command = [find_compiler().path, "-O2", "-shared", "-fPIC", f"-DINTERFACE={interface}"]
        return await self._plugins.build_program(source, command)


def find_runner(runner: tuple[str, ...], packages: str) -> str:
    """Return the path of a runner's program.

    Raises:
        InfrastructureError: no_runner.
    """
    if (path := shutil.which(runner[0])) is None:
        raise InfrastructureError(
            "no_runner", f"{runner[0]} is not here; install {packages}", retryable=False
        )
    return path


def _render_caller(run: EvaluationContext) -> str:
    """Return the source of the program that calls the kernels of a problem: with its arguments."""
    spec, arrays = run.problem.spec, iter(range(len(run.problem.spec.inputs) + len(run.problem.spec.outputs)))
    inputs = [f"arrays[{next(arrays)}]" for _ in spec.inputs]
    told = spec.call_arguments(inputs, _render_scalar)
    text = ", ".join([*told, *(f"arrays[{place}]" for place in arrays)])
    return (_SOURCES / "call_kernel.c").read_text().replace("entry(ARGUMENTS)", f"entry({text})")


def _render_scalar(value: float | bool) -> str:
    return str(int(value)) if isinstance(value, bool | int) else float(value).hex()
