"""`docs/tour.md` is what happens: its commands are typed one after the other, and say what the page says.

Every line that the page shows has to come, in this order; what else comes (how long something takes, say,
where the machine is busy) is let pass. Ids of runs, times and paths of the machine stand for any. `^C` in
what a command says is the interrupt, pressed when the line before it is there. `UPDATE_SNAPSHOTS=1` writes
the page's output anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tour.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT, INTERRUPT = "$ ", "^C"
RUN = re.compile(r"\b[a-z_]+-[0-9a-f]{6}\b")
SECONDS = 300
"""What one command may take on a machine that is busy with all other tests."""

ANY = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b(\d+:)?\d+:\d\d\b|\b\d+(\.\d+)? (s|min|h)\b( ago)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "DIGEST"),
    (re.compile(r"\d+ kB"), "SIZE"),
    (re.compile(r"^[0-9a-f]{7} "), "COMMIT "),
    (re.compile(r"(?<=@)\d+|(?<= event )\d+"), "N"),
    (re.compile(r"\b[0-9.]+ ?%? ?(?=of the time)|\b\d+(\.\d)? an hour|\bpid \d+|\(\d+ days?\)"), "N"),
    (re.compile(r"\s+"), " "),
)
"""What is not the same twice."""

PERHAPS = re.compile(
    r"interrupted|so far:|in flight|best found correct on|^ +better: |^ +in all |^  (best|now|kernels) "
)
"""Lines that depend on how far a run was when it was interrupted, or that go over it."""


@dataclass
class Step:
    """A command of the page, and the lines that it is to say."""

    command: str
    said: list[str]


def steps(block: str) -> Iterator[Step]:
    for line in block.splitlines():
        if line.startswith(PROMPT):
            command, said = line.removeprefix(PROMPT), []
            yield Step(command, said)
        elif line.strip():
            said.append(line)


@dataclass
class Shell:
    """A checkout in which nothing is left to install, and a person's home, both empty of runs."""

    folder: Path
    runs: dict[str, str]
    """Runs of this walk by the names that the page gives them."""

    def type(self, step: Step) -> list[str]:
        """Type a command as a person would, and return the lines that it said."""
        command = RUN.sub(lambda found: self.runs.get(found[0], found[0]), step.command)
        with subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                return list(self._read(process, step))
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _read(self, process: subprocess.Popen[str], step: Step) -> Iterator[str]:
        at = step.said.index(INTERRUPT) if INTERRUPT in step.said else None
        before = None if at is None else self.same(step.said[at - 1])
        assert process.stdout is not None
        for text in process.stdout:
            line = self._shorten_paths(text.rstrip())
            yield line
            self._meet(line, step)
            if before is not None and self.same(line) == before:
                os.killpg(process.pid, signal.SIGINT)
                before = None
                yield INTERRUPT
        assert process.wait(SECONDS) in ((130,) if at is not None else (0,)), step.command

    def _shorten_paths(self, line: str) -> str:
        """Return a line with the paths that a person would see."""
        line = line.replace(str(Path(sys.executable).parent), ".venv/bin")
        return line.replace(str(self.folder.parent / "me"), "~")

    def _meet(self, line: str, step: Step) -> None:
        """Learn which run of this walk is which of the page: both meet them in the same order."""
        told = dict.fromkeys(RUN.findall(" ".join(step.said)))
        new = [name for name in told if name not in self.runs]
        for name in dict.fromkeys(RUN.findall(line)):
            if name not in self.runs.values() and new:
                self.runs[new.pop(0)] = name

    def same(self, line: str) -> str:
        """Return a line with what is not the same twice replaced, names of runs by those of the page."""
        back = {here: there for there, here in self.runs.items()}
        found = RUN.sub(lambda name: back.get(name[0], name[0]), line)
        for pattern, instead in ANY:
            found = pattern.sub(instead, found)
        return found.strip()

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "NKI_LOOPBACK") if name in os.environ}
        path = f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
        me = str(self.folder.parent / "me")
        return {**kept, "PATH": path, "HOME": me, "COLUMNS": "96", "NO_COLOR": "1"}


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A shell in a folder whose name is short, so that lines break where they do for the `~` of the page."""
    with tempfile.TemporaryDirectory(prefix="t") as made:
        yield _prepare_checkout(Path(made))


def _prepare_checkout(tmp_path: Path) -> Shell:
    """Lay out what `run.sh` looks for before it installs anything: programs, a note of what was installed."""
    folder, programs = tmp_path / "nki-kernel-agent", Path(sys.executable).parent
    bin_ = folder / ".venv" / "bin"
    bin_.mkdir(parents=True)
    (tmp_path / "me").mkdir()
    for name in ("run.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    for name in ("python", "agentctl"):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {shlex.quote(str(programs / name))} "$@"\n')
        (bin_ / name).chmod(0o755)
    lock = (folder / "requirements.lock").read_bytes() + (folder / "pyproject.toml").read_bytes()
    stamp = subprocess.run(["cksum"], input=lock, capture_output=True, check=True).stdout
    (folder / ".venv" / ".installed-requirements.lock").write_bytes(stamp)
    return Shell(folder, {})


def missing(wanted: list[str], said: list[str]) -> list[str]:
    """Return the lines that did not come in this order."""
    found = []
    for line in wanted:
        if line in said:
            said = said[said.index(line) + 1 :]
        else:
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.needs("git")
@pytest.mark.timeout(900)
def test_the_tour_is_what_happens(shell):
    text = PAGE.read_text(encoding="utf-8")
    made: list[str] = []
    for block in BLOCK.findall(text):
        lines: list[str] = []
        for step in list(steps(block)):
            said = shell.type(step)
            if os.environ.get("UPDATE_SNAPSHOTS"):
                lines += [f"{PROMPT}{step.command}", *visible_lines(step, said)]
                continue
            wanted = [shell.same(line) for line in step.said if not PERHAPS.search(line)]
            lost = missing(wanted, [shell.same(line) for line in said])
            assert lost == [], f"{step.command} said:\n" + "\n".join(said)
        made.append("\n".join(lines))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        rest = iter(made)
        fresh = BLOCK.sub(lambda _: f"```console\n{next(rest)}\n```", text)
        for there, here in shell.runs.items():
            fresh = fresh.replace(there, here)
        PAGE.write_text(fresh, encoding="utf-8")
    proves(shell)


def visible_lines(step: Step, said: list[str]) -> list[str]:
    """Return what a page shows of a command: of one that is interrupted, what was before, and its last."""
    if INTERRUPT in step.said:
        at = said.index(INTERRUPT)
        last = next(place for place, line in enumerate(said) if "interrupted:" in line)
        return [*said[: at + 1], *said[last:]]
    lines = [line.rstrip() for line in said]
    while lines and not lines[0]:
        lines.pop(0)
    return lines


def proves(shell: Shell) -> None:
    """What the walk left behind: the report's commands do again what the run did, its trace is one."""
    run = next(iter(shell.runs.values()))

    def agentctl(*words: str) -> str:
        step = Step(shlex.join([".venv/bin/agentctl", *words]), [])
        return "\n".join(shell.type(step))

    told = json.loads(agentctl("report", run, "--json"))
    commands = told["reproduction"]
    for line in (*commands["extract"], *commands["again"]):
        shell.type(Step(line, []))
    assert (shell.folder / "best.py").read_text() == told["best"]["source"]
    (judge,) = commands["judge"]
    judged = json.loads(agentctl(*shlex.split(judge)[1:], "--json").splitlines()[-1])
    assert judged["benchmark"]["latency_ms"] == told["run"]["best_ms"]
    (again,) = json.loads(agentctl("--home", "again", "status", "--json"))["runs"]
    assert again["best_ms"] == told["run"]["best_ms"]
    assert again["state_hash"] == told["environment"]["state_hash"]
    trace = json.loads((shell.folder / "kernels.json").read_text())
    assert trace["otherData"]["predicted"] is True
    latencies = [one["latency_ms"] for one in trace["otherData"]["kernels"]]
    assert latencies == [told["run"]["initial_ms"], told["run"]["best_ms"]]
    assert {"M", "X", "C"} <= {event["ph"] for event in trace["traceEvents"]}
