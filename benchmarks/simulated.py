"""The process that `benchmarks/sim.py` measures one part of one workload in; prints seconds as JSON.

`python -m benchmarks.simulated PART TARGET REPEATS (--problem NAME SIZE | --pair KERNEL REFERENCE)`, where
PART is `trace`, `run` or `numpy`.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nki_sim
from nki_sim import harness, targets
from nki_sim.checks import program as checks
from nki_sim.running import numerics


@dataclass(frozen=True)
class Workload:
    """A kernel's source, the arguments it is run on, and its reference: source, function, inputs."""

    source: str
    entry: str | None
    arguments: list[Any]
    reference: str
    inputs: list[Any]


def problem(name: str, size: str) -> Workload:
    """A problem of `seeds/`."""
    from seeds import load_problem
    from seeds.inputs import draw_inputs
    from seeds.problem_files import REFERENCE_FILE

    found = load_problem(name)
    arrays = draw_inputs(found.spec, size, found.spec.seeds[0])
    return Workload(found.kernel, None, arrays, found.files[REFERENCE_FILE].decode(), arrays)


def pair(kernel: str, reference: str) -> Workload:
    """A kernel's file and a reference that draws its inputs."""
    loaded, source = harness.ReferenceModule(Path(reference)), Path(kernel).read_text()
    inputs = loaded.draw_inputs(0)
    arguments = loaded.make_arguments(inputs)
    return Workload(source, harness.find_entry(source), arguments, Path(reference).read_text(), inputs)


class _Single(ast.NodeTransformer):
    """Writes float32 where the reference says float64: the same arithmetic as the device's."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        if node.attr == "float64":
            node.attr = "float32"
        return node


def in_float32(source: str) -> Callable[..., Any]:
    """The reference's function, computing in float32."""
    tree = ast.fix_missing_locations(_Single().visit(ast.parse(source)))
    names: dict[str, Any] = {"__name__": "reference"}
    exec(compile(tree, "reference.py", "exec"), names)
    found: Callable[..., Any] = names.get("forward") or names["reference"]
    return found


def best(action: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least seconds over the repeats, and the last result."""
    seconds, result = [], None
    for _ in range(repeats):
        result = None  # the one before must not count as memory of this one
        begun = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - begun)
    return min(seconds), result


def measure(part: str, target: str, repeats: int, work: Workload) -> dict[str, Any]:
    """Seconds of one part; `run` also gives those of the checks before it."""
    if part == "numpy":
        function = in_float32(work.reference)
        return {"numpy_s": best(lambda: function(*work.inputs), repeats)[0]}
    specs = [harness.make_specs(item) for item in work.arguments]
    seconds, program = best(
        lambda: nki_sim.trace(work.source, args=specs, target=target, entry=work.entry),
        1 if part == "run" else repeats,
    )
    if part == "trace":
        return {"trace_s": seconds, "instructions": len(program)}
    check_s, found = best(lambda: checks.check(program, targets.load(target)), 1)
    if found:
        sys.exit(f"{found[0].code}: {found[0].message}")
    arrays = [item for item in work.arguments if isinstance(item, np.ndarray)]
    return {"check_s": check_s, "run_s": best(lambda: numerics.run(program, arrays), repeats)[0]}


def main(argv: list[str]) -> None:
    """Measure what the arguments say and print it."""
    part, target, repeats, kind, *which = argv
    work = {"--problem": problem, "--pair": pair}[kind](*which)
    print(json.dumps(measure(part, target, int(repeats), work)))


if __name__ == "__main__":
    main(sys.argv[1:])
