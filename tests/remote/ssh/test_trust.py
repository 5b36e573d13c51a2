"""Who a host is: keys are known beforehand, a new one needs a yes, a changed one is an error of its own."""

from __future__ import annotations

import dataclasses

import pytest

from remote.ssh.errors import HostKeyChangedError, HostKeyUnknownError
from remote.ssh.host_keys import distrust_host, fetch_host_key, known_hosts_file, trust_key
from remote.ssh.link import SshLink
from tests.support.sshd import QUICK, Sshd, make_key, trust_host

pytestmark = pytest.mark.needs("sshd", package="openssh-server")


async def greets(link: SshLink) -> bool:
    try:
        ran = await link.run_command(["echo", "a  b; c"], deadline_s=60)
    finally:
        await link.aclose()
    return ran.stdout == b"a  b; c\n"


async def test_a_key_that_nobody_knows_is_refused_and_shown(sshd, home):
    link = sshd.link(home)
    with pytest.raises(HostKeyUnknownError, match="agentctl host trust ") as raised:
        await greets(link)
    shown = await fetch_host_key(link.host, home=home, config=link.config)
    assert raised.value.fingerprint == shown.fingerprint
    assert shown.fingerprint in raised.value.message
    assert not shown.is_trusted
    assert not known_hosts_file(home).exists()


async def test_a_key_is_known_once_somebody_says_so(sshd, home):
    link = sshd.link(home)
    shown = await fetch_host_key(link.host, home=home, config=link.config)
    trust_key(home, shown)
    assert await greets(link)
    again = await fetch_host_key(link.host, home=home, config=link.config)
    assert again.is_trusted
    trust_key(home, again)
    assert len(known_hosts_file(home).read_text().splitlines()) == 1


async def test_a_changed_key_is_told_with_both_fingerprints_until_it_is_trusted_anew(sshd, home):
    link = await trust_host(sshd.link(home), home)
    first = await fetch_host_key(link.host, home=home, config=link.config)
    sshd.change_key()
    with pytest.raises(HostKeyChangedError) as raised:
        await greets(link)
    shown = await fetch_host_key(link.host, home=home, config=link.config)
    assert shown.known == raised.value.known == (first.fingerprint,)
    assert raised.value.fingerprint == shown.fingerprint != first.fingerprint
    assert first.fingerprint in raised.value.message
    assert shown.fingerprint in raised.value.message
    assert not raised.value.retryable
    trust_key(home, shown)
    assert await greets(link)


async def test_what_trust_wrote_is_taken_back_and_nothing_else(sshd, home, tmp_path):
    link = sshd.link(home)
    shown = await fetch_host_key(link.host, home=home, config=link.config)
    trust_key(home, shown)
    path = known_hosts_file(home)
    path.write_text(f"elsewhere {shown.line.partition(' ')[2]}\n{path.read_text()}")
    assert await distrust_host(link.host, home, link.config) == (True, ())
    assert [line.partition(" ")[0] for line in path.read_text().splitlines()] == ["elsewhere"]
    with pytest.raises(HostKeyUnknownError):
        await greets(sshd.link(home))
    assert await distrust_host(link.host, home, link.config) == (False, ())
    users = tmp_path / "users_known_hosts"
    users.write_text(f"{shown.line}\n")
    sshd.ssh_config.write_text(f"{sshd.ssh_config.read_text()}UserKnownHostsFile {users}\n")
    trust_key(home, shown)
    assert await distrust_host(link.host, home, link.config) == (True, (shown.fingerprint,))
    assert await greets(sshd.link(home))


async def test_a_key_of_another_kind_is_a_changed_key_too(sshd, home):
    link = await trust_host(sshd.link(home), home)
    sshd.change_key(kind="ecdsa")
    with pytest.raises(HostKeyChangedError, match="ssh-ed25519 SHA256"):
        await greets(link)


async def test_the_users_own_known_hosts_count(sshd, home, tmp_path):
    link = sshd.link(home)
    shown = await fetch_host_key(link.host, home=home, config=link.config)
    users = tmp_path / "users_known_hosts"
    users.write_text(f"{shown.line}\n")
    sshd.ssh_config.write_text(f"{sshd.ssh_config.read_text()}UserKnownHostsFile {users}\n")
    assert await greets(link)


async def test_a_revoked_key_is_refused_although_it_is_known(sshd, home):
    link = await trust_host(sshd.link(home), home)
    line = known_hosts_file(home).read_text()
    known_hosts_file(home).write_text(f"{line}@revoked {line}")
    with pytest.raises(HostKeyChangedError, match="revoked"):
        await greets(link)


async def test_an_alias_of_ssh_config_is_followed_also_over_a_jump(sshd, home, tmp_path):
    with Sshd(tmp_path / "behind") as behind:
        first = await trust_host(sshd.link(home), home)
        link = behind.link(home)
        shown = await fetch_host_key(link.host, home=home, config=behind.ssh_config)
        trust_key(home, shown)
        config = tmp_path / "config"
        config.write_text(
            f"Host near\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {first.host.user}\n"
            f"  IdentityFile {sshd.folder}/user_key\n  UserKnownHostsFile {known_hosts_file(home)}\n"
            f"Host far\n  HostName 127.0.0.1\n  Port {behind.port}\n  User {first.host.user}\n"
            f"  IdentityFile {behind.folder}/user_key\n  ProxyJump near\n"
        )
        host = dataclasses.replace(link.host, name="far", user=None, port=None)
        assert await greets(SshLink(host, home=home, timing=QUICK, config=config))
        assert (await fetch_host_key(host, home=home, config=config)).fingerprint == shown.fingerprint
    assert "127.0.0.1" in sshd.log()


async def test_a_certificate_of_a_known_authority_is_enough(sshd, home, tmp_path):
    make_key(tmp_path / "authority")
    sshd.certify(tmp_path / "authority")
    link = sshd.link(home)
    public = (tmp_path / "authority.pub").read_text()
    home.mkdir()
    known_hosts_file(home).write_text(f"@cert-authority * {public}")
    assert await greets(link)
