"""Finds and ends all processes of a job, including those that left its group, session or parent.

A runner is a subreaper, so orphans become the runner's children and are still found. If the runner itself was
killed, its job's processes are found by a mark: a variable of their environment and the session that the step
started. Both are written in the lease of their core and in the job's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Callable, NamedTuple

MARK_VARIABLE = "NKI_KERNEL_AGENT_JOB"
UNMARKED = "-" * 64  # the variable's value in a worker: as long as a job's key, but not one
END_S = 5.0  # killed processes vanish within milliseconds, unless a device or a disk holds them
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_STOP_ROUNDS = 20
_PROC = Path("/proc")


class ProcessEntry(NamedTuple):
    """A living process; zombies are left out."""

    pid: int
    parent: int
    session: int
    began: int  # in ticks since boot
    name: str


def adopt_orphans() -> None:
    """Make orphaned descendants of this process its children."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies; at once if that already happened."""
    _prctl(_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_own_mark(key: str) -> None:
    """Mark this process, and all that it forks or starts, as belonging to a job.

    Other processes read the environment where it lay when the program began, so the mark is written there.

    Raises:
        OSError: the program began without a variable that has room for the mark.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(MARK_VARIABLE.encode())
    if not place or len(ctypes.string_at(place)) != len(key):
        raise OSError("the worker was started without %s=%s" % (MARK_VARIABLE, UNMARKED))
    ctypes.memmove(place, key.encode("ascii"), len(key))
    os.environ[MARK_VARIABLE] = key


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option} is refused")


def make_mark(key: str, session: int) -> str:
    """Return the mark by which a job's processes are found later: its key, this boot, the step's session.

    Session numbers are reused, so the mark includes the start time of the session's leader.
    """
    leader = _read_process(session)
    began = 0 if leader is None else leader.began
    return f"{key} {boot_id()} {session}.{began}"


def boot_id() -> str:
    """Return an identifier that changes when the machine or container restarts."""
    with contextlib.suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "unknown"


def kill_and_reap_descendants(within_s: float = END_S) -> list[str]:
    """Kill and reap all descendants of this process; return the names of those that stay.

    The process must adopt orphans: then no child means no descendants.
    """
    me = os.getpid()

    def left() -> list[ProcessEntry]:
        reap_children()
        return _find_descendants(me, list_processes())

    reap_children()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return _kill_until_gone(left, within_s)


def kill_descendants() -> None:
    """Kill all descendants of this process; their parents reap them."""
    _send_signal(
        [process.pid for process in _find_descendants(os.getpid(), list_processes())], signal.SIGKILL
    )


def kill_marked(text: str, within_s: float = END_S) -> list[str]:
    """Kill what a dead runner's step left, found by its mark; return the names of those that stay."""
    key, _, rest = text.partition(" ")
    boot, _, session = rest.partition(" ")
    if not key or boot != boot_id():
        return []
    return _kill_until_gone(lambda: _find_marked(key, session), within_s)


def _find_marked(key: str, session: str) -> list[ProcessEntry]:
    """The processes that have the variable, and those of the session while its leader lives.

    Any user may have written the mark, so a leader of this user must also have the variable: no unrelated
    session is ended. A leader of another user, which we can neither inspect nor end, counts as still running.
    """
    everyone = list_processes()
    leaders = {
        p.pid
        for p in everyone
        if f"{p.pid}.{p.began}" == session and (_has_mark(p.pid, key) or _is_foreign(p.pid))
    }
    return [p for p in everyone if p.session in leaders or _has_mark(p.pid, key)]


def _kill_until_gone(find: Callable[[], list[ProcessEntry]], within_s: float) -> list[str]:
    deadline = time.monotonic() + within_s
    stopped: set[int] = set()
    for _ in range(_STOP_ROUNDS):  # stop them first: a stopped process starts no others
        fresh = [p.pid for p in find() if p.pid not in stopped]
        if not fresh:
            break
        _send_signal(fresh, signal.SIGSTOP)
        stopped.update(fresh)
    while True:
        left = find()
        _send_signal([p.pid for p in left], signal.SIGKILL)
        left = find()
        if not left or time.monotonic() > deadline:
            return [f"{p.name} (pid {p.pid})" for p in left]
        time.sleep(0.005)


def _send_signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap_children() -> dict[int, int]:
    """Return the wait status of each child that has ended, by pid."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def list_processes() -> list[ProcessEntry]:
    """Return all processes that this user can see, without zombies."""
    entries = os.listdir(_PROC)  # noqa: PTH208  a hundred times a second, of thousands of entries
    processes = (_read_process(int(entry)) for entry in entries if entry.isdigit())
    return [process for process in processes if process is not None]


def _read_process(pid: int) -> ProcessEntry | None:
    """Return a process; None if it is gone, a zombie, or not visible."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = (_PROC / str(pid) / "stat").read_bytes().decode("utf-8", "replace")
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if fields[0] not in "ZX":
            return ProcessEntry(pid, int(fields[1]), int(fields[3]), int(fields[19]), name)
    return None


def _find_descendants(root: int, processes: list[ProcessEntry]) -> list[ProcessEntry]:
    children: dict[int, list[ProcessEntry]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found, frontier = [], [root]
    while frontier:
        for process in children.pop(frontier.pop(), []):
            found.append(process)
            frontier.append(process.pid)
    return found


def _is_foreign(pid: int) -> bool:
    """Whether a process belongs to another user and we may not inspect it."""
    if os.geteuid() == 0:
        return False
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1]) != os.geteuid()
    return False


def _has_mark(pid: int, key: str) -> bool:
    with contextlib.suppress(OSError):
        environment = (_PROC / str(pid) / "environ").read_bytes()
        return f"{MARK_VARIABLE}={key}".encode() in environment.split(b"\0")
    return False
