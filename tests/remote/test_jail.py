"""The jail against code that attacks it, at every strength that this machine can build."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote import jail_backends, sandbox
from remote.errors import InfrastructureError
from remote.jail_backends import JailedProgram, JailLimits, JailStrength, jail_strength
from remote.sandbox import JailResult, run_jailed
from tests.support.sweeps import parametrize_sweep

PROBE = JailedProgram("", limits=JailLimits(cpu_s=10))
BUILDABLE = [strength for strength in JailStrength if jail_backends.can_build_jail(strength, PROBE)]
WALLED = [strength for strength in BUILDABLE if strength is not JailStrength.WEAK]
FILTERED = sys.platform == "linux" and os.uname().machine in {"x86_64", "aarch64"}

HEAD = """
import os, sys
def answer(value):
    os.write(int(sys.argv[1]), repr(value).encode())
def refused(action):
    try:
        return f"allowed: {action()!r}"
    except BaseException as error:
        return type(error).__name__
"""


def hostile(folder: Path, body: str, **limits) -> JailedProgram:
    """A program whose `main` has this body."""
    package = folder / "hostile"
    package.mkdir(exist_ok=True)
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (package / "__init__.py").write_text("")
    (package / "code.py").write_text(f"{HEAD}\ndef main():\n{lines}")
    settings = {"cpu_s": 5, "wall_s": 60, "memory_bytes": 1 << 29, "answer_bytes": 1 << 16, **limits}
    return JailedProgram("hostile.code", packages=(package,), limits=JailLimits(**settings))


@pytest.fixture(params=BUILDABLE)
def attack(request, tmp_path):
    async def run(body: str, *, stdin: bytes = b"", **limits) -> JailResult:
        return await run_jailed(hostile(tmp_path, body, **limits), stdin, strength=request.param)

    return run


@pytest.fixture(params=WALLED)
def walled_attack(request, tmp_path):
    async def run(body: str, **limits) -> JailResult:
        return await run_jailed(hostile(tmp_path, body, **limits), b"", strength=request.param)

    return run


in_each_jail_slowly = parametrize_sweep("attack", BUILDABLE, indirect=True)
"""For tests that wait for limits: a quick run tries the strongest jail."""


async def test_request_and_answer(attack):
    result = await attack("answer(sys.stdin.read()[::-1])", stdin=b"abc")
    assert result == JailResult(b"'cba'", 0, "", truncated=False, cpu_exhausted=False)
    assert not result.was_killed


@in_each_jail_slowly
async def test_what_waits_for_ever_is_ended_and_told_from_what_computes(attack, monkeypatch):
    monkeypatch.setattr(sandbox, "LOOK_S", 0.05)
    monkeypatch.setattr(sandbox, "LOOKS", 30)
    result = await attack("import time\ntime.sleep(1000)", cpu_s=1)
    assert (result.asleep, result.was_killed, result.cpu_exhausted) == (True, False, False)
    busy = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass\nanswer(1)"
    result = await attack(busy)
    assert (result.asleep, result.answer) == (False, b"1")


async def test_nobody_counts_as_asleep_where_nobody_can_look(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "_PROC", tmp_path)
    monkeypatch.setattr(sandbox, "LOOK_S", 0.001)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.wait_for_deadlock(1), 0.05)


async def test_environment_holds_no_secret(attack, monkeypatch):
    monkeypatch.setenv("NKI_TEST_SECRET", "hush")
    result = await attack("answer(sorted(os.environ))")
    harmless = {"LC_CTYPE", "PWD", "OLDPWD", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"}
    assert set(eval(result.answer)) <= harmless


async def test_python_looks_for_modules_nowhere_but_where_it_is_told(attack):
    flags = "('safe_path', 'no_user_site', 'no_site', 'dont_write_bytecode')"
    result = await attack(f"answer([bool(getattr(sys.flags, name)) for name in {flags}])")
    assert eval(result.answer) == [True] * 4


async def test_hashes_and_the_order_of_sets_repeat(attack):
    body = "answer((hash('abc'), hash(b'abc'), list({'a', 'b', 'c', 'd', 'e', 'f'})))"
    assert len({(await attack(body)).answer for _ in range(3)}) == 1


@pytest.mark.skipif(
    not jail_backends._setarch_command(), reason="setarch is missing, or personality is forbidden here"
)
async def test_addresses_repeat_where_the_system_allows_it(attack):
    body = "class A: pass\nanswer((repr(object()), [hash(a) for a in {A() for _ in range(9)}]))"
    found = {(await attack(body)).answer}
    with contextlib.ExitStack() as files:
        for _ in range(120):  # descriptors of more digits
            files.callback(os.close, os.dup(0))
        found |= {(await attack(body)).answer for _ in range(2)}
    assert len(found) == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the GNU C library fills memory for us")
async def test_memory_that_nobody_wrote_to_is_zero_for_programs_that_ask_for_it(tmp_path):
    body = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
sizes = (64, 1000, 5000, 100_000) * 9
dirty = [bytearray(b'x' * size) for size in sizes]
del dirty
answer([set(ctypes.string_at(libc.malloc(size), size)) for size in sizes])
"""
    program = replace(hostile(tmp_path, body), fills_memory=True)
    result = await run_jailed(program, b"", strength=BUILDABLE[0])
    assert eval(result.answer) == [{0}] * 36


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the GNU C library keeps memory for us")
@pytest.mark.parametrize("kept", [False, True])
async def test_freed_memory_is_kept_for_programs_that_ask_for_it(tmp_path, kept):
    body = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
size = 64 << 20
place = libc.malloc(size)
ctypes.memset(place, 120, size)
libc.free(place)
answer(ctypes.string_at(libc.malloc(size) + size // 2, 1))
"""
    program = replace(hostile(tmp_path, body), keeps_memory=kept)
    result = await run_jailed(program, b"", strength=BUILDABLE[0])
    assert eval(result.answer) == (b"x" if kept else bytes(1))


async def test_home_and_project_are_not_there(walled_attack, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("hush")
    home = Path.home()
    result = await walled_attack(
        f"answer([refused(lambda: open({str(tmp_path / 'secret')!r}).read()),"
        f" os.path.exists({str(home / '.ssh')!r}), os.path.exists({str(Path(__file__))!r}),"
        " os.path.exists('/etc/passwd'), os.path.exists('/proc/self'), os.path.exists('/sys')])"
    )
    assert eval(result.answer) == ["FileNotFoundError", False, False, False, False, False]


async def test_nothing_can_be_written(walled_attack, tmp_path):
    places = ["/x", "/tmp/x", "/usr/x", f"{tmp_path}/hostile/x"]
    result = await walled_attack(f"answer([refused(lambda: open(p, 'w')) for p in {places!r}])")
    assert eval(result.answer) == ["OSError"] * 4
    assert not (tmp_path / "hostile" / "x").exists()


async def test_no_network_interface_but_loopback(walled_attack):
    result = await walled_attack("import socket\nanswer([name for _, name in socket.if_nameindex()])")
    assert result.answer in {b"['lo']", b""}  # no answer: even the question needs a socket, which is denied
    assert (result.exit_status == 0) == (result.answer != b"")


@pytest.mark.skipif(
    not FILTERED, reason="needs the system-call filter; it covers Linux on x86-64 and AArch64"
)
@pytest.mark.parametrize(
    "action",
    [
        "os.fork()",
        "os.execv('/bin/sh', ['sh', '-c', 'true'])",
        "__import__('socket').socket()",
        "__import__('socket').socketpair()",
        "os.kill(os.getppid(), 0)",
        "os.killpg(0, 9)",
        "__import__('subprocess').run(['/bin/true'])",
        "__import__('_thread').start_new_thread(print, ())",
        "os.unshare(0) if hasattr(os, 'unshare') else os.fork()",
        "os.chroot('/tmp')",
    ],
)
async def test_system_calls_that_a_tracer_has_no_use_for_are_denied(attack, action):
    result = await attack(f"answer(refused(lambda: {action}))")
    assert eval(result.answer) in {"PermissionError", "RuntimeError"}  # threads: RuntimeError


@pytest.mark.parametrize(
    ("action", "kind"),
    [("bytearray(1 << 30)", "MemoryError"), ("[os.open('/', 0) for _ in range(1000)]", "OSError")],
)
async def test_limits_hold(attack, action, kind):
    result = await attack(f"answer(refused(lambda: {action}))")
    assert eval(result.answer) == kind


async def test_limits_cannot_be_raised(walled_attack):
    result = await walled_attack(
        "import resource\nanswer(refused(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))))"
    )
    assert eval(result.answer) == "ValueError"


@in_each_jail_slowly
async def test_an_endless_loop_ends_by_its_cpu_time(attack):
    result = await attack("while True: pass", cpu_s=1)
    assert result.cpu_exhausted
    assert result.answer == b""
    assert not result.was_killed


@in_each_jail_slowly
async def test_ignoring_the_cpu_signal_does_not_help(attack):
    body = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    result = await attack(body, cpu_s=1)
    assert result.cpu_exhausted


@in_each_jail_slowly
async def test_sleeping_ends_by_the_clock(attack, processes, monkeypatch):
    monkeypatch.setattr(sandbox, "LOOK_S", 10.0)  # the clock ends it first
    with pytest.raises(InfrastructureError) as caught:
        await attack("import time\ntime.sleep(600)", wall_s=1)
    assert caught.value.code == "jail_deadline"
    assert caught.value.retryable
    assert processes() == set()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("os._exit(0)", 0),
        ("sys.exit(0)", 0),
        ("os._exit(7)", 7),
        ("raise SystemExit('bye')", 1),
        ("raise ValueError", 1),
        ("import ctypes\nctypes.string_at(0)", -signal.SIGSEGV),
    ],
)
async def test_ways_to_leave_without_an_answer(attack, body, status):
    result = await attack(body)
    assert result.answer == b""
    assert result.exit_status == status
    assert not result.cpu_exhausted


async def test_output_goes_nowhere_and_cannot_fill_anything(attack):
    body = "for fd in (1, 2):\n    for _ in range(64): os.write(fd, b'x' * (1 << 20))\nanswer('done')"
    result = await attack(body, cpu_s=20)
    assert result.answer == b"'done'"
    assert len(result.stderr) <= 16 << 10


async def test_an_answer_too_long_is_cut_and_says_so(attack):
    body = "for _ in range(200): os.write(int(sys.argv[1]), b'y' * (1 << 20))"
    result = await attack(body, cpu_s=20, answer_bytes=1000)
    assert result.truncated
    assert result.answer == b"y" * 1000


async def test_the_answer_is_only_what_jailed_code_wrote(attack):
    result = await attack("print('forged answer')\nsys.stdout.flush()")
    assert result.answer == b""
    assert result.exit_status == 0


async def test_closing_everything_is_no_answer(attack):
    result = await attack("os.closerange(0, 1000)\nos._exit(3)")
    assert (result.answer, result.exit_status) == (b"", 3)


async def test_cancelling_leaves_no_process(attack, processes, running):
    task = asyncio.create_task(attack("import time\ntime.sleep(600)"))
    await running()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes() == set()


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 8, 10, 15, 20])
async def test_cancelling_at_any_step_leaves_no_process(attack, processes, steps):
    task = asyncio.create_task(attack("import time\ntime.sleep(600)"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes() == set()


@pytest.mark.parametrize("strength", BUILDABLE)
async def test_killed_from_outside_is_not_the_kernels_fault(strength, tmp_path, processes, running):
    program = hostile(tmp_path, "import time\ntime.sleep(600)")
    task = asyncio.create_task(run_jailed(program, b"", strength=strength))
    await running()
    # Before or after the jail stands: both are the machinery's failure.
    for pid in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, JailResult):
        assert result.was_killed
        assert not result.answer
    else:
        assert isinstance(result, InfrastructureError)
        assert result.code == "jail_start"


@pytest.mark.parametrize("strength", BUILDABLE)
async def test_a_jail_that_does_not_stand_runs_nothing(strength, tmp_path, monkeypatch):
    monkeypatch.setattr(
        sandbox, "jail_command", lambda *_: ["/bin/sh", "-c", "echo no such wall >&2; exit 1"]
    )
    with pytest.raises(InfrastructureError, match="no such wall") as caught:
        await run_jailed(hostile(tmp_path, "answer(1)"), b"", strength=strength)
    assert caught.value.code == "jail_start"
    monkeypatch.setattr(sandbox, "jail_command", lambda *_: ["/nonexistent/wall"])
    with pytest.raises(InfrastructureError) as caught:
        await run_jailed(hostile(tmp_path, "answer(1)"), b"", strength=strength)
    assert caught.value.code == "jail_start"


def test_the_strongest_that_works_is_used(monkeypatch):
    assert jail_strength() is BUILDABLE[0]
    for tools, expected in (
        ({"bwrap"}, next(s for s in BUILDABLE if s is not JailStrength.BUBBLEWRAP)),
        ({"bwrap", "unshare"}, JailStrength.WEAK),
    ):
        jail_strength.cache_clear()
        which = jail_backends.shutil.which
        monkeypatch.setattr(
            jail_backends.shutil,
            "which",
            lambda tool, gone=tools, which=which: None if tool in gone else which(tool),
        )
        assert jail_strength() is expected
        monkeypatch.undo()
    jail_strength.cache_clear()


def test_walls_that_fail_when_run_are_not_believed(monkeypatch):
    monkeypatch.setattr(jail_backends, "jail_command", lambda *_: ["/bin/false"])
    assert not jail_backends.can_build_jail(JailStrength.WEAK, PROBE)
    monkeypatch.setattr(jail_backends, "jail_command", lambda *_: ["/nonexistent/wall"])
    assert not jail_backends.can_build_jail(JailStrength.WEAK, PROBE)
