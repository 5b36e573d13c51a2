"""Addresses of hosts: what is one, what is none, and that the error says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.ssh.errors import BadHostError
from remote.ssh.host import HostSpec


@pytest.mark.parametrize(
    ("text", "user", "name", "port"),
    [
        ("trn", None, "trn", None),
        ("ubuntu@10.0.0.7", "ubuntu", "10.0.0.7", None),
        ("ubuntu@trn2.example.com:2222", "ubuntu", "trn2.example.com", 2222),
        ("::1", None, "::1", None),
        ("u@[fe80::1%eth0]:22", "u", "fe80::1%eth0", 22),
        ("[::1]", None, "::1", None),
    ],
)
def test_an_address_is_taken_apart_and_written_as_it_was(text, user, name, port):
    host = HostSpec.parse(text)
    assert (host.user, host.name, host.port) == (user, name, port)
    assert HostSpec.parse(host.address) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@h",
        "-oProxyCommand=x",
        "u@-h",
        "h:",
        "h:0",
        "h:65536",
        "h:ssh",
        "a b",
        "h;id",
        "u u@h",
        "[::1",
        "$(id)",
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text):
    with pytest.raises(BadHostError, match=r"not an address of the form \[user@\]host\[:port\]: ") as raised:
        HostSpec.parse(text)
    assert raised.value.code == "bad_host"
    assert not raised.value.retryable


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text):
    try:
        host = HostSpec.parse(text)
    except BadHostError:
        return
    assert HostSpec.parse(host.address) == host
    assert not host.name.startswith("-")


@pytest.mark.parametrize(
    "options",
    [
        {"workdir": "-rf"},
        {"workdir": "a\nb"},
        {"workdir": "~other/x"},
        {"python": ""},
        {"cores": ()},
        {"cores": (-1,)},
    ],
)
def test_what_may_be_used_there_is_checked(options):
    with pytest.raises(BadHostError, match=r"^u@h: "):
        HostSpec.parse("u@h", **options)


def test_a_workdir_in_the_home_is_written_either_way():
    assert HostSpec.parse("h", workdir="~/x").workdir == HostSpec.parse("h", workdir="x").workdir
