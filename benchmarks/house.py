"""How readable the tree is: names, parameters, sizes of functions and modules, import cycles.

    python benchmarks/house.py             # a table: figure, value, aim, whether the aim is met
    python benchmarks/house.py --json      # one JSON object; it also names the modules behind a count
    python benchmarks/house.py --tests     # names of functions in tests and benchmarks
    python benchmarks/house.py --root DIR  # another checkout

The figures come from the syntax trees of product code: the folders in `ROOMS`, without `EXCLUDED_FOLDERS` and
without kernels. Nothing is imported or run. A file that does not parse is named on stderr and left out.

Exit status 0 whether or not the aims are met, 2 on bad usage.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

ROOMS = (
    "state",
    "stability",
    "agent_core",
    "targets",
    "prompts",
    "seeds",
    "remote",
    "nki_sim",
    "daemon",
    "agentctl",
)
EXCLUDED_FOLDERS = ("seeds/problems", "seeds/template", "nki_sim/shims")
TEST_FOLDERS = ("tests", "benchmarks")
EXCLUDED_TEST_FOLDERS = (
    "tests/support/neuron_sdk",
    "benchmarks/user_kernels",
    "benchmarks/written_by_others",
    "benchmarks/ladder",
)
"""Stand-ins that have the names of what they stand for, and kernels."""
KERNEL_PACKAGES = frozenset({"nki", "neuronxcc"})
"""A file that imports one of these as it is loaded is a kernel."""

# The members of a family share an interface, and a table or the folder's `__init__` lists them. Each has a
# module of its own so that it can be found and added by name, however short it is.
FAMILY_FOLDERS = (
    "verbs",
    "transforms",
    "operators",
    "semantics",
    "rules",
    "devices",
    "steps",
    "knobs/rewrites",
    "compiler",
    "events",
    "views",
)

PARTICIPLE = re.compile(
    r"[a-z]{3,}ed"
    r"|told|known|made|kept|found|drawn|shown|given|taken|said|held|left|sent|written|seen|learnt|met|done|lost|spent|built"
)
MAX_POSITIONAL = 3
SHORT_MODULE_LINES = 70
LONG_FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef
ImportStatement = ast.Import | ast.ImportFrom
ImportGraph = Mapping[str, frozenset[str]]
"""The product modules that each product module imports."""


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on a figure, from above unless it `is_minimum`."""

    limit: float
    is_minimum: bool = False

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.is_minimum else value <= self.limit

    @property
    def bound(self) -> str:
        return "at least" if self.is_minimum else "at most"


AIMS: Mapping[str, Aim] = {
    "one_word_percent": Aim(50),
    "participle_percent": Aim(3),
    "single_user_modules": Aim(40),
    "module_median_lines": Aim(150, is_minimum=True),
    "function_p50_lines": Aim(10),
    "function_p90_lines": Aim(30),
    "product_lines": Aim(95_000),
    "import_cycles": Aim(0),
}

LABELS: Mapping[str, str] = {
    "helpers": "functions in tests and benchmarks",
    "one_word_percent": "one-word function names, %",
    "participle_percent": "bare participles, %",
    "keyword_only_percent": "keyword-only from the 4th parameter on, %",
    "modules": "modules",
    "single_user_modules": f"modules below {SHORT_MODULE_LINES} lines with one user",
    "module_median_lines": "module length, median, lines",
    "function_p50_lines": "function length, p50, lines",
    "function_p90_lines": "function length, p90, lines",
    "long_functions": f"functions over {LONG_FUNCTION_LINES} lines",
    "product_lines": "product lines",
    "import_cycles": "import cycles",
}


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed source file; `path` is relative to the root."""

    path: PurePosixPath
    lines: int
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def name(self) -> str:
        """The name that imports it; a package's is that of its folder."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if self.is_package else parts)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, None where there is nothing to measure.

    `groups` holds the modules behind a count: the members of each import cycle, or each module that has a
    single user with that user.
    """

    name: str
    value: float | None
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def aim(self) -> Aim | None:
        return AIMS.get(self.name)

    @property
    def is_met(self) -> bool | None:
        """None where there is no aim or no value."""
        return None if self.aim is None or self.value is None else self.aim.is_met_by(self.value)


# -- files -----------------------------------------------------------------------------------------


def list_sources(root: Path, folders: Iterable[str], excluded: Iterable[str]) -> Iterator[PurePosixPath]:
    """The Python files of these folders, relative to `root`."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            relative = PurePosixPath(path.relative_to(root).as_posix())
            if not any(relative.is_relative_to(other) for other in excluded):
                yield relative


def load_modules(
    root: Path, folders: Iterable[str] = ROOMS, excluded: Iterable[str] = EXCLUDED_FOLDERS
) -> tuple[list[Module], dict[str, str]]:
    """The modules, by default those of the product, and for each file that cannot be parsed the reason."""
    modules: list[Module] = []
    failures: dict[str, str] = {}
    for path in list_sources(root, folders, excluded):
        try:
            source = (root / path).read_bytes()
            module = Module(path, len(source.splitlines()), ast.parse(source))
        except (OSError, SyntaxError, ValueError) as error:
            failures[str(path)] = str(error)
            continue
        if not is_kernel(module):
            modules.append(module)
    return modules, failures


def is_kernel(module: Module) -> bool:
    imported = (
        name
        for statement in iterate_load_imports(module.tree.body)
        for name in resolve_names(statement, module)
    )
    return any(name.partition(".")[0] in KERNEL_PACKAGES for name in imported)


# -- functions -------------------------------------------------------------------------------------


def list_functions(modules: Iterable[Module]) -> list[Function]:
    """Functions and methods, nested ones too."""
    return [node for module in modules for node in ast.walk(module.tree) if isinstance(node, Function)]


def strip_name(name: str) -> str | None:
    """A function's name without the underscores around it; None for a dunder and for `_`."""
    is_dunder = name.startswith("__") and name.endswith("__")
    return None if is_dunder else name.strip("_") or None


def is_one_word(name: str) -> bool:
    return "_" not in name


def is_participle(name: str) -> bool:
    return PARTICIPLE.fullmatch(name) is not None


def count_positional(function: Function) -> int:
    """Parameters that may be given by position, without `self`, `cls` and `*args`."""
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def count_parameters(function: Function) -> int:
    """All parameters but `self`, `cls`, `*args` and `**kwargs`."""
    return count_positional(function) + len(function.args.kwonlyargs)


def count_lines(function: Function) -> int:
    """Lines from `def` to the end; decorators are not counted."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


# -- imports ---------------------------------------------------------------------------------------


def iterate_load_imports(nodes: Iterable[ast.AST]) -> Iterator[ImportStatement]:
    """The imports that run as the module is loaded: none in functions, none for type checkers alone."""
    for node in nodes:
        if isinstance(node, ImportStatement):
            yield node
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            yield from iterate_load_imports(node.orelse)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case) and not isinstance(
            node, Function
        ):
            yield from iterate_load_imports(ast.iter_child_nodes(node))


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def resolve_names(statement: ImportStatement, module: Module) -> list[str]:
    """What a statement in `module` names, with `from a import b` as `a.b`, whether or not `b` is a module."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    base = [statement.module] if statement.module else []
    if statement.level:
        parents = module.name.split(".")
        up = statement.level - module.is_package
        base = [*parents[: len(parents) - up], *base]
    return [".".join([*base, alias.name]) for alias in statement.names]


def build_import_graph(modules: Sequence[Module], *, load_only: bool) -> ImportGraph:
    """Which modules import which: by all imports, or by those that run as a module is loaded.

    Importing `a.b` also loads `a`. That is not counted: a package that imports its own modules is no cycle.
    """
    known = {module.name for module in modules}
    graph: dict[str, frozenset[str]] = {}
    for module in modules:
        statements: Iterable[ImportStatement] = (
            iterate_load_imports(module.tree.body)
            if load_only
            else (node for node in ast.walk(module.tree) if isinstance(node, ImportStatement))
        )
        names = (name for statement in statements for name in resolve_names(statement, module))
        # `from a import b` is an import of the module `a.b` where there is one, else of `a`.
        targets = {name if name in known else name.rpartition(".")[0] for name in names}
        graph[module.name] = frozenset(targets & known - {module.name})
    return graph


def find_cycles(graph: ImportGraph) -> list[tuple[str, ...]]:
    """The strongly connected components with more than one module, each sorted."""
    reachable = {name: find_reachable(name, graph) for name in graph}
    components = {
        tuple(sorted(other for other in reached if name in reachable[other]))
        for name, reached in reachable.items()
        if name in reached
    }
    return sorted(components)


def find_reachable(start: str, graph: ImportGraph) -> frozenset[str]:
    """The modules that `start` imports, directly or not; itself only where it lies on a cycle."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        unvisited = graph[pending.pop()] - reached
        reached |= unvisited
        pending.extend(unvisited)
    return frozenset(reached)


def is_in_family(module: Module) -> bool:
    folder = f"/{module.path.parent}"
    return any(folder.endswith(f"/{family}") for family in FAMILY_FOLDERS)


def find_single_users(modules: Sequence[Module]) -> list[tuple[str, str]]:
    """Each short module outside families that exactly one other module imports, with that other module.

    A package's `__init__` counts as a user but is never listed itself, as it cannot move into its user.
    """
    users: defaultdict[str, list[str]] = defaultdict(list)
    for user, imported in build_import_graph(modules, load_only=False).items():
        for name in imported:
            users[name].append(user)
    return [
        (module.name, users[module.name][0])
        for module in modules
        if module.lines < SHORT_MODULE_LINES
        and len(users[module.name]) == 1
        and not module.is_package
        and not is_in_family(module)
    ]


# -- figures ---------------------------------------------------------------------------------------


def compute_percent(flags: Sequence[bool]) -> float | None:
    return 100 * sum(flags) / len(flags) if flags else None


def compute_percentile(values: Sequence[int], percent: int) -> int | None:
    """By nearest rank: the smallest value that at least `percent` % of the values do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1] if values else None


def measure_modules(modules: Sequence[Module]) -> list[Figure]:
    """Every figure, in the order of the table."""
    functions = list_functions(modules)
    names = [name for function in functions if (name := strip_name(function.name))]
    wide_functions = [function for function in functions if count_parameters(function) > MAX_POSITIONAL]
    lengths = [count_lines(function) for function in functions]
    module_lines = [module.lines for module in modules]
    single_users = find_single_users(modules)
    cycles = find_cycles(build_import_graph(modules, load_only=True))
    return [
        Figure("one_word_percent", compute_percent([is_one_word(name) for name in names])),
        Figure("participle_percent", compute_percent([is_participle(name) for name in names])),
        Figure(
            "keyword_only_percent",
            compute_percent([count_positional(function) <= MAX_POSITIONAL for function in wide_functions]),
        ),
        Figure("modules", len(modules)),
        Figure("single_user_modules", len(single_users), tuple(single_users)),
        Figure("module_median_lines", median(module_lines) if modules else None),
        Figure("function_p50_lines", compute_percentile(lengths, 50)),
        Figure("function_p90_lines", compute_percentile(lengths, 90)),
        Figure("long_functions", sum(length > LONG_FUNCTION_LINES for length in lengths)),
        Figure("product_lines", sum(module_lines)),
        Figure("import_cycles", len(cycles), tuple(cycles)),
    ]


def measure_tests(modules: Sequence[Module]) -> list[Figure]:
    """The names of helpers in tests and benchmarks; a test's own name is a sentence, and not counted."""
    names = [
        name
        for function in list_functions(modules)
        if (name := strip_name(function.name)) and not name.startswith("test_")
    ]
    return [
        Figure("helpers", len(names)),
        Figure("one_word_percent", compute_percent([is_one_word(name) for name in names])),
        Figure("participle_percent", compute_percent([is_participle(name) for name in names])),
    ]


# -- output ----------------------------------------------------------------------------------------


def format_table(figures: Iterable[Figure]) -> list[str]:
    """A line for each figure under a heading, then a line for each import cycle."""
    lines = [f"{'figure':<42}{'value':>9}  {'aim':<16}met"]
    for figure in figures:
        aim = f"{figure.aim.bound} {figure.aim.limit:,}" if figure.aim else "-"
        met = {True: "yes", False: "no", None: "-"}[figure.is_met]
        lines.append(f"{LABELS[figure.name]:<42}{format_value(figure.value):>9}  {aim:<16}{met}")
    cycles = (cycle for figure in figures if figure.name == "import_cycles" for cycle in figure.groups)
    return lines + [f"import cycle: {', '.join(cycle)}" for cycle in cycles]


def format_value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def encode_figures(figures: Iterable[Figure]) -> dict[str, Any]:
    """`value`, `aim` and `met` of each figure; `modules` where a count has modules behind it."""
    return {
        figure.name: {
            "value": figure.value,
            "aim": {figure.aim.bound.replace(" ", "_"): figure.aim.limit} if figure.aim else None,
            "met": figure.is_met,
        }
        | ({"modules": figure.groups} if figure.groups else {})
        for figure in figures
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 whether or not the aims are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure (default: this one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--tests", action="store_true", help="measure tests and benchmarks instead")
    options = parser.parse_args(argv)
    tests = (TEST_FOLDERS, EXCLUDED_TEST_FOLDERS)
    modules, failures = load_modules(options.root, *(tests if options.tests else ()))
    for path, reason in failures.items():
        print(f"house: {path} is left out: {reason}", file=sys.stderr)
    if not modules:
        parser.error(f"no {'tests' if options.tests else 'product code'} under {options.root}")
    figures = measure_tests(modules) if options.tests else measure_modules(modules)
    print(json.dumps(encode_figures(figures)) if options.json else "\n".join(format_table(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
