"""What to do about a host that is not ready: one table, by fault.

`{host}` stands for the host's address, `{login}` for the command with which a person logs in there.
"""

from __future__ import annotations

from remote.ssh.host import HostSpec

REMEDIES = {
    "host_unreachable": "see that `{login} true` works: the machine, its SSH server, the network",
    "link_lost": "nothing while it comes back by itself; else see that `{login} true` works",
    "slow_login": "`time {login} true` says how long a login takes; look at names that the server looks up "
    "(UseDNS) and at the files that the shell there reads at start",
    "slow_host": "see with `{login} uptime` what else runs there; agentctl host check {host} tells more",
    "host_deadline": "see with `{login} uptime` what else runs there",
    "host_auth": "see that `{login} true` logs in without a question: the user's name, and the key",
    "host_key_unknown": "agentctl host trust {host}",
    "host_key_changed": "if it was set up anew, compare its fingerprint and run agentctl host trust {host}; "
    "else somebody stands in between",
    "ssh_config": "mend your ssh_config: `{login} true` reads the same file",
    "bad_host": "mend its entry in run.hosts",
    "host_python": "agentctl host setup {host}",
    "host_full": "free disk there: `{login} df -h` says where it is full",
    "host_queue": "others use all its cores: wait, or leave it some with `cores` in run.hosts",
    "host_inputs": "agentctl host setup {host} brings the NumPy that is used here",
    "quarantined": "see with `{login} uptime` what else runs there; it comes back when its times do",
    "disagrees": "add a third host, or take one of the two out of run.hosts",
    "lacks_tag": "give it the tags in run.hosts, or ask for fewer in run.host_tags",
    "other_toolchain": "install the same SDK there as on the others, or take it out of run.hosts",
    "host_calibration": "agentctl host check {host}: the kernel that all hosts time does not work there",
    "weak_jail": "install bubblewrap there, or set daemon.allow_weak_jail, to run kernels of models",
    "no_sdk": "use an image that has the vendor's SDK, or install it there: agentctl host check {host}",
}
"""By the code of the error that a host failed with, or of a shortcoming that prevents or limits its use."""

LOOK = "agentctl host check {host} says what is missing there"
"""Used where nothing more specific is known."""


def find_remedy(code: str, address: str) -> str:
    """Return what to do about a host with this fault."""
    return REMEDIES.get(code, LOOK).format(host=address, login=HostSpec.parse(address).login_command)
