"""The kernel and target being traced, which `nl` and `nisa` calls refer to."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from nki_sim import targets
from nki_sim.errors import KernelError
from nki_sim.targets import Target

if TYPE_CHECKING:
    from nki_sim.frontend.recorder import Recorder

_current: list[Recorder] = []


def is_tracing() -> bool:
    """Whether a kernel is being traced."""
    return bool(_current)


def current_recorder() -> Recorder:
    """The recorder of the kernel being traced.

    Raises:
        KernelError: `nl` or `nisa` was called outside a traced kernel.
    """
    if not _current:
        raise KernelError(
            "nki_api_outside_of_nki_kernel", "nki is called outside a kernel that is being traced",
            hint="decorate the function with @nki.jit and call it with arrays, or from a kernel",
        )  # fmt: skip
    return _current[-1]


def read_values(view: Any) -> Any:
    """A tensor's current elements; None if they are unknown, as while tracing or outside kernels."""
    return _current[-1].read_values(view) if _current else None


def device_print(prefix: str, view: Any) -> None:
    """Print a tensor's elements if they are known."""
    found = read_values(view) if hasattr(view, "_storage") else None
    if found is not None:
        sys.stdout.write(f"{prefix} {found}\n")


class recording:  # noqa: N801  a context manager reads as a verb
    """Makes a recorder the current one."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> Recorder:
        _current.append(self._recorder)
        return self._recorder

    def __exit__(self, *_: object) -> None:
        _current.pop()


_targets: list[Target] = []
PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
_PLATFORMS = {"inf2": "trn1", "gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}


def resolve_target_name(name: str) -> str:
    """Resolve a target's other names; unknown names stay as they are."""
    known = name.lower()
    return _PLATFORMS.get(known, known if known in targets.names() else name)


def platform_target(default: str = "trn2") -> str:
    """Return the target that NEURON_PLATFORM_TARGET_OVERRIDE names."""
    return resolve_target_name(os.environ.get(PLATFORM) or default)


def current_target() -> Target:
    """Return the target being traced for; also valid while kernel files are imported.

    Raises:
        TargetError: the environment names an unknown target.
    """
    if _current:
        return _current[-1].target
    return _targets[-1] if _targets else targets.load(platform_target())


class targeting:  # noqa: N801
    """Sets the target that files are imported for."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __enter__(self) -> None:
        _targets.append(self._target)

    def __exit__(self, *_: object) -> None:
        _targets.pop()
