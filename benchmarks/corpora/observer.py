"""Runs inside the process of a corpus's script or test: which kernels were called and what came of each.

Events go to the file named by the variable `COMPAT_EVENTS`, one JSON object a line, in order:
`kernel` (name, state: started, traced, ran, failed), `raised` (name, whether the raised kernel issues the
same program, or why there is none), `line` (what a script printed), `ended` (whether it did
well) and `test` (name, outcome, reason).
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "COMPAT_EVENTS"


def write(event: str, **fields: Any) -> None:
    """Append one event; it is on disk when this returns, so a killed process loses none."""
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, **fields}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a process, also of one that died while it wrote the last."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            break
    return found


def install() -> None:
    """Stand-ins for what a corpus imports besides NKI, and events for each kernel that is launched."""
    from benchmarks.corpora import missing

    missing.install()
    wrappers = {"nki_sim.frontend.simulate": _wrap_launch, "nki_sim.running.numerics": _wrap_numerics}
    for module, wrapped in wrappers.items():
        place = vars(importlib.import_module(module))
        place["run"] = wrapped(place["run"])


def _wrap_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """`simulate.run`: where both front ends run a kernel that is called with arrays."""

    @functools.wraps(function)
    def call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(kernel, "__name__", "kernel")
        write("kernel", name=name, state="started")
        _launched[name] = args, kwargs
        begun = time.monotonic()
        try:
            result = function(kernel, *args, **kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            write("kernel", name=name, state="failed", reason=reason, **_used(begun))
            raise
        write("kernel", name=name, state="ran", **_used(begun))
        return result

    return call


_launched: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
"""The arguments of the last launch of each kernel."""


def _note_raise(program: Any) -> None:
    """Report whether the canonical form of a kernel issues the program that the kernel issued."""
    from nki_sim.forms import ArraySpec
    from nki_sim.frontend.entry import trace_bytes
    from nki_sim.program.ir import Program
    from targets.nki.raising.instruction_rows import NotRaised
    from targets.nki.raising.raiser import program_digest, raise_program

    inputs = iter([program.site(number) for number in program.inputs])
    args, kwargs = _launched.get(program.kernel, ((), {}))

    def spec(value: Any) -> Any:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return value
        site = next(inputs)
        return ArraySpec(site.shape, site.dtype)

    try:
        source = raise_program(program, Path(program.filename).read_text(encoding="utf-8"))
        given = {"args": [spec(value) for value in args], "kwargs": {n: spec(v) for n, v in kwargs.items()}}
        raised = Program.from_bytes(trace_bytes(source, target=program.target, **given))
        same = program_digest(raised) == program_digest(program)
        write("raised", name=program.kernel, same=same, reason="" if same else "it issues another program")
    except NotRaised as reason:
        write("raised", name=program.kernel, same=None, reason=str(reason)[:300])
    except Exception as error:  # noqa: BLE001  whatever goes wrong with the raised kernel is a result
        write("raised", name=program.kernel, same=False, reason=f"{type(error).__name__}: {error}"[:300])


def _used(begun: float) -> dict[str, float]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.monotonic() - begun, "peak_mib": peak}


def _wrap_numerics(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numerics.run`: by then the kernel has been traced and its program checked."""

    @functools.wraps(function)
    def call(program: Any, *args: Any, **kwargs: Any) -> Any:
        write("kernel", name=program.kernel, state="traced")
        _note_raise(program)
        return function(program, *args, **kwargs)

    return call


class Tee:
    """A stream that also reports every whole line."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            write("line", text=line[:500])
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tee_stdout() -> None:
    sys.stdout = Tee(sys.stdout)
