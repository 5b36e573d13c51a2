"""Finds targets by name. A target's folder is imported only when one of its targets is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from targets.base import DeviceParts, HostParts, ProfileVocabulary, Target, UnknownTargetError

if TYPE_CHECKING:
    from seeds import Problem

_MODULES: dict[str, str] = {
    "trn1": "targets.nki",
    "trn2": "targets.nki",
    "trn3": "targets.nki",
    "x86": "targets.c",
    "arm64": "targets.c",
    "riscv64": "targets.folders",
}
"""The module of each target's folder; it has `load(name)`."""


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, sorted."""
    return tuple(sorted(_MODULES))


_FOLDERS = "targets.folders"
"""The module of targets that are folders of a user: their name is their absolute path."""


def load_target(name: str) -> Target:
    """Return the target of this name, or of this folder.

    Raises:
        UnknownTargetError: there is none.
    """
    module = _FOLDERS if is_folder(name) else _MODULES.get(name)
    if module is None:
        raise UnknownTargetError(name, _MODULES)
    return cast("Target", import_module(module).load(name))


def is_folder(name: str) -> bool:
    """Return whether a target's name is the path of a folder."""
    return "/" in name


def describe_change(name: str, toolchain: str) -> str | None:
    """Return how a target that is a folder differs from what a run's toolchain says of it; None if it does
    not."""
    found = find_target(name)
    identity = str(getattr(found, "identity", ""))
    if not identity or identity in toolchain:
        return None
    return f"the target's folder has changed since the run began: it is {identity} now, it was {toolchain}"


def find_target(name: str) -> Target | None:
    """Return the target of this name; None if there is none, as for a run of a newer or other program."""
    try:
        return load_target(name)
    except UnknownTargetError:
        return None


def profile_vocabulary(name: str) -> ProfileVocabulary:
    """Return what profiles of a target contain; an empty vocabulary for an unknown target."""
    found = find_target(name)
    return found.profile if found else ProfileVocabulary(counters=())


def roofline_name(name: str) -> str:
    """Return what people call the roofline of a target."""
    found = find_target(name)
    return found.roofline_name if found else "roofline"


def counter_notes() -> dict[str, str]:
    """Return what counters of all targets relate to, where their names do not say it."""
    return {name: note for one in load_families() for name, note in one.profile.notes.items()}


def kernel_suffix(name: str) -> str:
    """Return the ending of the names of a target's kernel files; empty for an unknown target."""
    found = find_target(name)
    return PurePath(found.language.kernel_file).suffix if found else ""


def load_families() -> Iterator[Target]:
    """Yield one target of each family, whose parts serve all of them."""
    for module in dict.fromkeys(_MODULES.values()):
        yield load_target(next(name for name, its in _MODULES.items() if its == module))


@cache
def measures_in_turns(evaluator: str) -> bool:
    """Return whether an evaluator runs kernels in turns with those that they were made from."""
    kinds = {kind for one in load_families() if one.parts.measures_in_turns for kind in one.parts.evaluators}
    return evaluator in kinds


def load_host_parts() -> Iterator[HostParts]:
    """Yield what the hosts of each family need that runs on hosts."""
    yield from (family.parts.hosts for family in load_families() if family.parts.hosts is not None)


def find_device(kind: str) -> tuple[Target, DeviceParts]:
    """Return a target of the family whose hosts have devices of this kind, and the kind's parts.

    Raises:
        ValueError: no family has such devices.
    """
    for family in load_families():
        if family.parts.hosts is not None and kind in family.parts.hosts.devices:
            return family, family.parts.hosts.devices[kind]
    raise ValueError(f"no target has devices of the kind {kind!r}")


def lead_target(name: str) -> str:
    """Return the first target of a target's family, whose parts serve it too; an unknown name as it is."""
    module = _MODULES.get(name)
    return next((lead for lead, its in _MODULES.items() if its == module), name)


def starting_kernel(problem: Problem, target: str) -> bytes:
    """Return the source that a problem begins with on a target.

    Raises:
        UnknownTargetError: there is no such target.
        NoStartingKernelError: the problem has no kernel in the target's language.
    """
    return problem.starting_kernel(load_target(target).language.kernel_file).encode()
