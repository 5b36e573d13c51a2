"""Hardware counters: what a profile has of them, and what the program says where they are refused.

Where a machine has no hardware counters, the system's own (its clock of a task) go the same way.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from targets.c import hardware_counters
from targets.c.jailed import process_counters
from targets.c.jailed.process_counters import ProcessCounters
from targets.registry import load_target
from tests.targets.c.conftest import Answer
from tests.targets.c.kernels import HONEST, PLAIN

_SOFTWARE, _TASK_CLOCK, _PAGE_FAULTS = 1, 1, 2
BUSY = "    static volatile int sink;\n    while (++sink % 30000000)\n        ;\n"


LEAST_BUSY_NS = 5_000_000  # 30 million increments, at six a nanosecond
Measure = Callable[[str], dict[str, float]]


@pytest.fixture
def measure(answer: Answer) -> Measure:
    """Measures a kernel; returns the counters of its profile."""

    def read_counters(source: str) -> dict[str, float]:
        found = answer(source)
        assert found.evaluation.profile is not None, found.evaluation.error
        counters: dict[str, float] = json.loads(found.artefacts[found.evaluation.profile])["counters"]
        return counters

    return read_counters


def _refuse(monkeypatch: pytest.MonkeyPatch, code: int, paranoid: str, folder: Path) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(hardware_counters, "_call_system", refuse)
    monkeypatch.setattr(hardware_counters, "PARANOID", folder / "paranoid")
    (folder / "paranoid").write_text(paranoid)


def test_counters_opened_outside_the_jail_count_the_kernel_s_process(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware_counters, "EVENTS", {"cycles": (_SOFTWARE, _TASK_CLOCK)})
    refused = hardware_counters.find_refusal()
    plain, busy = measure(PLAIN), measure(PLAIN.replace("{\n", "{\n" + BUSY, 1))
    assert ("cycles" in plain) == (refused is None)
    if refused is None:  # the clock of the task counts the ns of its calls, and nothing else
        assert 0 < plain["cycles"] < busy["cycles"]
        assert busy["cycles"] == pytest.approx(busy["time_ns"], rel=0.5)


@pytest.mark.slow
def test_counters_cover_the_threads_of_a_kernel(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_counters, "EVENTS", {"cycles": (_SOFTWARE, _TASK_CLOCK)})
    refused = hardware_counters.find_refusal()
    threads = "// threads: 2\n// flags: -O1 -fopenmp\n#include <omp.h>\n"
    in_the_second = f"#pragma omp parallel\n    if (omp_get_thread_num() == 1) {{\n{BUSY}    }}\n"
    counters = measure(threads + PLAIN.replace("{\n", "{\n" + in_the_second, 1))
    assert ("cycles" in counters) == (refused is None)
    if refused is None:  # the first thread only waits
        assert counters["cycles"] > LEAST_BUSY_NS


def test_a_profile_has_the_hardware_counters_that_the_machine_allows(measure: Measure) -> None:
    counters = measure(PLAIN)
    assert ("instructions" in counters) == (hardware_counters.find_refusal() is None)
    if "instructions" in counters:
        per_cycle = counters["instructions"] / counters["cycles"]
        assert counters["instructions_per_cycle"] == pytest.approx(per_cycle)


@pytest.mark.slow
@pytest.mark.parametrize("source", [PLAIN, HONEST["threads"]], ids=["one thread", "two threads"])
def test_a_kernel_is_measured_without_counters_where_they_are_refused(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    _refuse(monkeypatch, errno.EACCES, "4", tmp_path)
    assert set(measure(source)).isdisjoint({*hardware_counters.EVENTS, "instructions_per_cycle"})
    assert set(hardware_counters.EVENTS) <= set(load_target("x86").profile.counters)


@pytest.mark.parametrize(
    ("code", "paranoid", "reason", "remedy"),
    [
        (errno.EACCES, "4", "paranoid is 4", "sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, "3", "paranoid is 3", "sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, "2", "is denied", "seccomp profile"),
        (errno.EACCES, "unreadable", "is denied", "CAP_PERFMON"),
        (errno.ENOENT, "2", "shows no hardware counters", "virtual PMU"),
        (errno.ENOSYS, "2", os.strerror(errno.ENOSYS), "go without"),
    ],
)
def test_a_refusal_says_why_and_how_to_allow_counters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, code: int, paranoid: str, reason: str, remedy: str
) -> None:
    _refuse(monkeypatch, code, paranoid, tmp_path)
    (found,) = hardware_counters.check_counters()
    assert reason in found.found
    assert remedy in found.remedy


def test_counters_that_are_allowed_need_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_counters, "_call_system", lambda *_: os.memfd_create("counter"))
    (found,) = hardware_counters.check_counters()
    assert found.found == "profiles have cycles, instructions, cache_misses"
    assert not found.remedy


def test_counters_that_a_machine_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_misses(number: int, attributes: bytes, pid: int) -> int:
        del number, pid
        if attributes[8] == hardware_counters.EVENTS["cache_misses"][1]:
            raise OSError(errno.ENOENT, "no such event")
        return os.memfd_create("counter")

    monkeypatch.setattr(hardware_counters, "_call_system", refuse_misses)
    opened = hardware_counters.open_counters(1)
    assert list(opened) == ["cycles", "instructions"]
    for fd in opened.values():
        os.close(fd)


def test_counts_are_scaled_by_the_time_in_which_a_counter_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_counters.fcntl, "ioctl", lambda *_: 0)
    readings = [
        (10, 100, 100),
        (40, 200, 150),
        (40, 200, 150),
        (60, 300, 250),
        (60, 300, 250),
        (60, 400, 250),
    ]
    fd = os.memfd_create("counter")
    os.write(fd, b"".join(struct.pack("=QQQ", *one) for one in readings))
    os.lseek(fd, 0, os.SEEK_SET)
    counters = ProcessCounters({"cycles": fd})
    for _ in range(3):
        with counters.count_call():
            pass
    os.close(fd)
    assert counters.medians() == {"cycles": (60 + 20) / 2}  # in the third call it did not run
