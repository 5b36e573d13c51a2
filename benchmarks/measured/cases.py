"""Which kernels have measurements: a checkout with NKIBench's summary, measured profiles, lists of variants.

A corpus is `{problem: {"cases": {id: {"values": {K: int}, "impls": [{"task": path, "kernel": path}]}}}}` in
`summary.json`, its paths relative to the folder of that file. Profiles are `{"kernels": [{"problem",
"config", "platform", "measured": {counter: number}}]}`; `measured.latency` is in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nki_sim.frontend.context import resolve_target_name
from nki_sim.timing.counters import CONVENTIONS, ConventionName

SUMMARY = "summary.json"


class CaseError(Exception):
    """A file is not what it should be; says which entry of which file, and what would be right."""


@dataclass(frozen=True)
class Case:
    """A kernel's file with what was measured of it, and how its arguments are made.

    The arguments come from `reference` (a file that draws inputs, as NKIBench's do), or are `args` in the
    notation of `nki-sim --arg`. `group` names a list of variants, empty for kernels of a corpus.
    """

    name: str
    problem: str
    target: str
    measured: Mapping[str, float]
    config: Mapping[str, int] = field(default_factory=dict)
    kernel: Path | None = None
    reference: Path | None = None
    args: tuple[str, ...] = ()
    entry: str | None = None
    group: str = ""
    counters: ConventionName | None = None
    program: Path | None = None

    @property
    def fault(self) -> str | None:
        """Why this cannot be predicted, before anything is tried."""
        if "latency" not in self.measured:
            return "no measured latency"
        if self.program is not None:
            return None
        if self.kernel is None:
            return "no kernel of this problem and these dimensions in the corpus"
        if not self.kernel.is_file():
            return f"no file {self.kernel}"
        if self.reference is None and not self.args:
            return "neither a reference that draws its inputs nor args"
        return None


@dataclass(frozen=True)
class Implementation:
    """One kernel of a corpus."""

    problem: str
    config: Mapping[str, int]
    kernel: Path
    reference: Path


def corpus(root: Path) -> list[Implementation]:
    """The kernels of a checkout; `root` may be the checkout or the folder of its summary.

    Raises:
        CaseError: there is no summary, or it is not one.
    """
    folder = next((item for item in (root, root / "NKIBench") if (item / SUMMARY).is_file()), None)
    if folder is None:
        raise CaseError(f"{root} holds neither {SUMMARY} nor NKIBench/{SUMMARY}: give an NKIBench checkout")
    try:
        return list(_implementations(folder, _json(folder / SUMMARY)))
    except (KeyError, TypeError, AttributeError) as error:
        raise CaseError(f"{folder / SUMMARY} is not an NKIBench summary: {error!r}") from error


def _implementations(folder: Path, summary: Any) -> Iterator[Implementation]:
    for problem, entry in summary.items():
        for case in entry["cases"].values():
            for impl in case["impls"]:
                yield Implementation(problem, case["values"], folder / impl["kernel"], folder / impl["task"])


def profiles(file: Path, found: Sequence[Implementation], target: str | None) -> list[Case]:
    """The measured profiles of a file with their kernels of a corpus; with `target`, those of that platform.

    Raises:
        CaseError: the file is not one of profiles.
    """
    rows = _json(file)
    rows = rows.get("kernels") if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise CaseError(f'{file} is not of the form {{"kernels": [...]}}')
    cases = [_profile(file, number, row, found, target) for number, row in enumerate(rows)]
    return [case for case in cases if target is None or case.target == resolve_target_name(target)]


def _profile(file: Path, number: int, row: Any, found: Sequence[Implementation], target: str | None) -> Case:
    try:
        problem, config = str(row["problem"]), dict(row.get("config") or {})
        measured = _numbers(row["measured"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaseError(f"{file}: kernels[{number}] is no measured profile: {error!r}") from error
    own = _matching(found, problem, config)
    return Case(
        name=own.kernel.stem if own else _label(problem, config),
        problem=problem,
        target=resolve_target_name(str(row.get("platform") or target or "trn1")),
        measured=measured,
        config=config,
        kernel=own.kernel if own else None,
        reference=own.reference if own else None,
        counters=_convention(row),
    )


def _label(problem: str, config: Mapping[str, int]) -> str:
    return "_".join([problem, *(f"{name}{value}" for name, value in config.items())])


def _matching(
    found: Sequence[Implementation], problem: str, config: Mapping[str, int]
) -> Implementation | None:
    """The first kernel of a problem with these dimensions, whatever their order; all that both name agree."""

    def same(item: Implementation) -> bool:
        shared = item.config.keys() & config.keys()
        return bool(shared) and all(item.config[name] == config[name] for name in shared)

    mine = [item for item in found if item.problem == problem]
    exact = (item for item in mine if dict(item.config) == dict(config))
    return next(exact, None) or next((item for item in mine if same(item)), None)


_FILE = ("file", "kernel", "path")


@dataclass(frozen=True)
class Lists:
    """A file of lists of variants; `fidelity.py --help` says what it looks like."""

    file: Path
    roots: Sequence[Path]
    corpus: Sequence[Implementation]
    target: str

    def cases(self) -> list[Case]:
        """All variants of all lists.

        Raises:
            CaseError: the file is not of that form.
        """
        groups = _groups(_json(self.file))
        if not groups:
            raise CaseError(f"{self.file} holds no list of variants")
        return [case for number, group in enumerate(groups) for case in self._group(number, group)]

    def _group(self, number: int, group: Any) -> Iterator[Case]:
        where = f"{self.file}: list {number}"
        if not isinstance(group, dict) or not isinstance(group.get("kernels"), list):
            raise CaseError(f'{where} is not of the form {{"problem": ..., "kernels": [...]}}')
        for place, entry in enumerate(group["kernels"]):
            if not isinstance(entry, dict) or _first(entry, *_FILE) is None:
                raise CaseError(f'{where}: kernels[{place}] is no object with a "file"')
            try:
                measured = _parse_counters(entry)
            except (TypeError, ValueError) as error:
                raise CaseError(f"{where}: kernels[{place}]: no numbers were measured: {error}") from error
            told = {"problem": "variants", **group, **entry, "group": group.get("name"), "number": number}
            yield self._case(told, measured)

    def _case(self, told: Mapping[str, Any], measured: Mapping[str, float]) -> Case:
        problem, config = str(told["problem"]), dict(told.get("config") or {})
        own = _matching(self.corpus, problem, config) or _only(self.corpus, problem)
        path, reference = _first(told, *_FILE), _first(told, "reference", "task")
        drawn = self._resolve_path(reference) if reference else (own.reference if own else None)
        args = tuple(str(item) for item in told.get("args") or ())
        return Case(
            name=str(Path(path).with_suffix("")),
            problem=problem,
            target=resolve_target_name(str(_first(told, "platform", "target") or self.target)),
            measured=measured,
            config=config,
            kernel=self._resolve_path(path),
            reference=None if args else drawn,
            args=args,
            entry=told.get("entry"),
            group=str(told["group"] or f"{_label(problem, config)} {told['number']}"),
            counters=_convention(told),
        )

    def _resolve_path(self, path: str) -> Path:
        """A path relative to the file that names it, or to a root; the first that exists."""
        tries = [folder / path for folder in (self.file.parent, *self.roots)]
        return next((item for item in tries if item.is_file()), tries[0])


def _only(found: Sequence[Implementation], problem: str) -> Implementation | None:
    """The kernel of a problem that has one alone."""
    mine = [item for item in found if item.problem == problem]
    return mine[0] if len(mine) == 1 else None


def _groups(value: Any) -> list[Any]:
    """The lists of a file: several, one alone, by the problem's name, or kernels that each name theirs."""
    if isinstance(value, dict):
        inner = next((value[key] for key in ("groups", "problems", "pairs") if key in value), value)
        if inner is value and "kernels" in value:
            return [value]
        value = inner if isinstance(inner, list) else [_parse_name(*item) for item in inner.items()]
    if not isinstance(value, list) or not all(
        isinstance(item, dict) and "kernels" not in item and _first(item, *_FILE) for item in value
    ):
        return value if isinstance(value, list) else []
    by_problem: dict[str, list[Any]] = {}
    for item in value:
        by_problem.setdefault(
            _label(str(item.get("problem", "variants")), item.get("config") or {}), []
        ).append(item)
    return [{**items[0], "kernels": items} for items in by_problem.values()]


def _parse_name(problem: str, entry: Any) -> Any:
    return {"problem": problem, **(entry if isinstance(entry, dict) else {"kernels": entry})}


def _parse_counters(entry: Mapping[str, Any]) -> dict[str, float]:
    measured = _numbers(entry.get("measured") or {})
    latency = _first(entry, "latency_ms", "latency", "measured_ms")
    return measured if latency is None else {**measured, "latency": float(latency)}


def _convention(entry: Mapping[str, Any]) -> ConventionName | None:
    """The convention that a profile names; one that does not exist is no name of one."""
    return next((name for name in CONVENTIONS if name == entry.get("counters")), None)


def _numbers(fields: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in dict(fields).items() if value is not None}


def _first(entry: Mapping[str, Any], *names: str) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CaseError(f"{file} is not JSON: {error}") from error
