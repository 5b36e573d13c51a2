"""Exports kernels as a Git branch: one commit per new best kernel, and one whenever a best was taken
back.

It writes objects and moves one reference. Work trees, the index and other branches stay unchanged, and
no hooks, filters or user settings apply. Times and texts come from the log, so the same run gives the
same commits; a repeated export extends the branch, or finds nothing new.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from shutil import rmtree, which

from agentctl.exports.folder import require_safe_path
from agentctl.formatting import format_ms, format_speedup
from agentctl.hidden_characters import escape_hidden
from agentctl.reports.phrases import latency_source
from agentctl.views.improvement_path import BestChange, Improvement, load_improvement_path
from agentctl.views.improvement_path import ImprovementPath as Way
from daemon.errors import DaemonError
from state.errors import BadTarget
from state.output_files import is_home_path, translate_os_errors
from state.reader import LogReader
from state.records import ProgressCallback
from targets.registry import kernel_suffix

RESULT, PROBLEM = "result.json", "problem"

AUTHOR = "nki-kernel-agent"
EMAIL = "nki-kernel-agent@localhost"

SECONDS = 120.0
"""Timeout of one Git command, in seconds."""
SUBJECT, TEXT = 72, 2000
"""Maximum characters of a commit's first line, and of an untrusted text in the message."""


@dataclass(frozen=True, slots=True)
class ExportedBranch:
    """Where the commits are. `commits` counts those of the branch, `new` those that this export added."""

    repository: str
    branch: str
    tip: str
    commits: int
    new: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a commit: files by path, its time (ISO 8601), and its message."""

    files: Mapping[str, bytes]
    time: str
    message: str


def export_branch(
    home: Path,
    reader: LogReader,
    run: str,
    root: Path,
    *,
    branch: str,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> ExportedBranch:
    """Write a run's kernels to `branch` of the repository at `root`, which is created if nothing is
    there.

    `progress` is called for the run's events, then for commits.

    Raises:
        StreamUnknown: there is no such run.
        DaemonError: there is no kernel yet, no Git, no repository there, or Git refuses.
        BadTarget: the branch holds other commits (`force` replaces them) or is checked out somewhere.
    """
    way = load_improvement_path(reader, run, progress=progress)
    commits = list(_plan_commits(reader, run, way))
    if not commits:
        raise DaemonError(f"run {run} has no correct kernel yet", code="no_kernel")
    if which("git") is None:
        raise DaemonError("there is no git here; install it", code="no_git")
    if is_home_path(home, Path(os.path.realpath(root))):
        raise BadTarget(f"{root} belongs to the log itself; name a folder elsewhere")
    with translate_os_errors(root):
        if not root.exists() or (root.is_dir() and not any(root.iterdir())):
            return _create_repository(root, commits, branch, progress=progress)
    _require_repository(root)
    return _update_branch(_Git(root), root, commits, branch, progress, force=force)


# --- commits ---------------------------------------------------------------------------------------


def _plan_commits(reader: LogReader, run: str, way: Way) -> Iterator[Commit]:
    """Yield a commit for each change of the run's best kernel."""
    state = reader.run_state(run)
    problem = {
        f"{PROBLEM}/{require_safe_path(path)}": reader.get_blob(digest)
        for path, digest in state.problem.files.items()
    }
    kernel_file = f"kernel{kernel_suffix(state.config.target)}"
    for turn in way.turns:
        one = turn.best
        kernel = (
            {} if one is None else {kernel_file: reader.get_blob(one.source), RESULT: _result_json(run, one)}
        )
        time = turn.taken_back.time if turn.taken_back else one.time if one else ""
        yield Commit({**problem, **kernel}, time, _commit_message(run, turn))


def _result_json(run: str, one: Improvement) -> bytes:
    told = {
        "run": run,
        "candidate": one.candidate,
        "parent": one.parent,
        "latency_ms": one.latency.ms,
        "lo_ms": one.latency.lo_ms,
        "hi_ms": one.latency.hi_ms,
        "predicted": one.latency.predicted,
        "speedup_over_initial": one.total,
        "technique": one.technique,
        "event": one.at,
    }
    return (json.dumps(told, indent=2) + "\n").encode()


def _commit_message(run: str, turn: BestChange) -> str:
    """Return the message: only what was known when the kernel was kept, because a commit must not change
    later.
    """
    back, one = turn.taken_back, turn.best
    if back is not None:
        instead = f"back to {one.candidate}" if one else "nothing is left"
        head = f"Take back {back.candidate}: it was wrong"
        return _join_message(head, [f"{instead}. {_clip_text(back.reason)}"], {"Run": run, "Event": back.at})
    assert one is not None
    if one.parent is None:
        head = f"{format_ms(one.latency.ms)} {latency_source(one.latency)}: the kernel to begin with"
        return _join_message(head, [], {"Run": run, "Event": one.at})
    over = f"{format_speedup(one.speedup)} over {one.parent}, {format_speedup(one.total)} over the first"
    told = [f"{format_ms(one.latency.ms)} {latency_source(one.latency)}, {over}."]
    if one.expected is not None:
        told.append(f"Expected {format_speedup(one.expected)}. {_clip_text(one.reason)}".strip())
    trailers = {"Run": run, "Event": one.at, "Candidate": one.candidate, "Proposed-by": _one_line(one.author)}
    return _join_message(f"{format_speedup(one.total)}: {_one_line(one.title)}", told, trailers)


def _join_message(head: str, paragraphs: list[str], trailers: Mapping[str, str]) -> str:
    subject = head if len(head) <= SUBJECT else f"{head[: SUBJECT - 3]}..."
    tail = "\n".join(f"{name}: {value}" for name, value in trailers.items())
    return "\n\n".join([subject, *paragraphs, tail]) + "\n"


def _one_line(text: str) -> str:
    return " ".join(escape_hidden(text).split())


def _clip_text(text: str) -> str:
    """Return an untrusted text as one paragraph, so that nothing in it reads as a trailer."""
    return _one_line(text)[:TEXT]


# --- Git -------------------------------------------------------------------------------------------


class _Git:
    """Runs Git on one repository, without user settings and hooks."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ceiling = root.resolve().parent
        self._blobs: dict[bytes, str] = {}

    def __call__(self, *arguments: str, data: bytes = b"", **more: str) -> str:
        """Run one command and return its output.

        Raises:
            DaemonError: it failed or took too long.
        """
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        settings = {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CEILING_DIRECTORIES": str(self._ceiling),
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            # do not fetch what a partial clone lacks, because that could run programs
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "LC_ALL": "C",
            "HOME": os.devnull,
            # reflogs name a committer too: not this machine's user
            "GIT_COMMITTER_NAME": AUTHOR,
            "GIT_COMMITTER_EMAIL": EMAIL,
        }
        flags = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "gc.auto=0")
        try:
            done = subprocess.run(
                ["git", *flags, "-C", str(self._root), *arguments],
                input=data,
                env={**kept, **settings, **more},
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DaemonError(f"git {arguments[0]} took more than {SECONDS:g} s", code="git_failed") from None
        if done.returncode:
            said = _one_line(done.stderr.decode(errors="replace"))[:400]
            raise DaemonError(f"git {arguments[0]}: {said or f'status {done.returncode}'}", code="git_failed")
        return done.stdout.decode(errors="replace").strip()

    def find_output(self, *arguments: str) -> str:
        """Return the output of a Git query; empty if it fails."""
        try:
            return self(*arguments)
        except DaemonError:
            return ""

    def write_tree(self, files: Mapping[str, bytes]) -> str:
        """Write files as a tree and return its name."""
        entries: list[bytes] = []
        folders: dict[str, dict[str, bytes]] = {}
        for path, data in files.items():
            top, _, rest = path.partition("/")
            if rest:
                folders.setdefault(top, {})[rest] = data
            else:
                entries.append(f"100644 blob {self._write_blob(data)}\t".encode() + os.fsencode(top))
        for top, inside in folders.items():
            entries.append(f"040000 tree {self.write_tree(inside)}\t".encode() + os.fsencode(top))
        return self("mktree", "-z", data=b"".join(entry + b"\0" for entry in entries))

    def _write_blob(self, data: bytes) -> str:
        """Write a file, once, and return its name."""
        if data not in self._blobs:
            self._blobs[data] = self("hash-object", "-w", "--no-filters", "--stdin", data=data)
        return self._blobs[data]

    def write_commit(self, one: Commit, parent: str | None) -> str:
        """Write a commit and return its name."""
        stamp = f"{int(datetime.fromisoformat(one.time).timestamp())} +0000"
        who = {
            f"GIT_{role}_{name}": value
            for role in ("AUTHOR", "COMMITTER")
            for name, value in (("NAME", AUTHOR), ("EMAIL", EMAIL), ("DATE", stamp))
        }
        parents = ("-p", parent) if parent else ()
        message = one.message.encode("utf-8", "backslashreplace")
        return self("commit-tree", "--no-gpg-sign", *parents, self.write_tree(one.files), data=message, **who)


def _create_repository(
    root: Path, commits: list[Commit], branch: str, *, progress: ProgressCallback | None
) -> ExportedBranch:
    """Create a repository with all its commits, or nothing."""
    if not root.parent.is_dir():
        raise BadTarget(f"{root}: there is no folder {root.parent}; make it first")
    staging = root.parent / f".{root.name[:100]}.{token_hex(6)}.part"
    staging.mkdir()
    try:
        git = _Git(staging)
        git("init", "-q", "--template=", "--initial-branch", "main")
        made = _update_branch(git, root, commits, branch, progress, force=False)
        staging.rename(root)
    except BaseException:
        rmtree(staging, ignore_errors=True)
        raise
    return made


def _require_repository(root: Path) -> None:
    """Check that a repository starts at `root`, and not somewhere above it.

    Raises:
        BadTarget: there is none.
    """
    if not root.is_dir():
        raise BadTarget(f"{root} is a file; name a repository, or a folder to be made one")
    git = _Git(root)
    top = git.find_output("rev-parse", "--show-toplevel") or git.find_output(
        "rev-parse", "--absolute-git-dir"
    )
    if not top or not root.samefile(top):
        raise BadTarget(f"{root} is no Git repository; name one, or a folder that is not there yet")


def _update_branch(
    git: _Git,
    root: Path,
    commits: list[Commit],
    branch: str,
    progress: ProgressCallback | None,
    *,
    force: bool,
) -> ExportedBranch:
    reference = f"refs/heads/{branch}"
    if not git.find_output("check-ref-format", "--branch", branch):
        raise BadTarget(f"{branch!r} is no name for a branch")
    before = git.find_output("rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}")
    names: list[str] = []
    for one in commits:
        names.append(git.write_commit(one, names[-1] if names else None))
        if progress is not None:
            progress(len(names), len(commits))
    tip = names[-1]
    if before and before not in names and not force:
        remedy = "name another with --branch, or replace it with --force"
        raise BadTarget(f"branch {branch} of {root} holds other commits; {remedy}")
    if tip != before:
        _require_not_checked_out(git, root, reference)
        git("update-ref", "-m", "agentctl export", reference, tip, before)
    known = names.index(before) + 1 if before in names else 0
    return ExportedBranch(str(root), branch, tip, len(names), len(names) - known)


def _require_not_checked_out(git: _Git, root: Path, reference: str) -> None:
    """Refuse to move a branch that a work tree has checked out.

    Raises:
        BadTarget: it is checked out.
    """
    bare = git.find_output("rev-parse", "--is-bare-repository") == "true"
    lines = git.find_output("worktree", "list", "--porcelain").splitlines()
    born = git.find_output("rev-parse", "--verify", "--quiet", "HEAD")
    if not bare and born and f"branch {reference}" in lines:
        name = reference.removeprefix("refs/heads/")
        raise BadTarget(
            f"branch {name} of {root} is checked out; switch to another, or name one with --branch"
        )
