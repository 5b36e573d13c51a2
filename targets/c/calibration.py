"""Measures what one core of this machine can do: memory bandwidth, multiply-adds, and other operations.

Each rate is the best of several runs of a loop that does nothing else: a bound must not be exceeded by a
kernel that had a quieter moment. Bandwidth is that of reading, or of reading two arrays and writing a third
one, whichever is faster; it is measured in each cache too, because small problems stay there. The loops are
this project's own code, so they run outside the jail.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from remote.errors import InfrastructureError
from remote.processes import kill_process, start_process
from targets.c.compiler import find_compiler
from targets.c.machine import CpuRates, describe_size, read_cpu_facts, save_rates

DEADLINE_S = 120.0

_SOURCE = """
#include <stddef.h>
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
enum { SUMS = 12 };

/* Reads two arrays and writes a third one, so many times. */
void triad(size_t turns, float *restrict a, const float *restrict b, const float *restrict c, size_t n)
{
    for (size_t t = 0; t < turns; t++) {
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 3.0f * c[i];
        __asm__ volatile("" ::: "memory");  /* no turn is left out */
    }
}

/* Reads one array, so many times. */
float add_up(size_t turns, const float *restrict a, size_t n)
{
    vec sums[8] = {{0}}, total = {0};
    float found = 0;
    for (size_t t = 0; t < turns; t++) {
        for (size_t i = 0; i + 8 * LANES <= n; i += 8 * LANES)
            for (int j = 0; j < 8; j++)
                sums[j] += *(const unaligned *)(a + i + j * LANES);
        __asm__ volatile("" ::: "memory");
    }
    for (int j = 0; j < 8; j++)
        total += sums[j];
    for (int i = 0; i < LANES; i++)
        found += total[i];
    return found;
}

/* Independent multiply-adds on full registers: SUMS * LANES * 2 operations a turn. */
float multiply_add(size_t turns, float x)
{
    vec sums[SUMS], factor = x + (vec){0}, total = {0};
    float found = 0;
    for (int i = 0; i < SUMS; i++)
        sums[i] = (vec){0} + (float)i;
    for (size_t t = 0; t < turns; t++)
        for (int i = 0; i < SUMS; i++)
            sums[i] = sums[i] * factor + factor;
    for (int i = 0; i < SUMS; i++)
        total += sums[i];
    for (int i = 0; i < LANES; i++)
        found += total[i];
    return found;
}

/* The same with additions: SUMS * LANES operations a turn. */
float add(size_t turns, float x)
{
    vec sums[SUMS], step = x + (vec){0}, total = {0};
    float found = 0;
    for (int i = 0; i < SUMS; i++)
        sums[i] = (vec){0} + (float)i;
    for (size_t t = 0; t < turns; t++)
        for (int i = 0; i < SUMS; i++)
            sums[i] = sums[i] + step;
    for (int i = 0; i < SUMS; i++)
        total += sums[i];
    for (int i = 0; i < LANES; i++)
        found += total[i];
    return found;
}
"""

_RUN = """
import ctypes, json, sys, time
library, lanes = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
for name in ("multiply_add", "add"):
    getattr(library, name).restype = ctypes.c_float
    getattr(library, name).argtypes = (ctypes.c_size_t, ctypes.c_float)
n = 1 << 24
arrays = [(ctypes.c_float * n)() for _ in range(3)]
for one in arrays:
    ctypes.memset(one, 1, 4 * n)
def best(work, call, times):
    found = 0.0
    for _ in range(times):
        began = time.process_time_ns()
        call()
        found = max(found, work / (time.process_time_ns() - began))
    return found
size_t = ctypes.c_size_t
def move(nbytes):
    third, whole = nbytes // 12, min(n, nbytes // 4)
    turns, again = max(1, n // third), max(1, n // whole)
    triad = lambda: library.triad(size_t(turns), *arrays, size_t(third))
    read = lambda: library.add_up(size_t(again), arrays[0], size_t(whole))
    return max(best(12 * third * turns, triad, 20), best(4 * whole * again, read, 20))
turns = 1 << 22
print(json.dumps({
    "bandwidth_gb_s": move(12 * n),
    "cached_gb_s": [(size, move(size // 2)) for size in json.loads(sys.argv[3])],
    "multiply_add_gflops": best(2 * 12 * lanes * turns, lambda: library.multiply_add(turns, 0.5), 40),
    "other_gflops": best(12 * lanes * turns, lambda: library.add(turns, 0.5), 40),
}))
"""


async def measure_rates() -> CpuRates:
    """Measure this machine's rates on one core; it takes about ten seconds.

    Raises:
        InfrastructureError: no_compiler, calibration_failed.
    """
    compiler, facts = find_compiler(), read_cpu_facts()
    with TemporaryDirectory(prefix="calibrate-") as folder:
        source, library = Path(folder, "loops.c"), Path(folder, "loops.so")
        await asyncio.to_thread(source.write_text, _SOURCE)
        flags = ("-O3", "-march=native", "-shared", "-fPIC", f"-DLANES={facts.float_lanes}")
        await _run_program(compiler.path, *flags, "-o", str(library), str(source))
        sizes = json.dumps(sorted({size for _, size in facts.cache_bytes}))
        told = await _run_program(sys.executable, "-c", _RUN, str(library), str(facts.float_lanes), sizes)
    found = json.loads(told)
    found["cached_gb_s"] = tuple((size, rate) for size, rate in found["cached_gb_s"])
    return CpuRates(**found)


async def calibrate_machine() -> dict[str, float | str]:
    """Measure the rates, keep them, and return them by name, with the file that holds them.

    Raises:
        InfrastructureError: no_compiler, calibration_failed.
    """
    rates = await measure_rates()
    path = await asyncio.to_thread(save_rates, rates)
    return {
        "memory, GB/s": rates.bandwidth_gb_s,
        **{f"arrays of {describe_size(size)}, GB/s": rate for size, rate in rates.cached_gb_s},
        "float32 multiply-adds, GFLOPS": rates.multiply_add_gflops,
        "other float32 operations, GFLOPS": rates.other_gflops,
        "kept in": str(path),
    }


async def _run_program(*command: str) -> bytes:
    process = await start_process(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise InfrastructureError(
            "calibration_failed", f"{command[0]} did not end in {DEADLINE_S:g} s"
        ) from None
    finally:
        await kill_process(process)
    if process.returncode:
        text = errors.decode(errors="replace").strip()[-500:]
        raise InfrastructureError("calibration_failed", f"{command[0]} failed: {text}", retryable=False)
    return output
