"""Addresses as people are told them: where they lead, and nothing that may be a secret."""

from __future__ import annotations

import pytest

from agent_core.providers.addresses import public_address


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://me:hunter2@gate.example:8443/v1/t0ken?key=t0ken#t0ken", "https://gate.example:8443"),
        ("http://gate.example:hunter2/v1", "http://gate.example"),
        ("http:///v1", "http://?"),
    ],
)
def test_an_address_is_told_without_what_may_be_secret(url, told):
    assert public_address(url) == told
