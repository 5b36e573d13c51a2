"""The server's resources: kernels, profiles and reports of runs, files of problems, the manual."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote

from mcp_types import Resource, ResourceTemplate, TextResourceContents

from agentctl.command_answers import is_owned
from agentctl.mcp.answers import RefusedCall
from agentctl.progress_bar import ProgressBar
from agentctl.run_lookup import find_run
from agentctl.views.candidate import load_candidate
from state.errors import NoLog
from state.reader import LogReader

MOST_LISTED = 50
"""How many runs are listed; older ones are read by their URI."""

_DOCS = Path(__file__).resolve().parents[2] / "docs"
"""The manual, where the program runs from its source tree."""

TEMPLATES = (
    ResourceTemplate(
        name="kernel", uri_template="kernel://{run}/{candidate}", mime_type="text/x-python",
        description="the source of a kernel of a run; the candidate is an id, `initial` or `best`",
    ),
    ResourceTemplate(
        name="profile", uri_template="profile://{run}/{candidate}", mime_type="application/json",
        description="a kernel's profile: counters, engines, timeline; whether it is predicted or measured",
    ),
    ResourceTemplate(
        name="report", uri_template="report://{run}", mime_type="text/markdown",
        description="a run's report: what it found, how, at what cost",
    ),
    ResourceTemplate(
        name="problem", uri_template="problem://{name}/{file}", mime_type="text/plain",
        description="a file of a built-in problem, such as reference.py or kernel.py",
    ),
    ResourceTemplate(
        name="docs", uri_template="docs://{page}", mime_type="text/markdown",
        description="a page of the manual, such as docs://problems",
    ),
)  # fmt: skip


def list_resources(home: Path) -> list[Resource]:
    """Return the newest runs' best kernels and reports, and the pages of the manual."""
    return [*_list_runs(home), *_list_docs()]


def _list_runs(home: Path) -> Iterator[Resource]:
    try:
        with LogReader.open(home) as reader:
            rows = reader.run_rows()[:MOST_LISTED]
    except NoLog:
        return
    for row in rows:
        run, problem = row["run"], row["problem"]
        yield Resource(name=f"best kernel of {run}", uri=f"kernel://{run}/best", mime_type="text/x-python")
        yield Resource(
            name=f"report of {run}",
            description=f"on {problem}",
            uri=f"report://{run}",
            mime_type="text/markdown",
        )


def list_pages() -> list[str]:
    """Return the names of the manual's pages; none where only the package is installed."""
    return sorted(path.stem for path in _DOCS.glob("*.md"))


def _list_docs() -> Iterator[Resource]:
    for path in sorted(_DOCS.glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        yield Resource(name=f"docs: {title}", uri=f"docs://{path.stem}", mime_type="text/markdown")


def read_resource(home: Path, uri: str) -> TextResourceContents:
    """Return a resource.

    Raises:
        RefusedCall: there is no such resource.
        daemon.errors.DaemonError, seeds.SeedsError, state.errors.StateError: the run, kernel or problem is
            unknown.
    """
    scheme, mark, rest = uri.partition("://")
    reader = _READERS.get(scheme) if mark else None
    parts = [unquote(part) for part in rest.split("/", 1 if scheme == "problem" else -1)]
    if reader is None or len(parts) != reader[0] or not all(parts):
        known = ", ".join(one.uri_template for one in TEMPLATES)
        raise RefusedCall("unknown_resource", f"there is no resource {uri!r}", f"There are {known}.")
    _, mime_type, read = reader
    return TextResourceContents(uri=uri, mime_type=mime_type, text=read(home, *parts))


def _read_kernel(home: Path, run: str, candidate: str) -> str:
    with LogReader.open(home) as reader:
        found = load_candidate(reader, str(find_run(reader, run)["run"]), candidate)
    return found.source or ""


def _read_profile(home: Path, run: str, candidate: str) -> str:
    with LogReader.open(home) as reader:
        found = load_candidate(reader, str(find_run(reader, run)["run"]), candidate)
    latency = found.latency
    kind = None if latency is None else "predicted" if latency.predicted else "measured"
    content = {
        "run": found.run, "candidate": found.id, "kind": kind,
        "latency_ms": latency and latency.ms, "lo_ms": latency and latency.lo_ms,
        "hi_ms": latency and latency.hi_ms, "limited_by": found.bottleneck,
        "counters": found.counters, "profile": found.profile,
    }  # fmt: skip
    return json.dumps(content)


def _read_report(home: Path, run: str) -> str:
    from agentctl.reports.document import gather_report
    from agentctl.reports.markdown import render_markdown

    now = datetime.now(UTC).isoformat(timespec="seconds")
    with LogReader.open(home) as reader, ProgressBar("", wanted=False) as bar:
        name = str(find_run(reader, run)["run"])
        return render_markdown(
            gather_report(
                reader,
                name,
                owned=is_owned(home),
                version=version("nki-kernel-agent"),
                now=now,
                progress=bar,
            )
        )


def _read_problem(home: Path, name: str, file: str) -> str:
    import seeds

    del home
    if name not in seeds.builtin_problems():
        raise RefusedCall("unknown_problem", f"there is no problem {name!r}", "`problems` lists them.")
    files = seeds.load_problem(name).files
    if file not in files:
        raise RefusedCall("unknown_file", f"{name} has no {file!r}", f"It has {', '.join(files)}.")
    return files[file].decode(errors="replace")


def _read_page(home: Path, page: str) -> str:
    del home
    pages = list_pages()
    if page not in pages:
        there = f"There are {', '.join(pages)}." if pages else "This installation has no manual."
        raise RefusedCall("unknown_page", f"the manual has no page {page!r}", there)
    return (_DOCS / f"{page}.md").read_text(encoding="utf-8")


_READERS: dict[str, tuple[int, str, Callable[..., str]]] = {
    "kernel": (2, "text/x-python", _read_kernel),
    "profile": (2, "application/json", _read_profile),
    "report": (1, "text/markdown", _read_report),
    "problem": (2, "text/plain", _read_problem),
    "docs": (1, "text/markdown", _read_page),
}
"""By scheme: how many parts the rest has, the kind of text, and what reads it."""
