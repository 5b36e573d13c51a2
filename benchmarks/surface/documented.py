"""What the vendor's documents name, and what becomes of each name in the simulator, by target.

    python -m benchmarks.surface.documented STUBS [STUBS ...] [--json] [--table]

STUBS are folders with Python stubs of the package `nki`, such as `nki/api` of a checkout of aws-neuron-sdk;
a later folder adds to an earlier one. Each function, class, member and argument in them is looked up: it is
accepted, refused by name with the reason, or unknown, which is a gap (exit status 1). `--table` writes what
is refused, in Markdown.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from nki_sim import support
from nki_sim.dtypes import TRN3_DTYPES
from nki_sim.errors import KernelError
from nki_sim.frontend import isa
from nki_sim.frontend.argument_values import LanguageFunction
from nki_sim.frontend.lowering import FUNCTIONS as COMPUTED
from nki_sim.frontend.modules import MODULES
from nki_sim.functions import ACTIVATIONS, ACTIVATIONS2, FUNCTIONS, V4_ALU
from nki_sim.operators import OPERATORS

ROOT = "nki"
TARGETS = ("trn2", "trn3")
"""The targets that NKI 0.7 supports."""

ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"


_CHOICES = {name for one in OPERATORS.values() for item in one.signature for name in item.choices}
_TAKEN = FUNCTIONS | COMPUTED.keys() | TRN3_DTYPES | _CHOICES
"""The names of `nki.language` that instructions take as operators or types, or that compute."""


@dataclass(frozen=True, slots=True)
class DocumentedName:
    """A name of a module of the documents, with the arguments of a function or the members of a class."""

    module: str
    name: str
    arguments: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NameStatus:
    """What becomes of a name on a target: accepted, refused with a reason, or unknown.

    `missing` are documented arguments or members that are not taken, each with what is said of it.
    """

    name: str
    target: str
    status: str
    reason: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


def read_stubs(folders: Iterable[Path]) -> list[DocumentedName]:
    """Return the public names of all stubs below some folders."""
    found: dict[tuple[str, str], DocumentedName] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            module = _module_name(path.relative_to(folder))
            if module is not None:
                for one in _read_module(module, ast.parse(path.read_text(encoding="utf-8"))):
                    found[one.module, one.name] = one
    return sorted(found.values(), key=lambda one: (one.module, one.name))


def _module_name(path: Path) -> str | None:
    parts = [*path.parts[:-1], *([] if path.stem == "__init__" else [path.stem])]
    if ROOT not in parts:
        return None
    last = len(parts) - 1 - parts[::-1].index(ROOT)
    return ".".join(parts[last:])


def _read_module(module: str, tree: ast.Module) -> Iterator[DocumentedName]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield DocumentedName(module, node.name, _argument_names(node))
        elif isinstance(node, ast.ClassDef):
            yield DocumentedName(module, node.name, members=tuple(_member_names(node)))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (DocumentedName(module, one.id) for one in targets if isinstance(one, ast.Name))


def _argument_names(node: ast.FunctionDef) -> tuple[str, ...]:
    told = node.args
    return tuple(one.arg for one in (*told.posonlyargs, *told.args, *told.kwonlyargs))


def _member_names(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        named = [item.name] if isinstance(item, ast.FunctionDef) else []
        if isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            named = [one.id for one in targets if isinstance(one, ast.Name)]
        yield from (name for name in named if not name.startswith("_"))


def compare_names(names: Iterable[DocumentedName]) -> list[NameStatus]:
    """Return what becomes of each documented name on each target."""
    described = support.describe_support()["supported"]
    return [_compare_name(one, target, described) for one in names for target in TARGETS]


def _compare_name(one: DocumentedName, target: str, described: Mapping[str, Any]) -> NameStatus:
    full = f"{one.module}.{one.name}"
    if one.name.startswith("_"):
        return NameStatus(full, target, ACCEPTED)
    if full in MODULES:
        return NameStatus(full, target, ACCEPTED)
    module = MODULES.get(one.module)
    try:
        value = getattr(module, one.name)
    except AttributeError as error:
        refusal = getattr(error, "refusal", None)
        return _refused_status(full, target, refusal)
    said = _refusal_when_called(value)
    if said is not None:
        return _refused_status(full, target, said)
    if isinstance(value, LanguageFunction) and one.name not in _TAKEN:
        return NameStatus(full, target, REFUSED, "a value that no instruction here takes")
    instruction = described.get(one.name) if one.module == "nki.isa" else None
    for_target = set(instruction["targets"]) if instruction else _targets_of(one.name)
    if target not in for_target:
        return NameStatus(full, target, REFUSED, f"only on {', '.join(sorted(for_target))}")
    missing = dict(_missing_arguments(one, value, instruction)) | dict(_missing_members(one, value))
    return NameStatus(full, target, ACCEPTED, missing=missing)


def _refused_status(full: str, target: str, refusal: KernelError | None) -> NameStatus:
    if refusal is None or refusal.code == "unknown_name":
        return NameStatus(full, target, UNKNOWN, str(refusal or "the module has no such name"))
    return NameStatus(full, target, REFUSED, refusal.hint or str(refusal))


def _refusal_when_called(value: Any) -> KernelError | None:
    """What a function says that is there only to refuse."""
    if not inspect.isfunction(value):
        return None
    try:
        value()
    except KernelError as error:
        return error if error.code in {"unsupported", "removed"} else None
    except Exception:  # noqa: BLE001  it wants arguments: it does more than refuse
        return None
    return None


def _targets_of(name: str) -> set[str]:
    only_v4 = TRN3_DTYPES | (V4_ALU | ACTIVATIONS2) - ACTIVATIONS
    return {"trn3"} if name in only_v4 else set(TARGETS)


def _missing_arguments(
    one: DocumentedName, value: Any, instruction: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """The documented arguments that a function does not take, or takes at their default alone."""
    if not one.arguments or not callable(value):
        return
    if instruction is not None:
        known = {text.partition("=")[0] for text in instruction["arguments"]} | {"engine"}
        known |= isa._HINTS.keys()  # noqa: SLF001 - what the frontend accepts and ignores
        neutral: set[str] = set(isa._NEUTRAL)  # noqa: SLF001 - what it takes at the default alone
    else:
        try:
            told = inspect.signature(value).parameters.values()
        except (TypeError, ValueError):
            return
        if any(item.kind is item.VAR_KEYWORD for item in told):
            return
        known, neutral = {item.name for item in told}, set()
    for name in one.arguments:
        if name not in known and name != "self":
            yield name, "only its default" if name in neutral else "not taken"


def _missing_members(one: DocumentedName, value: Any) -> Iterator[tuple[str, str]]:
    for name in one.members if inspect.isclass(value) else ():
        fields = getattr(value, "__dataclass_fields__", {})
        if not hasattr(value, name) and name not in fields and name not in getattr(value, "__slots__", ()):
            yield name, "no such member"


def render_table(found: Iterable[NameStatus]) -> Iterator[str]:
    """Render what is refused: a row for each name or argument, with the targets that refuse it."""
    yield "| name | refused on | reason |\n|---|---|---|"
    rows = [(one.name, one.reason, one.target) for one in found if one.status == REFUSED]
    rows += [(f"{one.name}({name}=)", why, one.target) for one in found for name, why in one.missing.items()]
    for (name, why), group in groupby(sorted(rows), key=lambda row: row[:2]):
        yield f"| `{name}` | {' '.join(target for *_, target in group)} | {why} |"


def render_counts(found: list[NameStatus]) -> Iterator[str]:
    """Render how many names each target accepts and refuses, and every gap."""
    for target in TARGETS:
        mine = [one for one in found if one.target == target]
        counts = [
            f"{sum(one.status == status for one in mine)} {status}" for status in (ACCEPTED, REFUSED, UNKNOWN)
        ]
        yield f"{target}: {len(mine)} documented names: {', '.join(counts)}"
    for one in found:
        if one.status == UNKNOWN:
            yield f"  gap on {one.target}: {one.name}: {one.reason}"
        for name, why in one.missing.items():
            yield f"  {one.target}: {one.name}({name}): {why}"


def main(arguments: list[str] | None = None) -> int:
    """Compare, print, and return 1 if a documented name is unknown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stubs", nargs="+", type=Path, help="folders with stubs of nki")
    parser.add_argument("--json", action="store_true", help="write everything as JSON")
    parser.add_argument("--table", action="store_true", help="write what is refused, in Markdown")
    chosen = parser.parse_args(arguments)
    found = compare_names(read_stubs(chosen.stubs))
    if chosen.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        print("\n".join(render_table(found) if chosen.table else render_counts(found)))
    return int(any(one.status == UNKNOWN for one in found))


if __name__ == "__main__":
    sys.exit(main())
