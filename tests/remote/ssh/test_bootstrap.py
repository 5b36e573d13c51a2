"""Finding an interpreter on a host: the command that a host runs, run here."""

from __future__ import annotations

import subprocess
import sys

from remote.ssh.bootstrap import find_command
from remote.ssh.host import Host


def test_an_interpreter_in_a_folder_of_the_users_home_is_named_whole(tmp_path):
    """What setting a host up makes there is found by runs: they take an absolute path alone."""
    host = Host.parse("trn")
    assert not host.workdir.startswith("/")
    python = tmp_path / host.workdir / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    # The SDK's interpreter, which goes first, is left out: this machine may have one.
    shell, option, script, *arguments = find_command(host)
    script = script.replace("/opt/aws_neuronx_venv*/bin/python ", "")
    found = subprocess.run(
        [shell, option, script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout == f"python={tmp_path}/{host.workdir}/venv/bin/python\n"
