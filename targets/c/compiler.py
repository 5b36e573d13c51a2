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

_COMPILERS = ("gcc", "clang", "cc")
_CPP = {"gcc": "g++", "clang": "clang++", "cc": "c++"}
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
def find_compiler() -> Compiler:
    """Return the first C compiler of this machine.

    Raises:
        InfrastructureError: no_compiler.
    """
    for name in _COMPILERS:
        if (path := shutil.which(name)) is not None:
            told = subprocess.run(
                [path, "--version"], capture_output=True, text=True, check=False, timeout=20
            )
            version = (told.stdout.splitlines() or [name])[0].strip()
            return Compiler(os.path.realpath(path), shutil.which(_CPP[name]), version)
    text = f"no C compiler is here ({', '.join(_COMPILERS)}); install gcc"
    raise InfrastructureError("no_compiler", text, retryable=False)


class KernelBuilder:
    """Compiles kernels of one home, in jails of this strength."""

    def __init__(self, home: Path, strength: JailStrength) -> None:
        self._folder = home / "cache" / "c"
        self._strength = strength

    async def build(self, run: EvaluationContext) -> BuiltKernel | JudgeOutcome:
        """Return the compiled kernel, or the verdict on one that does not compile.

        Raises:
            InfrastructureError: no_compiler, or the jail failed.
        """
        source = run.source.decode()
        settings = read_settings(source)
        command = make_command(settings)
        if isinstance(command, JudgeOutcome):
            return command
        header = render_header(run.problem.spec, run.request.size)
        parts = (source, header, command, find_compiler().version)
        digest = digest_of(canonical_json(parts))
        built = BuiltKernel(self._folder / digest, digest, settings.threads)
        if not built.library.exists():
            name = "kernel.cpp" if settings.is_cpp else "kernel.c"
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


def make_command(settings: BuildSettings) -> list[str] | JudgeOutcome:
    """Return the compiler's command line without files; the verdict if this machine has no C++ compiler."""
    found = find_compiler()
    path = found.cpp_path if settings.is_cpp else found.path
    if path is None:
        text = "this machine has no C++ compiler (g++)"
        return rejected_outcome(Verdict.COMPILE_ERROR, "compile", "no_cpp_compiler", text)
    return [path, f"-std={STANDARDS[settings.standard]}", *_ALWAYS, *settings.flags]


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
