"""Logging of the process: structured lines to stderr, as JSON unless a person reads them.

Every JSON line names the run, the effect and the event that it is about, null where there is none. An
event is named RUN@SEQ. While an effect is performed, the context of its task adds these names to each
line. Lines of the standard library's loggers are rendered the same way. Lines to the journal also carry
their priority (`journalctl -p warning`).
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from daemon.structured_log import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

IDS = ("run", "effect", "event_id")

PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""Syslog priorities of the log levels."""


def configure_logging(level: str, *, people: bool = False, stream: TextIO | None = None) -> None:
    """Send lines of `level` and above to `stream` (stderr): readable on a terminal, otherwise as JSON.

    With `people`, lines are readable everywhere, because the person who started this process reads them.
    """
    stream = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render = _console_processors(stream) if people or stream.isatty() else _json_processors(stream)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=stream),
    )
    handler = _ProcessHandler(stream)
    foreign: list[Processor] = [*shared, structlog.stdlib.add_logger_name]
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=foreign, processors=[strip, *render])
    )
    root = logging.getLogger()
    root.handlers[:] = [*(old for old in root.handlers if not isinstance(old, _ProcessHandler)), handler]
    # below this level, libraries log only what their developers need
    root.setLevel(max(number, logging.INFO))


class _ProcessHandler(logging.StreamHandler[TextIO]):
    """Our own handler, so that a second configuration can find and replace it."""


def _console_processors(stream: TextIO) -> list[Processor]:
    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]


def _json_processors(stream: TextIO) -> list[Processor]:
    # Tracebacks leave out local variables: kernels and requests must not end up in logs.
    without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    plain = structlog.processors.ExceptionRenderer(without_locals)
    render: Processor = structlog.processors.JSONRenderer()
    return [plain, _with_ids, _with_priority(render) if is_journal_stream(stream) else render]


def _with_ids(logger: Any, name: str, line: EventDict) -> EventDict:
    return {**dict.fromkeys(IDS), **line}


def _with_priority(render: Processor) -> Processor:
    def rendered(logger: Any, name: str, line: EventDict) -> str:
        return f"<{PRIORITIES.get(line['level'], 6)}>{render(logger, name, line)!s}"

    return rendered


def is_journal_stream(stream: TextIO) -> bool:
    """Return whether the service manager connected `stream` to the journal."""
    stated = os.environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # the stream has no file
        return False
    return stated == f"{found.st_dev}:{found.st_ino}"
