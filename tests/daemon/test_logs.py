"""What the process logs: JSON lines where no person looks, without the contents of what it works on."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
import structlog

from daemon.logs import configure


@pytest.fixture(params=[False, True], ids=["to a file", "to a terminal"])
def stderr(request, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return request.param

    stream = Stream()
    monkeypatch.setattr("daemon.logs.sys", SimpleNamespace(stderr=stream))
    yield stream
    structlog.reset_defaults()


def fail() -> None:
    kernel = "TILE_M = 128  # somebody's own"
    assert kernel
    raise ZeroDivisionError("a bug")


def test_a_line_says_what_when_and_how_grave(stderr):
    configure("info")
    structlog.get_logger("test").info("started", home="/h", head=7)
    text = stderr.getvalue()
    assert "started" in text
    assert len(text.splitlines()) == 1
    if not stderr.isatty():
        line = json.loads(text)
        assert (line["event"], line["level"], line["home"], line["head"]) == ("started", "info", "/h", 7)
        assert line["timestamp"].endswith("Z")


def test_less_grave_lines_are_left_out(stderr):
    configure("warning")
    structlog.get_logger("test").info("started")
    assert stderr.getvalue() == ""
    structlog.get_logger("test").warning("retried")
    assert "retried" in stderr.getvalue()


def test_a_traceback_names_the_place_and_keeps_the_values_to_itself(stderr):
    configure("info")
    try:
        fail()
    except ZeroDivisionError:
        structlog.get_logger("test").exception("role_failed")
    text = stderr.getvalue()
    assert "ZeroDivisionError" in text
    assert "test_logs.py" in text
    assert "somebody's own" not in text
