"""Runs one attempt at one job: waits for a core, runs its step in a process of its own, writes the result.

Runner and step are forked from the worker, which has loaded all that they need: no job starts an interpreter.

The runner is detached from the connection that submitted the job, and makes sure that nothing outlives the
job. It waits for a core and runs the step. It ends the step with all its processes when it has answered, when
its deadline or lease is over, or when nobody wants it any more. All times are of the monotonic clock; a lease
counts as renewed when its file's time has changed, whatever the calendar says.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import stat
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from remote.hostside import devices, leases, process_tree
from remote.hostside.facts import core_numbers, cpu_numbers
from remote.hostside.jobs import JobFolder
from remote.hostside.limits import ANSWER_BYTES, JSON_BYTES, LOG_BYTES, MAX_ATTEMPTS, MAX_FILES, SCARCE_BYTES
from remote.hostside.store import hash_file
from remote.hostside.workdir import write_json

WORKDIR_VARIABLE = "NKI_KERNEL_AGENT_WORKDIR"
_LOOK_S = 0.2  # seconds between checks of lease and deadline; the step's end is noticed at once
_TURN_S = 0.02
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
_LOG_KEPT = 4 * LOG_BYTES
_FDS = 1024


class EnterStep(BaseException):
    """Unwinds the worker's stack in the process that is to run a step, past every handler of `Exception`."""

    def __init__(self, step: str, folder: Path) -> None:
        super().__init__(step)
        self.step = step
        self.folder = folder


class JobRunner:
    """Runs one job whose lock we hold, in a process of its own.

    The descriptor `over` is closed when the result is written.
    """

    def __init__(self, job: JobFolder, over: int) -> None:
        self._job = job
        self._over = over
        self._spec = job.read_spec()
        self._watch = _LeaseMonitor(job, float(self._spec["lease_s"]))
        self._log = bytearray()
        self._lease: leases.DeviceLease | None = None
        self._left: list[str] = []
        self._exit: int | None = None

    def run_job(self) -> None:
        """Run the job and write its result."""
        attempts = self._job.count_attempts()
        asked = time.monotonic()
        begun = ended = asked
        if attempts >= MAX_ATTEMPTS:
            status = "vanished"
            self._append_log(f"its runner was killed {attempts} times; it is not begun again")
        else:
            attempts = self._job.begin_attempt()
            status = self._wait_for_lease(asked + float(self._spec["queue_s"]))
            begun = ended = time.monotonic()
            if not status:
                status = self._supervise_step(begun + float(self._spec["deadline_s"]))
                ended = time.monotonic()
        result = {
            "status": "unending" if self._left else status,
            "exit_status": self._exit,
            "core": self._lease.index if self._lease and self._spec["cores"] else None,
            "queued_s": begun - asked,
            "ran_s": ended - begun,
            "attempts": attempts,
        }
        if self._lease and not self._left:
            self._lease.release()
        self._write_result(result)
        os.close(self._over)
        self._hold_core()

    def _wait_for_lease(self, deadline: float) -> str:
        """Wait for a core or CPU; return why the wait ended without one, else an empty string."""
        kind, indices = ("core", self._order_cores()) if self._spec["cores"] else ("cpu", cpu_numbers())
        look = 0.0
        while True:
            self._lease = leases.acquire_lease(kind, indices)
            if self._lease is not None:
                return ""
            now = time.monotonic()
            if now >= look:
                ended, look = self._watch.expiry_status(), now + _LOOK_S
                if ended:
                    return ended
            if now > deadline:
                return "queue"
            time.sleep(_TURN_S)

    def _order_cores(self) -> list[int]:
        """The cores that may be used: the preferred ones first, the others spread by the job's key."""
        allowed = self._spec.get("allowed")
        cores = [core for core in core_numbers() if allowed is None or core in allowed]
        wanted = self._spec.get("prefer")
        first = cores.index(wanted) if wanted in cores else int(self._job.key[:8], 16) % max(1, len(cores))
        return cores[first:] + cores[:first]

    def _supervise_step(self, deadline: float) -> str:
        assert self._lease is not None
        said, says = os.pipe()
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        pid = self._fork_step(says)
        os.close(says)
        os.set_blocking(said, False)
        status = ""
        while not status:
            ready, _, _ = select.select([said, woken], [], [], _LOOK_S)
            if woken in ready:
                os.read(woken, 512)
            if said in ready and not self._read_output(said):
                time.sleep(_TURN_S)  # all have closed it; the child itself ends soon
            ended = process_tree.reap_children()
            if pid in ended:
                self._exit = os.waitstatus_to_exitcode(ended[pid])
                status = "done" if self._has_answer() else "failed"
            else:
                status = self._watch.expiry_status() or ("deadline" if time.monotonic() > deadline else "")
        if status == "failed" and _is_disk_scarce(self._job.path):
            status = "full"
        self._left = process_tree.kill_and_reap_descendants()
        while self._read_output(said):
            pass
        for fd in (said, woken, wakes):
            os.close(fd)
        if self._left:
            self._append_log(f"these processes cannot be ended, and keep their core: {', '.join(self._left)}")
        return status

    def _fork_step(self, says: int) -> int:
        """Fork the step into a session of its own, and return its process id.

        Raises:
            EnterStep: in the forked process, which is to run the step.
        """
        assert self._lease is not None
        spec = {name: self._spec.get(name) for name in ("key", "step", "payload")}
        core = self._lease.index if self._spec["cores"] else None
        text = json.dumps({**spec, "core": core})
        (self._job.work / "job.json").write_text(text, encoding="utf-8")
        runner = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(says, 1)
                os.dup2(says, 2)
                self._become_step(runner, core)
            except BaseException:  # noqa: BLE001  nothing of the runner's may be done twice
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(127)
            raise EnterStep(str(spec["step"]), self._job.work)
        marked = process_tree.make_mark(self._job.key, pid)
        self._lease.write_mark(marked)
        with contextlib.suppress(OSError):
            (self._job.path / "mark").write_text(marked, encoding="ascii")
        return pid

    def _become_step(self, runner: int, core: int | None) -> None:
        """Drop everything that belongs to the runner except the lease."""
        assert self._lease is not None
        os.setsid()
        process_tree.die_with_parent(runner)
        process_tree.set_own_mark(self._job.key)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _close_all_but(self._lease.fd)
        os.set_inheritable(self._lease.fd, True)
        for name in [name for name in os.environ if name.startswith("SSH_")]:
            del os.environ[name]
        os.environ[WORKDIR_VARIABLE] = str(self._job.place.root)
        for name in devices.core_variables() if core is not None else ():
            os.environ[name] = str(core)
        os.chdir(self._job.work)

    def _read_output(self, said: int) -> bool:
        """Keep the end of the step's output; False when there is no more for now."""
        try:
            data = os.read(said, 1 << 16)
        except BlockingIOError:
            return False
        self._log += data
        del self._log[:-_LOG_KEPT]
        return bool(data)

    def _append_log(self, text: str) -> None:
        self._log += f"\n{text}\n".encode()

    def _has_answer(self) -> bool:
        return self._exit == 0 and _read_answer(self._job.work) is not None

    def _write_result(self, result: dict[str, Any]) -> None:
        """Write the result; on a full disk write a shorter one, into the reserved space."""
        with contextlib.suppress(OSError):
            (self._job.path / "reserve").unlink()
        result["log_tail"] = self._log[-LOG_BYTES:].decode("utf-8", "replace")
        try:
            write_json(self._job.path / "result.json", {**result, **self._collect_answer(result)})
        except OSError as error:
            self._job.place.move_to_trash(self._job.work)
            least: dict[str, Any] = {
                "answer": None,
                "files": {},
                "log_tail": f"the result cannot be kept: {error}",
            }
            write_json(self._job.path / "result.json", {**result, **least, "status": _failure_status(error)})

    def _collect_answer(self, result: dict[str, Any]) -> dict[str, Any]:
        """The step's part of the result: its answer and files, if it is done."""
        if result["status"] != "done":
            return {"answer": None, "files": {}}
        found = _read_answer(self._job.work)
        files, fault = _hash_files(self._job.work / "out")
        if found is None or fault:
            return {"answer": None, "files": {}, "status": "failed", "log_tail": fault}
        return {"answer": found["answer"], "files": files}

    def _hold_core(self) -> None:
        """Keep the core as long as processes that cannot be ended may use it."""
        while self._left:
            time.sleep(1)
            self._left = process_tree.kill_and_reap_descendants(within_s=0)


class _LeaseMonitor:
    """Tells whether any home still wants the job: each has to touch its lease file now and then."""

    def __init__(self, job: JobFolder, lease_s: float) -> None:
        self._job = job
        self._lease_s = lease_s
        self._seen: dict[str, tuple[int, float]] = {}
        self.expiry_status()  # leases count from now

    def expiry_status(self) -> str:
        """Return `cancelled` when no home has a lease, `lease_lost` when none renews it, else ""."""
        now = time.monotonic()
        clients = self._job.lease_holders()
        for client in clients:
            with contextlib.suppress(FileNotFoundError):
                touched = (self._job.leases / client).stat().st_mtime_ns
                if self._seen.get(client, (None,))[0] != touched:
                    self._seen[client] = (touched, now)
        if not clients:
            return "cancelled"
        fresh = any(
            now - self._seen[client][1] <= self._lease_s for client in clients if client in self._seen
        )
        return "" if fresh else "lease_lost"


def _read_answer(work: Path) -> dict[str, Any] | None:
    """Return {"answer": the step's answer}; None if it cannot be sent."""
    path = work / "answer.json"
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > JSON_BYTES:
            return None
        return {"answer": json.loads(path.read_bytes(), parse_constant=_reject_constant)}
    except (OSError, ValueError, RecursionError):
        return None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _hash_files(folder: Path) -> tuple[dict[str, list[Any]], str]:
    """Return the regular files as {name: [sha256, bytes]}, and what is wrong with the folder as a whole."""
    found: dict[str, list[Any]] = {}
    total = 0
    if folder.is_symlink() or not folder.is_dir():
        return {}, "the step made something else of its folder out"
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                total += size
                if len(found) == MAX_FILES or total > ANSWER_BYTES:
                    return {}, f"the step left more than {MAX_FILES} files or {ANSWER_BYTES} bytes"
                found[entry.name] = [hash_file(Path(entry.path)), size]
    return found, ""


def _is_disk_scarce(path: Path) -> bool:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize < SCARCE_BYTES


def _failure_status(error: BaseException) -> str:
    """Return the status of a job whose runner failed."""
    return "full" if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT} else "broken"


def start_runner(job: JobFolder, lock: int) -> int:
    """Start the runner of a job whose lock we hold, as a process detached from this one.

    Return a descriptor that reaches its end when the job's result is written, or its runner is gone.

    Raises:
        EnterStep: in the forked process, which is to run the job's step.
        OSError: no process can be started; the lock is given back, so that the caller can try again.
    """
    opened = [lock]
    try:
        ended, over = os.pipe()
        opened += [ended, over]
        child = os.fork()
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    if child:
        os.close(lock)
        os.close(over)
        process_tree.reap_children()
        return ended
    try:
        os.setsid()
        if os.fork() == 0:
            _become_runner(job, lock, over)
    except EnterStep:
        raise
    except BaseException:  # noqa: BLE001  this process has nobody to tell
        os._exit(1)
    os._exit(0)


def _become_runner(job: JobFolder, lock: int, over: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _close_all_but(lock, over)
    os.chdir(job.place.root)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    process_tree.adopt_orphans()
    try:
        JobRunner(job, over).run_job()
    except Exception as error:  # noqa: BLE001  whatever it is, the homes that wait must hear of it
        process_tree.kill_and_reap_descendants()
        _write_failure(job, error)


def _close_all_but(*kept: int) -> None:
    """Close all descriptors but these and the first three."""
    begin = 3
    for fd in sorted(kept):
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, _FDS)


def _write_failure(job: JobFolder, error: Exception) -> None:
    """Record that the runner failed; on a full disk in the reserved space."""
    with contextlib.suppress(OSError):
        (job.path / "reserve").unlink()
    nothing: dict[str, Any] = {
        "answer": None,
        "files": {},
        "core": None,
        "exit_status": None,
        "queued_s": 0.0,
        "ran_s": 0.0,
    }
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-LOG_BYTES:]
    with contextlib.suppress(OSError):
        ended = {"status": _failure_status(error), "log_tail": text, "attempts": job.count_attempts()}
        write_json(job.path / "result.json", {**nothing, **ended})
