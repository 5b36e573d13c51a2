"""A language that the program knows only by patterns: how a kernel's definition looks, and its comments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from state.model import Digest, ErrorInfo, digest_of
from targets.base import SourceError
from targets.folders.description import FolderLanguage


@dataclass(frozen=True, slots=True)
class PatternLanguage:
    """The language that a folder describes."""

    told: FolderLanguage

    @property
    def name(self) -> str:
        """The name for people."""
        return self.told.name

    @property
    def fence(self) -> str:
        """The language tag of a code block."""
        return self.told.fence

    @property
    def kernel_file(self) -> str:
        """The file name of the starting kernel in a problem's folder."""
        return self.told.kernel_file

    def lint(self, source: bytes) -> ErrorInfo | None:
        """Return why a text cannot be a kernel: not UTF-8, or no definition."""
        try:
            self.kernel_names(source.decode())
        except UnicodeDecodeError as error:
            return ErrorInfo(code="not_utf8", message=f"the text is not UTF-8: {error}")
        except SourceError as error:
            return ErrorInfo(code=error.code, message=str(error))
        return None

    def code_digest(self, source: bytes) -> Digest:
        """Return the digest of the lines, without comments, blank lines and ends of lines."""
        return digest_of("\n".join(self._code_lines(source.decode(errors="replace"))).encode())

    def kernel_names(self, source: str) -> frozenset[str]:
        """Return the names that the pattern of a definition finds.

        Raises:
            SourceError: no_kernel.
        """
        code = "\n".join(self._code_lines(source))
        found = frozenset(match[1] for match in re.finditer(self.told.entry, code, re.MULTILINE))
        if not found or "\0" in source:
            raise SourceError("no_kernel", f"there is no definition of a kernel ({self.told.entry})")
        return found

    def operators(self, source: str) -> frozenset[str]:
        """Return what the pattern of operators finds; `code` where it finds nothing."""
        if self.lint(source.encode(errors="replace")) is not None:
            return frozenset()
        code = "\n".join(self._code_lines(source))
        return frozenset(match[0] for match in re.finditer(self.told.operators, code)) or frozenset({"code"})

    def _code_lines(self, source: str) -> list[str]:
        """The lines without comments; settings in comments (`# tune:`) change nothing by themselves."""
        lines = (line.partition(self.told.comment)[0].rstrip() for line in source.splitlines())
        return [line for line in lines if line]
