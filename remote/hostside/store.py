"""Stores the contents that homes sent, each under its sha256.

A file gets its final name only when it is complete and its digest is right. Contents are copied out, never
linked, and checked while copying. So neither a step that changes its inputs nor a crash that damages the disk
spreads errors.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from remote.hostside.errors import RequestRefused
from remote.hostside.workdir import Workdir

_BLOCK = 1 << 20


class ContentStore:
    """The contents in one workdir. `client` separates the pieces of homes that send the same content."""

    def __init__(self, place: Workdir, client: str) -> None:
        self._folder = place.store
        self._client = client

    def content_path(self, digest: str) -> Path:
        return self._folder / digest

    def find_missing(self, digests: list[str]) -> list[str]:
        """Return the digests that are not here; mark the others as used now, so that they stay."""
        return [digest for digest in digests if not self._mark_used(digest)]

    def _mark_used(self, digest: str) -> bool:
        try:
            os.utime(self.content_path(digest))
        except FileNotFoundError:
            return False
        return True

    def add_piece(self, digest: str, offset: int, data: bytes, *, last: bool) -> None:
        """Add a piece; after the last one, the content gets its name.

        Raises:
            RequestRefused: `bad_content` if pieces or digest are wrong; the sender starts over.
        """
        part = self._folder / f"{digest}.{self._client}.part"
        try:
            with part.open("wb" if offset == 0 else "r+b") as file:
                there = file.seek(0, os.SEEK_END)
                if there == offset:
                    file.write(data)
            fault = "a piece does not follow the last" if there != offset else ""
            if last and not fault:
                fault = "its digest is another" if hash_file(part) != digest else ""
        except FileNotFoundError:
            fault = "its first pieces are gone"
        except OSError:
            part.unlink(missing_ok=True)
            raise
        if fault:
            part.unlink(missing_ok=True)
            raise RequestRefused("bad_content", f"{digest[:12]} arrived wrong: {fault}")
        if last:
            part.chmod(0o400)
            part.replace(self.content_path(digest))

    def copy_content(self, digest: str, to: Path) -> None:
        """Copy a content out.

        Raises:
            RequestRefused: `lacks` if it is not here, or damaged.
        """
        found = hashlib.sha256()
        try:
            with self.content_path(digest).open("rb") as source, to.open("wb") as target:
                while block := source.read(_BLOCK):
                    found.update(block)
                    target.write(block)
        except FileNotFoundError:
            raise RequestRefused("lacks", f"{digest[:12]} is not in the store") from None
        if found.hexdigest() != digest:
            self.content_path(digest).unlink(missing_ok=True)
            raise RequestRefused("lacks", f"{digest[:12]} in the store was damaged and is removed")


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
