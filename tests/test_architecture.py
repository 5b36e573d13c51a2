"""The shape of the tree: rooms that say what they are, arrows that hold, a start that stays light."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pytest

from seeds.problem_files import SPEC_FILE
from targets.registry import load_families

ROOT = Path(__file__).parents[1]
ROOMS = (
    "state",
    "stability",
    "agent_core",
    "prompts",
    "seeds",
    "remote",
    "nki_sim",
    "targets",
    "daemon",
    "agentctl",
)

ARROWS = {
    "state": (),
    "nki_sim": (),
    "prompts": (),
    "stability": ("state",),
    "seeds": ("state",),
    "targets": ("agent_core", "remote", "stability", "state", "seeds", "nki_sim"),
    "agent_core": ("stability", "state", "seeds", "prompts", "targets"),
    "remote": ("state", "seeds", "targets"),
    "daemon": ("agent_core", "stability", "state", "remote", "seeds", "targets"),
    "agentctl": ("daemon", "agent_core", "stability", "state", "remote", "seeds", "targets"),
}
"""What each room may import directly; of `targets` only its protocol and registry."""

FORBIDDEN = [(room, other) for room, other in permutations(ROOMS, 2) if other not in ARROWS[room]]

SDKS = {"anthropic", "openai", "asyncssh"}
HEAVY = SDKS | {"libcst", "numpy", "ml_dtypes", "sqlite_utils"}


TARGET_WORDS = re.compile(
    r"trn[12]\b|sbuf|psum|gpsimd|\bhbm|nkibench|neuron"
    r"|\b(?:tensor|vector|scalar|sync)(?: |_|-)?(?:engine|e\b)",
    re.IGNORECASE,
)
"""Words that only a target may say: its devices, their engines and memories, its benchmark."""

TARGET_FREE = ("agentctl", "daemon", "agent_core", "stability", "state", "remote", "prompts", "seeds")

TARGET_EXCEPTIONS = {
    "state/model/settings.py": "defaults of run.target and run.llm.metrics, which recorded states contain",
    "seeds/nkibench/": "reads the files of the benchmark of this name",
    "seeds/problem.py": "names that reader",
}


class Source(NamedTuple):
    """What is asked of a module of the tree; its syntax tree, which takes much memory, is not kept."""

    path: Path
    has_docstring: bool
    lines: int
    functions: dict[str, int]
    """The lines of each function, by its place and name."""


@cache
def sources() -> list[Source]:
    folders = [*ROOMS, "tests", "benchmarks"]
    return [read_source(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]


def read_source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return Source(path, bool(ast.get_docstring(tree)), len(text.splitlines()), functions)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "500", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_which_file_to_open_first(room):
    text = importlib.import_module(room).__doc__ or ""
    assert len(text.split()) >= 25
    first = re.search(r"(?:Open|Read)\s+`+([\w./]+)`+", text)
    assert first is not None
    stem = first[1].removesuffix(".py")
    places = [folder / name for folder in (ROOT / room, ROOT) for name in (first[1], stem, f"{stem}.py")]
    assert any(place.exists() for place in places)


def test_every_module_says_what_it_is_for():
    assert [source.path for source in sources() if not source.has_docstring] == []


def test_the_arrows_between_rooms_hold():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


def test_every_forbidden_arrow_would_be_noticed(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
        lines = [f"import {other}\n" for source, other in FORBIDDEN if source == room]
        (tmp_path / room / "intruder.py").write_text("".join(lines))
    report = lint_imports(tmp_path)
    assert report.returncode == 1
    missed = [arrow for arrow in FORBIDDEN if f"{arrow[0]}.intruder -> {arrow[1]} " not in report.stdout]
    assert missed == []


def tracked_files(*rooms: str) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *rooms]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


IMPORTS_SIMULATOR = re.compile(r"^\s*(?:from|import)\s+nki_sim\b", re.MULTILINE)


def test_only_its_target_imports_the_simulator():
    own = (ROOT / "targets" / "nki", ROOT / "nki_sim")
    found = [path for path in tracked_files(*ROOMS) if path.suffix == ".py"]
    using = [path for path in found if IMPORTS_SIMULATOR.search(path.read_text(encoding="utf-8"))]
    assert [path for path in using if not any(path.is_relative_to(folder) for folder in own)] == []
    assert any(path.is_relative_to(own[0]) for path in using), "the pattern finds no import at all"


def read_statements(path: Path) -> str:
    """The text of a file; of a problem only the values, as comments of old ones are part of their digests."""
    text = path.read_text(encoding="utf-8")
    return json.dumps(tomllib.loads(text)) if path.name == SPEC_FILE else text


def target_words(room: str) -> dict[str, set[str]]:
    """Return the words of a target that files of a room have, by file; kernels are a target's own."""
    kernels = {target.language.kernel_file for target in load_families()}
    texts = {path: read_statements(path) for path in tracked_files(room) if path.name not in kernels}
    assert texts
    found = {
        path.relative_to(ROOT).as_posix(): {word.lower() for word in TARGET_WORDS.findall(text)}
        for path, text in texts.items()
    }
    return {path: words for path, words in found.items() if words}


@pytest.mark.parametrize("room", TARGET_FREE)
def test_a_room_names_no_target(room):
    excused = {start for start in TARGET_EXCEPTIONS if start.startswith(f"{room}/")}
    found = target_words(room)
    named = {path: next((start for start in excused if path.startswith(start)), None) for path in found}
    assert [path for path, start in named.items() if start is None] == [], found
    assert set(named.values()) == excused, "an exception that nothing needs any more"


@pytest.mark.parametrize(
    ("text", "found"),
    [("x = 'trn2'", 1), ("copy on VectorE\nto PSUM", 2), ("a vector, a tensor\nand an engine", 0)],
)
def test_words_of_a_target_are_noticed(text, found):
    assert len(TARGET_WORDS.findall(text)) == found


def loaded_by(module: str) -> set[str]:
    script = f"import sys, json, {module}; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return set(json.loads(out))


@pytest.mark.parametrize("module", ["state.log", "state.reader", "agentctl", "nki_sim"])
def test_the_start_path_loads_no_heavy_library(module):
    assert loaded_by(module) & HEAVY == set()


def test_the_daemon_starts_without_an_sdk():
    assert loaded_by("daemon.main") & SDKS == set()


def test_no_function_or_module_outgrows_its_reader():
    for source in sources():
        assert source.lines <= 600, source.path
        assert {name: lines for name, lines in source.functions.items() if lines > 60} == {}
