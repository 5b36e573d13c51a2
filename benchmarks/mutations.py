"""How many seeded faults the tests notice: mutants of the product, each in a copy of the tree.

    python benchmarks/mutations.py --seed 29 --count 100 --out mutations.jsonl   # go on, or begin
    python benchmarks/mutations.py --seed 29 --count 100 --list                  # what would be seeded
    python benchmarks/mutations.py --seed 29 --count 100 --out mutations.jsonl --report

Each mutant is one small fault (`benchmarks/mutants.py`: which kinds, and what is left out). The tests nearest
to it run in a copy of the tree until one fails: first as in a quick run, then, if none did, slow tests too
and properties with all their examples. Near are the test files that import the module, or a module that
imports it, those that name the changed function first. A failure counts only if the same test passes without
the fault. A mutant is "caught by none" when all tests near it passed, and "undecided" when `--deadline` came
before that; tests further away are not asked, so the shares are lower bounds.

Results are appended to `--out`, one JSON object a line; what is there is not done again, but for what was
undecided with `--retry`. Exit status 0; 2 on bad usage.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks import house  # noqa: E402 - the path is set above
from benchmarks.mutants import Mutant, draw_mutants  # noqa: E402

Lane = Literal["quick", "full"]
CaughtBy = Literal["quick", "full", "none", "undecided"]
FIRST_BATCH = 2
"""Test files of a first pytest; each further one gets twice as many."""
QUICK_SHARE = 0.6
TEST_SECONDS = 60
SLOW_MARKS = ("mark.slow", "@given", "scale_examples", "parametrize_sweep")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
NO_TESTS = 5
PYTEST_OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider"),
    *(f"--timeout={TEST_SECONDS}", "--no-header", "--tb=no"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a mutant, and how many test files had run."""

    mutant: str
    kind: str
    before: str
    after: str
    caught_by: CaughtBy
    test: str
    files: int
    seconds: float


# -- which tests ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteIndex:
    """The test files of a tree, and what they and the product import."""

    texts: Mapping[str, str]
    graph: house.ImportGraph
    """By module name, of product and tests: the modules that each imports, in functions too."""

    @classmethod
    def read(cls, root: Path, modules: Sequence[house.Module]) -> SuiteIndex:
        tests = [_read_module(root, path) for path in sorted((root / "tests").rglob("*.py"))]
        graph = house.build_import_graph([*modules, *tests], load_only=False)
        texts = {
            str(module.path): (root / module.path).read_text(encoding="utf-8")
            for module in tests
            if module.path.name.startswith("test_")
        }
        return cls(texts, graph)

    @cached_property
    def users(self) -> Mapping[str, frozenset[str]]:
        """By module, the modules that import it; a package's users are those of its modules' names too."""
        found: dict[str, set[str]] = {name: set() for name in self.graph}
        for user, imported in self.graph.items():
            for name in imported:
                found[name].add(user)
        return {name: frozenset(own) for name, own in found.items()}

    def rank_near(self, mutant: Mutant, *, distance: int = 3) -> list[str]:
        """The test files near a mutant, nearest first: by steps of imports, by name, and by folder."""
        module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        steps = self._measure_steps(module, distance)
        stem, folder = Path(mutant.path).stem, Path(mutant.path).parent

        def rank(path: str) -> tuple[float, str]:
            text = self.texts[path]
            score = float(steps.get(_module_name(path), distance + 1))
            score -= 2.0 * (re.search(rf"\b{re.escape(mutant.function or stem)}\b", text) is not None)
            score -= 1.5 * (Path(path).stem.removeprefix("test_") == stem)
            score -= 0.5 * Path(path).parent.is_relative_to(Path("tests") / folder)
            return score, path

        near = [
            path
            for path in self.texts
            if _module_name(path) in steps or Path(path).parent == Path("tests") / folder
        ]
        return sorted(near, key=rank)

    def _measure_steps(self, module: str, distance: int) -> dict[str, int]:
        steps = {module: 0}
        edge = {module}
        for step in range(1, distance + 1):
            edge = {user for name in edge for user in self.users.get(name, ())} - steps.keys()
            steps.update(dict.fromkeys(edge, step))
        return steps


def _read_module(root: Path, path: Path) -> house.Module:
    source = path.read_bytes()
    relative = path.relative_to(root).as_posix()
    return house.Module(house.PurePosixPath(relative), len(source.splitlines()), ast.parse(source))


def _module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def make_batches(files: Sequence[str]) -> Iterator[list[str]]:
    """The files in order, in batches that grow."""
    rest = iter(files)
    for exponent in itertools.count():
        batch = list(itertools.islice(rest, FIRST_BATCH * 2**exponent))
        if not batch:
            return
        yield batch


# -- one mutant ----------------------------------------------------------------------------------------------


class Workplace:
    """A copy of the tree in which one mutant after the other is tried."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in listed.stdout.splitlines():
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)

    def try_mutant(self, mutant: Mutant, tests: SuiteIndex, *, deadline: float) -> Result:
        """Seed the fault, run the tests near it lane by lane, and take it out again."""
        began = time.monotonic()
        near = tests.rank_near(mutant)
        slow = [path for path in near if any(mark in tests.texts[path] for mark in SLOW_MARKS)]
        lanes: tuple[tuple[Lane, list[str], float], ...] = (
            ("quick", near, QUICK_SHARE * deadline),
            ("full", slow, deadline),
        )
        complete, done = True, 0
        for lane, files, until in lanes:
            for batch in make_batches(files):
                left = began + until - time.monotonic()
                if left <= 1:
                    complete = False
                    break
                done += len(batch)
                failed = self._find_failure(mutant, batch, lane, left)
                complete = complete and failed is not None
                if failed:
                    return _make_result(mutant, lane, failed, files=done, began=began)
        caught_by: CaughtBy = "none" if complete else "undecided"
        return _make_result(mutant, caught_by, "", files=done, began=began)

    def _find_failure(self, mutant: Mutant, files: list[str], lane: Lane, seconds: float) -> str | None:
        """The test that fails with the fault and passes without; empty if none does, None if time ran out."""
        path = self.folder / mutant.path
        source = path.read_bytes()
        skipped: list[str] = []
        left = list(files)
        began = time.monotonic()
        while left:
            path.write_bytes(mutant.apply(source))
            try:
                failed = self._run_tests(left, lane, skipped, began + seconds - time.monotonic())
            finally:
                path.write_bytes(source)
            if not failed:
                return failed
            if self._run_tests([failed], lane, [], TEST_SECONDS) == "":
                return failed
            if "::" in failed:
                skipped.append(failed)
            else:
                left = [name for name in left if name != failed]
        return ""

    def _run_tests(self, chosen: list[str], lane: Lane, skipped: list[str], seconds: float) -> str | None:
        """The first that fails (a file where pytest names none), empty if none does, None at the deadline."""
        command = [
            *(sys.executable, "-m", "pytest", *PYTEST_OPTIONS, *(["--all"] if lane == "full" else [])),
            *(f"--deselect={name}" for name in skipped),
            *chosen,
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate(timeout=max(seconds, 1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return None
        if process.returncode in (0, NO_TESTS):
            return ""
        found = FAILED.search(said)
        return found[1] if found else chosen[0]


def _make_result(mutant: Mutant, caught_by: CaughtBy, test: str, *, files: int, began: float) -> Result:
    return Result(
        mutant=mutant.name, kind=mutant.kind, before=mutant.before[:200], after=mutant.after[:200],
        caught_by=caught_by, test=test, files=files, seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


# -- all of them ---------------------------------------------------------------------------------------------


def run_mutants(mutants: Sequence[Mutant], tests: SuiteIndex, options: argparse.Namespace) -> None:
    """Try each mutant and append its result to the file, `--jobs` at a time."""
    places: SimpleQueue[Workplace] = SimpleQueue()
    until = time.monotonic() + options.minutes * 60

    def try_one(mutant: Mutant) -> Result | None:
        if time.monotonic() > until:
            return None
        place = places.get()
        try:
            return place.try_mutant(mutant, tests, deadline=options.deadline)
        finally:
            places.put(place)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            places.put(Workplace(options.root, Path(folder) / str(number)))
        with options.out.open("a", encoding="utf-8") as out:
            for future in as_completed([pool.submit(try_one, mutant) for mutant in mutants]):
                if (result := future.result()) is not None:
                    out.write(f"{encode_result(result)}\n")
                    out.flush()
                    print(
                        f"{result.caught_by:<10}{result.seconds:>6.0f} s  {result.mutant}  {result.test}",
                        file=sys.stderr,
                    )


def encode_result(result: Result) -> str:
    """A result as a line of the file."""
    return json.dumps(asdict(result))


def read_results(path: Path) -> list[Result]:
    """The last result of each mutant."""
    if not path.exists():
        return []
    results = (Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return list({result.mutant: result for result in results}.values())


def shorten(text: str) -> str:
    return " ".join(text.split())[:60]


def format_report(results: Sequence[Result], drawn: int) -> list[str]:
    """How many were caught by which lane, and those that none caught."""
    counts = Counter(result.caught_by for result in results)
    done = len(results)
    caught = counts["quick"] + counts["full"]

    def percent(count: int) -> str:
        return f"{100 * count / done:.0f} %" if done else "-"

    return [
        f"{done} of {drawn} mutants tried",
        f"caught by the quick lane      {counts['quick']:>4}  {percent(counts['quick'])}",
        f"caught by the full lane only  {counts['full']:>4}  {percent(counts['full'])}",
        f"caught by none near it        {counts['none']:>4}  {percent(counts['none'])}",
        f"undecided at the deadline     {counts['undecided']:>4}  {percent(counts['undecided'])}",
        f"quick of all that were caught       {100 * counts['quick'] / caught:.0f} %"
        if caught
        else "nothing caught",
        *(
            f"{one.caught_by}: {one.mutant}: {shorten(one.before)!r} -> {shorten(one.after)!r}"
            f" ({one.files} test files)"
            for one in results
            if one.caught_by in {"none", "undecided"}
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many are drawn (%(default)s)")
    parser.add_argument("--seed", type=int, default=29, help="of the draw (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (%(default)s)")
    parser.add_argument("--deadline", type=float, default=150, help="seconds for each (%(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after these")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--out", type=Path, help="results, one a line; also what is not done again")
    parser.add_argument("--retry", action="store_true", help="try again what was undecided")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument("--report", action="store_true", help="print what --out holds and try none")
    options = parser.parse_args(argv)
    if not options.list and options.out is None:
        parser.error("name a file for the results with --out")
    modules, failures = house.load_modules(options.root)
    if failures or not modules:
        parser.error(f"{options.root} has files that cannot be read: {', '.join(failures) or 'none at all'}")
    sources = {str(one.path): (options.root / one.path).read_text(encoding="utf-8") for one in modules}
    mutants = draw_mutants(modules, sources, options.count, options.seed)
    if options.list:
        print("\n".join(f"{one.name}: {one.before!r} -> {one.after!r}" for one in mutants))
        return 0
    if not options.report:
        done = {
            result.mutant
            for result in read_results(options.out)
            if not (options.retry and result.caught_by == "undecided")
        }
        tests = SuiteIndex.read(options.root, modules)
        run_mutants([one for one in mutants if one.name not in done], tests, options)
    drawn = {mutant.name for mutant in mutants}
    results = [result for result in read_results(options.out) if result.mutant in drawn]
    print("\n".join(format_report(results, len(mutants))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
