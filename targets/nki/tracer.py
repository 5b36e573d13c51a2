"""The simulator's tracer for evaluators: its jailed program, its requests, and its version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import nki_sim
from remote.jail_backends import JailedProgram, JailLimits
from seeds import Problem
from targets.nki.language import NKI

MAX_INSTRUCTIONS = 500_000
"""Seven times the instructions of NKIBench's largest plain kernel; timing them takes about ten seconds."""


class NkiTracer:
    """Traces a kernel's Python into a program: once, in the jail, seeing shapes and never data."""

    name = "nki_sim"

    def toolchain(self) -> str:
        """Return the simulator's name, version and model version."""
        return nki_sim.toolchain()

    def program(self, limits: JailLimits, *flags: str) -> JailedProgram:
        """Return the program to run in the jail; with `--batch` it answers one request per line."""
        return JailedProgram(
            "nki_sim.tracer",
            (*flags, "--out-fd"),
            packages=(Path(nki_sim.__file__).parent,),
            site_packages=True,  # NumPy, for kernels that import it
            fills_memory=True,
            limits=limits,
        )

    def request(
        self, source: str, problem: Problem, dims: Mapping[str, int], *, target: str, repeat: bool = False
    ) -> bytes:
        """Return the request to trace a kernel, on one line; with `repeat` its program must not change."""
        spec = problem.spec
        arrays = [
            {"shape": item.resolve_kernel_shape(dict(dims)), "dtype": item.dtype} for item in spec.inputs
        ]
        fields = {
            "source": source,
            "filename": NKI.kernel_file,
            "args": spec.call_arguments(arrays, lambda value: {"value": value}),
            "target": target,
            "repeat": repeat,
            "limits": {"max_instructions": MAX_INSTRUCTIONS},
        }
        return json.dumps(fields).encode()
