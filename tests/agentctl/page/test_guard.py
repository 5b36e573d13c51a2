"""Who is let in: the page answers its own host, origin and token, and says what may be done with answers."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from agentctl.page.guard import HEADERS, AccessPolicy
from agentctl.page.server import load_static_files

PATHS = ("/", "/static/main.js", "/api/home", "/api/feed", "/api/events", "/nothing")


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_answered_without_the_token(served, path):
    for headers in ({}, {"cookie": f"{served.gate.cookie}=wrong"}, {"x-token": served.gate.token}):
        reply = served.ask(path, headers)
        assert reply.status == 403
        assert b"token" in reply.body
        assert served.gate.token.encode() not in reply.body


def test_the_address_opens_the_page_and_leaves_a_cookie_that_no_script_reads(served):
    reply = served.ask(f"/?token={served.gate.token}")
    assert reply.status == 200
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith(f"{served.gate.cookie}={served.gate.cookie_token};")
    assert served.gate.token not in cookie, "browsers send it to every port of this machine"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert served.ask("/?token=wrong").status == 403
    assert served.ask(f"/api/home?token={served.gate.token}").status == 403, "only where the page is opened"
    again = served.get("/api/home")
    assert again.status == 200
    assert "set-cookie" not in again.headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""],
)
def test_a_name_that_was_made_to_point_here_is_refused(served, host):
    reply = served.ask("/api/home", {**served.known, "host": host.format(port=served.port)})
    assert reply.status == 403
    assert reply.headers["content-security-policy"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_the_names_of_loopback_are_answered(served, host):
    assert served.ask("/api/home", {**served.known, "host": f"{host}:{served.port}"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:{port}"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_other_sites_are_refused(served, headers):
    sent = {name: value.format(port=served.port) for name, value in headers.items()}
    assert served.ask("/api/home", {**served.known, **sent}).status == 403


def test_a_link_may_open_the_page(served):
    sent = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert served.ask(f"/?token={served.gate.token}", sent).status == 200
    assert served.ask("/", sent).status == 403


@pytest.mark.parametrize("path", [*PATHS, "/static/nothing.js"])
def test_every_answer_says_what_may_be_done_with_it(served, path):
    for headers in ({}, served.known) if path != "/api/feed" else ({},):
        reply = served.ask(path, headers)
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
        assert "server" not in reply.headers
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd",
        "/static/", "/static/__init__.py",
    ],
)  # fmt: skip
def test_only_the_page_s_own_files_are_served(served, path):
    assert served.get(path).status in (400, 404)


def test_the_files_of_the_page_need_nothing_that_the_policy_forbids():
    """No inline script or style, no markup from text, no other host; so nothing has to be allowed."""
    held = load_static_files()
    assert {"index.html", "main.js", "base.css", "parts.css", "icon.svg"} <= held.keys()
    assert len(held) == sum(1 for one in (files("agentctl.page") / "static").iterdir())
    markup = held["index.html"][0].decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", markup)
    for name, (content, _) in held.items():
        text = content.decode()
        others = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not others, name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name


def test_tokens_are_compared_whole():
    gate = AccessPolicy.for_port("secret", 1)
    assert gate.accepts_token("secret")
    for wrong in (None, "", "secre", "secret ", "sécret"):
        assert not gate.accepts_token(wrong)


def test_what_changes_anything_needs_the_token_in_a_header_and_an_origin(served):
    body = {"verb": "pause", "run": "x"}
    assert served.post(body).code == "read_only"
    for sent in ({"x-token": "wrong"}, {"x-token": ""}, {"origin": "http://evil.example"}):
        assert served.post(body, **sent).status == 403
    without = {**served.known, "x-token": served.gate.token, "content-type": "application/json"}
    assert served.ask("/api/control", without, method="POST", body=body).status == 403
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        headers = {**served.known, "origin": served.origin, "x-token": served.gate.token}
        assert served.ask("/api/home", headers, method=method, body=b"").status == 405
