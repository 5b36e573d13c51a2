"""Logging of the process: structured lines to stderr, JSON where no person is looking."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str) -> None:
    """Send structlog's lines of `level` and above to stderr: for people on a terminal, else as JSON."""
    tty = sys.stderr.isatty()
    render: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer()
    )
    tracebacks: list[structlog.typing.Processor] = [] if tty else [structlog.processors.dict_tracebacks]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
