"""Documents as chunks: pieces of text that fit a question, each with file, line and heading."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK_CHARS = 6000
MAX_DOCUMENT_BYTES = 32 << 20
CODE_SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cc", ".s", ".py", ".rs", ".cl", ".cu"}
_TEXT_SUFFIXES = {".md", ".txt", ".rst", ".adoc", ".html", ".htm", *CODE_SUFFIXES}
_HEADING = re.compile(r"^(#{1,6}|={1,6})[ \t]+(\S.*)$")
_FENCE = re.compile(r"^[ \t]*(```|~~~)")
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL | re.IGNORECASE)


class DocumentError(Exception):
    """A document cannot be read; the message says why."""

    code = "bad_document"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document; `is_code`: the document is a program's source."""

    file: str
    line: int
    heading: str
    text: str
    is_code: bool = False

    @property
    def source(self) -> str:
        """Where it stands, for people."""
        place = f"{self.file}, line {self.line}"
        return f"{place} ({self.heading})" if self.heading else place


def read_documents(paths: Sequence[Path]) -> Iterator[Chunk]:
    """Yield the chunks of files, and of all documents in folders.

    Raises:
        DocumentError: there is no such file, it has no text, or nothing can be read from a folder.
    """
    for path in paths:
        if path.is_dir():
            found = [one for one in sorted(path.rglob("*")) if _is_document(one)]
            if not found:
                kinds = ", ".join(sorted({*_TEXT_SUFFIXES, ".pdf"}))
                raise DocumentError(f"{path}: no documents ({kinds})")
            for one in found:
                yield from split_document(one.relative_to(path).as_posix(), _read_text(one))
        elif path.is_file():
            yield from split_document(path.name, _read_text(path))
        else:
            raise DocumentError(f"{path}: there is no such file or folder")


def _is_document(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts[1:])
    return path.is_file() and not hidden and path.suffix.lower() in {*_TEXT_SUFFIXES, ".pdf"}


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        raise DocumentError(f"{path}: more than {MAX_DOCUMENT_BYTES >> 20} MiB")
    if path.suffix.lower() == ".pdf":
        return _read_pdf(path)
    data = path.read_bytes()
    if b"\0" in data:
        raise DocumentError(f"{path}: not a text; give a text, HTML or PDF")
    text = data.decode(errors="replace")
    return _TAG.sub("", text) if path.suffix.lower() in {".html", ".htm"} else text


def _read_pdf(path: Path) -> str:
    if shutil.which("pdftotext") is None:
        raise DocumentError(f"{path}: reading a PDF needs pdftotext; install poppler-utils, or give a text")
    done = subprocess.run(
        ["pdftotext", "-layout", str(path), "-"], capture_output=True, check=False, timeout=300
    )
    if done.returncode:
        raise DocumentError(f"{path}: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout.decode(errors="replace").replace("\f", "\n")


def split_document(name: str, text: str) -> Iterator[Chunk]:
    """Yield the chunks of a document: sections, cut at blank lines where they are too long."""
    is_code = Path(name).suffix.lower() in CODE_SUFFIXES
    for line, heading, lines in _split_sections(text, has_headings=not is_code):
        for start, part in _split_lines(lines):
            blank = next((place for place, one in enumerate(part) if one.strip()), len(part))
            if blank < len(part):
                body = "\n".join(part[blank:]).rstrip()
                yield Chunk(name, line + start + blank, heading, body, is_code)


def _split_sections(text: str, *, has_headings: bool) -> Iterator[tuple[int, str, list[str]]]:
    first, heading, lines, fenced = 1, "", list[str](), False
    for number, line in enumerate(text.splitlines(), 1):
        fenced = fenced != bool(_FENCE.match(line))
        found = _HEADING.match(line) if has_headings and not fenced else None
        if found:
            yield first, heading, lines
            first, heading, lines = number + 1, found[2].strip("# ="), []
        else:
            lines.append(line)
    yield first, heading, lines


def _split_lines(lines: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield parts of at most `CHUNK_CHARS`, cut after a blank line outside code if there is one."""
    start, size, cut, fenced = 0, 0, 0, False
    for number, line in enumerate(lines):
        fenced = fenced != bool(_FENCE.match(line))
        if size + len(line) > CHUNK_CHARS and number > start:
            end = cut if cut > start else number
            yield start, lines[start:end]
            start, size = end, sum(len(one) + 1 for one in lines[end:number])
        size += len(line) + 1
        if not line.strip() and not fenced:
            cut = number + 1
    yield start, lines[start:]


def quotes_text(quote: str, chunks: Iterable[Chunk]) -> bool:
    """Whether a quotation stands in one of the chunks, however its spaces and lines are."""
    wanted = " ".join(quote.split())
    return bool(wanted) and any(wanted in " ".join(one.text.split()) for one in chunks)
