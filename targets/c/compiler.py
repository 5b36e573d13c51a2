"""Compiles kernels in the jail, and keeps the libraries by what they were made from.

A library is `<home>/cache/c/<digest>/kernel.so`, where the digest covers source, header, command and
compiler. It is a cache: deleting any of it costs only time. A library is as untrusted as its source, and is
only ever loaded in the jail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import targets
from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext, rejected_outcome
from remote.jail_backends import JailedProgram, JailLimits, JailStrength
from remote.judge.job import JudgeOutcome
from remote.judge.rejection import escape_unprintable
from remote.sandbox import JailResult, run_jailed
from state.atomic_files import atomic_write
from state.model import Verdict, canonical_json, digest_of
from targets.c.header import render_header
from targets.c.language import STANDARDS, BuildSettings, read_settings
from targets.c.toolchain import HOST_TOOLCHAIN, CToolchain

_LIMITS = JailLimits(
    cpu_s=120, wall_s=600, memory_bytes=4 << 30, file_bytes=64 << 20, processes=1 << 15, answer_bytes=64 << 20
)
_ALWAYS = (
    "-shared",
    "-D_GNU_SOURCE",
    "-fPIC",
    "-fvisibility=default",
    "-Wall",
    "-fdiagnostics-color=never",
    "-fno-diagnostics-show-caret",
)
_FIRST_ERROR = re.compile(r"^(?:kernel\.c(?:pp)?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)
_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A compiled kernel: the folder of its library, the digest of what it was made from, how it was made."""

    folder: Path
    digest: str
    threads: int

    @property
    def library(self) -> Path:
        """The library's file."""
        return self.folder / "kernel.so"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler of this machine: path of the C compiler and of the C++ one, and its version for people."""

    path: str
    cpp_path: str | None
    version: str


@cache
def find_compiler(toolchain: CToolchain = HOST_TOOLCHAIN) -> Compiler:
    """Return the first compiler of a toolchain that is here.

    Raises:
        InfrastructureError: no_compiler.
    """
    for name, cpp_name in toolchain.compilers:
        if (path := shutil.which(name)) is not None:
            return Compiler(os.path.realpath(path), shutil.which(cpp_name), read_version(path))
    names = ", ".join(name for name, _ in toolchain.compilers)
    text = f"no C compiler is here ({names}); install {toolchain.packages}"
    raise InfrastructureError("no_compiler", text, retryable=False)


def read_version(program: str, *options: str) -> str:
    """Return the first line that a program prints, by default for --version; its path if there is none."""
    command = [program, *(options or ("--version",))]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return (told.stdout.splitlines() or [program])[0].strip()


class KernelBuilder:
    """Compiles kernels of one home, in jails of this strength."""

    def __init__(self, home: Path, strength: JailStrength, toolchain: CToolchain = HOST_TOOLCHAIN) -> None:
        self._folder = home / "cache" / "c"
        self._strength = strength
        self._toolchain = toolchain

    async def build(
        self, run: EvaluationContext, source_bytes: bytes | None = None
    ) -> BuiltKernel | JudgeOutcome:
        """Return the compiled kernel (or another one for the same problem), or the verdict on one that does
        not compile.

        Raises:
            InfrastructureError: no_compiler, or the jail failed.
        """
        source = (run.source if source_bytes is None else source_bytes).decode()
        settings = read_settings(source)
        command = make_command(settings, self._toolchain)
        if isinstance(command, JudgeOutcome):
            return command
        header = render_header(run.problem.spec, run.request.size)
        name = "kernel.cpp" if settings.is_cpp else "kernel.c"
        return await self.compile_source(name, source, command, header=header, threads=settings.threads)

    async def build_program(self, source: str, command: Sequence[str], *, header: str = "") -> Path:
        """Return what this project's own source was compiled to.

        Raises:
            InfrastructureError: program_failed, or the jail failed.
        """
        built = await self.compile_source("program.c", source, command, header=header)
        if isinstance(built, JudgeOutcome):
            said = built.error.message if built.error else ""
            text = f"the program that calls kernels does not compile here: {said}"
            raise InfrastructureError("program_failed", text, retryable=False)
        return built.library

    async def compile_source(
        self, name: str, source: str, command: Sequence[str], *, header: str = "", threads: int = 1
    ) -> BuiltKernel | JudgeOutcome:
        """Return what a file of this name was compiled to, or the verdict on one that does not compile.

        Raises:
            InfrastructureError: no_compiler, or the jail failed.
        """
        parts = (source, header, command, find_compiler(self._toolchain).version)
        digest = digest_of(canonical_json(parts))
        built = BuiltKernel(self._folder / digest, digest, threads)
        if not built.library.exists():
            request = {"name": name, "source": source, "header": header, "command": command}
            result = await self._run_compiler(request)
            refused = _compile_failure(result)
            if refused is not None:
                return refused
            _store_library(built, result.answer.partition(b"\n")[2])
        return built

    async def _run_compiler(self, request: object) -> JailResult:
        with TemporaryDirectory(prefix="build-") as scratch:
            program = JailedProgram(
                "targets.c.jailed.compile_kernel",
                packages=(Path(targets.__file__).parent,),
                scratch=Path(scratch),
                programs=True,
                variables=(("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")),
                limits=_LIMITS,
            )
            return await run_jailed(program, json.dumps(request).encode(), strength=self._strength)


def make_command(settings: BuildSettings, toolchain: CToolchain = HOST_TOOLCHAIN) -> list[str] | JudgeOutcome:
    """Return the compiler's command line without files; the verdict if this machine has no C++ compiler."""
    found = find_compiler(toolchain)
    path = found.cpp_path if settings.is_cpp else found.path
    if path is None:
        text = "this machine has no C++ compiler (g++)"
        return rejected_outcome(Verdict.COMPILE_ERROR, "compile", "no_cpp_compiler", text)
    flags = toolchain.translate_flags(settings.flags)
    return [path, f"-std={STANDARDS[settings.standard]}", *_ALWAYS, *flags]


def _compile_failure(result: JailResult) -> JudgeOutcome | None:
    """The verdict on a kernel that did not compile; None for one that did."""
    if result.cpu_exhausted or result.asleep:
        return rejected_outcome(
            Verdict.TIMEOUT, "compile", "cpu_limit", "compiling the kernel used up its time"
        )
    if result.was_killed:
        raise InfrastructureError("jail_killed", "the compiler was killed from outside (out of memory?)")
    first, _, library = result.answer.partition(b"\n")
    if result.exit_status or not first or result.truncated:
        text = f"the compiler ended with status {result.exit_status}: {result.stderr.strip()[-300:]}"
        return rejected_outcome(Verdict.COMPILE_ERROR, "compile", "compiler_failed", escape_unprintable(text))
    told = json.loads(first)
    if told["status"] == 0 and library:
        return None
    messages = escape_unprintable(told["messages"])
    error = _FIRST_ERROR.search(messages)
    text = messages.strip()[:_MESSAGE_CHARS] or f"the compiler ended with status {told['status']}"
    line = int(error[1]) if error else None
    return rejected_outcome(Verdict.COMPILE_ERROR, "compile", "compile_error", text, line=line)


def _store_library(built: BuiltKernel, data: bytes) -> None:
    built.folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(built.library, mode=0o755) as part:
        part.write_bytes(data)
