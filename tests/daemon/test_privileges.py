"""Each verb as owner, root, group reader and stranger, and with links planted at every path.

A full run tries a third of the verbs with each link. All of them:

    SWEEP=all pytest --all tests/daemon/test_privileges.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from agentctl.verb_table import VERBS
from daemon.privileges import find_home_user
from state.archive import archive_run
from state.backup import backup_log
from state.errors import HomeUnreadable
from state.log import EventLog
from state.records import NewEvent
from state.verify import verify_log
from tests.support.home_actor import OWNER, READER, ROOT, STRANGER, HomeActor, find_python
from tests.support.scripted_runs import ScriptedRun, append_run
from tests.support.sweeps import is_exhaustive
from tests.support.tuning_jobs import WORKLOAD

pytestmark = pytest.mark.slow

READING = (
    ("status",), ("verify",), ("verify", "--quick"), ("tail", "-n", "3"), ("show", "1"), ("stats", "first"),
    ("tree",), ("lineage", "first"), ("memory", "show"), ("problems",), ("config", "show"),
    ("config", "check"),
    ("prompts",), ("doctor",), ("replay", "first"), ("archive", "first", "-o", "{out}"), ("backup", "{out}"),
    ("why", "first"), ("best", "first", "-o", "{out}"), ("diff", "first"), ("rescore", "first"),
    ("report", "first", "-o", "{out}.md"), ("export", "first", "--layout", "nki-kernel-agent", "-o", "{out}"),
    ("wait", "first", "--for", "ended"), ("host", "list"), ("completion", "bash"), ("service", "status"),
    ("translate", "{files}/reference.py"), ("resume", "first@99999"),
    ("try", "{files}/kernel.py", "--problem", "silu", "--size", "reduced"), ("ui", "--port", "0"), ("mcp",),
    ("bench", "search", "--problems", "silu", "--size", "reduced", "--candidates", "1", "--minutes", "0.01"),
)  # fmt: skip
WRITING = (
    ("init",), ("compact",), ("repair",), ("migrate",), ("restore", "{files}/backup.db"),
    ("import", "{files}/run.jsonl.gz"),
    ("pause", "first"), ("cancel", "first"), ("prompts", "--copy", "roles/planner.md"),
    ("calibrate", "--host", "127.0.0.1:1"), ("set", "going", "run.search.rounds=5"), ("approve", "going"),
    ("propose", "going", "{files}/kernel.py"), ("submit", "--problem", "silu", "--size", "reduced"),
    ("fork", "first@5"), ("run", "--problem", "silu", "--size", "reduced", "--set", "run.cap_seconds=0.1"),
    ("tune", "{files}/workload.py", "--sim", "--into", "{out}", "--set", "run.cap_seconds=0.1"),
)  # fmt: skip
VERB_CALLS = READING + WRITING

HOSTING = {"run", "tune", "bench"}
"""Verbs that judge kernels, and take seconds: they are not tried with each link."""

SERVES = {"ui": "Ctrl-C ends it"}
"""Verbs that run until they are ended, and what they write when they serve."""

FILES = (
    "agentd.lock", "agentd.lock.owner", "agentd.instance", "HEAD", "HEAD.tmp", "HEAD.second",
    "HEAD.second.tmp", "reserve", "events.db", "events.db-wal",
    "events.db-shm", "events.db.new", "hosts.json", "known_hosts", "judge.secret",
    "agentctl.log", "config.toml",
)  # fmt: skip
FOLDERS = ("inbox", "replaced", "prompts", "cache", "inbox/rejected")


@pytest.fixture(scope="module")
def actor() -> Iterator[HomeActor]:
    if os.geteuid() != 0:
        pytest.skip("only root can act as several users")
    python = find_python()
    if python is None:
        pytest.skip("no Python of this version here that every user may run")
    made = HomeActor(python)
    yield made
    made.close()


class Users:
    """Places of several users, in a folder that all of them may enter."""

    def __init__(self, folder: Path, source: Path, actor: HomeActor) -> None:
        self.files = folder / "files"
        self.victims = folder / "victims"
        self.owned = folder / "owned"
        self.home = self.owned / "home"
        self.out = self.owned / "out"
        self._source = source
        self._actor = actor
        folder.chmod(0o755)
        self.victims.mkdir()
        self.owned.mkdir()
        self.reset()

    def reset(self) -> None:
        """Make the owner's home anew, readable for a group."""
        shutil.rmtree(self.owned)
        shutil.rmtree(self.victims)
        self.owned.mkdir()
        self.victims.mkdir()
        shutil.copytree(self._source, self.home)
        for path in (self.owned, self.home, *self.home.rglob("*")):
            os.chown(path, OWNER, OWNER)
            path.chmod(0o750 if path.is_dir() else 0o640)
        self.owned.chmod(0o755)

    def call(self, user: int | None, verb: tuple[str, ...]) -> tuple[int, str]:
        words = [word.format(out=self.out, files=self.files) for word in verb]
        for path in self.owned.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self._actor.call(user, "--home", self.home, *words, until=SERVES.get(words[0]))

    def list_files(self) -> list[tuple[Path, int]]:
        """Return the home's files with their inodes, less the one that every reader of a log may make."""
        return sorted((one, one.stat().st_ino) for one in self.home.rglob("*") if "-shm" not in one.name)

    def foreign_files(self) -> list[Path]:
        """Return what in the owner's folder is not the owner's."""
        return [path for path in (self.owned, *self.owned.rglob("*")) if path.lstat().st_uid != OWNER]


@pytest.fixture(scope="module")
def users(actor: HomeActor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    source = tmp_path_factory.mktemp("source") / "home"
    with EventLog.open(source) as log:
        append_run(log, "first", rounds=2)
        for step in islice(ScriptedRun(seed=1).steps(), 40):
            log.append_now([NewEvent("going", step.event)], blobs=step.blobs)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (files := Path(folder) / "files").mkdir()
        backup_log(source, files / "backup.db")
        archive_run(source, "first", files / "run.jsonl.gz")
        for name in ("kernel.py", "reference.py"):
            shutil.copy(ROOT / "seeds/problems/silu" / name, files)
        (files / "workload.py").write_text(WORKLOAD, encoding="utf-8")
        for path in files.iterdir():
            path.chmod(0o644)
        yield Users(Path(folder), source, actor)


def test_every_verb_with_a_home_is_tried() -> None:
    homeless = {"plugin", "target"}
    assert {words[0] for words in VERB_CALLS} | homeless == set(VERBS)


@pytest.mark.parametrize("verb", VERB_CALLS, ids="_".join)
def test_root_leaves_what_the_owner_leaves(users: Users, verb: tuple[str, ...]) -> None:
    users.reset()
    as_owner, said = users.call(OWNER, verb)
    assert as_owner != 99, said
    users.reset()
    as_root, said = users.call(None, verb)
    assert (as_root, users.foreign_files()) == (as_owner, []), said
    assert verify_log(users.home).is_ok


@pytest.mark.parametrize("verb", VERB_CALLS, ids="_".join)
def test_who_may_not_write_changes_nothing(users: Users, verb: tuple[str, ...]) -> None:
    users.reset()
    before = users.list_files()
    for user in (READER, STRANGER):
        status, said = users.call(user, verb)
        assert status != 99, said
        assert "Traceback" not in said
        if verb in WRITING:
            assert status != 0, said
    assert users.list_files() == before
    assert verify_log(users.home).is_ok


LINK_CALLS = (
    *(words for words in WRITING if words[0] not in HOSTING), ("status",), ("backup", "{out}"), ("doctor",),
)  # fmt: skip


def choose_verbs(place: int) -> tuple[tuple[str, ...], ...]:
    """Return every third verb, others for each place: each is tried at a third of them. Or all verbs."""
    return LINK_CALLS if is_exhaustive() else LINK_CALLS[place % 3 :: 3]


@pytest.mark.parametrize(("place", "name"), [*enumerate(FILES + FOLDERS)], ids=FILES + FOLDERS)
def test_a_link_in_a_home_leads_root_to_no_foreign_file(users: Users, place: int, name: str) -> None:
    for verb in choose_verbs(place):
        users.reset()
        victim = users.victims / "victim"
        link = users.home / name
        link.parent.mkdir(exist_ok=True)
        os.chown(link.parent, OWNER, OWNER)
        if name in FOLDERS:
            victim.mkdir()
            victim.chmod(0o777)  # what only root's rights kept out must not be what protects it
            shutil.rmtree(link, ignore_errors=True)
        else:
            victim.write_text("foreign")
            link.unlink(missing_ok=True)
        link.symlink_to(victim)
        os.chown(link, OWNER, OWNER, follow_symlinks=False)
        status, said = users.call(None, verb)
        assert status != 99, said
        if name not in FOLDERS:
            assert victim.read_text() == "foreign"
        elif name not in ("cache", "prompts"):  # links to folders of one's own programs and texts are fine
            assert list(victim.iterdir()) == []
        assert users.foreign_files() == []


def test_a_home_that_is_a_link_of_its_user_is_used_as_that_user(users: Users) -> None:
    users.reset()
    victim = users.victims / "home"
    shutil.copytree(users.home, victim)
    shutil.rmtree(users.home)
    users.home.symlink_to(victim)
    os.chown(users.home, OWNER, OWNER, follow_symlinks=False)
    before = {path: path.stat().st_mtime_ns for path in victim.rglob("*")}
    status, _ = users.call(None, ("compact",))
    assert status == 2
    assert {path: path.stat().st_mtime_ns for path in victim.rglob("*")} == before


def test_a_home_is_of_the_first_user_on_the_way(users: Users) -> None:
    assert find_home_user(users.owned / "not" / "there") == (OWNER, OWNER)
    assert find_home_user(users.victims / "home") is None
    circle = users.victims / "circle"
    circle.symlink_to(circle)
    with pytest.raises(HomeUnreadable, match="circle"):
        find_home_user(circle)
