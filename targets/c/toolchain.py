"""What compiles C for a device, and what runs it where the device is not this machine's CPU.

`CDevice` is all that the evaluator knows of a device: the same evaluator serves this machine's CPU and
devices that a runner, such as an emulator, stands in for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from targets.c.machine import CpuRates, load_rates, read_cpu_facts


@dataclass(frozen=True, slots=True)
class CToolchain:
    """Compilers as pairs of a C and a C++ one, best first, and what they are told.

    `flags` are always given. `replaced` says what stands for a flag that kernels ask for; nothing for "".
    `runner` starts a program of the device on this machine. `packages` are what to install.
    """

    compilers: tuple[tuple[str, str], ...]
    packages: str
    flags: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    runner: tuple[str, ...] = ()

    def translate_flags(self, flags: Iterable[str]) -> list[str]:
        """Return what the compiler is told when a kernel asks for these flags."""
        replaced = dict(self.replaced)
        wanted = (replaced.get(flag, flag) for flag in flags)
        return [*self.flags, *(part for flag in wanted for part in flag.split())]


HOST_TOOLCHAIN = CToolchain((("gcc", "g++"), ("clang", "clang++"), ("cc", "c++")), "gcc")


def _describe_host() -> str:
    facts = read_cpu_facts()
    return f"{facts.model}, {facts.cores} cores"


@dataclass(frozen=True, slots=True)
class CDevice:
    """What runs compiled kernels.

    `instruction_ns` is set if kernels are not timed: their instructions are counted, and each is predicted to
    take so long. `describe` is for people, and part of the toolchain that runs record.
    """

    toolchain: CToolchain = HOST_TOOLCHAIN
    instruction_ns: float | None = None
    rates: Callable[[], CpuRates] = load_rates
    describe: Callable[[], str] = _describe_host


HOST = CDevice()
"""This machine's CPU."""
