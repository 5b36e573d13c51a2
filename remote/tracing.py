"""What the jailed tracer is asked: a kernel, the shapes of a problem's size, a target, and a limit."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seeds import Problem
from seeds.folder import KERNEL

MAX_INSTRUCTIONS = 500_000
"""Seven times what the largest plain kernel of NKIBench has; timing that many takes some ten seconds."""


def trace_request(source: str, problem: Problem, dims: Mapping[str, int], target: str) -> bytes:
    """Return the request to trace a kernel, on one line."""
    spec = problem.spec
    arrays = [{"shape": item.passed(dict(dims)), "dtype": item.dtype} for item in spec.inputs]
    fields = {
        "source": source,
        "filename": KERNEL,
        "args": spec.arguments(arrays, lambda value: {"value": value}),
        "target": target,
        "limits": {"max_instructions": MAX_INSTRUCTIONS},
    }
    return json.dumps(fields).encode()
