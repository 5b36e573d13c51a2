"""Compiles the examples of a folder in the jail: an example that does not compile is told to nobody."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from remote.errors import InfrastructureError
from remote.jail_backends import jail_strength
from remote.judge.job import JudgeOutcome
from targets.c.compiler import KernelBuilder, find_compiler
from targets.folders.description import CPipeline, TargetFolder
from targets.folders.target import FolderTarget

CODE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADER = """#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
enum { M = 64, N = 64, K = 64 };
"""


async def find_uncompilable(codes: dict[str, str], pipeline: CPipeline) -> dict[str, str] | None:
    """Return for each example that does not compile the compiler's message; None without a compiler."""
    toolchain = FolderTarget.toolchain_of(pipeline)
    try:
        compiler = find_compiler(toolchain)
    except InfrastructureError:
        return None
    found: dict[str, str] = {}
    with TemporaryDirectory(prefix="examples-") as home:
        builder = KernelBuilder(Path(home), jail_strength(), toolchain)
        command = [compiler.path, *toolchain.flags, "-std=gnu11", "-c", "-fdiagnostics-color=never"]
        for name, code in codes.items():
            built = await builder.compile_source("example.c", code, command, header=_HEADER)
            if isinstance(built, JudgeOutcome):
                found[name] = built.error.message if built.error else "it does not compile"
    return found


def example_codes(folder: TargetFolder) -> dict[str, str]:
    """Return the code in the examples of a folder, by name."""
    return {
        name: "\n".join(CODE.findall(text))
        for name, text in folder.texts.items()
        if name.startswith("examples/") and CODE.search(text)
    }
