"""Logging of the process: structured lines to stderr, JSON where no person is looking.

Every JSON line names the run, the effect and the event that it is about, null where there is none; an
event is named RUN@SEQ. What is logged while an effect is performed names them by itself, from the context
of its task. Lines of the standard library's loggers are rendered the same way. To the journal, each
line says its priority as well (`journalctl -p warning`).
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

IDS = ("run", "effect", "event_id")

PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""Levels as syslog counts them."""


def configure_logging(level: str, *, people: bool = False) -> None:
    """Send lines of `level` and above to stderr: for people on a terminal, else as JSON.

    With `people` they are for people wherever they go: somebody started this, and reads what it says.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render = _console_processors() if people or sys.stderr.isatty() else _json_processors(sys.stderr)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    handler = _ProcessHandler(sys.stderr)
    foreign: list[Processor] = [*shared, structlog.stdlib.add_logger_name]
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=foreign, processors=[strip, *render])
    )
    root = logging.getLogger()
    root.handlers[:] = [*(old for old in root.handlers if not isinstance(old, _ProcessHandler)), handler]
    root.setLevel(max(number, logging.INFO))  # what libraries say when debugging is for their developers


class _ProcessHandler(logging.StreamHandler[TextIO]):
    """Ours, to be told apart when logging is configured again."""


def _console_processors() -> list[Processor]:
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]


def _json_processors(stream: TextIO) -> list[Processor]:
    # Tracebacks without local variables: kernels and requests have their places, logs are none of them.
    plain = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
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
    except (OSError, ValueError):  # no file behind it
        return False
    return stated == f"{found.st_dev}:{found.st_ino}"
