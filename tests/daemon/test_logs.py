"""What the process logs: JSON lines where no person looks, without the contents of what it works on."""

from __future__ import annotations

import io
import json
import logging
import os
from types import SimpleNamespace

import pytest
import structlog

from daemon.process_logging import IDS, configure_logging


@pytest.fixture(params=[False, True], ids=["to a file", "to a terminal"])
def stderr(request, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return request.param

    stream = Stream()
    monkeypatch.setattr("daemon.process_logging.sys", SimpleNamespace(stderr=stream))
    yield stream
    structlog.reset_defaults()


def fail() -> None:
    kernel = "TILE_M = 128  # somebody's own"
    assert kernel
    raise ZeroDivisionError("a bug")


def test_a_line_says_what_when_and_how_grave(stderr):
    configure_logging("info")
    structlog.get_logger("test").info("started", home="/h", head=7)
    text = stderr.getvalue()
    assert "started" in text
    assert len(text.splitlines()) == 1
    if not stderr.isatty():
        line = json.loads(text)
        assert (line["event"], line["level"], line["home"], line["head"]) == ("started", "info", "/h", 7)
        assert line["timestamp"].endswith("Z")


def test_less_grave_lines_are_left_out(stderr):
    configure_logging("warning")
    structlog.get_logger("test").info("started")
    assert stderr.getvalue() == ""
    structlog.get_logger("test").warning("retried")
    assert "retried" in stderr.getvalue()


def test_a_traceback_names_the_place_and_keeps_the_values_to_itself(stderr):
    configure_logging("info")
    try:
        fail()
    except ZeroDivisionError:
        structlog.get_logger("test").exception("role_failed")
    text = stderr.getvalue()
    assert "ZeroDivisionError" in text
    assert "test_logs.py" in text
    assert "somebody's own" not in text


def test_every_line_for_machines_names_run_effect_and_event(stderr):
    configure_logging("info")
    log = structlog.get_logger("test")
    log.info("started")
    with structlog.contextvars.bound_contextvars(run="silu-1", effect="r1.b0.p0", event_id="silu-1@7"):
        log.warning("retried")
        logging.getLogger("library").warning("said by %s", "others")
    if stderr.isatty():
        assert stderr.getvalue().count("silu-1@7") == 2
        assert "None" not in stderr.getvalue()
        return
    own, effect, other = map(json.loads, stderr.getvalue().splitlines())
    assert [own[name] for name in IDS] == [None, None, None]
    assert [effect[name] for name in IDS] == ["silu-1", "r1.b0.p0", "silu-1@7"]
    assert [other[name] for name in IDS] == ["silu-1", "r1.b0.p0", "silu-1@7"]
    assert (other["event"], other["logger"], other["level"]) == ("said by others", "library", "warning")


def test_configured_again_a_librarys_line_is_still_one(stderr):
    for level in ("debug", "info"):
        configure_logging(level)
    logging.getLogger("library").info("once")
    logging.getLogger("library").debug("of no use to others")
    assert stderr.getvalue().count("once") == 1
    assert "no use" not in stderr.getvalue()


def test_to_the_journal_a_line_says_its_priority_first(monkeypatch, tmp_path):
    with (tmp_path / "log").open("w+") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        monkeypatch.setattr("daemon.process_logging.sys", SimpleNamespace(stderr=stream))
        configure_logging("info")
        structlog.get_logger("test").error("broken")
        logging.getLogger("library").info("said")
        stream.flush()
        first, second = (tmp_path / "log").read_text().splitlines()
    structlog.reset_defaults()
    assert (first[:3], json.loads(first[3:])["event"]) == ("<3>", "broken")
    assert (second[:3], json.loads(second[3:])["event"]) == ("<6>", "said")


def test_where_a_person_started_it_lines_are_words_wherever_they_go(stderr):
    configure_logging("warning", people=True)
    structlog.get_logger("test").warning("kernel_refuted", run="silu-1", code="incorrect")
    logging.getLogger("a.library").warning("something is odd")
    for line in stderr.getvalue().splitlines():
        assert not line.startswith("{")
    assert "kernel_refuted" in stderr.getvalue()
    assert "something is odd" in stderr.getvalue()
    if not stderr.isatty():
        assert "\x1b" not in stderr.getvalue()
