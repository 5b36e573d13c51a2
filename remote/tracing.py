"""The protocol of a tracer, by which a target turns a kernel into a program in a jail, for predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from remote.jail_backends import JailedProgram, JailLimits
from seeds import Problem
from targets.base import import_part
from targets.registry import load_target


class Tracer(Protocol):
    """Runs a kernel's own code once, in the jail; it sees shapes and never data."""

    def toolchain(self) -> str:
        """Return what traces and predicts, with versions: equal texts mean equal answers."""
        ...

    @property
    def name(self) -> str:
        """The name of what predicts, for people."""
        ...

    def program(self, limits: JailLimits, *flags: str) -> JailedProgram:
        """Return the program to run in the jail; with `--batch` it answers one request per line."""
        ...

    def request(
        self, source: str, problem: Problem, dims: Mapping[str, int], *, target: str, repeat: bool = False
    ) -> bytes:
        """Return the request to trace a kernel, on one line.

        `repeat`: refuse it if it builds another program when it is called or loaded again.
        """
        ...


def load_tracer(target: str) -> Tracer:
    """Return the tracer of a target's family."""
    part = load_target(target).parts.tracer
    assert part is not None, f"{target} has no tracer"
    return cast("Tracer", import_part(part)())
