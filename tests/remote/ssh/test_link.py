"""Links: what cannot be reached says why, what breaks says so, and arguments stay what they are."""

from __future__ import annotations

import asyncio
import dataclasses
import socket

import pytest

from remote.ssh.errors import (
    HostAuthError,
    HostDeadlineError,
    HostError,
    HostUnreachableError,
    LinkLostError,
    SshConfigError,
)
from remote.ssh.link import LinkTiming, SshLink
from tests.support.sshd import QUICK, free_port, make_key, trust_host, until
from tests.support.tcp_proxy import Proxy

pytestmark = pytest.mark.needs("sshd", package="openssh-server")


@pytest.fixture
async def link(sshd, home):
    made = await trust_host(sshd.link(home), home)
    yield made
    await made.aclose()


async def test_arguments_arrive_as_they_are(link):
    words = ["$(id)", "a b", "'; rm -rf /", "*", "\\", "", "ü\n"]
    ran = await link.run_command(["printf", "<%s>", *words], deadline_s=60)
    assert ran.stdout.decode() == "".join(f"<{word}>" for word in words)


async def test_nothing_that_ssh_config_asks_for_goes_along(link, sshd, monkeypatch):
    monkeypatch.setenv("SECRET_OF_HOME", "secret")
    sshd.config.write_text(f"{sshd.config.read_text()}AcceptEnv *\n")
    sshd.restart()
    asks = "SendEnv SECRET_*\nSetEnv ALSO=secret\nRequestTTY force\nForwardAgent yes\nRemoteCommand id\n"
    sshd.ssh_config.write_text(f"{sshd.ssh_config.read_text()}{asks}")
    ran = await link.run_command(["sh", "-c", "env; tty"], deadline_s=60)
    assert b"secret" not in ran.stdout
    assert b"SSH_AUTH_SOCK" not in ran.stdout
    assert ran.stdout.endswith(b"not a tty\n")


async def test_a_command_reads_its_input_and_tells_its_status(link):
    data = bytes(range(256)) * 5000
    ran = await link.run_command(["sh", "-c", "cat; echo no >&2; exit 3"], stdin=data, deadline_s=60)
    assert (ran.status, ran.stdout, ran.stderr) == (3, data, b"no\n")
    ignored = await link.run_command(["true"], stdin=data, deadline_s=60)
    assert ignored.status == 0


async def test_the_end_of_the_connection_is_not_the_end_of_the_command(link, sshd):
    running = asyncio.create_task(link.run_command(["sleep", "600"], deadline_s=300))
    await until(lambda: sshd.running("sleep"), "the command")
    sshd.cut()
    with pytest.raises(LinkLostError, match="the connection broke"):
        await running
    assert (await link.run_command(["true"], deadline_s=60)).status == 0
    assert link.connections == 2


async def test_a_command_that_takes_too_long_is_given_up(link):
    with pytest.raises(HostDeadlineError, match=r"sleep did not end within 0.5 s"):
        await link.run_command(["sleep", "600"], deadline_s=0.5)


async def test_a_command_that_a_signal_ends_has_a_negative_status(link):
    assert (await link.run_command(["sh", "-c", "kill -9 $$"], deadline_s=60)).status < 0


async def test_a_command_that_says_too_much_is_stopped(link):
    with pytest.raises(HostError, match="says more than"):
        await link.run_command(["yes"], deadline_s=60)
    assert (await link.run_command(["true"], deadline_s=60)).status == 0


async def test_twenty_commands_share_one_connection(link, sshd):
    results = await asyncio.gather(*(link.run_command(["echo", str(n)], deadline_s=120) for n in range(20)))
    assert [ran.stdout for ran in results] == [b"%d\n" % n for n in range(20)]
    assert sshd.log().count("Accepted publickey") == link.connections == 1


async def test_a_port_that_nobody_listens_on_is_named_within_a_few_attempts(sshd, home):
    link = sshd.link(home, port=free_port())
    with pytest.raises(HostUnreachableError, match=r"127\.0\.0\.1:(\d+): nothing listens on port \1;"):
        await link.run_command(["true"], deadline_s=120)
    assert link.silent_s is None


async def test_a_name_that_does_not_exist_is_named(sshd, home):
    host = dataclasses.replace(sshd.link(home).host, name="no-such-host.invalid")
    link = SshLink(host, home=home, timing=dataclasses.replace(QUICK, attempts=1), config=sshd.ssh_config)
    with pytest.raises(HostUnreachableError, match=r"no-such-host\.invalid"):
        await link.run_command(["true"], deadline_s=120)


async def test_a_port_that_says_nothing_is_given_up(sshd, home):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        timing = LinkTiming(connect_s=0.5, login_s=0.5, attempts=1)
        link = sshd.link(home, port=silent.getsockname()[1], timing=timing)
        with pytest.raises(HostUnreachableError):
            await link.run_command(["true"], deadline_s=120)


async def test_a_port_that_speaks_something_else_is_given_up(sshd, home):
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        link = sshd.link(home, port=server.sockets[0].getsockname()[1])
        with pytest.raises(HostUnreachableError, match="no connection"):
            await link.run_command(["true"], deadline_s=120)


async def test_keys_that_a_host_does_not_know_are_not_tried_for_long(sshd, home):
    link = await trust_host(sshd.link(home), home)
    make_key(sshd.folder / "user_key")
    with pytest.raises(HostAuthError, match=r"it refuses our keys .*`ssh -p \d+ ") as raised:
        await link.run_command(["true"], deadline_s=120)
    assert not raised.value.retryable
    assert sshd.log().count("Connection from") <= 3  # the fingerprint, and one attempt


@pytest.mark.parametrize("line", ["Port many", "IdentityFile {folder}/broken"])
async def test_a_configuration_that_cannot_be_read_is_named(sshd, home, line):
    (sshd.folder / "broken").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n")
    link = await trust_host(sshd.link(home), home)
    sshd.ssh_config.write_text(line.format(folder=sshd.folder))
    with pytest.raises((SshConfigError, HostAuthError)) as raised:
        await link.run_command(["true"], deadline_s=120)
    assert not raised.value.retryable


async def test_a_connection_may_be_cut_after_any_number_of_bytes(sshd, home):
    """Wherever greeting, key exchange, login or the command itself are cut, the next attempt works."""
    async with Proxy(sshd.port) as proxy:
        first = await trust_host(sshd.link(home, port=proxy.port), home)
        for size in (1, 30, 1200, 1500, 2000, 2300, 2600):
            proxy.cut_after = size
            link = SshLink(first.host, home=home, timing=QUICK, config=sshd.ssh_config)
            for _ in range(2):
                try:
                    ran = await link.run_command(["true"], deadline_s=120)
                except LinkLostError:
                    continue
                assert ran.status == 0
                break
            else:
                pytest.fail(f"cut after {size} bytes, it does not come back")
            await link.aclose()
        assert proxy.cuts >= 5
