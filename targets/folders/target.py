"""A folder as a target: its facts, its language, its menu, and the parts that serve it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from targets.base import (
    Language,
    Parts,
    PeakRates,
    PredictionError,
    ProfileShare,
    ProfileVocabulary,
    ProposerEntry,
    PublishedGain,
    Technique,
)
from targets.c.language import C
from targets.c.machine import CpuRates
from targets.c.toolchain import CDevice, CToolchain
from targets.folders.description import (
    MAX_FILES,
    TARGET_FILE,
    CPipeline,
    TargetFolder,
    TargetFolderError,
    list_files,
    read_folder,
)
from targets.folders.language import PatternLanguage

if TYPE_CHECKING:
    from seeds.spec import ProblemWork

SHIPPED = Path(__file__).parent
EVALUATOR = "folder"

_PARTS = Parts(
    proposers={"parameters": ProposerEntry("targets.parameters")},
    evaluators={EVALUATOR: "targets.folders.evaluators:create_evaluator"},
    prompt_pack="targets.folders.prompt_pack:render_pack",
    judge="targets.c.judge:OutputJudge",
    measures_in_turns=True,
)
_COUNTERS = ("time_ns", "bandwidth_gb_s", "bandwidth_percent", "gflops", "gflops_percent")
_SHARES = (
    ProfileShare("memory", "Memory bandwidth", "bandwidth_percent", is_time=False),
    ProfileShare("compute", "Arithmetic", "gflops_percent", is_time=False),
)
_NOTES = {
    "bandwidth_percent": "the least bytes over the time, of the rate that the target's folder states",
    "gflops_percent": "the least operations over the time, of the rates that the target's folder states",
}
_CHANGE_PARAMETER = Technique(
    "parameter",
    "Settings",
    "Set a constant or a flag to another value that the kernel's comments list.",
    frozenset(),
)


@dataclass(frozen=True)
class FolderTarget:
    """One core of the device that a folder describes."""

    name: str
    folder: TargetFolder
    parts: Parts = _PARTS
    published: PublishedGain | None = None
    prediction_error: PredictionError | None = None
    caveat: str = ""

    @property
    def family(self) -> str:
        """The name of its prompts: each folder is a family of its own."""
        return f"target-{self.folder.description.name}"

    @property
    def title(self) -> str:
        """The device's name for people."""
        return self.folder.description.title

    @property
    def roofline_name(self) -> str:
        """The name of the roofline for people."""
        return f"roofline of {self.folder.description.name}"

    @property
    def language(self) -> Language:
        """C, or the language that the folder describes."""
        told = self.folder.description.language
        return C if told is None else PatternLanguage(told)

    @property
    def rates(self) -> CpuRates:
        """The rates that the folder states."""
        told = self.folder.description.rates
        return CpuRates(told.bandwidth_gb_s, told.multiply_add_gflops, told.other_gflops, measured=False)

    @property
    def peaks(self) -> PeakRates:
        """The rates of one core that the folder states."""
        return self.rates.peaks

    @property
    def profile(self) -> ProfileVocabulary:
        """What the evaluation adds, and the counters that the folder names."""
        own = self.folder.description.counters
        return ProfileVocabulary(
            counters=tuple(dict.fromkeys((*_COUNTERS, *own))),
            shares=_SHARES,
            notes={**_NOTES, **{name: note for name, note in own.items() if note}},
            memory="main memory",
        )

    @property
    def identity(self) -> str:
        """Name, version and digest of the folder: part of the toolchain that runs record."""
        told = self.folder.description
        return f"{told.name} {told.version} ({self.folder.digest[:12]})"

    def describe_toolchain(self) -> str:
        """Return what compiles and runs its kernels on this machine, or what is missing."""
        from remote.errors import InfrastructureError
        from targets.folders.evaluators import describe_tools

        try:
            return f"{self.identity}: {describe_tools(self)}"
        except InfrastructureError as error:
            return f"{self.identity}: {error.message}"

    def tight_bound_ms(self, work: ProblemWork) -> float:
        """Return the time for the bytes or for all operations, whichever is longer."""
        from targets.c.profile import bounds_ns

        return max(bounds_ns(work, self.rates)) / 1e6

    def engine_peaks(self) -> Mapping[str, float]:
        """Return nothing: a core's units are not told apart."""
        return {}

    def rewrites(self) -> tuple[str, ...]:
        """Return the one change that the proposer without a model makes."""
        return (_CHANGE_PARAMETER.id,)

    def menu(self) -> dict[str, Technique]:
        """Return the folder's techniques, and that of the parameter proposer."""
        found = {_CHANGE_PARAMETER.id: _CHANGE_PARAMETER}
        for name, entry in self.folder.menu.items():
            found[name] = Technique(name, entry.title, entry.description, frozenset(entry.bottlenecks))
        return found

    @staticmethod
    def toolchain_of(pipeline: CPipeline) -> CToolchain:
        """Return the compilers of a pipeline, and what they are told."""
        cpp = (*pipeline.cpp_compilers, *[""] * len(pipeline.compilers))
        return CToolchain(
            tuple(zip(pipeline.compilers, cpp, strict=False)),
            pipeline.packages or pipeline.compilers[0],
            pipeline.flags,
            tuple(pipeline.replace.items()),
            pipeline.runner,
        )

    def device(self, pipeline: CPipeline) -> CDevice:
        """Return what compiles and runs its kernels in C."""
        rate = pipeline.instructions_per_second
        return CDevice(
            self.toolchain_of(pipeline),
            instruction_ns=None if rate is None else 1e9 / rate,
            rates=lambda: self.rates,
            describe=lambda: self.identity,
        )


def load_folder_target(name: str) -> FolderTarget:
    """Return the target of a folder: its absolute path, or the name of one that is shipped.

    Raises:
        TargetFolderError: it is no folder of a target.
    """
    path = Path(name) if "/" in name else SHIPPED / name
    if not path.is_absolute():
        raise TargetFolderError(path, ["a target's folder is given by its absolute path"])
    if not (path / TARGET_FILE).is_file():
        raise TargetFolderError(path, [f"there is no {TARGET_FILE}"])
    return _read_target(name, path, tuple(_stamp_files(path)))


def _stamp_files(path: Path) -> Iterator[tuple[str, int, int]]:
    for one in islice(list_files(path), MAX_FILES + 1):
        with suppress(OSError):  # an editor is saving it right now
            found = one.stat()
            yield str(one), found.st_mtime_ns, found.st_size


@lru_cache(maxsize=32)
def _read_target(name: str, path: Path, stamps: tuple[tuple[str, int, int], ...]) -> FolderTarget:
    """Read a folder anew when the stamps of its files have changed."""
    del stamps
    return FolderTarget(name, read_folder(path))
