"""A process of root that runs `agentctl` as other users do, in a child for each call, with all imported.

Reads calls as JSON lines: `user` (a uid, and its group; null: as root), `arguments`, and `until`: what a
verb that serves writes before it gets Ctrl-C. Answers each with the child's `status` and what it wrote to
stdout and stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWNER, READER, STRANGER = 54321, 54322, 54323
MODULES = ("agentctl.app", "agentctl.verbs.maintenance", "agentctl.verbs.steer", "sqlite_utils.migrations")


def find_python() -> str | None:
    """Return a Python of this version that every user may run, without our packages; None if none is."""
    script = "import os; os.setresuid(54321, 54321, 54321); open(os.__file__).close(); import encodings.idna"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        if Path(python).exists():
            done = subprocess.run([python, "-c", script], capture_output=True, check=False, env=_ENVIRONMENT)
            if done.returncode == 0:
                return python
    return None


def make_environment(folder: Path, python: str) -> str:
    """Make a virtual environment with our packages for every user; return its Python.

    A search path in a variable would not do: workers and jails are given none, and must find the packages.
    """
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(python).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(python).resolve().parent}\n", encoding="ascii")
    place = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    place.parent.mkdir(parents=True)
    place.symlink_to(sysconfig.get_path("purelib"))
    folder.chmod(0o755)
    return str(folder / "bin" / "python")


_ENVIRONMENT = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}


class HomeActor:
    """Starts the process, and asks it."""

    def __init__(self, python: str) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/tmp")
        command = [make_environment(Path(self._folder.name), python), "-m", "tests.support.home_actor"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_ENVIRONMENT
        )

    def call(self, user: int | None, *arguments: object, until: str | None = None) -> tuple[int, str]:
        """Return the exit status of `agentctl` with these arguments, and all that it wrote.

        A verb that serves gets Ctrl-C when it has written `until`.
        """
        words = [str(word) for word in arguments]
        self._process.stdin.write(json.dumps({"user": user, "arguments": words, "until": until}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["status"], answer["output"]

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


def _run_child(job: dict[str, Any], output: int) -> None:
    from agentctl.app import agentctl
    from daemon import exits

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    if (user := job["user"]) is not None:
        os.setgroups([OWNER] if user == READER else [])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    exits.run_command(agentctl, "agentctl", job["arguments"])


def _wait_for(pid: int, output: int, until: str | None) -> int:
    ended, status = (0, 0) if until is not None else os.waitpid(pid, 0)
    while not ended:
        time.sleep(0.05)
        if until is not None and until in _read_all(output):
            os.kill(pid, signal.SIGINT)
            until = None
        ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status)


def _read_all(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


def main() -> None:
    for module in MODULES:
        import_module(module)
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                try:
                    _run_child(job, output.fileno())
                except SystemExit as error:
                    sys.stdout.flush()
                    os._exit(error.code)
                except BaseException:  # noqa: BLE001 - a child must end here, whatever happened
                    import traceback

                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(99)
            status = _wait_for(pid, output.fileno(), job["until"])
            print(json.dumps({"status": status, "output": _read_all(output.fileno())}), flush=True)


if __name__ == "__main__":
    main()
