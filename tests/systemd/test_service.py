"""The installed service under a real systemd: started, watched, killed, stopped, hostile kernels held."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agentctl.systemd_unit import SERVICE_USER, UNIT_NAME
from tests.adversarial.model import body
from tests.support.booted_systemd import wait_until
from tests.systemd.conftest import BIN, DROP_INS, SECRET, Service

pytestmark = pytest.mark.slow


def test_it_is_ready_enabled_and_says_what_it_is_at(service):
    assert service.show("ActiveState", "UnitFileState") == ["active", "enabled"]
    run = service.submit()
    wait_until(lambda: run in service.show("StatusText")[0], "the status names the run")
    wait_until(lambda: "predicted" in service.show("StatusText")[0], "the status tells the best latency")
    assert re.fullmatch(rf"{run}: round \d, best [\d.]+ ms predicted", service.show("StatusText")[0])
    wait_until(lambda: service.has_ended(run), "the run ends")
    wait_until(lambda: service.show("StatusText") == ["idle: no active runs"], "the status is up to date")
    told = service.ctl("service", "status")
    assert (told["ActiveState"], told["MainPID"]) == ("active", str(service.pid))


def test_its_home_is_readable_by_its_group_and_nobody_else(service):
    assert service.files.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in service.files.glob("events.db*")} == {0o640}
    service.machine.run("usermod", "--append", "--groups", SERVICE_USER, "games")
    read = ("head", "--bytes=6", service.home / "events.db")
    assert service.machine.run(*read, user="games").stdout == "SQLite"
    assert service.machine.run(*read, user="nobody", check=False).returncode != 0


def test_a_credential_is_a_file_of_the_service_and_not_in_its_environment(service):
    environment = Path(f"/proc/{_outside(service)}/environ").read_bytes()
    folder = re.search(rb"CREDENTIALS_DIRECTORY=([^\0]+)", environment)[1].decode()
    assert SECRET.encode() not in environment
    assert (Path(f"/proc/{_outside(service)}/root{folder}") / "model_key").read_text() == SECRET
    assert service.machine.run("cat", f"{folder}/model_key", user="games", check=False).returncode != 0
    started = [line for line in service.journal() if line["event"] == "started"]
    assert started[-1]["credentials"] == ["model_key"]
    assert SECRET not in json.dumps(service.journal())


def test_the_journal_has_lines_with_ids_and_priorities(service):
    run = service.submit()
    wait_until(lambda: service.has_ended(run), "the run ends")
    lines = service.journal()
    assert all({"run", "effect", "event_id", "event", "level", "timestamp"} <= line.keys() for line in lines)
    (done,) = [line for line in lines if line["event"] == "run_completed" and line["run"] == run]
    assert done["event_id"] == f"{run}@{len(service.events(run))}"
    assert done["PRIORITY"] == "6"


def test_a_kill_is_followed_by_a_restart_that_carries_on(service):
    pid, run = service.pid, service.submit(1, rounds=2)
    wait_until(lambda: service.under_way(run), "the run is under way")
    service.systemctl("kill", "--kill-who=main", "--signal=KILL", UNIT_NAME)
    wait_until(lambda: service.has_restarted(pid), "the service is restarted")
    wait_until(lambda: service.has_ended(run), "the run ends")
    assert service.row(run)["best_ms"] < service.row(run)["initial_ms"]
    assert service.ctl("verify")["findings"] == []


@pytest.mark.parametrize(
    ("point", "first"),
    [("head.before_sync:3", ["writer"]), ("host.touched:1", [])],  # a loop that hangs cannot tell
    ids=["the writer", "the loop"],
)
def test_what_hangs_is_restarted_by_the_watchdog_and_leaves_its_stacks(service, point, first):
    service.with_settings(f"Environment=NKI_AGENT_HANG_AT={point}", lasting="WatchdogSec=3")
    pid, before = service.pid, len(service.journal())
    run = service.submit()
    wait_until(lambda: service.has_restarted(pid), "the watchdog restarts the service")
    text = "\n".join(entry["MESSAGE"] for entry in service.machine.journal(UNIT_NAME))
    assert "Watchdog timeout" in text
    assert re.search(r"File .*state/crash.py.* in _hang", text)
    stuck = [line["parts"] for line in service.journal()[before:] if line["event"] == "stuck"]
    assert [parts[0] for parts in stuck] == first  # what waits for the writer may follow
    wait_until(lambda: bool(service.row(run)), "what was sent is taken up")


def test_a_stop_lets_work_in_flight_end_and_the_next_start_carries_on(service):
    run = service.submit(2, rounds=2)
    wait_until(lambda: service.under_way(run), "the run is under way")
    service.systemctl("stop", UNIT_NAME)
    assert service.show("ActiveState", "Result", "ExecMainStatus") == ["inactive", "success", "0"]
    assert service.journal()[-1]["event"] == "stopped"
    assert not service.has_ended(run)
    service.systemctl("start", UNIT_NAME)
    wait_until(lambda: service.has_ended(run), "the run ends")


def refused_to_start(service) -> list[str]:
    """Start the service, which must not come up; how it ended, and how often it was started again."""
    service.systemctl("start", UNIT_NAME, check=False)
    return service.show("ActiveState", "Result", "ExecMainStatus", "NRestarts")


def test_a_log_that_a_restart_cannot_mend_is_not_tried_again(service):
    service.systemctl("stop", UNIT_NAME)
    path = service.files / "HEAD"
    before = path.read_bytes()
    path.write_text("no anchor")
    found = refused_to_start(service)
    path.write_bytes(before)
    assert found == ["failed", "exit-code", "4", "0"]
    assert service.machine.run(BIN / "agentctl", "service", "status", check=False).returncode == 3


def test_an_environment_that_a_restart_cannot_mend_is_not_tried_again(service):
    service.machine.write(DROP_INS / "wrong.conf", "[Service]\nEnvironment=NKI_AGENT_DAEMON__EVALUATIONS=0\n")
    service.systemctl("daemon-reload")
    service.systemctl("stop", UNIT_NAME)
    assert refused_to_start(service) == ["failed", "exit-code", "2", "0"]


def test_a_file_with_faults_keeps_no_service_down(service):
    path = service.files / "config.toml"
    path.write_text("[daemon]\nevaluations = 0\n")
    pid = service.pid
    service.systemctl("kill", "--kill-who=main", "--signal=KILL", UNIT_NAME)
    wait_until(lambda: service.has_restarted(pid), "it is started again")
    wait_until(lambda: "config_refused" in since_start(service), "the file is refused")
    path.unlink()
    assert service.active


def since_start(service) -> list[str]:
    """What the daemon logged since it was last started."""
    events = [item["event"] for item in service.journal()]
    return events[len(events) - events[::-1].index("started") :]


UNRULED = f"""import sys
sys.path[:1] = [{str(Path(__file__).parents[2])!r}]
import remote.local
remote.local.lint_kernel = lambda source, target: None
from daemon.main import main
main()
"""
"""The daemon without the first wall, the static rules, so that the jail has to hold alone."""

REACHING = body(
    "import ctypes, glob, os, socket",
    "attempts = [",
    "    lambda: open('/var/lib/nki-kernel-agent/events.db', 'rb').read(16),",
    "    lambda: [open(path).read() for path in glob.glob('/run/credentials/*/*')] or 1 / 0,",
    "    lambda: os.environ['CREDENTIALS_DIRECTORY'],",
    "    lambda: [open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/environ')] or 1 / 0,",
    "    lambda: os.listdir('/var'),",
    "    lambda: os.listdir('/etc/keys'),",
    "    lambda: open('/usr/planted', 'w'),",
    "    lambda: socket.create_connection(('127.0.0.1', 22)),",
    "    lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),",
    "    lambda: os.kill(os.getppid(), 9),",
    "    lambda: os.fork() or 1,",
    "    lambda: ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 or 1 / 0,",
    "]",
    "found = []",
    "for number, attempt in enumerate(attempts):",
    "    try:",
    "        found.append((number, attempt()))",
    "    except Exception:",
    "        pass",
    "raise ValueError(f'reached {found} of {len(attempts)}')",
)


@pytest.mark.needs("bwrap", package="bubblewrap")
def test_a_hostile_kernel_is_held_inside_the_unit_and_the_daemon_lives(service):
    service.machine.write("/opt/unruled.py", UNRULED)
    service.with_settings("ExecStart=", f"ExecStart={sys.executable} /opt/unruled.py")
    pid = service.pid
    run = service.submit(kernel=REACHING)
    wait_until(lambda: service.has_ended(run), "the run ends")
    (verdict,) = [item.event for item in service.events(run) if item.type == "EvaluationCompleted"]
    error = verdict.evaluation.error
    assert (error.code, error.message) == ("kernel_exception", "ValueError: reached [] of 12")
    assert service.row(run)["reason"] == "initial_rejected"
    assert (service.pid, service.show("NRestarts")) == (pid, ["0"])


def _outside(service) -> int:
    """Return the pid of the daemon as seen from here, where a hidden /proc does not hide it."""
    space = Path(f"/proc/{service.machine.pid}/ns/pid").readlink()
    inside = re.compile(rf"^NSpid:.*\t{service.pid}$", re.MULTILINE)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            ours = (process / "ns/pid").readlink() == space
            if ours and inside.search((process / "status").read_text()):
                return int(process.name)
    raise AssertionError(f"no process {service.pid} in the machine")


def test_uninstalled_it_is_gone_but_for_its_home_and_can_be_installed_again(service):
    agentctl = BIN / "agentctl"
    service.machine.run(agentctl, "service", "uninstall")
    assert service.show("LoadState", "ActiveState") == ["not-found", "inactive"]
    assert (service.files / "events.db").exists()
    assert service.machine.run(agentctl, "service", "uninstall", check=False).returncode == 3
    told = service.machine.run(agentctl, "service", "status", check=False)
    assert (told.returncode, "not installed" in told.stdout) == (3, True)
    again = service.machine.run(agentctl, "service", "install", "--credential", "model_key=/etc/keys/model")
    assert re.search(r"^exposure  [\d.]+ of 10 \(OK\)$", again.stdout, re.MULTILINE)
    assert service.active


def test_a_user_can_have_a_service_too(machine):
    machine.run("systemctl", "start", "user@0.service")
    env = ("env", "XDG_RUNTIME_DIR=/run/user/0", "USER=root")
    home = Path("/root/runs")
    machine.write("/etc/keys/mine", SECRET)
    key = ("--credential", "model_key=/etc/keys/mine")
    machine.run(*env, BIN / "agentctl", "--home", home, "service", "install", "--user", *key)
    mine = Service(machine, home)
    run = mine.submit()
    wait_until(lambda: mine.has_ended(run), "the run ends")
    assert mine.row(run)["best_ms"] > 0

    def told() -> tuple[str, str]:
        done = machine.run(*env, BIN / "agentctl", "--json", "service", "status", "--user")
        fields = json.loads(done.stdout)
        return fields["ActiveState"], fields["StatusText"]

    wait_until(lambda: told() == ("active", "idle: no active runs"), "the status is up to date")
    machine.run(*env, BIN / "agentctl", "service", "uninstall", "--user")
    assert (
        machine.run(*env, "systemctl", "--user", "is-active", UNIT_NAME, check=False).stdout == "inactive\n"
    )
    assert (mine.files / "events.db").exists()
