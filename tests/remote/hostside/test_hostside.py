"""The worker's parts by themselves: what they keep, what they let go, and that old Pythons read them."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.hostside import cleanup, leases, process_tree, workdir
from remote.hostside.errors import RequestRefused
from remote.hostside.frames import FrameError, pack_frame, unpack_frame
from remote.hostside.jobs import JobFolder, check_spec, submit_job
from remote.hostside.runner import start_runner
from remote.hostside.store import ContentStore, hash_file
from remote.hostside.workdir import Workdir
from remote.ssh.errors import HostProtocolError
from remote.ssh.job import read_facts, read_result
from remote.ssh.worker_archive import build_worker_archive
from targets.registry import load_host_parts
from tests.support.sweeps import scale_examples

ROOT = Path(workdir.__file__).parents[2]
SHIPPED = ("remote.hostside", *(parts.package for parts in load_host_parts()))
FILES = sorted(path for package in SHIPPED for path in (ROOT / package.replace(".", "/")).rglob("*.py"))
DAY_S = 86400.0


@pytest.fixture
def here(tmp_path, monkeypatch) -> Workdir:
    monkeypatch.setenv(workdir.LEASES_VARIABLE, str(tmp_path / "leases"))
    return Workdir(tmp_path / "host")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_python_39_reads_it(path):
    """By its grammar, and without the few calls of later versions that a grammar does not show."""
    parsed = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(parsed):
        assert not isinstance(node, ast.Match), f"{path}:{node.lineno}"
        if isinstance(node, ast.Call):
            keywords = {keyword.arg for keyword in node.keywords}
            assert not keywords & {"slots", "kw_only", "strict"}, f"{path}:{node.lineno}"
    for node in parsed.body:  # what a step needs of a package that travels with it, it imports when it runs
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        own = {name for name in names if f"{name}.".startswith(tuple(f"{package}." for package in SHIPPED))}
        assert {name.partition(".")[0] for name in set(names) - own} <= sys.stdlib_module_names, path


def test_the_archive_is_the_same_every_time_and_says_what_it_does_not_know():
    assert build_worker_archive() == build_worker_archive()
    changed = build_worker_archive({"remote/hostside/steps/__init__.py": "STEPS = {}"})
    assert changed.digest != build_worker_archive().digest


def test_the_archive_runs_by_itself(tmp_path):
    path = tmp_path / "worker.pyz"
    path.write_bytes(build_worker_archive({"remote/hostside/steps/__init__.py": "STEPS = {}"}).data)
    command = [sys.executable, "-I", "-S", "-W", "error", str(path)]
    ran = subprocess.run([*command, "dance"], capture_output=True, text=True, check=False)
    assert (ran.returncode, "knows no ['dance']" in ran.stderr) == (64, True)
    served = subprocess.run([*command, "serve", str(tmp_path / "w")], stdin=subprocess.DEVNULL, check=False)
    assert served.returncode == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused_or_not_all_there(data):
    buffer = bytearray(data)
    try:
        while unpack_frame(buffer) is not None:
            pass
    except FrameError:
        return
    assert len(buffer) <= len(data)


@settings(max_examples=scale_examples(30))
@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary())), st.integers(1, 50))
def test_messages_arrive_as_they_were_in_whatever_pieces(messages, size):
    sent = b"".join(pack_frame(header, payload) for header, payload in messages)
    buffer, got = bytearray(), []
    for begin in range(0, len(sent), size):
        buffer += sent[begin : begin + size]
        while (message := unpack_frame(buffer)) is not None:
            got.append(message)
    assert got == messages


def test_a_store_keeps_what_it_was_sent_and_nothing_else(here, tmp_path):
    store = ContentStore(here, "c1")
    (tmp_path / "x").write_bytes(b"abc")
    digest = hash_file(tmp_path / "x")
    store.add_piece(digest, 0, b"ab", last=False)
    assert store.find_missing([digest]) == [digest]
    store.add_piece(digest, 2, b"c", last=True)
    assert store.find_missing([digest]) == []
    store.copy_content(digest, tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == b"abc"
    for offset, data, last in ((0, b"abd", True), (2, b"c", True), (7, b"c", False)):
        with pytest.raises(RequestRefused, match="arrived wrong"):
            store.add_piece(digest, offset, data, last=last)
    assert [path.name for path in here.store.iterdir()] == [digest]


def test_a_lease_is_had_once_and_ends_with_its_holder(here):
    first = leases.acquire_lease("core", [0, 1])
    second = leases.acquire_lease("core", [0, 1])
    assert (first.index, second.index) == (0, 1)
    assert leases.acquire_lease("core", [0, 1]) is None
    first.release()
    assert leases.acquire_lease("core", [0, 1]).index == 0
    os.close(second.fd)  # a holder that was killed gives nothing back, and has it no more
    assert leases.acquire_lease("core", [1]).index == 1


def test_leases_are_for_all_users_of_the_machine(here):
    leases.acquire_lease("core", [3]).release()
    folder = workdir.open_leases_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "core-3").stat().st_mode) == 0o666


def test_a_link_in_place_of_the_leases_is_not_followed(here, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="must be a folder"):
        leases.acquire_lease("core", [0])


def test_a_link_in_place_of_a_lease_is_not_followed(here, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (workdir.open_leases_folder() / "core-0").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        leases.acquire_lease("core", [0])
    assert (tmp_path / "precious").read_text() == "precious"


def test_what_a_killed_holder_left_running_is_ended_before_its_core_is_used(here):
    left = subprocess.Popen(
        ["sleep", "600"], env={process_tree.MARK_VARIABLE: "some-key"}, start_new_session=True
    )
    while not Path(f"/proc/{left.pid}/environ").read_bytes():  # it is there some time after the program
        time.sleep(0.01)
    lease = leases.acquire_lease("core", [0])
    lease.write_mark(process_tree.make_mark("some-key", left.pid))
    os.close(lease.fd)
    assert leases.acquire_lease("core", [0]).index == 0
    assert left.wait(timeout=60) < 0


def test_a_mark_that_somebody_forged_ends_nothing_of_ours(here):
    """Files of leases may be written by every user of the machine."""
    login = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        lease = leases.acquire_lease("core", [0])
        lease.write_mark(process_tree.make_mark("f" * 64, login.pid))
        os.close(lease.fd)
        assert leases.acquire_lease("core", [0]).index == 0
        assert login.poll() is None
    finally:
        login.kill()
        login.wait()


_FORKED = """
import os, time
from remote.hostside import process_tree as tree
if os.fork() == 0:
    tree.set_own_mark("a" * 64)
    if os.fork() == 0:
        os.setsid()
    os.write(1, b"%d\\n" % os.getpid())  # one call: two processes write to this pipe
time.sleep(600)
"""


def test_a_fork_that_bears_a_mark_is_known_by_it_and_what_it_came_from_is_not():
    environment = {**os.environ, process_tree.MARK_VARIABLE: process_tree.UNMARKED}
    with subprocess.Popen([sys.executable, "-c", _FORKED], stdout=subprocess.PIPE, env=environment) as worker:
        pids = {int(worker.stdout.readline()) for _ in range(2)}
        assert process_tree.kill_marked(f"{'a' * 64} {process_tree.boot_id()} 0.0") == []
        assert not pids & {process.pid for process in process_tree.list_processes()}
        assert worker.poll() is None
        worker.kill()


def test_a_mark_needs_the_room_that_the_program_began_with(monkeypatch):
    monkeypatch.delenv(process_tree.MARK_VARIABLE, raising=False)
    with pytest.raises(OSError, match="was started without"):
        process_tree.set_own_mark("a" * 64)


def test_a_mark_ends_the_session_that_it_means_and_no_other():
    other = subprocess.Popen(
        ["sleep", "600"], env={process_tree.MARK_VARIABLE: "key"}, start_new_session=True
    )
    try:
        session = process_tree.make_mark("key", other.pid).split()[2]
        assert process_tree.kill_marked(f"key some-other-boot {session}") == []
        assert (
            process_tree.kill_marked(f"another {process_tree.boot_id()} {other.pid}.1") == []
        )  # the number was given again
        assert other.poll() is None
        assert process_tree.kill_marked(f"key {process_tree.boot_id()} {session}") == []
        assert other.wait() < 0
    finally:
        other.kill()
        other.wait()


def job_of(here: Workdir, name: str = "0" * 64) -> dict[str, object]:
    spans = {"deadline_s": 1, "queue_s": 1, "lease_s": 1}
    return {"key": name, "step": "echo", "payload": None, "inputs": {}, "cores": 0, "allowed": None, **spans}


def test_a_job_is_made_whole_and_its_lock_is_given_once(here):
    job, lock = submit_job(here, ContentStore(here, "c"), job_of(here), "c1")
    again, other = submit_job(here, ContentStore(here, "c"), job_of(here), "c2")
    assert lock is not None
    assert other is None
    assert job.state() == "running"
    os.close(lock)
    assert job.state() == "vanished"
    assert job.lease_holders() == ["c1", "c2"]
    again.forget("c1")
    assert job.exists()
    again.forget("c2")
    assert (job.exists(), job.state()) == (False, "unknown")
    assert list(here.trash.iterdir()) == []


def test_a_job_whose_runner_cannot_be_forked_can_be_tried_again(here, monkeypatch):
    def full() -> int:
        raise BlockingIOError

    job, lock = submit_job(here, ContentStore(here, "c"), job_of(here), "c1")
    assert lock is not None
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as crowded:
        crowded.setattr(os, "fork", full)
        with pytest.raises(BlockingIOError):
            start_runner(job, lock)
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1
    assert job.state() == "vanished"
    _, again = submit_job(here, ContentStore(here, "c"), job_of(here), "c1")
    assert again is not None
    os.close(again)


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../../etc"},
        {"key": 7},
        {"step": "../x"},
        {"inputs": {"../x": "0" * 64}},
        {"inputs": {"x": "0"}},
        {"inputs": []},
        {"cores": 2},
        {"deadline_s": -1},
        {"lease_s": "long"},
        {"allowed": "all"},
    ],
)
def test_what_is_no_job_is_refused_and_leaves_nothing(here, change):
    with pytest.raises(RequestRefused):
        submit_job(here, ContentStore(here, "c"), {**job_of(here), **change}, "c1")
    assert list(here.jobs.iterdir()) == list(here.trash.iterdir()) == []


def test_a_check_names_the_field():
    with pytest.raises(RequestRefused, match="cores"):
        check_spec({"step": "x", "inputs": {}, "cores": 5, "deadline_s": 1, "queue_s": 1, "lease_s": 1})


def aged(path: Path, days: float) -> None:
    when = time.time() - days * DAY_S
    for each in (path, path / "leases", path / "result.json"):
        if each.exists():
            os.utime(each, (when, when))


def test_sweeping_takes_what_is_old_and_leaves_what_runs(here):
    made = {}
    for name, days in (("a", 30), ("b", 30), ("c", 2)):
        job, lock = submit_job(here, ContentStore(here, "c"), job_of(here, name * 64), "c1")
        aged(job.path, days)
        made[name] = lock
    os.close(made["a"])
    os.close(made["c"])
    for digest, days in (("1" * 64, 30), ("2" * 64, 2)):
        (here.store / digest).write_bytes(b"x")
        aged(here.store / digest, days)
    assert cleanup.remove_stale_files(here) == 2
    assert sorted(path.name[0] for path in here.jobs.iterdir()) == ["b", "c"]
    assert [path.name[0] for path in here.store.iterdir()] == ["2"]
    os.close(made["b"])


def test_sweeping_keeps_what_is_new_within_its_bytes(here, monkeypatch):
    monkeypatch.setattr(cleanup, "STORE_BYTES", 2500)
    for number in range(4):
        path = here.store / (str(number) * 64)
        path.write_bytes(bytes(1000))
        aged(path, 4 - number)
    cleanup.remove_stale_files(here)
    assert sorted(path.name[0] for path in here.store.iterdir()) == ["2", "3"]


RESULT = {
    "status": "done",
    "answer": 1,
    "files": {"x": ["0" * 64, 1]},
    "log_tail": "",
    "core": None,
    "exit_status": 0,
    "queued_s": 0.0,
    "ran_s": 1.0,
    "attempts": 1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "splendid"},
        {"status": None},
        {"files": {"../x": ["0" * 64, 1]}},
        {"files": {"x": ["0" * 64, -1]}},
        {"files": {"x": ["0" * 64, 1 << 60]}},
        {"files": {str(n): ["0" * 64, 1] for n in range(1000)}},
        {"files": []},
        {"log_tail": "x" * (1 << 20)},
        {"core": -1},
        {"core": "0"},
        {"ran_s": float("inf")},
        {"ran_s": -1.0},
        {"queued_s": True},
        {"exit_status": 1 << 70},
        {"attempts": 1.5},
    ],
)
def test_a_result_that_is_none_is_not_believed(change):
    assert read_result(RESULT, "host").files == {"x": ("0" * 64, 1)}
    with pytest.raises(HostProtocolError, match="host: its worker answers"):
        read_result({**RESULT, **change}, "host")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_facts_are_facts_or_refused(answer):
    with pytest.raises(HostProtocolError):
        read_facts(answer if isinstance(answer, dict) else {}, "host")


def test_a_job_that_is_not_there_has_no_state(here):
    assert JobFolder(here, "f" * 64).state() == "unknown"
    assert JobFolder(here, "f" * 64).lease_holders() == []
