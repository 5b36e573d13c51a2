"""C and C++ kernels as texts: what may be compiled, what is the same kernel, what it uses.

A kernel defines one function, `kernel`, with the arguments of the problem (`header.py`). Lines of comments
set what the compiler is told:

    // language: c++17          c11 (default), c17, c++17 or c++20
    // flags: -O3 -march=native what is given here replaces the default flags
    // threads: 2               cores that OpenMP may use; by default 1
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from state.model import Digest, ErrorInfo, digest_of
from targets.base import SourceError

ENTRY = "kernel"
_LINE_END, _HASH = "\n", "#"
DEFAULT_FLAGS = ("-O3", "-march=native")
STANDARDS = {"c11": "gnu11", "c17": "gnu17", "c++17": "gnu++17", "c++20": "gnu++20"}
MAX_THREADS = 256

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*"""
    r"""|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|\S|\n""",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*//[ \t]*(language|flags|threads):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_DEFINITION = re.compile(r"\bvoid\s+([A-Za-z_]\w*)\s*\([^;{)]*\)\s*\{", re.DOTALL)
_INTRINSIC = re.compile(r"\b(_mm\d*_\w+|__builtin_\w+|v[a-z]+q?_[fsu]\d+|sv[a-z]+_\w+|asm|__asm__)\b")
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+(\w+[ \t]+\w+)", re.MULTILINE)
_FLAG = re.compile(
    r"-O(?:0|1|2|3|s|fast)|-fopenmp(?:-simd)?|-m[a-z0-9_.=+-]+|--param=[a-z0-9-]+=\d+"
    r"|-f(?:no-)?(?!plugin|dump|profile|lto|sanitize|instrument|working|debug|stack-usage|callgraph|save|opt-info"
    r"|diagnostics|auto-profile|record|use-ld)[a-z0-9-]+(?:=[a-z0-9_.-]+)?|-D[A-Za-z_]\w*(?:=-?\w+)?"
)


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How a kernel is compiled, as its comments say."""

    standard: str = "c11"
    flags: tuple[str, ...] = DEFAULT_FLAGS
    threads: int = 1

    @property
    def is_cpp(self) -> bool:
        """Whether it is C++."""
        return "++" in self.standard


def read_settings(source: str) -> BuildSettings:
    """Return what a kernel's comments ask for.

    Raises:
        SourceError: an unknown standard, a flag that is not allowed, or a number of threads that is none.
    """
    told: dict[str, str] = {}
    for name, value in _DIRECTIVE.findall(source):
        if name in told:
            raise SourceError("repeated_setting", f"`// {name}:` is given twice")
        told[name] = value
    standard = told.get("language", "c11").lower()
    if standard not in STANDARDS:
        raise SourceError(
            "unknown_standard", f"`// language: {standard}`: must be one of {', '.join(STANDARDS)}"
        )
    flags = tuple(told["flags"].split()) if "flags" in told else DEFAULT_FLAGS
    for flag in flags:
        if not _FLAG.fullmatch(flag):
            raise SourceError(
                "unknown_flag", f"`// flags: {flag}`: allowed are -O..., -m..., -f..., -D and --param="
            )
    number = told.get("threads", "1")
    if not (number.isdecimal() and 1 <= int(number) <= MAX_THREADS):
        raise SourceError("bad_threads", f"`// threads: {number}`: must be a number from 1 to {MAX_THREADS}")
    return BuildSettings(standard, flags, int(number))


class CLanguage:
    """C and C++."""

    name, fence, kernel_file = "C", "c", "kernel.c"

    def lint(self, source: bytes) -> ErrorInfo | None:
        """Return why a text cannot be a kernel: not UTF-8, no function `kernel`, settings that are not
        allowed."""
        try:
            text = _decode_source(source)
            self.kernel_names(text)
            read_settings(text)
        except SourceError as error:
            return ErrorInfo(code=error.code, message=str(error))
        return None

    def code_digest(self, source: bytes) -> Digest:
        """Return the digest of the tokens, without comments but for those that set how it is compiled."""
        text = source.decode(errors="replace")
        try:
            settings = read_settings(text)
        except SourceError:
            return digest_of(source)
        tokens = [token for token in _TOKEN.findall(_join_lines(text)) if not token.startswith(("//", "/*"))]
        told = [settings.standard, *settings.flags, str(settings.threads)]
        return digest_of("\0".join([*told, *_drop_blank_lines(tokens)]).encode())

    def kernel_names(self, source: str) -> frozenset[str]:
        """Return `kernel`.

        Raises:
            SourceError: no_kernel.
        """
        if ENTRY not in _DEFINITION.findall(_strip_comments(source)):
            raise SourceError("no_kernel", "there is no definition of `void kernel(...)`")
        return frozenset({ENTRY})

    def operators(self, source: str) -> frozenset[str]:
        """Return the intrinsics and pragmas that a kernel uses; `loops` where it has neither."""
        if self.lint(source.encode(errors="replace")):
            return frozenset()
        text = _strip_comments(source)
        used = {*_INTRINSIC.findall(text), *(" ".join(name.split()) for name in _PRAGMA.findall(text))}
        return frozenset(used or {"loops"})


C = CLanguage()


def _decode_source(source: bytes) -> str:
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise SourceError("not_utf8", f"the text is not UTF-8: {error}") from error
    if "\0" in text:
        raise SourceError("not_text", "the text has a zero byte")
    return text


def _join_lines(text: str) -> str:
    return text.replace("\\\n", " ")


def _strip_comments(text: str) -> str:
    return "".join(
        " " if token.startswith(("//", "/*")) else token
        for token in re.split(f"({_TOKEN.pattern})", text, flags=re.DOTALL)
    )


def _drop_blank_lines(tokens: list[str]) -> list[str]:
    """Keep the ends of lines of directives only: elsewhere a line's end means nothing."""
    kept: list[str] = []
    directive = False
    at_start = True
    for token in tokens:
        if token == _LINE_END:
            if directive:
                kept.append(token)
            directive, at_start = False, True
            continue
        directive = directive or (at_start and token == _HASH)
        at_start = False
        kept.append(token)
    return kept
