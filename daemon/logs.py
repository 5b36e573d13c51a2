"""Logging of the process: structured lines to stderr, JSON where no person is looking."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer


def configure(level: str) -> None:
    """Send structlog's lines of `level` and above to stderr: for people on a terminal, else as JSON."""
    tty = sys.stderr.isatty()
    # Tracebacks without local variables: kernels and requests have their places, logs are none of them.
    plain = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    render: tuple[structlog.typing.Processor, ...] = (
        (structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),)
        if tty
        else (plain, structlog.processors.JSONRenderer())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
