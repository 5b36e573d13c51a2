"""Runs and times compiled kernels in the jail: a request as one JSON text on stdin, lines of JSON as the
answer.

Large data comes and goes by files that the jail inherits. The request: `libraries` (paths: the kernel, and
one to compare it with if it is timed), `threads` of each, `scalars`, `inputs` and `outputs` (bytes of each
array), `cores` of the kernels, `deadline_s` of one call, `runner` (null, or the `command` that starts the
program that calls a kernel of another machine, and the word `counter` in it that stands for the descriptor of
the count), `counters` (null, or the descriptor of the socket where counters of a process are asked for), and
either `compare` or `time`:

- `compare`: `sets`, for each input set the descriptors of its inputs and of its outputs, and `again`, the
  descriptors for the first set's outputs when it is run once more, last.
- `time`: `pool`, for each set the descriptors of its inputs; `checks`, a list of a number of the pool and the
  descriptors for the outputs; `warmups`, `pairs` of a round, `rounds` and `seconds` at most, `seed`; `dtypes`
  of the outputs and the `tolerance` up to which those of two kernels must agree.

The answer has `sets` (those that were run) or `samples` (times in ns by kernel), `checked` (the checks that
were made) and `counters` (of one call of the kernel, by name), or `error` (`set`, `code`, `message`) if the
kernel failed. A kernel is loaded in a process that has seen no input; timing has processes of its own, so
that nothing that a kernel keeps helps it there.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from targets.c.jailed.foreign_process import ForeignProcess
from targets.c.jailed.kernel_process import KernelEndedError, KernelProcess
from targets.c.jailed.output_agreement import have_equal_outputs
from targets.c.jailed.paired_times import is_decided
from targets.c.jailed.process_counters import ProcessCounters, request_counters
from targets.c.jailed.shared_memory import ALIGNMENT, SharedArray

_COPY_BYTES = 1 << 24
_CHECK_SHARE = 16
"""One in so many timed calls runs on a set whose outputs are compared at home, while there are such sets."""
_COUNTED_CALLS = 5
_IDLE_NS = 1_000_000
"""CPU time after a call above which a kernel's threads are still at work."""

Files = Sequence[int]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in its process, and its arrays."""

    process: KernelProcess | ForeignProcess
    inputs: Sequence[SharedArray]
    outputs: Sequence[SharedArray]


class KernelFaultError(Exception):
    """The kernel failed, on this set, with this code."""

    def __init__(self, where: str, code: str, message: str) -> None:
        super().__init__(message)
        self.where, self.code = where, code


class KernelLoader:
    """Loads the kernels of a request, each in a process of its own."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._arrays: list[SharedArray] = []
        free = os.sched_getaffinity(0) - set(request["cores"])
        if free:
            os.sched_setaffinity(0, free)  # the clock does not run on the kernel's cores

    def load(self, number: int) -> LoadedKernel:
        """Return kernel number `number`, loaded."""
        request = self._request
        inputs = [SharedArray(size, is_input=True) for size in request["inputs"]]
        outputs = [SharedArray(size, is_input=False) for size in request["outputs"]]
        process = self._start(number, [*inputs, *outputs])
        self._arrays += [*inputs, *outputs]
        return LoadedKernel(process, inputs, outputs)

    def _start(self, number: int, arrays: Sequence[SharedArray]) -> KernelProcess | ForeignProcess:
        request = self._request
        library, cores = Path(request["libraries"][number]), frozenset(request["cores"])
        if (runner := request["runner"]) is not None:
            return ForeignProcess(
                runner["command"],
                library,
                arrays,
                cores=cores,
                counter=runner["counter"],
                foreign=self._arrays,
            )
        return KernelProcess(
            library,
            arrays,
            [(place, value) for place, value in request["scalars"]],
            cores=cores,
            threads=request["threads"][number],
            foreign=self._arrays,
        )

    def call(self, kernel: LoadedKernel, where: str) -> int:
        """Run a kernel on what its inputs hold; return the time in ns.

        Raises:
            KernelFaultError: it crashed, hung, wrote beside its outputs, or works after its return.
        """
        for one in kernel.outputs:
            one.poison()
        try:
            times = kernel.process.call(self._request["deadline_s"])
        except KernelEndedError as error:
            raise KernelFaultError(where, error.code, str(error)) from error
        if not all(one.is_intact() for one in kernel.outputs):
            raise KernelFaultError(where, "wrote_outside", "the kernel wrote beside its outputs")
        if times.after_ns > _IDLE_NS:
            text = "the kernel's threads go on working after it has returned"
            raise KernelFaultError(where, "works_after_return", text)
        return times.ns


def compare_outputs(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the kernel on every set and write down its outputs, at last on the first set again."""
    loader, task = KernelLoader(request), request["compare"]
    kernel = loader.load(0)
    first = next(iter(task["sets"].items()))
    runs = [*task["sets"].items(), (first[0], {**first[1], "outputs": task["again"]})]
    for name, files in runs:
        for one, fd in zip(kernel.inputs, files["inputs"], strict=True):
            _read_into(one, fd)
        loader.call(kernel, name)
        _write_outputs(kernel.outputs, files["outputs"])
    kernel.process.close()
    return {"sets": list(task["sets"])}


class Timing:
    """One measurement: kernels that run in turns on inputs that nobody has seen before."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._task = request["time"]
        self._loader = KernelLoader(request)
        self._chance = random.Random(self._task["seed"])  # noqa: S311  the seed is secret, the numbers are few
        self._kernels = [self._loader.load(number) for number in range(len(request["libraries"]))]
        self._pool = [
            [_read_file(fd, size) for fd, size in zip(files, request["inputs"], strict=True)]
            for files in self._task["pool"]
        ]
        self._checks = list(self._task["checks"])
        server, pid = request["counters"], self._kernels[0].process.pid
        self._counters = ProcessCounters({}) if server is None else request_counters(server, pid)
        self.samples: list[list[int]] = [[] for _ in self._kernels]
        self.checked: list[int] = []

    def run(self) -> None:
        """Take rounds until more of them would not change what they say, or as many as there may be."""
        task, began = self._task, time.monotonic()
        for _ in range(task["warmups"]):
            self._time_all()
        for number in range(task["rounds"]):
            for _ in range(task["pairs"]):
                self._take_sample(self._time_all())
            late = number > 0 and time.monotonic() - began > task["seconds"]
            if late or is_decided(self.samples):
                break
        while self._checks:
            self._take_sample(self._time_all(self._next_check()))
        # Counting delays the kernel's process, so calls that are counted are not timed.
        for _ in range(_COUNTED_CALLS if self._counters.are_open else 0):
            self._time_all(counted=True)

    def count_events(self) -> dict[str, float]:
        """Return what the counters of the kernel say of one call."""
        return self._counters.medians()

    def _take_sample(self, found: Sequence[tuple[int, int]]) -> None:
        for place, ns in found:
            self.samples[place].append(ns)

    def _next_check(self) -> Mapping[str, Any]:
        check: Mapping[str, Any] = self._checks.pop()
        self.checked.append(check["pool"])
        return check

    def _time_all(
        self, check: Mapping[str, Any] | None = None, *, counted: bool = False
    ) -> list[tuple[int, int]]:
        """Run every kernel once on the same inputs, in random order; return (number, ns).

        Raises:
            KernelFaultError: the first kernel failed, or its outputs are not those of the other one.
        """
        order = list(range(len(self._kernels)))
        self._chance.shuffle(order)
        if check is None and len(self._checks) > 1 and self._chance.randrange(_CHECK_SHARE) == 0:
            check = self._next_check()
        data = self._pool[self._chance.randrange(len(self._pool)) if check is None else check["pool"]]
        shifts = [0 if check else self._draw_shift(len(part)) for part in data]
        found = []
        for place in order:
            kernel = self._kernels[place]
            for one, part, shift in zip(kernel.inputs, data, shifts, strict=True):
                one.data[: one.nbytes - shift] = memoryview(part)[shift:]
                one.data[one.nbytes - shift :] = memoryview(part)[:shift]
            with self._counters.count_call() if counted and place == 0 else nullcontext():
                found.append((place, self._loader.call(kernel, "timing")))
            if check is not None and place == 0:
                _write_outputs(kernel.outputs, check["outputs"])
        self._require_agreement()
        return found

    def _require_agreement(self) -> None:
        """Compare what the kernels computed: no input is seen twice, so nobody knows the answer
        beforehand."""
        if len(self._kernels) == 1:
            return
        mine, other = (kernel.outputs for kernel in self._kernels)
        tolerance, dtypes = self._task["tolerance"], self._task["dtypes"]
        if not have_equal_outputs(mine, other, dtypes, tolerance=tolerance, chance=self._chance):
            text = "outputs of a timed call are not those of the kernel that it was made from"
            raise KernelFaultError("timing", "wrong_while_timed", text)

    def _draw_shift(self, nbytes: int) -> int:
        """A number of bytes to rotate an input by: its elements stay as they are drawn, in another order."""
        return self._chance.randrange(max(1, nbytes // ALIGNMENT)) * ALIGNMENT


def _read_file(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.pread(fd, min(_COPY_BYTES, size - len(data)), len(data))
        if not part:
            raise EOFError("an input's file is too short")
        data += part
    return bytes(data)


def _read_into(array: SharedArray, fd: int) -> None:
    array.data[:] = _read_file(fd, array.nbytes)


def _write_outputs(arrays: Sequence[SharedArray], files: Files) -> None:
    for one, fd in zip(arrays, files, strict=True):
        for start in range(0, one.nbytes, _COPY_BYTES):
            os.pwrite(fd, one.data[start : start + _COPY_BYTES], start)


def main() -> int:
    """Serve one request."""
    request = json.loads(sys.stdin.buffer.read())
    with os.fdopen(int(sys.argv[-1]), "w", closefd=False) as answer:
        try:
            if "compare" in request:
                told = compare_outputs(request)
            else:
                timing = Timing(request)
                timing.run()
                told = {
                    "samples": timing.samples,
                    "checked": timing.checked,
                    "counters": timing.count_events(),
                }
        except KernelFaultError as fault:
            told = {"error": {"set": fault.where, "code": fault.code, "message": str(fault)}}
        answer.write(json.dumps(told))
    os._exit(0)  # a kernel's process that does not end is killed with the jail
