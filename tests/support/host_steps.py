"""Steps of jobs for tests, in place of the real ones in the archive: small, and what they do is counted.

It runs on the host as `remote.hostside.steps`. Each beginning of a step is a line in the payload's `tally`.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _begin(folder: Path) -> dict[str, Any]:
    job = json.loads((folder / "job.json").read_text())
    payload = job["payload"]
    if "tally" in payload:
        with Path(payload["tally"]).open("a") as file:
            file.write(f"begin {job['key'][:8]} {job['core']} {os.getpid()}\n")
    return {**job, **payload}


def _answer(folder: Path, value: Any) -> None:
    (folder / "answer.json").write_text(json.dumps(value))


def echo(folder: Path) -> None:
    """Answers its payload and what it was given; leaves a copy of each input."""
    job = _begin(folder)
    inputs = sorted((folder / "inputs").iterdir())
    for path in inputs:
        (folder / "out" / path.name).write_bytes(path.read_bytes())
    _answer(
        folder, {"payload": job["payload"], "core": job["core"], "inputs": [path.name for path in inputs]}
    )
    print("echoed")


def gated(folder: Path) -> None:
    """Waits for the file `gate`, as long as it may, then answers."""
    job = _begin(folder)
    while not Path(job["gate"]).exists():
        time.sleep(0.02)
    if "tally" in job:
        with Path(job["tally"]).open("a") as file:
            file.write(f"end {job['key'][:8]}\n")
    for path in sorted((folder / "inputs").iterdir()):
        (folder / "out" / path.name).write_bytes(path.read_bytes())
    _answer(folder, "through")


def spawning(folder: Path) -> None:
    """Starts children that hide: orphans in sessions of their own, deaf to signals; writes their pids."""
    job = _begin(folder)
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "open(sys.argv[1], 'a').write(str(os.getpid()) + '\\n')\n"
        "time.sleep(3600)\n"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-I", "-c", script, job["pids"]], check=True)
    while not Path(job["pids"]).exists() or len(Path(job["pids"]).read_text().splitlines()) < 3:
        time.sleep(0.01)
    if job.get("ends"):
        _answer(folder, "left them")
        return
    time.sleep(3600)


def escaping(folder: Path) -> None:
    """Leaves a child that is another user's."""
    job = _begin(folder)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.setresuid(54321, 54321, 54321)
        time.sleep(3600)
        os._exit(0)
    Path(job["pids"]).write_text(f"{pid}\n")
    while Path(f"/proc/{pid}").stat().st_uid != 54321:
        time.sleep(0.01)
    _answer(folder, "escaped")


def bare(folder: Path) -> None:
    """Answers what it has of those that it was forked from."""
    job = _begin(folder)
    descriptors = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    names = ("SIGHUP", "SIGINT", "SIGTERM", "SIGCHLD")
    handlers = [signal.getsignal(getattr(signal, name)) for name in names]
    _answer(
        folder,
        {
            "files": [str(path.readlink()) for path in descriptors if int(path.name) > 2],
            "handlers": [getattr(handler, "name", getattr(handler, "__name__", "")) for handler in handlers],
            "wakes": signal.set_wakeup_fd(-1),
            "leads": os.getsid(0) == os.getpid(),
            "folder": str(Path.cwd()),
            "ssh": [name for name in os.environ if name.startswith("SSH_")],
            "marked": f"NKI_KERNEL_AGENT_JOB={job['key']}" in Path("/proc/self/environ").read_text(),
            "frames": len(inspect.stack()),
        },
    )


def parting(folder: Path) -> None:
    """Leaves a thread that is not done, words that are not written, and something to do at the end."""
    _begin(folder)
    _answer(folder, "parted")
    atexit.register(print, "at the end")
    threading.Thread(target=lambda: (time.sleep(0.2), print("from a thread"))).start()
    print("in the step")


def failing(folder: Path) -> None:
    _begin(folder)
    raise RuntimeError("this step fails")


def filling(folder: Path) -> None:
    """Writes until the disk is full."""
    _begin(folder)
    with (folder / "big").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()


def odd(folder: Path) -> None:
    """Leaves what must not be taken: links, folders, more text than is kept; an answer that is no JSON."""
    job = _begin(folder)
    (folder / "out" / "link").symlink_to("/etc/passwd")
    (folder / "out" / "folder").mkdir()
    (folder / "out" / "plain").write_text("plain")
    print("x" * (1 << 20))
    print("the end")
    if job.get("answer") == "nan":
        (folder / "answer.json").write_text("NaN")
    elif job.get("answer") == "link":
        (folder / "answer.json").symlink_to("/etc/passwd")
    else:
        _answer(folder, "fine")
    if job.get("out") == "link":
        (folder / "out").rename(folder / "was out")
        (folder / "out").symlink_to("/etc")


STEPS: dict[str, Callable[[Path], None]] = {
    step.__name__: step for step in (echo, gated, spawning, escaping, bare, parting, failing, filling, odd)
}
