"""The vendor's device: the SDK's compiler in a jail, the runtime on one NeuronCore, and the profiler.

No two SDK releases are alike, so the installed one is probed: the compiler's entry point and its versions of
the kernel language, the runtime (`spike`), the profiler (neuron-explorer, or the older neuron-profile). The
artefact is a NEFF; running it imports nothing from the kernel.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from remote.hostside.devices import KernelFaultError, LoadedKernel
from remote.hostside.devices.jail import describe_result, run_in_jail
from remote.hostside.devices.scratch import WatchedScratch
from remote.hostside.task import StepTask
from targets.nki.hostside import neuron_compiler

CORE_VARIABLE = "NEURON_RT_VISIBLE_CORES"
PACKAGES = ("neuronx-cc", "nki", "nkipy", "spike", "libneuronxla", "torch-neuronx", "jax-neuronx")
TOOLS = ("/opt/aws/neuron/bin",)
PROFILERS = ("neuron-explorer", "neuron-profile")
_RUNTIME = "spike"
_TOOL_S = 900
_DEVICES = Path("/sys/devices/virtual/neuron_device")  # one folder per device of the Neuron driver
_SYSFS = "/sys/devices/virtual/neuron_device/neuron*/info/architecture/"
_LOGICAL = "NEURON_LOGICAL_NC_CONFIG"
_PAIRED = ("NCv3", "NCv4")  # here two physical cores make a logical one by default
_FAMILIES = {
    "trn1": "trn1",
    "trn1n": "trn1",
    "inf2": "trn1",
    "trn2": "trn2",
    "trn2u": "trn2",
    "trn3": "trn3",
}


def probe_device() -> dict[str, Any]:
    """Return the facts about a Neuron device and its SDK, and in words what is `lacking`."""
    listed = _list_devices()
    instance = _find_instance_type(listed)
    routes, why = _find_compile_routes()
    lacking = [] if listed["cores"] else ["no NeuronCore: neuron-ls lists none"]
    lacking += why
    if importlib.util.find_spec(_RUNTIME) is None:
        lacking.append("no runtime: the package spike of the SDK's nkipy is not installed")
    return {
        "lacking": lacking,
        "instance_type": instance,
        "architecture": _FAMILIES.get(instance.split(".")[0], ""),
        "cores": listed["cores"],
        "routes": routes,
        "profiler": _profiler_version(),
    }


def list_cores(devices: Path = _DEVICES) -> list[int]:
    """Return the numbers of the logical NeuronCores; empty without a device.

    The driver lists physical cores; how many make a logical one is a setting of the runtime.
    """
    count = 0
    for device in sorted(devices.glob("neuron[0-9]*")):
        physical = sum(1 for _ in device.glob("neuron_core[0-9]*"))
        count += physical // _physical_per_logical(device)
    return list(range(count))


def _physical_per_logical(device: Path) -> int:
    chosen = os.environ.get(_LOGICAL, "")
    if chosen in {"1", "2"}:
        return int(chosen)
    with contextlib.suppress(OSError):
        kind = (device / "info" / "architecture" / "arch_type").read_text(encoding="ascii")
        return 2 if kind.startswith(_PAIRED) else 1
    return 1


def compile_kernel(task: StepTask, libraries: Mapping[str, Path], to: Path) -> dict[str, Any]:
    """Compile the kernel in a jail that may write to one folder of its own."""
    from remote.jail_backends import JailedProgram, JailLimits

    scratch = task.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    program = JailedProgram(
        "targets.nki.hostside.neuron_compiler",
        packages=(libraries["targets.nki.hostside.zip"] / "targets",),
        site_packages=True,
        programs=True,
        scratch=scratch,
        variables=(("PATH", os.pathsep.join(_tool_folders())), ("NEURON_CC_FLAGS", "")),
        limits=JailLimits(**task.payload["limits"]),
    )
    request = {**task.payload["request"], "folder": str(scratch)}
    watched = WatchedScratch(scratch)
    try:
        with watched.watch_folder():
            result = run_in_jail(program, json.dumps(request).encode(), task.payload.get("strength"))
        ended = {
            **describe_result(result),
            "told": _parse_compiler_answer(result.answer),
            "scratch": watched.ended,
        }
        neff = scratch / "file.neff"
        # Leave behind what else the kernel's Python wrote there; a link would lead out of the folder.
        made = not watched.ended and "neff" in ended["told"] and neff.is_file() and not neff.is_symlink()
        if made:
            shutil.copyfile(neff, to)
        else:
            to.write_bytes(b"")
    finally:
        watched.remove_folder()
    return ended


def open_device(task: StepTask, artefact: Path) -> LoadedKernel:
    """Load a NEFF on the core of the job's lease, the only core that the runtime sees."""
    ended = json.loads(artefact.with_name("ended.json").read_text(encoding="utf-8"))
    return _LoadedNeff(artefact, ended["told"]["inputs"], task.folder)


class _LoadedNeff(LoadedKernel):
    """A NEFF on a NeuronCore."""

    def __init__(self, neff: Path, names: Sequence[str], folder: Path) -> None:
        spike = importlib.import_module(_RUNTIME)
        # The runtime wants the suffix, and writes files next to it.
        own = folder / ("%s.neff" % neff.parent.name)
        shutil.copyfile(neff, own)
        self._tensor = spike.SpikeTensor
        with _blame_kernel("device_load", "the runtime does not load what was compiled: "):
            self._model = spike.SpikeModel.load_from_neff(str(own))
        self._names = list(names)
        self._inputs: dict[str, Any] = {}

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        import numpy as np

        known = list(getattr(self._model, "input_tensors_info", {}) or self._names)
        names = self._names if set(self._names) == set(known) else known
        self._inputs = {
            name: self._tensor.from_numpy(np.ascontiguousarray(array), name)
            for name, array in zip(names, inputs)
        }
        with _blame_kernel("device_error"):
            outputs = self._model(inputs=self._inputs)
        return [tensor.numpy() for tensor in outputs.values()]

    def time_runs(self, warmups: int, runs: int) -> list[float]:
        with _blame_kernel("device_error"):
            if not runs:
                for _ in range(warmups):
                    self._model(inputs=self._inputs)
                return []
            result = self._model.benchmark(inputs=self._inputs, warmup_iter=warmups, benchmark_iter=runs)
        found = getattr(result, "durations_ms", None)
        if not found:  # older releases do not keep device-side durations
            found = [result.mean_ms] if runs == 1 else []
        return [float(value) for value in found]


@contextlib.contextmanager
def _blame_kernel(code: str, said: str = "") -> Iterator[None]:
    """Turn what the runtime raises into the kernel's failure; home then checks whether another kernel runs.

    Raises:
        KernelFaultError: the runtime raised something.
    """
    try:
        yield
    except Exception as error:
        message = "%s%s: %s" % (said, type(error).__name__, str(error)[-4000:])
        told = {"type": "RuntimeError", "code": code, "message": message, "line": 0, "hint": ""}
        raise KernelFaultError(told) from error


def profile_kernel(task: StepTask, artefact: Path) -> tuple[str, str]:
    """Return the profiler's name and its summary as printed.

    Raises:
        OSError: there is no profiler, or it failed.
    """
    tool = _find_tool(*PROFILERS)
    if tool is None:
        raise FileNotFoundError("no profiler: neither neuron-explorer nor neuron-profile is installed")
    neff, trace = task.folder / "profiled.neff", task.folder / "profile.ntff"
    shutil.copyfile(artefact, neff)
    # Profile the second execution: the first one loads libraries.
    _run_tool([tool, "capture", "-n", str(neff), "-s", str(trace), "--profile-nth-exec=2"], cwd=task.folder)
    traces = sorted(task.folder.glob("profile*.ntff"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise FileNotFoundError("%s captured nothing" % tool)
    view = [tool, "view", "-n", str(neff), "-s", str(traces[-1]), "--output-format", "summary-json"]
    return Path(tool).name, _run_tool(view, cwd=task.folder)


def _parse_compiler_answer(answer: bytes) -> dict[str, Any]:
    """Parse the jailed compiler's answer; do not trust it, the kernel's Python may have written it."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(answer)
        if (
            isinstance(found, dict)
            and isinstance(found.get("neff"), str)
            and _is_name_list(found.get("inputs"))
        ):
            return {"neff": "file.neff", "inputs": found["inputs"]}
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            error = found["error"]
            line = error.get("line")
            return {
                "error": {
                    "code": str(error.get("code"))[:64],
                    "message": str(error.get("message"))[-4000:],
                    "line": line if isinstance(line, int) and 0 <= line < 1 << 31 else 0,
                }
            }
    return {}


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name.isidentifier() for name in value)


def _find_compile_routes() -> tuple[list[str], list[str]]:
    """The routes by which kernels can be compiled here, and what is lacking where there is none."""
    name = neuron_compiler.STANDALONE
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        return [], ["no compiler: %s cannot be imported (%s)" % (name, type(error).__name__)]
    if not hasattr(module, neuron_compiler.COMPILE):
        wanted = neuron_compiler.COMPILE
        return [], ["%s has no %s: this release's compiler is not known" % (name, wanted)]
    known = sorted(neuron_compiler.language_versions(module)) or ["unversioned"]
    return ["standalone " + version for version in known], []


def _list_devices() -> dict[str, Any]:
    """What neuron-ls prints: a list of devices or, in later releases, an object that has one."""
    tool = _find_tool("neuron-ls")
    found: Any = None
    if tool is not None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(_run_tool([tool, "--json-output"], cwd=Path("/")))
    fields = found if isinstance(found, dict) else {}
    devices = fields.get("neuron_devices") or fields.get("mlas") if fields else found
    counts = [
        item.get("nc_count", 0)
        for item in (devices if isinstance(devices, list) else [])
        if isinstance(item, dict)
    ]
    cores = sum(count for count in counts if isinstance(count, int))
    return {"cores": cores, "instance_type": str(fields.get("instance_type") or "")}


def _find_instance_type(listed: Mapping[str, Any]) -> str:
    for path in (*sorted(glob.glob(_SYSFS + "instance_type")), "/sys/devices/virtual/dmi/id/product_name"):  # noqa: PTH207
        if listed["instance_type"]:
            break
        with contextlib.suppress(OSError):
            text = Path(path).read_text(encoding="ascii", errors="replace").strip()
            if "." in text or "/dmi/" not in path:
                return text[:64].lower()
    return str(listed["instance_type"])[:64].lower()


def _profiler_version() -> str:
    tool = _find_tool(*PROFILERS)
    if tool is None:
        return ""
    with contextlib.suppress(OSError):
        first = (_run_tool([tool, "--version"], cwd=Path("/")).strip().splitlines() or [""])[0]
        return "%s %s" % (Path(tool).name, first[:150])
    return Path(tool).name


def _find_tool(*names: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *TOOLS])
    return next((found for found in (shutil.which(name, path=path) for name in names) if found), None)


def _tool_folders() -> list[str]:
    return [str(Path(sys.executable).parent), *TOOLS, "/usr/local/bin", "/usr/bin", "/bin"]


def _run_tool(command: Sequence[str], cwd: Path) -> str:
    """Run a vendor's tool and return its output.

    Raises:
        OSError: it failed; the message has the end of its output.
    """
    try:
        done = subprocess.run(
            list(command),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError("%s did not end within %d s" % (Path(command[0]).name, _TOOL_S)) from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
        raise OSError("%s ended with status %d: %s" % (Path(command[0]).name, done.returncode, said))
    return done.stdout.decode(errors="replace")
