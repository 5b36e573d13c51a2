"""Finding an interpreter on a host: the command that a host runs, run here."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zlib

from remote.ssh.bootstrap import find_command, install_command
from remote.ssh.host import HostSpec
from remote.ssh.host_setup import find_script, script_command

SCRIPT = find_script("trn2")


def test_setting_up_and_runs_mean_the_same_folder_where_the_session_begins_elsewhere(tmp_path):
    """A session may begin in another folder than $HOME: both go by $HOME."""
    host = HostSpec.parse("trn", workdir="kept/here")
    home, begin = tmp_path / "home", tmp_path / "begin"
    home.mkdir()
    begin.mkdir()
    env = {**os.environ, "HOME": str(home)}
    setup = [*script_command(host, change=True), "--python", sys.executable]
    subprocess.run(setup, input=SCRIPT.read_bytes(), cwd=begin, env=env, check=True, capture_output=True)
    assert (home / "kept/here").is_dir()
    command = install_command(host, sys.executable, hashlib.sha256(b"worker").hexdigest())
    subprocess.run(command, input=zlib.compress(b"worker"), cwd=begin, env=env, check=True)
    assert [path.read_bytes() for path in home.glob("kept/here/worker/*.pyz")] == [b"worker"]
    assert list(begin.iterdir()) == []


def test_an_interpreter_in_a_folder_of_the_users_home_is_named_whole(tmp_path):
    """What setting a host up makes there is found by runs: they take an absolute path alone."""
    host = HostSpec.parse("trn")
    assert not host.workdir.startswith("/")
    python = tmp_path / host.workdir / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    # The SDK's interpreter, which goes first, is left out: this machine may have one.
    *outer, shell, option, script, _, workdir = find_command(host)
    arguments = ["sh", workdir]
    script = script.replace("/opt/aws_neuronx_venv*/bin/python ", "")
    found = subprocess.run(
        [*outer, shell, option, script, *arguments],
        cwd="/",
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"python={tmp_path}/{host.workdir}/venv/bin/python\n"
