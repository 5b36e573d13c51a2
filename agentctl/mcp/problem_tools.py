"""The server's tools that make problems: new_problem, and translate, which writes a kernel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from agentctl.mcp.answers import LatencyClaim, RefusedCall, ToolInput, ToolOutput
from agentctl.translation import TranslatedProblem, translate_reference
from daemon.config import Config, load_config
from seeds import scaffold
from seeds.from_reference import read_reference
from targets.base import UntranslatableError


class TranslateInput(ToolInput):
    """Arguments of `translate`."""

    reference: str = Field(
        description="Python text with `reference` and INPUT_SPECS, or a file's absolute path"
    )
    name: str = Field(default="translated", description="the problem's name")
    into: str = Field(default="", description="write the problem to this new folder, an absolute path")
    target: str = Field(default="", description="the device; empty: the home's default")


class TranslateOutput(ToolOutput):
    """A kernel for a reference, and the verdict on it; `folder` is the problem's, if it was written."""

    kernel: str
    verdict: str
    folder: str | None = None

    def render(self) -> str:
        place = f"\nthe problem is in {self.folder}" if self.folder else ""
        return f"{self.verdict}{place}\n\n{self.kernel}"


async def translate(home: Path, said: TranslateInput) -> TranslateOutput:
    """Write a kernel for a reference, and judge it."""
    folder = _require_absolute(said.into) if said.into else None
    if folder is not None:
        scaffold.check_new_problem(folder.name, folder)
    given = {"run.target": said.target} if said.target else {}
    config = load_config(home, os.environ, {**given, "run.size": "full"}).config
    found = await _translate(home, config, said)
    made = found.judged.evaluation
    if folder is not None:
        scaffold.write_problem(found.problem, folder)
    claims = (
        (LatencyClaim.of_benchmark("kernel", made.benchmark, made.bottleneck),)
        if made.is_correct and made.benchmark is not None
        else ()
    )
    after = (
        f"`submit_run` with problem {folder} optimises it."
        if folder
        else "Name a folder in `into` to keep it."
    )
    return TranslateOutput(
        kernel=found.problem.kernel, verdict=made.verdict.value, folder=str(folder) if folder else None,
        latencies=claims, next=after,
    )  # fmt: skip


async def _translate(home: Path, config: Config, said: TranslateInput) -> TranslatedProblem:
    with _reference_file(said.reference) as path:
        file = read_reference(path, said.name)
        try:
            return await translate_reference(home, config, file)
        except UntranslatableError as error:
            hint = "Change what is in the way, or write the kernel yourself into a `new_problem`."
            raise RefusedCall("no_translation", f"no translation: {error}", hint) from error


@contextmanager
def _reference_file(reference: str) -> Iterator[Path]:
    """Yield the file of a reference that a client named or sent."""
    if "\n" not in reference:
        yield _require_absolute(reference)
        return
    with tempfile.TemporaryDirectory(prefix="agentctl-mcp-") as folder:
        path = Path(folder) / "reference.py"
        path.write_text(reference)
        yield path


def _require_absolute(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        hint = "The server's folder is not the client's."
        raise RefusedCall("relative_path", f"{text} is no absolute path", hint)
    return path


class NewProblemInput(ToolInput):
    """Arguments of `new_problem`."""

    name: str
    into: str = Field(description="the folder to make it in, an absolute path")


class NewProblemOutput(ToolOutput):
    """A new folder with a small problem that works as it is."""

    folder: str
    files: tuple[str, ...]

    def render(self) -> str:
        return f"{self.folder}: {', '.join(self.files)}"


def make_problem(home: Path, said: NewProblemInput) -> NewProblemOutput:
    """Write a folder with a small problem."""
    del home
    parent = _require_absolute(said.into)
    made = scaffold.create_problem(said.name, parent)
    folder = str(parent / said.name)
    after = f"Edit its files; `evaluate` with problem {folder} and source v0 judges its kernel."
    return NewProblemOutput(folder=folder, files=tuple(made.files), next=after)
